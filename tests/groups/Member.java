// A member of a group, as in member.py: Apache Kafka's own client.
//
//     java -cp 'LIBS/*:CLASSES' Member SETTINGS

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

class Member implements ConsumerRebalanceListener {
    static final Map<String, String> ASSIGNORS =
            Map.of(
                    "range", "RangeAssignor",
                    "roundrobin", "RoundRobinAssignor",
                    "sticky", "StickyAssignor",
                    "cooperative-sticky", "CooperativeStickyAssignor");

    final String name;
    final FileChannel journal;
    volatile boolean isStopping;

    Member(JsonNode settings) throws IOException {
        name = settings.get("name").asText();
        Path path = Path.of(settings.get("journal").asText());
        journal = FileChannel.open(path, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode settings = new ObjectMapper().readTree(arguments[0]);
        Member member = new Member(settings);
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(configOf(settings));
        Thread main = Thread.currentThread();
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    member.isStopping = true;
                                    try {
                                        main.join(15_000);
                                    } catch (InterruptedException ignored) {
                                        // It ends anyway.
                                    }
                                }));
        member.run(consumer, settings.get("topic").asText());
    }

    static Map<String, Object> configOf(JsonNode settings) {
        List<String> assignors = new ArrayList<>();
        settings.get("assignors")
                .forEach(one -> assignors.add("org.apache.kafka.clients.consumer." + ASSIGNORS.get(one.asText())));
        Map<String, Object> config = new HashMap<>();
        config.put("bootstrap.servers", settings.get("bootstrap").asText());
        config.put("group.id", settings.get("group").asText());
        config.put("client.id", settings.get("name").asText());
        if (!settings.get("instance").isNull()) config.put("group.instance.id", settings.get("instance").asText());
        config.put("partition.assignment.strategy", assignors);
        config.put("session.timeout.ms", settings.get("session_ms").asInt());
        config.put("heartbeat.interval.ms", settings.get("heartbeat_ms").asInt());
        config.put("max.poll.interval.ms", settings.get("rebalance_ms").asInt());
        config.put("max.poll.records", 100);
        config.put("enable.auto.commit", false);
        config.put("auto.offset.reset", "earliest");
        config.put("fetch.max.wait.ms", 100);
        config.put("reconnect.backoff.ms", 50);
        config.put("reconnect.backoff.max.ms", 250);
        config.put("retry.backoff.ms", 50);
        config.put("retry.backoff.max.ms", 250);
        config.put("key.deserializer", StringDeserializer.class);
        config.put("value.deserializer", StringDeserializer.class);
        return config;
    }

    void run(KafkaConsumer<String, String> consumer, String topic) {
        consumer.subscribe(List.of(topic), this);
        while (!isStopping) {
            Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
            StringBuilder lines = new StringBuilder();
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                lines.append(name + " got " + record.partition() + " " + record.offset() + " " + record.value() + "\n");
                reached.put(
                        new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            if (reached.isEmpty()) continue;
            write(lines.toString());
            say("committing", reached);
            try {
                consumer.commitSync(reached);
                say("committed", reached);
            } catch (KafkaException refused) {
                say("refused", refused.getClass().getSimpleName());
            }
        }
        consumer.close();
        say("ends", "");
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        say("assigned", numbers(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        say("revoked", numbers(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        say("lost", numbers(partitions));
    }

    static String numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(one -> one.partition() + "").sorted().collect(Collectors.joining(","));
    }

    void say(String verb, Map<TopicPartition, OffsetAndMetadata> offsets) {
        offsets.forEach((place, offset) -> say(verb, place.partition() + " " + offset.offset()));
    }

    void say(String verb, String words) {
        write((name + " " + verb + " " + words).strip() + "\n");
    }

    void write(String lines) {
        try {
            journal.write(ByteBuffer.wrap(lines.getBytes(StandardCharsets.UTF_8)));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
