import java.time.Duration;
import java.time.Instant;
import java.util.Iterator;
import java.util.StringJoiner;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.processor.StateStore;
import org.apache.kafka.streams.processor.api.ContextualProcessor;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.query.KeyQuery;
import org.apache.kafka.streams.query.MultiVersionedKeyQuery;
import org.apache.kafka.streams.query.PositionBound;
import org.apache.kafka.streams.query.Query;
import org.apache.kafka.streams.query.QueryConfig;
import org.apache.kafka.streams.query.QueryResult;
import org.apache.kafka.streams.query.RangeQuery;
import org.apache.kafka.streams.query.TimestampedKeyQuery;
import org.apache.kafka.streams.query.TimestampedRangeQuery;
import org.apache.kafka.streams.query.VersionedKeyQuery;
import org.apache.kafka.streams.query.WindowKeyQuery;
import org.apache.kafka.streams.query.WindowRangeQuery;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.StoreBuilder;
import org.apache.kafka.streams.state.Stores;
import org.apache.kafka.streams.state.TimestampedKeyValueStore;
import org.apache.kafka.streams.state.TimestampedWindowStore;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.VersionedKeyValueStore;
import org.apache.kafka.streams.state.VersionedRecord;

/** As in test_queries.py: each record is put into a store, which then answers queries. */
final class Queries {
    abstract static class Asking<S extends StateStore> extends ContextualProcessor<String, String, String, String> {
        private StringJoiner answers;

        abstract void put(S store, String key, String value, long time);

        abstract void ask(S store, String key, long time);

        @Override
        public void process(final Record<String, String> record) {
            if (record.key() == null) {
                return;
            }
            final S store = context().getStateStore("s");
            answers = new StringJoiner(" | ");
            put(store, record.key(), record.value(), record.timestamp());
            ask(store, record.key(), record.timestamp());
            context().forward(record.withValue(answers.toString()));
        }

        <R> void one(final S store, final Query<R> query, final Function<R, String> text) {
            final QueryResult<R> found = store.query(query, PositionBound.unbounded(), new QueryConfig(false));
            answers.add(found.isFailure() ? found.getFailureReason().name() : found.getResult() == null ? "null" : text.apply(found.getResult()));
        }

        <T, R extends Iterator<T>> void several(final S store, final Query<R> query, final Function<T, String> text) {
            one(store, query, rows -> {
                final StringJoiner joined = new StringJoiner(",", "[", "]");
                rows.forEachRemaining(row -> joined.add(text.apply(row)));
                try {
                    ((AutoCloseable) rows).close();
                } catch (final Exception error) {
                    throw new IllegalStateException(error);
                }
                return joined.toString();
            });
        }
    }

    /** Window queries give the value with its timestamp, whatever their type says. */
    static String timed(final Object value) {
        final ValueAndTimestamp<?> row = (ValueAndTimestamp<?>) value;
        return row.value() + "@" + row.timestamp();
    }

    static <K> String windowed(final Windowed<K> key) {
        return key.key() + "/" + key.window().start() + "-" + key.window().end();
    }

    static String version(final VersionedRecord<String> found) {
        return found.value() + "@" + found.timestamp() + "-" + found.validTo().map(String::valueOf).orElse("");
    }

    static final class KeyValues extends Asking<TimestampedKeyValueStore<String, String>> {
        @Override
        void put(final TimestampedKeyValueStore<String, String> store, final String key, final String value, final long time) {
            store.put(key, ValueAndTimestamp.make(value, time));
        }

        @Override
        void ask(final TimestampedKeyValueStore<String, String> store, final String key, final long time) {
            one(store, KeyQuery.<String, String>withKey(key), value -> value);
            one(store, TimestampedKeyQuery.<String, String>withKey(key), Queries::timed);
            several(store, RangeQuery.<String, String>withRange("a", "b"), row -> row.key + "=" + row.value);
            several(store, RangeQuery.<String, String>withLowerBound(key).withDescendingKeys(), row -> row.key + "=" + row.value);
            several(store, TimestampedRangeQuery.<String, String>withUpperBound(key).withAscendingKeys(), row -> row.key + "=" + timed(row.value));
            one(store, VersionedKeyQuery.<String, String>withKey(key), Queries::version);
        }
    }

