import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.Suppressed.BufferConfig;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.WindowedSerdes;
import org.apache.kafka.streams.state.SessionStore;

/** As in test_suppressions.py. */
final class Suppressions {
    private static KGroupedStream<String, String> grouped(final StreamsBuilder builder) {
        return builder.<String, String>stream("in").groupByKey(Grouped.with(Serdes.String(), Serdes.String()));
    }

    private static KTable<String, String> reduced(final StreamsBuilder builder) {
        return grouped(builder).reduce((left, right) -> right);
    }

    private static void out(final KTable<String, String> table) {
        table.toStream().to("out", Produced.with(Serdes.String(), Serdes.String()));
    }

    static void timeLimit(final StreamsBuilder builder) {
        out(reduced(builder).suppress(Suppressed.untilTimeLimit(Duration.ofMillis(10), BufferConfig.unbounded())));
    }

    static void noTime(final StreamsBuilder builder) {
        out(reduced(builder).suppress(Suppressed.untilTimeLimit(Duration.ZERO, BufferConfig.unbounded())));
    }

    static void maxRecords(final StreamsBuilder builder) {
        out(reduced(builder).suppress(Suppressed.untilTimeLimit(Duration.ofMillis(30), BufferConfig.maxRecords(2))));
    }

    static void maxBytes(final StreamsBuilder builder) {
        out(reduced(builder).suppress(Suppressed.untilTimeLimit(Duration.ofMillis(30), BufferConfig.maxBytes(80))));
    }

    static void shutDown(final StreamsBuilder builder) {
        out(reduced(builder).suppress(Suppressed.untilTimeLimit(Duration.ofMillis(15), BufferConfig.maxRecords(2).shutDownWhenFull())));
    }

    static void filtered(final StreamsBuilder builder) {
        out(reduced(builder).filter((key, value) -> !value.equals("3"))
            .suppress(Suppressed.untilTimeLimit(Duration.ofMillis(10), BufferConfig.unbounded().withLoggingDisabled()))
            .mapValues(value -> value + "!"));
    }

    static void windowCloses(final StreamsBuilder builder) {
        grouped(builder).windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(10), Duration.ofMillis(5))).count()
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream().to("out", Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, 10), Serdes.Long()));
    }

    static void slidingCloses(final StreamsBuilder builder) {
        grouped(builder).windowedBy(SlidingWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(10), Duration.ofMillis(5))).count()
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()).withName("closed"))
            .toStream().to("out", Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, 10), Serdes.Long()));
    }

    static void sessionCloses(final StreamsBuilder builder) {
        grouped(builder).windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(4), Duration.ofMillis(6)))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("s").withRetention(Duration.ofHours(1)))
            .suppress(Suppressed.untilWindowCloses(BufferConfig.unbounded()))
            .toStream().to("out", Produced.with(WindowedSerdes.sessionWindowedSerdeFrom(String.class), Serdes.Long()));
    }
}
