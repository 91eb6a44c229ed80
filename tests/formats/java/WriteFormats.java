import java.io.File;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.*;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.streams.kstream.SessionWindowedSerializer;
import org.apache.kafka.streams.kstream.TimeWindowedSerializer;
import org.apache.kafka.streams.kstream.Windowed;
import org.apache.kafka.streams.kstream.internals.SessionWindow;
import org.apache.kafka.streams.kstream.internals.TimeWindow;
import org.apache.kafka.streams.processor.internals.ProcessorMetadata;
import org.apache.kafka.streams.processor.internals.TopicPartitionMetadata;
import org.apache.kafka.streams.state.AggregationWithHeaders;
import org.apache.kafka.streams.state.ValueAndTimestamp;
import org.apache.kafka.streams.state.ValueTimestampHeaders;
import org.apache.kafka.streams.state.internals.AggregationWithHeadersSerde;
import org.apache.kafka.streams.state.internals.OffsetCheckpoint;
import org.apache.kafka.streams.state.internals.SessionKeySchema;
import org.apache.kafka.streams.state.internals.ValueAndTimestampSerde;
import org.apache.kafka.streams.state.internals.ValueTimestampHeadersSerde;
import org.apache.kafka.streams.state.internals.WindowKeySchema;

/** Writes the files under written_by_java with Kafka Streams' own classes: java -cp kafka-streams.jar:kafka-clients.jar:slf4j-api.jar WriteFormats.java FOLDER */
public class WriteFormats {
    static final StringBuilder lines = new StringBuilder();

    static void line(String kind, String input, byte[] output) {
        lines.append(kind).append('\t').append(input).append('\t').append(HexFormat.of().formatHex(output)).append('\n');
    }

    public static void main(String[] args) throws Exception {
        Path folder = Path.of(args[0]);
        for (String name : List.of("task", "global")) Files.createDirectories(folder.resolve(name));
        Map<TopicPartition, Long> offsets = new LinkedHashMap<>();
        offsets.put(new TopicPartition("app-counts-changelog", 0), 41L);
        offsets.put(new TopicPartition("app-KSTREAM-AGGREGATE-STATE-STORE-0000000003-changelog", 12), 9_876_543_210L);
        offsets.put(new TopicPartition("app-unknown-changelog", 1), -4L);
        new OffsetCheckpoint(folder.resolve("task/.checkpoint").toFile()).write(offsets);
        new OffsetCheckpoint(folder.resolve("global/.checkpoint").toFile()).write(Map.of(new TopicPartition("airports", 0), 1458L));

        for (int n : new int[] {0, 1, -1, 42, Integer.MIN_VALUE, Integer.MAX_VALUE}) line("INTEGER", "" + n, new IntegerSerializer().serialize("t", n));
        for (long n : new long[] {0, 1, -1, 42, Long.MIN_VALUE, Long.MAX_VALUE}) line("LONG", "" + n, new LongSerializer().serialize("t", n));
        for (short n : new short[] {0, 1, -1, Short.MIN_VALUE, Short.MAX_VALUE}) line("SHORT", "" + n, new ShortSerializer().serialize("t", n));
        for (float n : new float[] {0, 1.5f, -2.25f}) line("FLOAT", "" + n, new FloatSerializer().serialize("t", n));
        for (double n : new double[] {0, 0.1, -1e300}) line("DOUBLE", "" + n, new DoubleSerializer().serialize("t", n));
        for (boolean b : new boolean[] {true, false}) line("BOOLEAN", "" + b, new BooleanSerializer().serialize("t", b));
        for (List<String> list : List.of(List.<String>of(), List.of("a", "", "Zürich"), Arrays.asList("a", null)))
            line("list_of STRING", String.join(",", list.stream().map(String::valueOf).toList()), new ListSerializer<>(new StringSerializer()).serialize("t", list));
        for (List<Long> list : List.of(List.<Long>of(), List.of(1L, -1L), Arrays.asList(null, 7L, null)))
            line("list_of LONG", String.join(",", list.stream().map(String::valueOf).toList()), new ListSerializer<>(new LongSerializer()).serialize("t", list));
        for (String s : List.of("", "EWR", "Zürich ✈")) line("STRING", s, new StringSerializer().serialize("t", s));
        UUID uuid = UUID.fromString("01234567-89ab-cdef-0123-456789abcdef");
        line("UUID", uuid.toString(), new UUIDSerializer().serialize("t", uuid));
        for (long start : new long[] {0, 3_600_000, 1_357_034_400_000L}) {
            Windowed<String> key = new Windowed<>("EWR", new TimeWindow(start, start + 3_600_000));
            line("time_windowed", "EWR " + start, new TimeWindowedSerializer<>(new StringSerializer()).serialize("t", key));
            line("window_store_key", "EWR " + start, WindowKeySchema.toStoreKeyBinary(Bytes.wrap("EWR".getBytes(StandardCharsets.UTF_8)), start, 0).get());
        }
        for (long[] session : new long[][] {{0, 0}, {1_357_034_400_000L, 1_357_034_460_000L}}) {
            Windowed<String> key = new Windowed<>("EWR", new SessionWindow(session[0], session[1]));
            String told = "EWR " + session[0] + " " + session[1];
            line("session_windowed", told, new SessionWindowedSerializer<>(new StringSerializer()).serialize("t", key));
            line("session_key", told, SessionKeySchema.toBinary(Bytes.wrap("EWR".getBytes(StandardCharsets.UTF_8)), session[0], session[1]).get());
        }
        for (long time : new long[] {-1, 0, 1_357_034_400_000L}) {
            line("commit_metadata", "" + time, new TopicPartitionMetadata(time, new ProcessorMetadata()).encode().getBytes(StandardCharsets.UTF_8));
            if (time >= 0) line("value_and_timestamp", "EWR " + time, new ValueAndTimestampSerde<>(Serdes.String()).serializer().serialize("t", ValueAndTimestamp.make("EWR", time)));
        }
        RecordHeaders some = new RecordHeaders(new Header[] {new RecordHeader("trace", new byte[] {0, -1}), new RecordHeader("\u00fc", new byte[0]), new RecordHeader("null", null)});
        RecordHeaders large = new RecordHeaders(new Header[] {new RecordHeader("h".repeat(70), new byte[9_000])});
        for (Map.Entry<String, RecordHeaders> headers : List.of(Map.entry("none", new RecordHeaders()), Map.entry("some", some), Map.entry("large", large))) {
            line("value_timestamp_headers", headers.getKey(), new ValueTimestampHeadersSerde<>(Serdes.String()).serializer().serialize("t", ValueTimestampHeaders.make("EWR", 1_357_034_400_000L, headers.getValue())));
            line("aggregation_with_headers", headers.getKey(), new AggregationWithHeadersSerde<>(Serdes.String()).serializer().serialize("t", AggregationWithHeaders.make("EWR", headers.getValue())));
        }
        Random random = new Random(7);
        for (int length = 0; length < 40; length++) {
            byte[] key = new byte[length];
            random.nextBytes(key);
            lines.append("murmur2\t").append(HexFormat.of().formatHex(key)).append('\t').append(Integer.toUnsignedString(Utils.murmur2(key))).append('\n');
        }
        Files.writeString(folder.resolve("bytes.tsv"), lines.toString());
    }
}
