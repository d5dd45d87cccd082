// A group member as in member.py, with Apache Kafka's client.
//
//     java -cp 'LIBS/*:CLASSES' Member CONFIG

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
import org.apache.kafka.clients.consumer.SubscriptionPattern;
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
    final FileChannel events;
    volatile boolean isStopping;

    Member(JsonNode config) throws IOException {
        name = config.get("name").asText();
        Path path = Path.of(config.get("events").asText());
        events = FileChannel.open(path, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode config = new ObjectMapper().readTree(arguments[0]);
        Member member = new Member(config);
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(consumerConfig(config));
        Thread main = Thread.currentThread();
        Runtime.getRuntime()
                .addShutdownHook(
                        new Thread(
                                () -> {
                                    member.isStopping = true;
                                    try {
                                        main.join(15_000);
                                    } catch (InterruptedException ignored) {
                                        // The JVM exits anyway.
                                    }
                                }));
        member.run(consumer, config.get("topic").asText(), config.get("regex"));
    }

    static Map<String, Object> consumerConfig(JsonNode config) {
        List<String> assignors = new ArrayList<>();
        config.get("assignors")
                .forEach(one -> assignors.add("org.apache.kafka.clients.consumer." + ASSIGNORS.get(one.asText())));
        Map<String, Object> consumer = new HashMap<>();
        consumer.put("bootstrap.servers", config.get("bootstrap").asText());
        consumer.put("group.id", config.get("group").asText());
        consumer.put("client.id", config.get("name").asText());
        if (!config.get("instance").isNull()) consumer.put("group.instance.id", config.get("instance").asText());
        if (config.get("protocol").asText().equals("consumer")) {
            consumer.put("group.protocol", "consumer");
        } else {
            consumer.put("partition.assignment.strategy", assignors);
            consumer.put("session.timeout.ms", config.get("session_ms").asInt());
            consumer.put("heartbeat.interval.ms", config.get("heartbeat_ms").asInt());
        }
        consumer.put("max.poll.interval.ms", config.get("rebalance_ms").asInt());
        consumer.put("max.poll.records", 100);
        consumer.put("enable.auto.commit", false);
        consumer.put("auto.offset.reset", "earliest");
        consumer.put("fetch.max.wait.ms", 100);
        consumer.put("reconnect.backoff.ms", 50);
        consumer.put("reconnect.backoff.max.ms", 250);
        consumer.put("retry.backoff.ms", 50);
        consumer.put("retry.backoff.max.ms", 250);
        consumer.put("key.deserializer", StringDeserializer.class);
        consumer.put("value.deserializer", StringDeserializer.class);
        return consumer;
    }

    void run(KafkaConsumer<String, String> consumer, String topic, JsonNode regex) {
        if (regex.isNull()) consumer.subscribe(List.of(topic), this);
        else consumer.subscribe(new SubscriptionPattern(regex.asText()), this);
        while (!isStopping) {
            Map<TopicPartition, OffsetAndMetadata> reached = new HashMap<>();
            StringBuilder lines = new StringBuilder();
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                lines.append(name + " received " + record.partition() + " " + record.offset() + " " + record.value() + "\n");
                reached.put(
                        new TopicPartition(topic, record.partition()), new OffsetAndMetadata(record.offset() + 1));
            }
            if (reached.isEmpty()) continue;
            write(lines.toString());
            log("committing", reached);
            try {
                consumer.commitSync(reached);
                log("committed", reached);
            } catch (KafkaException error) {
                log("failed", error.getClass().getSimpleName());
            }
        }
        consumer.close();
        log("left", "");
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        log("assigned", numbers(partitions));
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        log("revoked", numbers(partitions));
    }

    @Override
    public void onPartitionsLost(Collection<TopicPartition> partitions) {
        log("lost", numbers(partitions));
    }

    static String numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(one -> one.partition() + "").sorted().collect(Collectors.joining(","));
    }

    void log(String event, Map<TopicPartition, OffsetAndMetadata> offsets) {
        offsets.forEach((partition, offset) -> log(event, partition.partition() + " " + offset.offset()));
    }

    void log(String event, String words) {
        write((name + " " + event + " " + words).strip() + "\n");
    }

    void write(String lines) {
        try {
            events.write(ByteBuffer.wrap(lines.getBytes(StandardCharsets.UTF_8)));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
