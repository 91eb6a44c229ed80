import java.time.Duration;
import java.time.Instant;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Aggregator;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.WindowStore;

/** As in test_windows.py. */
final class Windows {
    private static final TimeWindows TUMBLING = TimeWindows.ofSizeAndGrace(Duration.ofMillis(10), Duration.ofMillis(5));
    private static final TimeWindows HOPPING = TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(10)).advanceBy(Duration.ofMillis(4));
    private static final SlidingWindows SLIDING = SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(5));
    private static final SessionWindows SESSIONS = SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(4), Duration.ofMillis(6));
    private static final Aggregator<String, String, String> JOINED =
        (key, value, total) -> value.equals("4") ? null : (total == null ? "+" : total) + value;

    private static KGroupedStream<String, String> grouped(final StreamsBuilder builder) {
        return builder.<String, String>stream("in").groupByKey();
    }

    private static KGroupedStream<String, String> other(final StreamsBuilder builder) {
        return builder.<String, String>stream("other").groupByKey();
    }

    private static <V> void out(final KTable<Windowed<String>, V> table, final Serde<V> serde) {
        table.toStream().to("out", Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, 10), serde));
    }

    private static <V> void sessions(final KTable<Windowed<String>, V> table, final Serde<V> serde) {
        table.toStream().to("out", Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), serde));
    }

    private static <V> Materialized<String, V, WindowStore<Bytes, byte[]>> windowStore() {
        return Materialized.as("w");
    }

    private static <V> Materialized<String, V, SessionStore<Bytes, byte[]>> sessionStore() {
        return Materialized.as("s");
    }

    static void tumblingCount(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(TUMBLING).count(), Serdes.Long());
    }

    static void tumblingUncached(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(TUMBLING).aggregate(
            () -> ">", JOINED, Materialized.<String, String>as(Stores.inMemoryWindowStore(
                "w", Duration.ofMillis(15), Duration.ofMillis(10), false)).withValueSerde(Serdes.String()).withCachingDisabled()), Serdes.String());
    }

    static void hoppingReduce(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(HOPPING).reduce((left, right) -> left + right), Serdes.String());
    }

    static void hoppingAggregate(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(HOPPING).aggregate(() -> ">", JOINED, Materialized.with(null, Serdes.String())), Serdes.String());
    }

    static void hoppingFinal(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(HOPPING).emitStrategy(EmitStrategy.onWindowClose()).count(), Serdes.Long());
    }

    static void tumblingFinal(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(TUMBLING).emitStrategy(EmitStrategy.onWindowClose()).aggregate(
            () -> ">", JOINED, Materialized.<String, String, WindowStore<Bytes, byte[]>>with(null, Serdes.String()).withRetention(Duration.ofHours(1))), Serdes.String());
    }

    static void unlimitedCount(final StreamsBuilder builder) {
        grouped(builder).windowedBy(UnlimitedWindows.of().startOn(Instant.ofEpochMilli(7))).count()
            .toStream((key, value) -> key.toString()).to("out", Produced.with(Serdes.String(), Serdes.Long()));
    }

    static void slidingCount(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(SLIDING).count(), Serdes.Long());
    }

    static void slidingUncached(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(SLIDING).aggregate(
            () -> ">", (key, value, total) -> total + value,
            Materialized.<String, String, WindowStore<Bytes, byte[]>>with(null, Serdes.String()).withCachingDisabled().withRetention(Duration.ofHours(1))), Serdes.String());
    }

    static void slidingReduce(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(Duration.ofMillis(10))).reduce(
            (left, right) -> left + right), Serdes.String());
    }

    static void slidingDeleting(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(SLIDING).aggregate(() -> ">", JOINED, Materialized.with(null, Serdes.String())), Serdes.String());
    }

    static void slidingFinal(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(SLIDING).emitStrategy(EmitStrategy.onWindowClose()).count(Windows.<Long>windowStore().withRetention(Duration.ofHours(1))), Serdes.Long());
    }

    static void sessionCount(final StreamsBuilder builder) {
        sessions(grouped(builder).windowedBy(SESSIONS).count(Windows.<Long>sessionStore().withRetention(Duration.ofHours(1))), Serdes.Long());
    }

    static void sessionUncached(final StreamsBuilder builder) {
        sessions(grouped(builder).windowedBy(SESSIONS).count(Windows.<Long>sessionStore().withCachingDisabled().withRetention(Duration.ofHours(1))), Serdes.Long());
    }

    static void sessionReduce(final StreamsBuilder builder) {
        sessions(grouped(builder).windowedBy(SESSIONS).reduce((left, right) -> left + right, Windows.<String>sessionStore().withRetention(Duration.ofHours(1)).withCachingDisabled()), Serdes.String());
    }

    static void sessionAggregate(final StreamsBuilder builder) {
        sessions(grouped(builder).windowedBy(SESSIONS).aggregate(() -> ">", JOINED, (key, one, other) -> one + "|" + other, Windows.<String>sessionStore().withRetention(Duration.ofHours(1)).withValueSerde(Serdes.String())), Serdes.String());
    }

    static void sessionFinal(final StreamsBuilder builder) {
        sessions(grouped(builder).windowedBy(SESSIONS).emitStrategy(EmitStrategy.onWindowClose()).count(Windows.<Long>sessionStore().withRetention(Duration.ofHours(1))), Serdes.Long());
    }

    static void cogroup(final StreamsBuilder builder) {
        grouped(builder).<String>cogroup((key, value, total) -> total + value).cogroup(other(builder), JOINED)
            .aggregate(() -> ">", Materialized.with(null, Serdes.String())).toStream().to("out", Produced.with(Serdes.String(), Serdes.String()));
    }

    static void cogroupUncached(final StreamsBuilder builder) {
        final KGroupedStream<String, String> regrouped =
            builder.<String, String>stream("other").selectKey((key, value) -> "a").groupByKey(Grouped.with(Serdes.String(), Serdes.String()));
        grouped(builder).<String>cogroup((key, value, total) -> total + value).cogroup(regrouped, (key, value, total) -> total + "," + value)
            .aggregate(() -> ">", Materialized.<String, String, KeyValueStore<Bytes, byte[]>>with(null, Serdes.String()).withCachingDisabled())
            .toStream().to("out", Produced.with(Serdes.String(), Serdes.String()));
    }

    static void cogroupTumbling(final StreamsBuilder builder) {
        out(grouped(builder).<String>cogroup((key, value, total) -> total + value).cogroup(other(builder), JOINED)
            .windowedBy(TUMBLING).aggregate(() -> ">",
                Materialized.<String, String, WindowStore<Bytes, byte[]>>with(null, Serdes.String()).withRetention(Duration.ofHours(1))), Serdes.String());
    }

    static void cogroupSliding(final StreamsBuilder builder) {
        out(grouped(builder).<String>cogroup((key, value, total) -> total + value).cogroup(other(builder), (key, value, total) -> total + "," + value)
            .windowedBy(SLIDING).aggregate(() -> ">",
                Materialized.<String, String, WindowStore<Bytes, byte[]>>with(null, Serdes.String()).withRetention(Duration.ofHours(1))), Serdes.String());
    }

    static void cogroupSessions(final StreamsBuilder builder) {
        sessions(grouped(builder).<String>cogroup((key, value, total) -> total + value).cogroup(other(builder), (key, value, total) -> total + "," + value)
            .windowedBy(SESSIONS).aggregate(() -> ">", (key, one, other) -> one + "|" + other,
                Materialized.<String, String, SessionStore<Bytes, byte[]>>with(null, Serdes.String()).withRetention(Duration.ofHours(1))), Serdes.String());
    }
}