    static void keyValues(final StreamsBuilder builder) {
        asked(builder, Stores.timestampedKeyValueStoreBuilder(Stores.persistentTimestampedKeyValueStore("s"), Serdes.String(), Serdes.String()), KeyValues::new);
    }

    static final class Windows extends Asking<TimestampedWindowStore<String, String>> {
        @Override
        void put(final TimestampedWindowStore<String, String> store, final String key, final String value, final long time) {
            store.put(key, ValueAndTimestamp.make(value, time), time / 5 * 5);
        }

        @Override
        void ask(final TimestampedWindowStore<String, String> store, final String key, final long time) {
            final Instant from = Instant.ofEpochMilli(Math.max(0, time - 20));
            final Instant to = Instant.ofEpochMilli(time + 5);
            several(store, WindowKeyQuery.<String, String>withKeyAndWindowStartRange(key, from, to), row -> row.key + "=" + timed(row.value));
            several(store, WindowRangeQuery.<String, String>withWindowStartRange(from, to), row -> windowed(row.key) + "=" + timed(row.value));
            several(store, WindowRangeQuery.<String, String>withKey(key), row -> windowed(row.key) + "=" + row.value);
            one(store, KeyQuery.<String, String>withKey(key), value -> value);
        }
    }

    static void windows(final StreamsBuilder builder) {
        asked(
            builder,
            Stores.timestampedWindowStoreBuilder(
                Stores.persistentTimestampedWindowStore("s", Duration.ofMillis(120_000), Duration.ofMillis(5), false), Serdes.String(), Serdes.String()),
            Windows::new);
    }

    static final class Sessions extends Asking<SessionStore<String, String>> {
        @Override
        void put(final SessionStore<String, String> store, final String key, final String value, final long time) {
            store.put(new Windowed<>(key, new SessionWindow(time / 10 * 10, time / 10 * 10 + 5)), value);
        }

        @Override
        void ask(final SessionStore<String, String> store, final String key, final long time) {
            several(store, WindowRangeQuery.<String, String>withKey(key), row -> windowed(row.key) + "=" + row.value);
            several(store, WindowRangeQuery.<String, String>withWindowStartRange(Instant.EPOCH, Instant.ofEpochMilli(time)), row -> windowed(row.key) + "=" + row.value);
        }
    }

    static void sessions(final StreamsBuilder builder) {
        asked(builder, Stores.sessionStoreBuilder(Stores.persistentSessionStore("s", Duration.ofMillis(120_000)), Serdes.String(), Serdes.String()), Sessions::new);
    }

    static final class Versions extends Asking<VersionedKeyValueStore<String, String>> {
        @Override
        void put(final VersionedKeyValueStore<String, String> store, final String key, final String value, final long time) {
            store.put(key, value, time);
        }

        @Override
        void ask(final VersionedKeyValueStore<String, String> store, final String key, final long time) {
            final MultiVersionedKeyQuery<String, String> versions = MultiVersionedKeyQuery.withKey(key);
            final Instant from = Instant.ofEpochMilli(Math.max(0, time - 10));
            final Instant to = Instant.ofEpochMilli(time + 3);
            one(store, VersionedKeyQuery.<String, String>withKey(key), Queries::version);
            one(store, VersionedKeyQuery.<String, String>withKey(key).asOf(from), Queries::version);
            several(store, versions, Queries::version);
            several(store, versions.withAscendingTimestamps(), Queries::version);
            several(store, versions.fromTime(from).toTime(to), Queries::version);
            several(store, versions.fromTime(from).toTime(from).withAscendingTimestamps(), Queries::version);
            several(store, versions.fromTime(to).withDescendingTimestamps(), Queries::version);
            one(store, TimestampedKeyQuery.<String, String>withKey(key), Queries::timed);
        }
    }

    static void versions(final StreamsBuilder builder) {
        asked(
            builder,
            Stores.versionedKeyValueStoreBuilder(Stores.persistentVersionedKeyValueStore("s", Duration.ofMillis(10_000)), Serdes.String(), Serdes.String()),
            Versions::new);
    }

    private static <S extends StateStore> void asked(
        final StreamsBuilder builder, final StoreBuilder<?> store, final Supplier<Asking<S>> processor) {
        builder.addStateStore(store);
        builder.<String, String>stream("in").process(processor::get, "s").to("out");
    }
}
