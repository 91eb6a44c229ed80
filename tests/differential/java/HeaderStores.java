import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Set;
import java.util.StringJoiner;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.ProcessorSupplier;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.SessionStoreWithHeaders;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStoreWithHeaders;
import org.apache.kafka.streams.state.TimestampedWindowStoreWithHeaders;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.WindowStoreIterator;
import org.apache.kafka.streams.state.internals.AggregationWithHeadersSerde;
import org.apache.kafka.streams.state.internals.ValueTimestampHeadersSerde;

/** As in test_header_stores.py. */
final class HeaderStores {
    private static final Duration DAY = Duration.ofDays(1);

    private static String shown(final Headers headers) {
        final StringJoiner shown = new StringJoiner(",", "[", "]");
        for (final Header header : headers) {
            shown.add(header.key() + "=" + new String(header.value(), StandardCharsets.UTF_8));
        }
        return shown.toString();
    }

    private static String shown(final ValueTimestampHeaders<?> row) {
        return row == null ? "none" : row.value() + "@" + row.timestamp() + shown(row.headers());
    }

    private static String shown(final AggregationWithHeaders<?> row) {
        return row == null ? "none" : row.aggregation() + shown(row.headers());
    }

    /** A processor that forwards what its store had, and has. */
    abstract static class Told<S extends org.apache.kafka.streams.processor.StateStore> extends ContextualProcessor<String, String, String, String> {
        S rows;

        @Override
        public void init(final ProcessorContext<String, String> context) {
            super.init(context);
            rows = context.getStateStore("rows");
        }

        @Override
        public void process(final Record<String, String> record) {
            context().forward(record.withValue(record.key() == null ? "none" : reported(record)));
        }

        abstract String reported(Record<String, String> record);
    }

    static final class OfKeyValues extends Told<TimestampedKeyValueStoreWithHeaders<String, String>> {
        @Override
        String reported(final Record<String, String> record) {
            final ValueTimestampHeaders<String> row = ValueTimestampHeaders.make(record.value(), record.timestamp(), record.headers());
            if ("2".equals(record.value())) {
                return "absent " + shown(rows.putIfAbsent(record.key(), row));
            }
            if ("3".equals(record.value())) {
                return "deleted " + shown(rows.delete(record.key()));
            }
            if ("4".equals(record.value())) {
                final StringBuilder all = new StringBuilder();
                try (KeyValueIterator<String, ValueTimestampHeaders<String>> found = rows.all()) {
                    found.forEachRemaining(each -> all.append(each.key).append('=').append(shown(each.value)).append(' '));
                }
                return all.toString();
            }
            final String before = shown(rows.get(record.key()));
            rows.put(record.key(), row);
            return before + " " + shown(rows.get(record.key()));
        }
    }

    static final class OfWindows extends Told<TimestampedWindowStoreWithHeaders<String, String>> {
        @Override
        String reported(final Record<String, String> record) {
            final long start = record.timestamp() / 20 * 20;
            final StringBuilder all = new StringBuilder(shown(rows.fetch(record.key(), start))).append(": ");
            rows.put(record.key(), ValueTimestampHeaders.make(record.value(), record.timestamp(), record.headers()), start);
            try (WindowStoreIterator<ValueTimestampHeaders<String>> found = rows.fetch(record.key(), 0, Long.MAX_VALUE)) {
                found.forEachRemaining(each -> all.append(each.key).append('=').append(shown(each.value)).append(' '));
            }
            return all.toString();
        }
    }

    static final class OfSessions extends Told<SessionStoreWithHeaders<String, String>> {
        @Override
        String reported(final Record<String, String> record) {
            final long end = record.timestamp() / 20 * 20;
            final Windowed<String> session = new Windowed<>(record.key(), new SessionWindow(0, end));
            final StringBuilder all = new StringBuilder(shown(rows.fetchSession(record.key(), 0, end))).append(": ");
            rows.put(session, AggregationWithHeaders.make(record.value(), record.headers()));
            try (KeyValueIterator<Windowed<String>, AggregationWithHeaders<String>> found = rows.findSessions(record.key(), 0, Long.MAX_VALUE)) {
                found.forEachRemaining(each -> all.append(each.key.window().end()).append('=').append(shown(each.value)).append(' '));
            }
            return all.toString();
        }
    }

