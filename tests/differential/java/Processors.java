import java.time.Duration;
import java.time.Instant;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Named;
import org.apache.kafka.streams.processor.Cancellable;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.ContextualFixedKeyProcessor;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.FixedKeyRecord;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.ValueAndTimestamp;

/** As in test_processors.py. */
final class Processors {
    static StoreBuilder<KeyValueStore<String, String>> store(final String name) {
        return Stores.keyValueStoreBuilder(Stores.inMemoryKeyValueStore(name), Serdes.String(), Serdes.String());
    }

    static final class Punctuated extends ContextualProcessor<String, String, String, String> {
        private KeyValueStore<String, String> seen;
        private Cancellable fewTimes;
        private int calls;

        @Override
        public void init(final ProcessorContext<String, String> context) {
            super.init(context);
            seen = context.getStateStore("seen");
            context.schedule(Duration.ofMillis(15), PunctuationType.STREAM_TIME, now -> {
                try (KeyValueIterator<String, String> all = seen.all()) {
                    all.forEachRemaining(row -> context.forward(new Record<>(row.key, "stream " + row.value, now)));
                }
            });
            context.schedule(Duration.ofMillis(20), PunctuationType.WALL_CLOCK_TIME, now -> context.forward(new Record<>("wall", "" + context.currentStreamTimeMs(), now)));
            fewTimes = context.schedule(Duration.ofMillis(5), PunctuationType.STREAM_TIME, now -> {
                context.forward(new Record<>("few", "" + calls, now));
                if (++calls == 3) {
                    fewTimes.cancel();
                }
            });
            context.schedule(Instant.ofEpochMilli(7), Duration.ofMillis(10), PunctuationType.STREAM_TIME, now -> context.forward(new Record<>("anchored", "x", now)));
        }

        @Override
        public void process(final Record<String, String> record) {
            if (record.key() != null) {
                seen.put(record.key(), record.value());
            }
            context().forward(record.withTimestamp(record.timestamp() + 1));
        }
    }

    record Supplier() implements ProcessorSupplier<String, String, String, String> {
        public Processor<String, String, String, String> get() {
            return new Punctuated();
        }

        public Set<StoreBuilder<?>> stores() {
            return Set.of(store("seen"));
        }
    }

    static void punctuated(final StreamsBuilder builder) {
        builder.<String, String>stream("in").process(new Supplier()).to("out");
    }

    static final class Told extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(final Record<String, String> record) {
            final String where = context().recordMetadata().map(m -> m.topic() + "-" + m.partition() + "@" + m.offset()).orElse("nowhere");
            record.headers().add("own", new byte[] {1});
            context().forward(record.withValue(where + " " + context().currentStreamTimeMs()));
        }
    }

    static void reported(final StreamsBuilder builder) {
        builder.<String, String>stream("in").merge(builder.stream("other")).process(Told::new).to("out");
    }

    static final class Fixed extends ContextualFixedKeyProcessor<String, String, String> {
        @Override
        public void process(final FixedKeyRecord<String, String> record) {
            context().forward(record.withValue(record.value() + "!"));
            context().forward(record.withValue((String) null).withTimestamp(record.timestamp() + 3));
        }
    }

    static void fixedKeys(final StreamsBuilder builder) {
        builder.<String, String>stream("in").processValues(Fixed::new).toTable(Materialized.as("rows")).toStream().to("out");
    }

    static final class Router extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(final Record<String, String> record) {
            if ("1".equals(record.value())) {
                context().forward(record);
            } else {
                context().forward(record, "2".equals(record.value()) ? "left" : "right");
            }
        }
    }

    static void children(final Topology topology) {
        topology.addSource("source", "in");
        topology.addProcessor("router", Router::new, "source");
        topology.addSink("left", "left-out", "router");
        topology.addProcessor("right", Told::new, "router");
        topology.addSink("sink", "right-out", "right");
    }

    static final class Filling implements Processor<String, String, Void, Void> {
        private KeyValueStore<String, String> rows;

        @Override
        public void init(final ProcessorContext<Void, Void> context) {
            rows = context.getStateStore("rows");
        }

        @Override
        public void process(final Record<String, String> record) {
            if (record.key() != null) {
                rows.put(record.key(), record.value() == null ? null : record.value() + record.timestamp());
            }
        }
    }

    static final class Looking extends ContextualProcessor<String, String, String, String> {
        private KeyValueStore<String, String> rows;

        @Override
        public void init(final ProcessorContext<String, String> context) {
            super.init(context);
            rows = context.getStateStore("rows");
        }

        @Override
        public void process(final Record<String, String> record) {
            context().forward(record.withValue(record.key() == null ? "none" : "" + rows.get(record.key())));
        }
    }

    static void globalStore(final StreamsBuilder builder) {
        builder.addGlobalStore(store("rows"), "global", Consumed.with(Serdes.String(), Serdes.String()), Filling::new);
        builder.<String, String>stream("in").process(Looking::new).to("out");
    }

    static final class OfTable extends ContextualProcessor<String, String, String, String> {
        private KeyValueStore<String, ValueAndTimestamp<String>> rows;

        @Override
        public void init(final ProcessorContext<String, String> context) {
            super.init(context);
            rows = context.getStateStore("table");
        }

        @Override
        public void process(final Record<String, String> record) {
            final ValueAndTimestamp<String> row = record.key() == null ? null : rows.get(record.key());
            context().forward(record.withValue(row == null ? "none" : row.value() + "@" + row.timestamp()));
        }
    }

    static void storeOfATable(final StreamsBuilder builder) {
        builder.table("rows", Materialized.as("table"));
        builder.<String, String>stream("in").process(OfTable::new, "table").to("out");
    }

    static void extracted(final StreamsBuilder builder) {
        final Consumed<String, String> consumed = Consumed.with((record, partitionTime) ->
            "1".equals(record.value()) ? -1 : "2".equals(record.value()) ? partitionTime + 5 : record.timestamp());
        builder.<String, String>stream("in", consumed).process(Told::new).to("out");
    }
}
