import java.time.Duration;
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.clients.producer.*;
import org.apache.kafka.common.serialization.*;
import org.apache.kafka.streams.*;
import org.apache.kafka.streams.kstream.*;
import org.apache.kafka.streams.processor.api.*;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.*;

/**
 * Runs an application on Kafka Streams until it has processed its input, and closes it: what it leaves in its state folder, an
 * application moved to Penstock finds. Up to 4.2 the offsets are in `.checkpoint`, from 4.3 on in the stores (KIP-1035).
 *
 * java -cp 'LIBS/*' WriteState.java BOOTSTRAP STATE_DIR [kill], LIBS being kafka-streams 4.2.0 or 4.3.1 and what it needs; then without LOG, LOCK and OPTIONS files.
 */
public class WriteState {
    static final String[] WORDS = {"EWR", "JFK", "LGA", "EWR", "Zürich ✈", "EWR"};

    /** Keeps the last value of each key in a store without timestamps. */
    static class Last implements Processor<String, String, Void, Void> {
        private KeyValueStore<String, String> store;

        public void init(ProcessorContext<Void, Void> context) {
            store = context.getStateStore("last");
        }

        public void process(Record<String, String> record) {
            store.put(record.key(), record.value());
        }
    }

    public static void main(String[] args) throws Exception {
        String application = "java-app";
        String words = application + "-words", airports = application + "-airports";
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            admin.createTopics(List.of(new NewTopic(words, 1, (short) 1),
                new NewTopic(airports, 2, (short) 1).configs(Map.of("cleanup.policy", "compact")))).all().get();
        }
        Map<String, Object> settings = Map.of("bootstrap.servers", args[0], "key.serializer", StringSerializer.class, "value.serializer", StringSerializer.class);
        try (Producer<String, String> producer = new KafkaProducer<>(settings)) {
            for (int i = 0; i < WORDS.length; i++) producer.send(new ProducerRecord<>(words, 0, 1_000_000L + i * 60_000, WORDS[i], "v" + i));
            producer.send(new ProducerRecord<>(airports, 0, 7L, "EWR", "Newark"));
            producer.send(new ProducerRecord<>(airports, 1, 8L, "JFK", "Kennedy"));
        }

        StreamsBuilder builder = new StreamsBuilder();
        Serde<String> text = Serdes.String();
        KStream<String, String> stream = builder.stream(words, Consumed.with(text, text));
        builder.globalTable(airports, Consumed.with(text, text), Materialized.as("airports"));
        KGroupedStream<String, String> grouped = stream.groupByKey();
        grouped.count(Materialized.as("counts"));
        grouped.windowedBy(TimeWindows.ofSizeWithNoGrace(Duration.ofHours(1))).count(Materialized.as("hourly"));
        grouped.windowedBy(SessionWindows.ofInactivityGapWithNoGrace(Duration.ofMinutes(5))).count(Materialized.as("visits"));
        builder.addStateStore(Stores.keyValueStoreBuilder(Stores.persistentKeyValueStore("last"), text, text));
        builder.addStateStore(Stores.versionedKeyValueStoreBuilder(Stores.persistentVersionedKeyValueStore("prices", Duration.ofHours(1)), text, text));
        stream.process(Last::new, "last");
        stream.process(() -> new Processor<String, String, Void, Void>() {
            private VersionedKeyValueStore<String, String> store;

            public void init(ProcessorContext<Void, Void> context) {
                store = context.getStateStore("prices");
            }

            public void process(Record<String, String> record) {
                store.put(record.key(), record.value(), record.timestamp());
            }
        }, "prices");

        Properties config = new Properties();
        config.putAll(Map.of("application.id", application, "bootstrap.servers", args[0], "state.dir", args[1], "default.key.serde", text.getClass(),
            "default.value.serde", text.getClass(), "processing.guarantee", "exactly_once_v2", "auto.offset.reset", "earliest"));
        KafkaStreams streams = new KafkaStreams(builder.build(), config);
        streams.start();
        long deadline = System.currentTimeMillis() + 60_000;
        while (System.currentTimeMillis() < deadline) {
            Thread.sleep(200);
            try {
                Long found = streams.store(StoreQueryParameters.fromNameAndType("counts", QueryableStoreTypes.<String, Long>keyValueStore())).get("EWR");
                if (found != null && found == 3L) break;
            } catch (RuntimeException restoring) {
                continue;
            }
        }
        Thread.sleep(1_000);
        if (args.length > 2) Runtime.getRuntime().halt(1);
        streams.close();
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", args[0]))) {
            admin.deleteTopics(admin.listTopics().names().get().stream().filter(name -> name.startsWith(application + "-")).toList()).all().get();
        }
    }
}
