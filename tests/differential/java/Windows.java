import java.time.Duration;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.WindowedSerdes;

/** As in test_windows.py. */
final class Windows {
    private static final TimeWindows TUMBLING = TimeWindows.ofSizeAndGrace(Duration.ofMillis(10), Duration.ofMillis(5));
    private static final TimeWindows HOPPING = TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(10)).advanceBy(Duration.ofMillis(4));

    private static KGroupedStream<String, String> grouped(final StreamsBuilder builder) {
        return builder.<String, String>stream("in").groupByKey();
    }

    private static <V> void out(final KTable<Windowed<String>, V> table, final Serde<V> serde) {
        table.toStream().to("out", Produced.with(WindowedSerdes.timeWindowedSerdeFrom(String.class, 10), serde));
    }

    static void tumblingCount(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(TUMBLING).count(), Serdes.Long());
    }

    static void hoppingReduce(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(HOPPING).reduce((left, right) -> left + right), Serdes.String());
    }

    static void hoppingAggregate(final StreamsBuilder builder) {
        out(grouped(builder).windowedBy(HOPPING).aggregate(
            () -> ">", (key, value, total) -> value.equals("4") ? null : (total == null ? "+" : total) + value,
            Materialized.with(null, Serdes.String())), Serdes.String());
    }
}
