import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** As in test_foreign_joins.py. */
final class ForeignJoins {
    private static final ValueJoiner<String, String, String> BOTH = (left, right) -> left + "+" + right;
    private static final String KEYS = "abc";

    /** 1, 2, 3: a, b, c; others: none. */
    private static String foreignKey(final String value) {
        final int place = value.charAt(0) - '1';
        return place < KEYS.length() ? KEYS.substring(place, place + 1) : null;
    }

    static void innerForeign(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in");
        final KTable<String, String> right = builder.table("other");
        left.join(right, ForeignJoins::foreignKey, BOTH).toStream().to("out");
    }

    static void leftForeign(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in");
        final KTable<String, String> right = builder.table("other");
        left.leftJoin(right, ForeignJoins::foreignKey, BOTH, TableJoined.as("named"), Materialized.as("kept")).toStream().to("out");
    }

    static void derivedForeign(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in");
        final KTable<String, String> right = builder.table("other");
        left.filter((key, value) -> !value.startsWith("2"))
            .join(right.filter((key, value) -> !value.startsWith("1")), (key, value) -> foreignKey(value), BOTH,
                Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("uncached").withCachingDisabled())
            .filter((key, value) -> !value.contains("3")).toStream().to("out");
        left.mapValues(value -> value + "1").leftJoin(right.mapValues(value -> value + "!"), (key, value) -> key, BOTH).toStream().to("mapped");
    }

    static void selfForeign(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("in");
        table.join(table, ForeignJoins::foreignKey, BOTH).toStream().to("inner");
        table.leftJoin(table, ForeignJoins::foreignKey, BOTH).toStream().to("left");
    }

    static void versionedForeign(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in", Materialized.as(Stores.persistentVersionedKeyValueStore("left", java.time.Duration.ofMillis(40))));
        final KTable<String, String> right = builder.table("other", Materialized.as(Stores.persistentVersionedKeyValueStore("right", java.time.Duration.ofMillis(40))));
        left.join(right, ForeignJoins::foreignKey, BOTH).toStream().to("inner");
        left.leftJoin(right, ForeignJoins::foreignKey, BOTH).toStream().to("left");
    }
}
