import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HexFormat;
import java.util.List;
import org.apache.kafka.common.header.internals.RecordHeaders;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionResponseWrapper;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionResponseWrapperSerde;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionWrapper;
import org.apache.kafka.streams.kstream.internals.foreignkeyjoin.SubscriptionWrapperSerde;
import org.apache.kafka.streams.state.internals.LeftOrRightValue;
import org.apache.kafka.streams.state.internals.LeftOrRightValueSerde;
import org.apache.kafka.streams.state.internals.Murmur3;
import org.apache.kafka.streams.state.internals.TimestampedKeyAndJoinSide;
import org.apache.kafka.streams.state.internals.TimestampedKeyAndJoinSideSerde;

/** Writes written_by_java/joins.tsv with Kafka Streams' own classes: java -cp 'lib/*' WriteJoins.java > joins.tsv */
public class WriteJoins {
    static void line(final String kind, final String input, final byte[] output) {
        System.out.println(kind + "\t" + input + "\t" + HexFormat.of().formatHex(output));
    }

    static byte[] longs(final long[] pair) {
        return java.nio.ByteBuffer.allocate(16).putLong(pair[0]).putLong(pair[1]).array();
    }

    public static void main(final String[] args) {
        final RecordHeaders none = new RecordHeaders();
        for (final String text : List.of("", "a", "seven..", "eight...", "nine.....", "sixteen bytes...", "seventeen bytes..", "a text of more than thirty-two bytes, with a tail", "\u00e9\u00ff")) {
            line("hash128", text, longs(Murmur3.hash128(text.getBytes(StandardCharsets.UTF_8))));
        }
        final long[] hash = Murmur3.hash128("row".getBytes(StandardCharsets.UTF_8));
        final SubscriptionWrapperSerde<String> subscriptions = new SubscriptionWrapperSerde<>(() -> "pk", Serdes.String());
        for (final SubscriptionWrapper.Instruction instruction : SubscriptionWrapper.Instruction.values()) {
            line("subscription", "row " + instruction + " key 7", subscriptions.serializer().serialize("t", none, new SubscriptionWrapper<>(hash, instruction, "key", 7)));
            line("subscription", "- " + instruction + " k 0", subscriptions.serializer().serialize("t", none, new SubscriptionWrapper<>(null, instruction, "k", 0)));
        }
        final SubscriptionResponseWrapperSerde<String> responses = new SubscriptionResponseWrapperSerde<>(Serdes.String());
        line("response", "row value", responses.serializer().serialize("t", none, new SubscriptionResponseWrapper<>(hash, "value", 3)));
        line("response", "row -", responses.serializer().serialize("t", none, new SubscriptionResponseWrapper<String>(hash, null, 3)));
        line("response", "- -", responses.serializer().serialize("t", none, new SubscriptionResponseWrapper<String>(null, null, 3)));
        final Serde<TimestampedKeyAndJoinSide<String>> keys = new TimestampedKeyAndJoinSideSerde<>(Serdes.String());
        line("join key", "1700000000123 left key", keys.serializer().serialize("t", none, TimestampedKeyAndJoinSide.makeLeft("key", 1700000000123L)));
        line("join key", "5 right k", keys.serializer().serialize("t", none, TimestampedKeyAndJoinSide.makeRight("k", 5)));
        final LeftOrRightValueSerde<String, String> values = new LeftOrRightValueSerde<>(Serdes.String(), Serdes.String());
        final List<byte[]> list = new ArrayList<>();
        for (final String each : List.of("left one", "right two")) {
            final String[] parts = each.split(" ");
            final LeftOrRightValue<String, String> value = parts[0].equals("left") ? LeftOrRightValue.makeLeftValue(parts[1]) : LeftOrRightValue.makeRightValue(parts[1]);
            list.add(values.serializer().serialize("t", none, value));
            line("join values", String.join(",", List.of("left one", "right two").subList(0, list.size())), Serdes.ListSerde(ArrayList.class, Serdes.ByteArray()).serializer().serialize("t", list));
        }
    }
}
