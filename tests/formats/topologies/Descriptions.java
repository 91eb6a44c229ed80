import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.function.Consumer;
import java.util.regex.Pattern;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Branched;
import org.apache.kafka.streams.kstream.CogroupedKStream;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.EmitStrategy;
import org.apache.kafka.streams.kstream.GlobalKTable;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KGroupedStream;
import org.apache.kafka.streams.kstream.KGroupedTable;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.kstream.Printed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.Repartitioned;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.SlidingWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TableJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.UnlimitedWindows;
import org.apache.kafka.streams.kstream.ValueTransformerWithKey;
import org.apache.kafka.streams.processor.ProcessorContext;
import org.apache.kafka.streams.processor.api.FixedKeyProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Prints the descriptions in descriptions.txt. With the jars of Kafka Streams 4.3.1 in lib:
 *   java -cp 'lib/*' Descriptions.java > descriptions.txt
 * tests/unit/runtime/topology/test_describe.py writes the same topologies, by the same names, in Python.
 */
public class Descriptions {
    static final class Drop implements Processor<Object, Object, Object, Object> {
        public void process(final Record<Object, Object> record) { }
    }

    static final class DropFixed implements FixedKeyProcessor<Object, Object, Object> {
        public void process(final FixedKeyRecord<Object, Object> record) { }
    }

    static void optimized(final String name, final Consumer<StreamsBuilder> define) {
        final StreamsBuilder builder = new StreamsBuilder();
        define.accept(builder);
        final Properties properties = new Properties();
        properties.put(StreamsConfig.TOPOLOGY_OPTIMIZATION_CONFIG, StreamsConfig.OPTIMIZE);
        System.out.println("=== " + name);
        System.out.print(builder.build(properties).describe());
    }

    record Bringing(StoreBuilder<?> store) implements ProcessorSupplier<Object, Object, Object, Object> {
        public Processor<Object, Object, Object, Object> get() { return new Drop(); }
        public Set<StoreBuilder<?>> stores() { return Set.of(store); }
    }

    static final class Keep implements ValueTransformerWithKey<Object, Object, Object> {
        public void init(final ProcessorContext context) { }

        public Object transform(final Object key, final Object value) {
            return value;
        }

        public void close() { }
    }

    static void print(final String name, final Consumer<StreamsBuilder> define) {
        final StreamsBuilder builder = new StreamsBuilder();
        define.accept(builder);
        System.out.println("=== " + name);
        System.out.print(builder.build().describe());
    }

