import java.time.Duration;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.state.Stores;

/** As in test_stream_joins.py. */
final class StreamJoins {
    private static final JoinWindows WINDOWS = JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(5), Duration.ofMillis(3));
    private static final JoinWindows ASYMMETRIC =
        JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMillis(2)).before(Duration.ofMillis(8)).after(Duration.ofMillis(1));
    private static final JoinWindows ONLY_AFTER =
        JoinWindows.ofTimeDifferenceAndGrace(Duration.ofMillis(9), Duration.ofMillis(2)).before(Duration.ofMillis(-2));

    static void innerStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.join(right, (l, r) -> l + "+" + r, WINDOWS).to("out");
        left.join(right, (key, l, r) -> key + l + "+" + r, ASYMMETRIC, StreamJoined.as("named")).to("asymmetric");
        left.join(right, (key, l, r) -> key + l + "+" + r, ONLY_AFTER).to("after");
    }

    static void leftStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.leftJoin(right, (l, r) -> l + "+" + r, WINDOWS).to("out");
    }

    static void leftAsymmetricStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.leftJoin(right, (key, l, r) -> key + l + "+" + r, ASYMMETRIC).to("out");
    }

    static void leftOnlyAfterStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.leftJoin(right, (key, l, r) -> key + l + "+" + r, ONLY_AFTER).to("out");
    }

    static void outerStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.outerJoin(right, (l, r) -> l + "+" + r, WINDOWS,
            StreamJoined.with(Serdes.String(), Serdes.String(), Serdes.String()).withStoreName("joined")).to("out");
    }

    static void outerAsymmetricStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.outerJoin(right, (key, l, r) -> key + l + "+" + r, ASYMMETRIC).to("out");
    }

    static void outerInMemoryStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.outerJoin(right, (key, l, r) -> key + l + "+" + r, WINDOWS, StreamJoined.<String, String, String>with(
            Stores.inMemoryWindowStore("this", Duration.ofMillis(13), Duration.ofMillis(10), true),
            Stores.inMemoryWindowStore("other", Duration.ofMillis(13), Duration.ofMillis(10), true))).to("out");
    }

    static void selfJoinedStream(final StreamsBuilder builder) {
        final KStream<String, String> stream = builder.stream("in");
        stream.join(stream, (l, r) -> l + "+" + r, WINDOWS).to("inner");
        stream.outerJoin(stream, (l, r) -> l + "+" + r, ASYMMETRIC).to("outer");
    }

    static void repartitionedStreams(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.selectKey((key, value) -> value).outerJoin(right.selectKey((key, value) -> value), (key, l, r) -> key + l + "+" + r, WINDOWS,
            StreamJoined.<String, String, String>as("by-value")).to("out");
    }
}
