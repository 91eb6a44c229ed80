import java.time.Duration;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;

/** As in test_optimizations.py. */
final class Optimizations {
    private static final JoinWindows WINDOWS = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(5), Duration.ofMillis(3));
    private static final JoinWindows ASYMMETRIC =
        JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMillis(2)).before(Duration.ofMillis(8)).after(Duration.ofMillis(1));

    static void mergedRepartitions(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("other");
        final KStream<String, String> changed = builder.<String, String>stream("in").map((key, value) -> KeyValue.pair(value, key + value));
        changed.filter((key, value) -> !"2".equals(key)).leftJoin(table, (l, r) -> l + "+" + r).to("joined");
        changed.groupByKey().reduce((all, one) -> all + one).toStream().to("reduced");
    }

    static void selfJoins(final StreamsBuilder builder) {
        final KStream<String, String> stream = builder.stream("in");
        stream.join(stream, (l, r) -> l + "+" + r, WINDOWS).to("out");
        stream.join(stream, (key, l, r) -> key + l + "+" + r, ASYMMETRIC).to("asymmetric");
    }

    static void tablesOfTopics(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("other");
        builder.<String, String>stream("in").join(table, (l, r) -> l + "+" + r).to("out");
        table.mapValues(value -> value + "!").toStream().to("changes");
    }
}
