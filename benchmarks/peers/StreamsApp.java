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
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.JoinWindows;
import org.apache.kafka.streams.kstream.Joined;
import org.apache.kafka.streams.kstream.KStream;
import org.apache.kafka.streams.kstream.KTable;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.StreamJoined;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.WindowStore;

/** The programs of benchmarks/workloads.py in Kafka Streams; what to run is told by the JSON in BENCH_SPEC. One thread, defaults. */
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

    static void build(StreamsBuilder builder, JsonNode run) {
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
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.ERROR) {
                ended.countDown();
            }
        });
        Runtime.getRuntime().addShutdownHook(new Thread(() -> streams.close(Duration.ofSeconds(10))));
        streams.start();
        ended.await();
        System.exit(1);
    }
}
