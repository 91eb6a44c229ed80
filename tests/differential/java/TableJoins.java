import java.time.Duration;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/** As in test_table_joins.py. */
final class TableJoins {
    private static final ValueJoiner<String, String, String> BOTH = (left, right) -> left + "+" + right;

    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> uncached(final String name) {
        return Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as(name).withCachingDisabled();
    }

    static void innerTables(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in");
        final KTable<String, String> right = builder.table("other");
        left.join(right, BOTH).toStream().to("out");
        left.join(right, BOTH, Named.as("named"), Materialized.as("kept")).toStream().to("kept");
        left.join(right, BOTH, uncached("uncached")).toStream().to("uncached");
    }

    static void leftTables(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in");
        final KTable<String, String> right = builder.table("other");
        left.leftJoin(right, BOTH).toStream().to("out");
        left.leftJoin(right, BOTH, Materialized.as("kept")).toStream().to("kept");
        left.leftJoin(right, BOTH, uncached("uncached")).toStream().to("uncached");
    }

    static void outerTables(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in");
        final KTable<String, String> right = builder.table("other");
        left.outerJoin(right, BOTH).toStream().to("out");
        left.outerJoin(right, BOTH, Materialized.as("kept")).toStream().to("kept");
        left.outerJoin(right, BOTH, uncached("uncached")).toStream().to("uncached");
    }

    static void chainedTables(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in");
        final KTable<String, String> right = builder.table("other");
        final KTable<String, String> joined = left.filter((key, value) -> !value.startsWith("1")).outerJoin(right.mapValues(value -> value + "!"), BOTH);
        joined.filter((key, value) -> !value.startsWith("2")).toStream().to("filtered");
        joined.leftJoin(builder.table("third"), BOTH).toStream().to("three");
        builder.<String, String>stream("stream").join(joined, (l, r) -> l + r).to("streamed");
        left.join(left.mapValues(value -> value + "'"), BOTH).toStream().to("self");
    }

    static void versionedTables(final StreamsBuilder builder) {
        final KTable<String, String> left = builder.table("in", Materialized.as(Stores.persistentVersionedKeyValueStore("left", Duration.ofMillis(40))));
        final KTable<String, String> right = builder.table("other", Materialized.as(Stores.persistentVersionedKeyValueStore("right", Duration.ofMillis(40))));
        left.toStream().to("left");
        left.filter((key, value) -> !value.startsWith("1")).toStream().to("filtered");
        left.join(right, BOTH).toStream().to("inner");
        left.leftJoin(right.mapValues(value -> value + "!"), BOTH).toStream().to("left-joined");
        left.outerJoin(right, BOTH, Materialized.as(Stores.persistentVersionedKeyValueStore("joined", Duration.ofMillis(40)))).toStream().to("outer");
        left.filter((key, value) -> !value.startsWith("1"), Materialized.as("plain")).toStream().to("plain");
        builder.<String, String>stream("stream").leftJoin(left.mapValues(value -> value + "?"), (l, r) -> l + r).to("streamed");
    }
}
