import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.ValueJoiner;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.processor.ProcessorContext;
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

    static void graceJoin(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("rows", Materialized.as(Stores.persistentVersionedKeyValueStore("rows", Duration.ofMillis(100))));
        final KStream<String, String> stream = builder.stream("in");
        stream.join(table, (l, r) -> l + "+" + r, Joined.<String, String, String>as("inner").withGracePeriod(Duration.ofMillis(6))).to("inner");
        stream.filter((key, value) -> key != null).leftJoin(table.mapValues(value -> value + "!"), (key, l, r) -> key + l + "+" + r,
            Joined.<String, String, String>with(null, null, null).withGracePeriod(Duration.ZERO)).to("left");
    }

    /** Counts the changes of each key. */
    private static final class Numbered implements ValueTransformerWithKey<String, String, String> {
        private KeyValueStore<String, String> seen;

        public void init(final ProcessorContext context) {
            seen = context.getStateStore("seen");
        }

        public String transform(final String key, final String value) {
            final String before = seen.get(key);
            seen.put(key, (before == null ? "" : before) + "i");
            return value == null || value.startsWith("1") ? null : value + seen.get(key);
        }

        public void close() {
        }
    }

    private static final class Stateless implements ValueTransformerWithKey<String, String, String> {
        public void init(final ProcessorContext context) {
        }

        public String transform(final String key, final String value) {
            return value == null || value.startsWith("1") ? null : key + value;
        }

        public void close() {
        }
    }

    static void transformedTable(final StreamsBuilder builder) {
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("seen"), Serdes.String(), Serdes.String()));
        final KTable<String, String> table = builder.table("in");
        table.transformValues(Numbered::new, "seen").toStream().to("numbered");
        table.transformValues(Stateless::new, uncached("kept")).filter((key, value) -> !value.contains("2")).toStream().to("kept");
        final KTable<String, String> plain = table.transformValues(Stateless::new, Named.as("plain"));
        plain.groupBy((key, value) -> KeyValue.pair(value, value)).count().toStream().to("counts", Produced.with(null, Serdes.Long()));
        builder.<String, String>stream("stream").leftJoin(plain, (l, r) -> l + r).to("joined");
    }

    static void filtersInOrder(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("in");
        final KTable<String, String> before = table.filter((key, value) -> !value.startsWith("1"));
        before.toStream().to("before");
        table.groupBy((key, value) -> KeyValue.pair(value, value)).count();
        table.filter((key, value) -> !value.startsWith("1")).toStream().to("after");
        final KTable<String, String> wanted = table.filter((key, value) -> !value.startsWith("1"), uncached("wanted"));
        wanted.toStream().to("wanted");
        builder.<String, String>table("other").filter((key, value) -> !value.startsWith("1"), uncached("unwanted")).toStream().to("unwanted");
    }

    static void versionedAggregates(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("in", Materialized.as(Stores.persistentVersionedKeyValueStore("rows", Duration.ofMillis(40))));
        table.groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value)).count().toStream().to("counts", Produced.with(null, Serdes.Long()));
        builder.<String, String>stream("stream").groupByKey()
            .reduce((x, y) -> x + y, Materialized.as(Stores.persistentVersionedKeyValueStore("reduced", Duration.ofMillis(15)))).toStream().to("reduced");
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
