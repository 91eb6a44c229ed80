import com.fasterxml.jackson.annotation.JsonIgnoreProperties;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.ObjectReader;
import com.fasterxml.jackson.databind.ObjectWriter;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.SessionWindows;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.Suppressed;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.SessionStore;
import org.apache.kafka.streams.state.WindowStore;

/**
 * The programs of benchmarks/workloads.py in Kafka Streams; what to run is told by the JSON in BENCH_SPEC. One thread, defaults. With
 * "rounds" (restore_programs.OfKafkaStreams) it prints the times of its restore as JSON, and ends.
 */
public final class StreamsApp {
    @JsonIgnoreProperties(ignoreUnknown = true)
    public static final class Event { public String user; public double amount; public long ts; }

    @JsonIgnoreProperties(ignoreUnknown = true)
    public static final class Profile { public String country; public int tier; }

    public record Small(String u, double a) { }

    public record Enriched(String user, double amount, String country, int tier) { }

    public record Pair(String user, double amount, double other) { }

    static final ObjectMapper MAPPER = new ObjectMapper();
    static final ObjectReader EVENT = MAPPER.readerFor(Event.class), PROFILE = MAPPER.readerFor(Profile.class);
    static final ObjectWriter WRITER = MAPPER.writer();
    static volatile boolean seen;

    /** Notes when the first restore began and the last ended. */
    static final class Times implements StateRestoreListener {
        long begun;
        long ended;

        @Override
        public synchronized void onRestoreStart(TopicPartition partition, String store, long start, long end) {
            begun = begun == 0 ? System.currentTimeMillis() : begun;
        }

        @Override
        public void onBatchRestored(TopicPartition partition, String store, long end, long count) { }

        @Override
        public synchronized void onRestoreEnd(TopicPartition partition, String store, long total) {
            ended = System.currentTimeMillis();
        }

