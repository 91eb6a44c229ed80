import java.time.Duration;
import java.util.Map;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/** As in test_combinations.py. */
final class Combinations {
    private static final JoinWindows AT_ONCE = JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ZERO);
    private static final JoinWindows NEAR = JoinWindows.ofTimeDifferenceAndGrace(ms(4), ms(2));
    private static final Grouped<String, String> STRINGS = Grouped.with(Serdes.String(), Serdes.String());
    private static final Produced<String, Long> COUNTS = Produced.with(Serdes.String(), Serdes.Long());

    private static Duration ms(final long duration) {
        return Duration.ofMillis(duration);
    }

    private static String both(final Object left, final Object right) {
        return left + "+" + right;
    }

    static void joinedAtOnce(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.join(right, (l, r) -> both(l, r), AT_ONCE).to("inner");
        left.outerJoin(right, (l, r) -> both(l, r), AT_ONCE).to("outer");
    }

    static void joinedAtOnceOrSoon(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        left.leftJoin(right, (l, r) -> both(l, r), JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, ms(3))).to("left");
        left.join(right, (l, r) -> both(l, r), JoinWindows.ofTimeDifferenceAndGrace(Duration.ZERO, ms(3)).after(ms(2))).to("after");
    }

    static void countedJoins(final StreamsBuilder builder) {
        final KStream<String, String> left = builder.stream("in");
        final KStream<String, String> right = builder.stream("other");
        final KStream<String, String> pairs = left.outerJoin(right, (l, r) -> both(l, r), NEAR);
        pairs.groupBy((key, value) -> value, STRINGS).count(Materialized.as("pairs")).toStream().to("pairs", COUNTS);
        pairs.groupByKey(STRINGS).windowedBy(TimeWindows.ofSizeAndGrace(ms(10), ms(20))).reduce((total, value) -> both(total, value))
            .toStream((key, value) -> key.key() + "@" + key.window().start()).to("reduced");
    }

    static void countedCounts(final StreamsBuilder builder) {
        final KTable<String, Long> counts = builder.<String, String>stream("in").groupByKey().count(Materialized.as("counts"));
        final KGroupedTable<String, String> groups = counts.groupBy((key, count) -> KeyValue.pair(String.valueOf(count), key), STRINGS);
        groups.count(Materialized.as("of-counts")).toStream().to("of-counts", COUNTS);
        groups.aggregate(() -> "", (key, value, total) -> total + "+" + value, (key, value, total) -> total + "-" + value).toStream().to("names");
    }

    static void joinedCounts(final StreamsBuilder builder) {
        final KTable<String, Long> one = builder.<String, String>stream("in").groupByKey().count();
        final KTable<String, Long> other = builder.<String, String>stream("other").groupByKey().count(Materialized.as("others"));
        one.outerJoin(other, (l, r) -> both(l, r), Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("sums"))
            .filter((key, value) -> value.length() < 5).toStream().to("sums");
        one.leftJoin(other, (l, r) -> both(l, r)).suppress(Suppressed.untilTimeLimit(ms(5), Suppressed.BufferConfig.unbounded()))
            .toStream().to("later");
    }

    static void joinedForeignCounts(final StreamsBuilder builder) {
        final KTable<String, String> rows = builder.table("in");
        final KTable<String, String> others =
            builder.<String, String>stream("other").groupByKey().reduce((total, value) -> both(total, value), Materialized.as("others"));
        final KTable<String, String> byKey = rows.leftJoin(others, value -> value.substring(0, 1), (l, r) -> both(l, r),
            Materialized.<String, String, KeyValueStore<Bytes, byte[]>>as("joined").withValueSerde(Serdes.String()));
        byKey.groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value), STRINGS).count().toStream().to("counts", COUNTS);
    }

    static void tableAgain(final StreamsBuilder builder) {
        final KTable<String, String> rows = builder.<String, String>table("in").mapValues(value -> value + "!").toStream()
            .selectKey((key, value) -> value).toTable();
        rows.filter((key, value) -> !value.equals("2!")).toStream().to("out");
        rows.groupBy((key, value) -> KeyValue.pair(value.substring(0, 1), value), STRINGS).count().toStream().to("counts", COUNTS);
    }

    static void splitAndMerged(final StreamsBuilder builder) {
        final Map<String, KStream<String, String>> parts = builder.<String, String>stream("in").split(Named.as("part-"))
            .branch((key, value) -> "1".equals(value), Branched.as("one"))
            .branch((key, value) -> "a".equals(key), Branched.as("a"))
            .defaultBranch(Branched.as("rest"));
        final KStream<String, String> changed = parts.get("part-one").selectKey((key, value) -> "one");
        final KStream<String, String> through = builder.<String, String>stream("other")
            .repartition(Repartitioned.<String, String>as("through").withKeySerde(Serdes.String()).withValueSerde(Serdes.String()));
        changed.merge(parts.get("part-rest")).merge(through).groupByKey(STRINGS).count(Materialized.as("merged")).toStream().to("merged", COUNTS);
        parts.get("part-a").leftJoin(builder.table("rows", Consumed.with(Serdes.String(), Serdes.String())), (l, r) -> both(l, r)).to("a");
    }

    private static String shown(final Windowed<String> key) {
        return key.key() + "@" + key.window().start() + "-" + key.window().end();
    }

    private static void shown(final KGroupedStream<String, String> groups, final String name, final TimeWindows windows) {
        groups.windowedBy(windows).count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as(name).withRetention(Duration.ofHours(1)))
            .toStream((key, count) -> shown(key)).to(name, COUNTS);
    }

    static void windowsAtTheirLimits(final StreamsBuilder builder) {
        final KGroupedStream<String, String> groups = builder.<String, String>stream("in").groupByKey();
        shown(groups, "smallest", TimeWindows.ofSizeWithNoGrace(ms(1)));
        shown(groups, "dense", TimeWindows.ofSizeAndGrace(ms(7), ms(3)).advanceBy(ms(1)));
        shown(groups, "uneven", TimeWindows.ofSizeAndGrace(ms(10), ms(1)).advanceBy(ms(7)));
        groups.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(ms(1)))
            .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("bursts").withRetention(Duration.ofHours(1)))
            .toStream((key, count) -> shown(key)).to("bursts", COUNTS);
    }
}
