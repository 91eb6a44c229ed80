import java.util.ArrayList;
import java.util.List;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KStream;

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
}