    private static void reported(final StreamsBuilder builder, final StoreBuilder<?> store, final Processor<String, String, String, String> processor) {
        builder.<String, String>stream("in").process(new ProcessorSupplier<String, String, String, String>() {
            @Override
            public Processor<String, String, String, String> get() {
                try {
                    return processor.getClass().getDeclaredConstructor().newInstance();
                } catch (final ReflectiveOperationException error) {
                    throw new IllegalStateException(error);
                }
            }

            @Override
            public Set<StoreBuilder<?>> stores() {
                return Set.of(store);
            }
        }).to("out");
    }

    static void keyValues(final StreamsBuilder builder) {
        reported(builder, Stores.timestampedKeyValueStoreWithHeadersBuilder(
            Stores.persistentTimestampedKeyValueStoreWithHeaders("rows"), Serdes.String(), Serdes.String()), new OfKeyValues());
    }

    static void keyValuesInMemory(final StreamsBuilder builder) {
        reported(builder, Stores.timestampedKeyValueStoreWithHeadersBuilder(
            Stores.inMemoryKeyValueStore("rows"), Serdes.String(), Serdes.String()).withCachingEnabled(), new OfKeyValues());
    }

    static void windows(final StreamsBuilder builder) {
        reported(builder, Stores.timestampedWindowStoreWithHeadersBuilder(
            Stores.persistentTimestampedWindowStoreWithHeaders("rows", DAY, Duration.ofMillis(20), false), Serdes.String(), Serdes.String()), new OfWindows());
    }

    static void sessions(final StreamsBuilder builder) {
        reported(builder, Stores.sessionStoreWithHeadersBuilder(
            Stores.persistentSessionStoreWithHeaders("rows", DAY), Serdes.String(), Serdes.String()), new OfSessions());
    }

    /** Shows the stores of tables. */
    static final class OfTables extends ContextualProcessor<String, String, String, String> {
        @Override
        public void process(final Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            final TimestampedKeyValueStoreWithHeaders<String, String> table = context().getStateStore("table");
            final TimestampedWindowStoreWithHeaders<String, Long> windows = context().getStateStore("windows");
            final SessionStoreWithHeaders<String, Long> sessions = context().getStateStore("sessions");
            final StringBuilder all = new StringBuilder(shown(table.get(record.key()))).append("; ");
            try (WindowStoreIterator<ValueTimestampHeaders<Long>> found = windows.fetch(record.key(), 0, Long.MAX_VALUE)) {
                found.forEachRemaining(each -> all.append(each.key).append('=').append(shown(each.value)).append(' '));
            }
            try (KeyValueIterator<Windowed<String>, AggregationWithHeaders<Long>> found = sessions.fetch(record.key())) {
                found.forEachRemaining(each -> all.append(each.key.window().end()).append('=').append(shown(each.value)).append(' '));
            }
            context().forward(record.withValue(all.toString()));
        }
    }

    static void tables(final StreamsBuilder builder) {
        builder.table("rows", Materialized.as("table"));
        builder.<String, String>stream("events").groupByKey().windowedBy(TimeWindows.ofSizeAndGrace(Duration.ofMillis(20), DAY))
            .count(Materialized.as("windows"));
        builder.<String, String>stream("events").groupByKey().windowedBy(SessionWindows.ofInactivityGapAndGrace(Duration.ofMillis(20), DAY))
            .count(Materialized.as("sessions"));
        builder.<String, String>stream("in").process(OfTables::new, "table", "windows", "sessions").to("out");
    }

    static void storedBytes(final StreamsBuilder builder) {
        builder.<String, String>stream("in").process(() -> new ContextualProcessor<String, String, String, byte[]>() {
            @Override
            public void process(final Record<String, String> record) {
                if (record.value() != null) {
                    final RecordHeaders headers = new RecordHeaders(record.headers());
                    if (record.value().isEmpty()) {
                        headers.add("\u00fc".repeat(70), new byte[9_000]).add("null", (byte[]) null);
                    }
                    context().forward(record.withValue(new ValueTimestampHeadersSerde<>(Serdes.String()).serializer()
                        .serialize("t", ValueTimestampHeaders.make(record.value(), record.timestamp(), headers))));
                    context().forward(record.withValue(new AggregationWithHeadersSerde<>(Serdes.String()).serializer()
                        .serialize("t", AggregationWithHeaders.make(record.value(), headers))));
                }
            }
        }).to("out", Produced.with(Serdes.String(), Serdes.ByteArray()));
    }
}
