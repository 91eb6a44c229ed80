import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.state.KeyValueStore;

/** As in test_tables.py. */
final class Tables {
    static void rows(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("in");
        table.filter((key, value) -> !value.startsWith("1")).toStream().to("filtered");
        table.mapValues(value -> value.startsWith("2") ? null : value + "!").toStream().to("mapped");
        table.filterNot((key, value) -> value.startsWith("3")).mapValues((key, value) -> key + value).toStream((key, value) -> key + "?").to("both");
    }

    static void keptRows(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("in", Materialized.as("rows"));
        table.filter((key, value) -> !value.startsWith("1"), Materialized.as("filtered")).toStream().to("filtered");
        table.mapValues(value -> value.startsWith("2") ? null : value + "!",
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("mapped").withCachingDisabled()).toStream().to("mapped");
        table.filterNot((key, value) -> value.startsWith("3"), Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("not").withCachingDisabled())
            .mapValues((key, value) -> key + value, Materialized.as("both")).toStream().to("both");
        table.filter((key, value) -> value.startsWith("4"), Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("fours").withCachingDisabled())
            .toStream().to("fours");
    }

    static void changes(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("in");
        table.filter((key, value) -> value.startsWith("4"), Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("fours").withCachingDisabled())
            .toStream().to("fours");
        final KTable<String, String> others = table.filterNot((key, value) -> value.startsWith("4"),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("others").withCachingDisabled());
        others.toStream().to("others");
        others.groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value))
            .reduce((total, value) -> total + "+" + value, (total, value) -> total + "-" + value).toStream().to("reduced");
    }

    static void streamTable(final StreamsBuilder builder) {
        final KStream<String, String> stream = builder.stream("in");
        final KTable<String, String> table = builder.table("rows");
        stream.join(table, (left, right) -> left + right).to("inner");
        stream.leftJoin(table, (key, left, right) -> key + left + right).to("left");
        stream.selectKey((key, value) -> value).leftJoin(table, (left, right) -> left + right).to("by-value");
    }

    static void globalTable(final StreamsBuilder builder) {
        final KStream<String, String> stream = builder.stream("in");
        final GlobalKTable<String, String> table = builder.globalTable("rows");
        stream.join(table, (key, value) -> value, (left, right) -> left + right).to("inner");
        stream.leftJoin(table, (key, value) -> key, (key, left, right) -> key + left + right).to("left");
    }
}
