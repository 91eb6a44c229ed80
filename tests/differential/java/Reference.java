import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.io.StringWriter;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.TestInputTopic;
import org.apache.kafka.streams.TestOutputTopic;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.TopologyConfig;
import org.apache.kafka.streams.TopologyTestDriver;
import org.apache.kafka.streams.test.TestRecord;

/**
 * Runs topologies in Kafka Streams' own TopologyTestDriver: a request per line of standard input, an answer per line of standard output.
 *
 * A request: {"topology": "Windows.tumblingCount", "config": {...}, "steps": [...]}. A topology is a static method of the class before the dot that takes a
 * StreamsBuilder or a Topology and fills it. A step is [topic, key, value, timestamp, [[header, value], ...]], or [ms] to advance the wall clock.
 * The answer: {"steps": [[[topic, key, value, timestamp, headers], ...], ...], "dropped": 1.0, "error": null}: what each step put out, topics in the order of
 * their names; the sum of dropped-records-total; and what a step raised, which ends the run. Bytes are strings of the characters 0 to 255.
 */
public final class Reference {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final String APPLICATION = "topology-test";

    public static void main(final String[] args) throws Exception {
        final PrintStream answers = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err); // `print` is an operator
        final BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            answers.println(JSON.writeValueAsString(answer(JSON.readTree(line))));
        }
    }

    private static ObjectNode answer(final JsonNode request) throws IOException {
        final ObjectNode answer = JSON.createObjectNode();
        final ArrayNode steps = answer.putArray("steps");
        final Properties config = new Properties();
        config.put("application.id", APPLICATION);
        config.put("bootstrap.servers", "localhost:9092");
        config.put("default.key.serde", "org.apache.kafka.common.serialization.Serdes$StringSerde");
        config.put("default.value.serde", "org.apache.kafka.common.serialization.Serdes$StringSerde");
        config.put("state.dir", Files.createTempDirectory("state").toString()); // a driver that failed leaves its state behind
        request.get("config").fields().forEachRemaining(entry -> config.put(entry.getKey(), entry.getValue().asText()));
        try (TopologyTestDriver driver = new TopologyTestDriver(topology(request.get("topology").asText(), config), config, Instant.EPOCH)) {
            final Map<String, TestInputTopic<byte[], byte[]>> inputs = new HashMap<>();
            for (final JsonNode step : request.get("steps")) {
                perform(driver, inputs, step);
                put(steps.addArray(), driver);
            }
            answer.put("dropped", dropped(driver));
        } catch (final Exception error) {
            final StringWriter text = new StringWriter();
            error.printStackTrace(new PrintWriter(text));
            answer.put("error", text.toString());
        }
        return answer;
    }

    private static Topology topology(final String name, final Properties config) throws Exception {
        final int dot = name.indexOf('.');
        for (final Method method : Class.forName(name.substring(0, dot)).getDeclaredMethods()) {
            if (method.getName().equals(name.substring(dot + 1))) {
                final TopologyConfig early = config.containsKey("processor.wrapper.class") ? new TopologyConfig(new StreamsConfig(config)) : null;
                final StreamsBuilder builder = early == null ? new StreamsBuilder() : new StreamsBuilder(early);
                final boolean plain = method.getParameterTypes()[0] == Topology.class;
                final Topology topology = early == null ? new Topology() : new Topology(early);
                method.setAccessible(true);
                try {
                    method.invoke(null, plain ? topology : builder);
                } catch (final InvocationTargetException error) {
                    throw (Exception) error.getCause();
                }
                return plain ? topology : builder.build(config);
            }
        }
        throw new IllegalArgumentException("no method " + name);
    }

    private static void perform(final TopologyTestDriver driver, final Map<String, TestInputTopic<byte[], byte[]>> inputs, final JsonNode step) {
        if (step.size() == 1) {
            driver.advanceWallClockTime(Duration.ofMillis(step.get(0).asLong()));
            return;
        }
        final TestInputTopic<byte[], byte[]> topic = inputs.computeIfAbsent(
            step.get(0).asText(), name -> driver.createInputTopic(name, new ByteArraySerializer(), new ByteArraySerializer()));
        final RecordHeaders headers = new RecordHeaders();
        step.get(4).forEach(header -> headers.add(header.get(0).asText(), bytes(header.get(1))));
        topic.pipeInput(new TestRecord<>(bytes(step.get(1)), bytes(step.get(2)), headers, step.get(3).asLong()));
    }

    private static void put(final ArrayNode outputs, final TopologyTestDriver driver) {
        for (final String name : new TreeSet<>(driver.producedTopicNames())) {
            if (name.startsWith(APPLICATION + "-")) {
                continue;
            }
            final TestOutputTopic<byte[], byte[]> topic = driver.createOutputTopic(name, new ByteArrayDeserializer(), new ByteArrayDeserializer());
            for (final TestRecord<byte[], byte[]> record : topic.readRecordsToList()) {
                final ArrayNode output = outputs.addArray().add(name).add(text(record.key())).add(text(record.value())).add(record.timestamp());
                final ArrayNode headers = output.addArray();
                for (final Header header : record.headers()) {
                    headers.addArray().add(header.key()).add(text(header.value()));
                }
            }
        }
    }

    private static double dropped(final TopologyTestDriver driver) {
        return driver.metrics().entrySet().stream()
            .filter(metric -> metric.getKey().name().equals("dropped-records-total") && metric.getKey().group().equals("stream-task-metrics"))
            .mapToDouble(metric -> (Double) metric.getValue().metricValue()).sum();
    }

    private static byte[] bytes(final JsonNode text) {
        return text.isNull() ? null : text.asText().getBytes(StandardCharsets.ISO_8859_1);
    }

    private static String text(final byte[] bytes) {
        return bytes == null ? null : new String(bytes, StandardCharsets.ISO_8859_1);
    }
}