    public static void main(final String[] args) {
        print("stateless", b -> {
            final KStream<Object, Object> s = b.stream(List.of("in-b", "in-a", "in-c"));
            s.filter((k, v) -> true).mapValues(v -> v).flatMapValues(v -> List.of(v)).peek((k, v) -> { }).to("out");
            s.filterNot((k, v) -> true, Named.as("negated")).map((k, v) -> KeyValue.pair(k, v)).to("out-2", Produced.as("sink"));
            s.flatMap((k, v) -> List.of(KeyValue.pair(k, v))).selectKey((k, v) -> v).foreach((k, v) -> { });
        });
        print("counts", b -> {
            final KStream<Object, Object> s = b.stream("in");
            s.groupByKey().count();
            s.groupByKey().count(Named.as("counter"));
            s.groupByKey().count(Materialized.as("counts"));
            s.groupByKey().count(Materialized.with(null, Serdes.Long()));
            s.groupByKey().reduce((x, y) -> y);
            s.groupByKey().reduce((x, y) -> y, Named.as("reducer"), Materialized.as("reduced"));
            s.groupByKey().aggregate(() -> null, (k, v, x) -> x);
        });
        print("group_by", b -> {
            final KStream<Object, Object> s = b.stream("in");
            s.groupBy((k, v) -> v).count().toStream().to("a");
            s.groupBy((k, v) -> v, Grouped.as("by-value")).count().toStream().to("b");
            s.groupBy((k, v) -> v).count(Materialized.as("store")).toStream().to("c");
            s.selectKey((k, v) -> v).groupByKey().reduce((x, y) -> y).toStream((k, v) -> v).to("d");
            s.selectKey((k, v) -> v, Named.as("selected")).groupByKey(Grouped.as("again")).aggregate(() -> null, (k, v, x) -> x);
        });
        print("shared group", b -> {
            final KStream<Object, Object> s = b.stream("in");
            final KGroupedStream<Object, Object> g = s.groupBy((k, v) -> v, Grouped.as("grouped"));
            g.count().toStream().to("a");
            b.stream("between").foreach((k, v) -> { });
            g.reduce((x, y) -> y).toStream().to("b");
            g.windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofSeconds(1))).count();
        });
        print("shared join", b -> {
            final KStream<Object, Object> s = b.stream("in").map((k, v) -> KeyValue.pair(k, v));
            final KTable<Object, Object> t = b.table("table");
            s.join(t, (l, r) -> l).to("a");
            s.leftJoin(t, (k, l, r) -> l).to("b");
            s.join(t, (l, r) -> l, Joined.as("joined")).to("c");
            s.join(t, (l, r) -> l).to("d");
        });
        print("tables", b -> {
            final KTable<Object, Object> t = b.table("in");
            final KTable<Object, Object> f = t.filter((k, v) -> true).mapValues(v -> v);
            f.filterNot((k, v) -> true, Named.as("negated"), Materialized.as("kept")).toStream(Named.as("changes")).to("out");
            b.table("other", Consumed.as("other-table")).toStream((k, v) -> v).to("out-2");
            b.table("named", Materialized.as("named-store")).mapValues(v -> v, Materialized.as("mapped"));
            t.mapValues((k, v) -> v, Materialized.with(null, null));
            b.stream("stream").join(f, (l, r) -> l).to("joined");
        });
        print("grouped tables", b -> {
            final KTable<Object, Object> t = b.table("in");
            t.groupBy((k, v) -> KeyValue.pair(k, v)).count();
            t.groupBy((k, v) -> KeyValue.pair(k, v)).reduce((x, y) -> y, (x, y) -> y);
            t.groupBy((k, v) -> KeyValue.pair(k, v), Grouped.as("grouped")).aggregate(() -> null, (k, v, x) -> x, (k, v, x) -> x, Named.as("aggregator"), Materialized.as("sums"));
            final KGroupedTable<Object, Object> g = t.filter((k, v) -> true).groupBy((k, v) -> KeyValue.pair(k, v), Grouped.as("twice"));
            g.count().toStream().to("a");
            b.stream("between").foreach((k, v) -> { });
            g.count(Materialized.as("second")).toStream().to("b");
        });
        print("windows", b -> {
            final KStream<Object, Object> s = b.stream("in");
            final TimeWindows w = TimeWindows.ofSizeAndGrace(Duration.ofMinutes(5), Duration.ofMinutes(1)).advanceBy(Duration.ofMinutes(1));
            s.groupByKey().windowedBy(w).count();
            s.groupByKey().windowedBy(w).count(Materialized.with(null, null));
            s.groupByKey().windowedBy(w).reduce((x, y) -> y, Materialized.as("reduced"));
            s.groupBy((k, v) -> v, Grouped.as("by")).windowedBy(w).aggregate(() -> null, (k, v, x) -> x, Named.as("sum"), Materialized.as("sums")).toStream().to("out");
        });
        print("global tables", b -> {
            final GlobalKTable<Object, Object> g = b.globalTable("global");
            final KStream<Object, Object> s = b.stream("in");
            final GlobalKTable<Object, Object> h = b.globalTable("other", Consumed.as("other-table"), Materialized.as("other-store"));
            s.join(g, (k, v) -> v, (l, r) -> l).leftJoin(h, (k, v) -> v, (l, r) -> l, Named.as("left")).to("out");
        });
        print("merge and repartition", b -> {
            final KStream<Object, Object> s = b.stream("a");
            final KStream<Object, Object> m = s.merge(b.stream("b")).merge(s.selectKey((k, v) -> v), Named.as("merged"));
            m.repartition().groupByKey().count();
            m.repartition(Repartitioned.as("wide")).groupByKey().count();
            m.groupByKey().count();
        });
        print("split", b -> {
            final KStream<Object, Object> s = b.stream("in");
            final var named = s.split(Named.as("by-size-"))
                .branch((k, v) -> true, Branched.as("large"))
                .branch((k, v) -> true, Branched.withFunction(x -> x.mapValues(v -> v), "mapped"))
                .branch((k, v) -> true, Branched.withConsumer(x -> x.to("apart")))
                .branch((k, v) -> true)
                .defaultBranch(Branched.as("rest"));
            named.get("by-size-large").to("large");
            named.get("by-size-mapped").to("mapped");
            named.get("by-size-4").merge(named.get("by-size-rest")).groupByKey().count();
            final var plain = s.selectKey((k, v) -> v).split().branch((k, v) -> true).noDefaultBranch();
            plain.values().iterator().next().groupByKey().count();
        });
        print("printed", b -> {
            final KStream<Object, Object> s = b.stream("in");
            s.print(Printed.toSysOut());
            s.print(Printed.<Object, Object>toSysOut().withName("printer").withLabel("label"));
        });
        print("to table", b -> {
            final KStream<Object, Object> s = b.stream("in");
            s.toTable().toStream().to("a");
            s.toTable(Named.as("named")).filter((k, v) -> true).toStream().to("b");
            s.toTable(Materialized.as("rows")).toStream().to("c");
            s.toTable(Materialized.with(null, null)).groupBy((k, v) -> KeyValue.pair(v, k)).count();
            final KStream<Object, Object> changed = s.map((k, v) -> KeyValue.pair(k, v));
            changed.toTable().toStream().to("d");
            changed.toTable(Named.as("other")).toStream().to("e");
            changed.toTable(Named.as("last"), Materialized.as("kept"));
        });
        print("patterns", b -> {
            final KStream<Object, Object> s = b.stream(Pattern.compile("flights-.*"));
            final KStream<Object, Object> again = b.stream(Pattern.compile("flights-.*"));
            final KStream<Object, Object> other = b.stream(Pattern.compile("other-[0-9]+"), Consumed.as("others"));
            s.merge(other).groupByKey().count();
            again.filter((k, v) -> true).to("out");
            b.stream(List.of("x", "y")).join(b.table("t"), (l, r) -> l);
        });
        print("stores of suppliers", b -> {
            final var store = Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("brought"), Serdes.String(), Serdes.String());
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("given"), Serdes.String(), Serdes.String()));
            final KStream<Object, Object> s = b.stream("in");
            s.process(new Bringing(store), "given").to("a");
            s.process(new Bringing(store), Named.as("second"));
        });
        print("processors", b -> {
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("seen"), Serdes.String(), Serdes.String()));
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("last"), Serdes.String(), Serdes.String()));
            final KStream<Object, Object> s = b.stream("in");
            s.process(Drop::new, "seen", "last").to("a");
            s.processValues(DropFixed::new, Named.as("values"), "seen").groupByKey().count();
            b.stream("apart").process(Drop::new, "last");
        });
        print("same topic twice", b -> {
            final KStream<Object, Object> s = b.stream("in");
            final KStream<Object, Object> again = b.stream("in");
            final KTable<Object, Object> t = b.table("table");
            again.join(t, (l, r) -> l).to("a");
            s.groupByKey().count().toStream().to("b");
            again.filter((k, v) -> true).to("c");
        });
        print("fan-out", b -> {
            final KStream<Object, Object> s = b.stream("flights");
            final KTable<Object, Object> weather = b.table("weather", Materialized.as("weather"));
            final GlobalKTable<Object, Object> airlines = b.globalTable("airlines", Materialized.as("airlines"));
            s.groupBy((k, v) -> v, Grouped.as("by-carrier")).count(Materialized.as("carriers")).toStream().join(airlines, (k, v) -> k, (l, r) -> l).to("flights-per-carrier");
            s.selectKey((k, v) -> v).join(weather, (l, r) -> l, Joined.as("by-hour")).mapValues(v -> v).to("flights-with-weather");
            s.groupBy((k, v) -> v, Grouped.as("by-origin")).windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofHours(1))).aggregate(() -> null, (k, v, x) -> x, Materialized.as("hourly-delay")).toStream().to("hourly-delay");
            s.filter((k, v) -> true).filter((k, v) -> true).filter((k, v) -> true).foreach((k, v) -> { });
            s.to("archive");
            s.filter((k, v) -> true).to("late");
        });
        print("sessions and sliding windows", b -> {
            final KStream<Object, Object> s = b.stream("in");
            final SlidingWindows sliding = SlidingWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(5));
            final SessionWindows sessions = SessionWindows.ofInactivityGapWithNoGrace(Duration.ofMinutes(5));
            final KGroupedStream<Object, Object> g = s.groupBy((k, v) -> v);
            g.windowedBy(sliding).count();
            g.windowedBy(sliding).count(Materialized.with(null, Serdes.Long()));
            g.windowedBy(sliding).reduce((l, r) -> l, Named.as("sliding"), Materialized.as("slid"));
            g.windowedBy(sessions).count();
            g.windowedBy(sessions).count(Materialized.with(null, Serdes.Long()));
            g.windowedBy(sessions).emitStrategy(EmitStrategy.onWindowClose()).reduce((l, r) -> l, Named.as("visits"));
            g.windowedBy(sessions).aggregate(() -> null, (k, v, x) -> x, (k, l, r) -> l, Materialized.as("sessions")).toStream().to("out");
            s.groupByKey().windowedBy(UnlimitedWindows.of()).count(Named.as("ever"));
        });
        print("cogroups", b -> {
            final KGroupedStream<Object, Object> g = b.stream("a").groupByKey();
            final KGroupedStream<Object, Object> h = b.stream("b").groupBy((k, v) -> v);
            final KGroupedStream<Object, Object> i = b.stream("c").groupBy((k, v) -> v, Grouped.as("by-c"));
            final CogroupedKStream<Object, Object> both = g.<Object>cogroup((k, v, x) -> x).cogroup(h, (k, v, x) -> x);
            both.aggregate(() -> null);
            both.cogroup(i, (k, v, x) -> x).aggregate(() -> null, Named.as("all"), Materialized.as("totals")).toStream().to("out");
            h.<Object>cogroup((k, v, x) -> x).windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofHours(1))).aggregate(() -> null);
            g.<Object>cogroup((k, v, x) -> x).windowedBy(SlidingWindows.ofTimeDifferenceWithNoGrace(Duration.ofHours(1))).aggregate(() -> null, Named.as("slide"));
            g.<Object>cogroup((k, v, x) -> x).windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofHours(1))).aggregate(() -> null, (k, l, r) -> l);
        });
        print("suppressed", b -> {
            final KStream<Object, Object> s = b.stream("in");
            final KTable<Object, Object> t = b.table("table");
            t.suppress(Suppressed.untilTimeLimit(Duration.ofSeconds(1), Suppressed.BufferConfig.unbounded())).toStream().to("a");
            t.filter((k, v) -> true).suppress(Suppressed.untilTimeLimit(Duration.ofSeconds(1), Suppressed.BufferConfig.maxRecords(1)).withName("few")).mapValues(v -> v);
            s.groupByKey().windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofHours(1))).count()
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded())).toStream().to("b");
            s.groupBy((k, v) -> v).windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofHours(1))).count(Materialized.as("visits")).mapValues(v -> v)
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()).withName("final")).toStream().to("c");
            s.join(t.suppress(Suppressed.untilTimeLimit(Duration.ofSeconds(1), Suppressed.BufferConfig.unbounded())), (l, r) -> l).to("d");
        });
        print("stream joins", b -> {
            final KStream<Object, Object> l = b.stream("left");
            final KStream<Object, Object> r = b.stream("right");
            final JoinWindows w = JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(5));
            l.join(r, (x, y) -> x, w).to("a");
            l.leftJoin(r, (x, y) -> x, w).to("b");
            l.outerJoin(r, (x, y) -> x, w).to("c");
            l.join(r, (x, y) -> x, w, StreamJoined.as("inner")).to("d");
            l.leftJoin(r, (x, y) -> x, w, StreamJoined.<Object, Object, Object>with(null, null, null).withName("left").withStoreName("left-stores")).to("e");
            l.outerJoin(r, (x, y) -> x, w, StreamJoined.<Object, Object, Object>with(null, null, null).withName("outer").withStoreName("outer-stores")).to("f");
            l.outerJoin(r, (x, y) -> x, w, StreamJoined.with(Stores.inMemoryWindowStore("this", Duration.ofMinutes(10), Duration.ofMinutes(10), true),
                Stores.inMemoryWindowStore("other", Duration.ofMinutes(10), Duration.ofMinutes(10), true))).to("g");
            l.join(l, (x, y) -> x, w).to("h");
        });
        print("repartitioned stream joins", b -> {
            final KStream<Object, Object> l = b.stream("left").selectKey((k, v) -> v);
            final KStream<Object, Object> r = b.stream("right").map((k, v) -> KeyValue.pair(k, v));
            final JoinWindows w = JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(5));
            l.leftJoin(r, (x, y) -> x, w).to("a");
            l.join(r, (x, y) -> x, w, StreamJoined.<Object, Object, Object>with(null, null, null).withName("joined")).to("b");
            l.outerJoin(b.stream("third"), (x, y) -> x, w).to("c");
        });
        print("table joins", b -> {
            final KTable<Object, Object> l = b.table("left");
            final KTable<Object, Object> r = b.table("right");
            final KTable<Object, Object> j = l.join(r, (x, y) -> x);
            l.leftJoin(r, (x, y) -> x, Named.as("named")).toStream().to("a");
            l.outerJoin(r, (x, y) -> x, Materialized.as("kept")).toStream().to("b");
            l.filter((k, v) -> true).outerJoin(r.mapValues(v -> v), (x, y) -> x, Materialized.with(null, null)).toStream().to("c");
            l.join(r, (x, y) -> x, Named.as("both"), Materialized.as("both-store")).toStream().to("d");
            j.leftJoin(b.table("third"), (x, y) -> x).toStream().to("e");
            b.stream("stream").join(j, (x, y) -> x).to("f");
        });
        print("foreign-key joins", b -> {
            final KTable<Object, Object> l = b.table("left");
            final KTable<Object, Object> r = b.table("right");
            l.join(r, v -> v, (x, y) -> x).toStream().to("a");
            l.leftJoin(r, (k, v) -> k, (x, y) -> x, TableJoined.as("named")).toStream().to("b");
            l.leftJoin(r.mapValues(v -> v), v -> v, (x, y) -> x, TableJoined.as("kept"), Materialized.as("store")).toStream().to("c");
            l.join(l, v -> v, (x, y) -> x, Materialized.with(null, null)).filter((k, v) -> true).groupBy((k, v) -> KeyValue.pair(k, v)).count();
        });
        print("versioned tables", b -> {
            final KTable<Object, Object> t = b.table("table", Materialized.as(Stores.persistentVersionedKeyValueStore("rows", Duration.ofHours(1))));
            final KStream<Object, Object> s = b.stream("stream");
            s.join(t, (x, y) -> x, Joined.with(null, null, null, null, Duration.ofMinutes(5))).to("a");
            s.leftJoin(t.filter((k, v) -> true), (x, y) -> x, Joined.with(null, null, null, "named", Duration.ofMinutes(5))).to("b");
            t.groupBy((k, v) -> KeyValue.pair(k, v)).count(Materialized.as(Stores.persistentVersionedKeyValueStore("counts", Duration.ofHours(1))));
        });
        print("transformed tables", b -> {
            b.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("seen"), Serdes.String(), Serdes.String()));
            final KTable<Object, Object> t = b.table("in");
            t.transformValues(() -> new Keep(), "seen").toStream().to("a");
            t.transformValues(() -> new Keep(), Materialized.<Object, Object, KeyValueStore<Bytes, byte[]>>as("kept"), Named.as("named"), "seen").toStream().to("b");
            b.stream("stream").join(t.transformValues(() -> new Keep(), Materialized.with(null, null)), (x, y) -> x).to("c");
        });
        final Topology t = new Topology();
        t.addSource("source", "in-1", "in-2");
        t.addProcessor("first", Drop::new, "source");
        t.addProcessor("second", Drop::new, "first", "source");
        t.addStateStore(Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore("store"), Serdes.String(), Serdes.String()), "first", "second");
        t.addSink("sink", "out", "second", "first");
        t.addSource("aside", "in-3");
        t.addSink("aside-sink", "out-2", "aside");
        System.out.println("=== by hand");
        System.out.print(t.describe());
        optimized("optimized: two counts", b -> {
            final KStream<Object, Object> s = b.stream("in").selectKey((k, v) -> v);
            s.groupByKey().count().toStream().to("a");
            s.filter((k, v) -> true).groupByKey(Grouped.as("named")).count().toStream().to("b");
            s.to("c");
        });
        optimized("optimized: joined and grouped", b -> {
            final KStream<Object, Object> s = b.stream("in").map((k, v) -> KeyValue.pair(k, v));
            final KTable<Object, Object> table = b.table("table");
            s.peek((k, v) -> { }).leftJoin(table, (x, y) -> x).to("a");
            s.groupByKey().windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMinutes(5))).count();
            s.mapValues(v -> v).groupByKey().count();
            s.toTable().toStream().to("b");
        });
        optimized("optimized: merged streams", b -> {
            final KStream<Object, Object> l = b.stream("left").selectKey((k, v) -> v);
            final KStream<Object, Object> r = b.stream("right").flatMap((k, v) -> List.of(KeyValue.pair(k, v)));
            l.merge(r).filter((k, v) -> true).groupByKey().count();
            b.stream("third").merge(b.stream("fourth").selectKey((k, v) -> v)).groupByKey().count();
        });
        optimized("optimized: one of each", b -> {
            b.stream("in").groupBy((k, v) -> v).count();
            b.stream("in").groupBy((k, v) -> v, Grouped.as("grouped")).count();
            b.stream("in").process(Drop::new).repartition().groupByKey().count();
            b.stream("in").process(Drop::new).groupByKey().count();
        });
        optimized("optimized: self-joins", b -> {
            final JoinWindows w = JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofMinutes(5));
            final KStream<Object, Object> s = b.stream("in");
            s.join(s, (x, y) -> x, w).to("a");
            b.stream("other").join(b.stream("other"), (x, y) -> x, w, StreamJoined.as("named")).to("b");
            final KStream<Object, Object> changed = b.stream("third").selectKey((k, v) -> v);
            changed.join(changed, (x, y) -> x, w).to("c");
            changed.groupByKey().count();
        });
        optimized("optimized: tables", b -> {
            b.table("in", Materialized.as("rows")).filter((k, v) -> true).toStream().to("a");
            b.stream("stream").selectKey((k, v) -> v).join(b.table("joined"), (x, y) -> x).to("b");
            b.table("plain").toStream().to("c");
        });
    }
}