        /** Returns the line that restore_programs.Restored is read from; the value of each key must be the number of rounds. */
        synchronized String result(KafkaStreams streams, JsonNode run, long ready) {
            long found = 0, wrong = 0;
            var counts = StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.<String, Long>keyValueStore());
            try (KeyValueIterator<String, Long> rows = streams.store(counts).all()) {
                while (rows.hasNext()) {
                    KeyValue<String, Long> row = rows.next();
                    found++;
                    wrong += row.value == run.get("rounds").asLong() ? 0 : 1;
                }
            }
            wrong += Math.abs(run.get("keys").asLong() - found);
            double seconds = (ended - begun) / 1000.0, start = (ready - run.get("started_ms").asLong()) / 1000.0;
            return "{\"seconds\":" + seconds + ",\"ready_seconds\":" + start + ",\"wrong\":" + wrong + "}";
        }
    }

    /** The clock starts with the first record. */
    static void first() {
        if (!seen) {
            seen = true;
            System.out.println("BENCH FIRST " + System.currentTimeMillis());
        }
    }

    static <T> T read(ObjectReader reader, byte[] value) {
        try {
            return reader.readValue(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    static Event event(byte[] value) { return read(EVENT, value); }

    static byte[] json(Object value) {
        try {
            return WRITER.writeValueAsBytes(value);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    /** The kinds that read the events as a table. */
    static boolean onTables(StreamsBuilder builder, JsonNode run) {
        String input = run.get("input").asText(), output = run.get("output").asText();
        Consumed<String, byte[]> consumed = Consumed.with(Serdes.String(), Serdes.ByteArray());
        switch (run.get("kind").asText()) {
            case "table-aggregate" -> builder.table(input, consumed, Materialized.as("latest")).groupBy((key, value) -> {
                first();
                return KeyValue.pair(key.substring(key.length() - 3), cents(event(value)));
            }, Grouped.with(Serdes.String(), Serdes.Long()))
                .aggregate(() -> 0L, (key, value, total) -> total + value, (key, value, total) -> total - value, Materialized
                    .<String, Long, KeyValueStore<Bytes, byte[]>>as("totals").withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
                .toStream().to(output, Produced.with(Serdes.String(), Serdes.Long()));
            case "foreign-key-join" -> {
                KTable<String, byte[]> profiles = builder.table(run.get("table").asText(), consumed, Materialized.as("profiles"));
                builder.table(input, consumed, Materialized.as("latest")).join(profiles, value -> {
                    first();
                    return "u" + String.valueOf(100_000_000 + cents(event(value))).substring(1);
                }, (value, row) -> {
                    Event event = event(value);
                    Profile profile = read(PROFILE, row);
                    return json(new Enriched(event.user, event.amount, profile.country, profile.tier));
                }).toStream().to(output, Produced.with(Serdes.String(), Serdes.ByteArray()));
            }
            default -> {
                return false;
            }
        }
        return true;
    }

    static long cents(Event event) { return Math.round(event.amount * 100); }

    static void build(StreamsBuilder builder, JsonNode run) {
        if (onTables(builder, run)) {
            return;
        }
        String output = run.get("output").asText(), table = run.get("table").asText();
        Produced<String, byte[]> produced = Produced.with(Serdes.String(), Serdes.ByteArray());
        Consumed<String, byte[]> consumed = Consumed.with(Serdes.String(), Serdes.ByteArray());
        KStream<String, byte[]> source = builder.stream(run.get("input").asText(), consumed).peek((key, value) -> first());
        switch (run.get("kind").asText()) {
            case "stateless" -> source.mapValues(StreamsApp::event).filter((key, event) -> event.amount > 50.0)
                .mapValues(event -> json(new Small(event.user, event.amount))).to(output, produced);
            case "count" -> source.groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
                .count(Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts").withKeySerde(Serdes.String()))
                .toStream().to(output, Produced.with(Serdes.String(), Serdes.Long()));
            case "window" -> source.mapValues(StreamsApp::event).groupByKey(Grouped.with(Serdes.String(), null))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(run.get("window_ms").asLong())))
                .aggregate(() -> 0.0, (key, event, total) -> total + event.amount, Materialized
                    .<String, Double, WindowStore<Bytes, byte[]>>as("sums").withKeySerde(Serdes.String()).withValueSerde(Serdes.Double()))
                .toStream((key, total) -> key.key() + "@" + key.window().start())
                .to(output, Produced.with(Serdes.String(), Serdes.Double()));
            case "join" -> {
                KTable<String, byte[]> profiles = builder.table(table, consumed, Materialized.as("profiles"));
                source.mapValues(StreamsApp::event).join(
                    profiles.mapValues(value -> StreamsApp.<Profile>read(PROFILE, value)),
                    (event, profile) -> json(new Enriched(event.user, event.amount, profile.country, profile.tier)),
                    Joined.with(Serdes.String(), null, null)).to(output, produced);
            }
            case "stream-join" -> source.join(builder.stream(table, consumed), (left, right) -> {
                Event one = event(left);
                return json(new Pair(one.user, one.amount, event(right).amount));
            }, JoinWindows.ofTimeDifferenceWithNoGrace(Duration.ofSeconds(2)),
                StreamJoined.with(Serdes.String(), Serdes.ByteArray(), Serdes.ByteArray())).to(output, produced);
            case "session" -> source.groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
                .windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofSeconds(30)))
                .count(Materialized.<String, Long, SessionStore<Bytes, byte[]>>as("sessions").withKeySerde(Serdes.String()))
                .toStream((key, count) -> key.key() + "@" + key.window().start() + "-" + key.window().end())
                .to(output, Produced.with(Serdes.String(), Serdes.Long()));
            case "suppress" -> source.groupByKey(Grouped.with(Serdes.String(), Serdes.ByteArray()))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofMillis(run.get("window_ms").asLong())))
                .count(Materialized.<String, Long, WindowStore<Bytes, byte[]>>as("counts").withKeySerde(Serdes.String()))
                .suppress(Suppressed.untilWindowCloses(Suppressed.BufferConfig.unbounded()))
                .toStream((key, count) -> key.key() + "@" + key.window().start())
                .to(output, Produced.with(Serdes.String(), Serdes.Long()));
            default -> throw new IllegalArgumentException(run.get("kind").asText());
        }
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode run = MAPPER.readTree(System.getenv("BENCH_SPEC"));
        StreamsBuilder builder = new StreamsBuilder();
        build(builder, run);
        Properties config = new Properties();
        config.put("application.id", run.get("app").asText());
        config.put("bootstrap.servers", run.get("bootstrap").asText());
        config.put("state.dir", run.get("state").asText());
        config.put("auto.offset.reset", "earliest");
        config.put("processing.guarantee", run.get("eos").asBoolean() ? "exactly_once_v2" : "at_least_once");
        config.put("commit.interval.ms", run.get("commit_ms").asText());
        if (!run.get("cache").asBoolean()) {
            config.put("statestore.cache.max.bytes", "0");
        }
        KafkaStreams streams = new KafkaStreams(builder.build(config), config);
        CountDownLatch ended = new CountDownLatch(1);
        boolean restores = run.has("rounds");
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.ERROR || restores && now == KafkaStreams.State.RUNNING) {
                ended.countDown();
            }
        });
        Times times = new Times();
        streams.setGlobalStateRestoreListener(times);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        ended.await();
        if (streams.state() == KafkaStreams.State.ERROR) {
            System.exit(1);
        }
        String result = times.result(streams, run, System.currentTimeMillis());
        streams.close(new KafkaStreams.CloseOptions().leaveGroup(true)); // the next turn would wait for this member's session
        System.out.println(result);
        System.exit(0);
    }
}
