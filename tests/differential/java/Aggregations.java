import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.state.KeyValueStore;

/** As in test_aggregations.py. */
final class Aggregations {
    private static Materialized<String, String, KeyValueStore<Bytes, byte[]>> texts() {
        return Materialized.with(Serdes.String(), Serdes.String());
    }

    static void streamCount(final StreamsBuilder builder) {
        builder.<String, String>stream("in").groupByKey().count().toStream().to("out", Produced.with(Serdes.String(), Serdes.Long()));
    }

    static void streamsUncached(final StreamsBuilder builder) {
        final KGroupedStream<String, String> grouped = builder.<String, String>stream("in").groupBy((key, value) -> value);
        grouped.count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts").withCachingDisabled())
            .toStream().to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        grouped.reduce((left, right) -> right.equals("4") ? null : left + right, texts().withCachingDisabled()).toStream().to("reduced");
        grouped.aggregate(() -> ">", (key, value, total) -> (total == null ? "+" : total) + key + value, texts().withCachingDisabled()).toStream().to("texts");
    }

    static void streamAggregate(final StreamsBuilder builder) {
        builder.<String, String>stream("in").groupByKey()
            .aggregate(() -> ">", (key, value, total) -> value.equals("4") ? null : total + value, texts())
            .filter((key, value) -> value.length() % 2 == 0)
            .mapValues(value -> value + "!")
            .toStream().to("out");
    }

    private static KTable<String, String> totals(final StreamsBuilder builder, final boolean caching) {
        final Materialized<String, String, KeyValueStore<Bytes, byte[]>> kept = texts();
        return builder.<String, String>table("in")
            .groupBy((key, value) -> value.startsWith("4") ? null : KeyValue.pair(value.substring(0, 1), value))
            .aggregate(() -> ">", (key, value, total) -> total + "+" + value, (key, value, total) -> total + "-" + value,
                caching ? kept : kept.withCachingDisabled());
    }

    static void groupedTable(final StreamsBuilder builder) {
        totals(builder, true).toStream().to("out");
    }

    static void groupedTableUncached(final StreamsBuilder builder) {
        totals(builder, false).toStream().to("out");
    }

    static void groupedTableCountAndReduce(final StreamsBuilder builder) {
        final KTable<String, String> table = builder.table("in");
        table.groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value)).count().toStream().to("counts", Produced.with(Serdes.String(), Serdes.Long()));
        table.groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value))
            .reduce((total, value) -> total + "+" + value, (total, value) -> total.length() > 20 ? null : total + "-" + value).toStream().to("reduced");
    }
}
