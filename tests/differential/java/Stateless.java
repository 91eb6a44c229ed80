import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.regex.Pattern;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;

/** As in test_stateless.py. */
final class Stateless {
    static void values(final StreamsBuilder builder) {
        builder.<String, String>stream("in")
            .filter((key, value) -> value != null)
            .mapValues(value -> value + "!")
            .flatMapValues((key, value) -> List.of(key + value, value))
            .filterNot((key, value) -> value.startsWith("b"))
            .to("out");
    }

    static void keys(final StreamsBuilder builder) {
        builder.<String, String>stream("in")
            .map((key, value) -> KeyValue.pair(value, key))
            .selectKey((key, value) -> key == null ? "none" : key + value)
            .flatMap((key, value) -> {
                final List<KeyValue<String, String>> pairs = new ArrayList<>();
                pairs.add(KeyValue.pair(key, value));
                if (value != null) {
                    pairs.add(KeyValue.pair(value, null));
                }
                return pairs;
            })
            .to("out");
    }

    static void mergedAndSentThrough(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.selectKey((key, value) -> value).merge(right).repartition().to("out");
    }

    static void branches(final StreamsBuilder builder) {
        final Map<String, KStream<String, String>> found = builder.<String, String>stream("in").split(Named.as("by-"))
            .branch((key, value) -> key == null, Branched.withConsumer(stream -> stream.to("keyless")))
            .branch((key, value) -> "1".equals(value), Branched.withFunction(stream -> stream.mapValues(value -> value + value), "ones"))
            .branch((key, value) -> "2".equals(value))
            .branch((key, value) -> key.equals("a"), Branched.as("a"))
            .defaultBranch();
        found.get("by-ones").merge(found.get("by-3")).to("first");
        found.get("by-a").to("a");
        found.get("by-0").to("rest");
    }

    static void chosenTopics(final StreamsBuilder builder) {
        final KStream<String, String> stream = builder.stream("in");
        stream.to((key, value, context) -> "to-" + value);
        stream.to((key, value, context) -> context.topic() + context.partition() + "-" + context.timestamp() % 3 + "-" + context.headers().toArray().length);
    }

    static void chosenPartitions(final StreamsBuilder builder) {
        builder.<String, String>stream("in").to("out", Produced.streamPartitioner((topic, key, value, partitions) ->
            "1".equals(value) ? Optional.of(Set.of()) : "2".equals(value) ? Optional.empty() : Optional.of(Set.of(0))));
    }

    static void asTables(final StreamsBuilder builder) {
        final KStream<String, String> stream = builder.stream("in");
        stream.toTable(Materialized.as("rows")).filter((key, value) -> !value.equals("2")).toStream().to("rows-out");
        stream.toTable().mapValues(value -> value + "!").toStream().to("plain");
        stream.selectKey((key, value) -> value).toTable(Named.as("changed")).toStream().to("changed-out");
        stream.toTable(Named.as("grouped")).groupBy((key, value) -> KeyValue.pair(value, key)).count().toStream().mapValues(count -> "" + count).to("counts");
    }

    static void matching(final StreamsBuilder builder) {
        builder.<String, String>stream(Pattern.compile("in.*")).mapValues(value -> value + "!").to("out");
    }
}
