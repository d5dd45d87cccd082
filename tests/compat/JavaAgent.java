// Apache Kafka's client, at the other end of a pipe: see agents.py.
//
//     java -cp 'LIBS/*' JavaAgent.java
//
// LIBS are the jars that Apache Kafka comes with: its clients, and Jackson for JSON.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class JavaAgent {
    static final ObjectMapper JSON = new ObjectMapper();
    static final int PATIENCE_MS = 20_000;

    final String bootstrap;
    final Admin admin;

    JavaAgent(String bootstrap) {
        this.bootstrap = bootstrap;
        admin = Admin.create(with(Map.of("default.api.timeout.ms", PATIENCE_MS, "request.timeout.ms", PATIENCE_MS)));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, JavaAgent> agents = new HashMap<>();
        var input = new InputStreamReader(System.in, StandardCharsets.UTF_8);
        var lines = new BufferedReader(input);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode asked = JSON.readTree(line);
            JavaAgent agent =
                agents.computeIfAbsent(asked.get("bootstrap").asText(), JavaAgent::new);
            System.out.println(JSON.writeValueAsString(agent.answer(asked)));
        }
        // Threads of a client that could not be closed must not keep the others waiting.
        System.exit(0);
    }

    Map<String, Object> answer(JsonNode asked) {
        Map<String, Object> answer = new HashMap<>();
        try {
            answer.put("done", perform(asked));
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            // The consumer has an exception of its own for this.
            Errors known = cause instanceof OffsetOutOfRangeException
                ? Errors.OFFSET_OUT_OF_RANGE : Errors.forException(cause);
            // A time-out is the client's own, and says nothing of what the broker said.
            boolean isTold =
                known != Errors.UNKNOWN_SERVER_ERROR && !(cause instanceof TimeoutException);
            answer.put("refused", isTold ? known.code() : null);
            answer.put("message", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
        return answer;
    }

    Object perform(JsonNode asked) throws Exception {
        String topic = asked.path("topic").asText();
        return switch (asked.get("do").asText()) {
            case "leave" -> leave();
            case "write" -> write(asked);
            case "read" -> read(asked);
            case "ends" -> List.of(
                offset(topic, OffsetSpec.earliest()), offset(topic, OffsetSpec.latest()));
            case "youngest" -> offset(topic, OffsetSpec.maxTimestamp());
            case "offsetAt" -> offsetAt(topic, asked.get("timestamp").asLong());
            case "topics" -> topics();
            case "cluster" -> cluster();
            case "createTopic" -> createTopic(asked);
            case "deleteTopic" -> admin.deleteTopics(List.of(topic)).all().get();
            case "addPartitions" -> admin.createPartitions(
                Map.of(topic, NewPartitions.increaseTo(asked.get("total").asInt()))).all().get();
            case "configs" -> configs(topic);
            case "alterConfigs" -> alterConfigs(topic, asked.get("changes"));
            case "deleteRecords" -> deleteRecords(topic, asked.get("offset").asLong());
            default -> throw new IllegalArgumentException(asked.toString());
        };
    }

    Object leave() {
        admin.close(Duration.ZERO);
        return null;
    }

    Map<String, Object> with(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", bootstrap);
        return all;
    }

    // Records

    static byte[] bytes(JsonNode node) throws Exception {
        return node.isNull() ? null : node.binaryValue();
    }

    List<Long> write(JsonNode asked) throws Exception {
        Map<String, Object> settings = with(new HashMap<>());
        settings.put("compression.type", asked.get("codec").asText());
        settings.put("acks", asked.get("acks").asText());
        settings.put("enable.idempotence", asked.get("idempotent").asBoolean());
        settings.put("linger.ms", 20);
        settings.put("max.request.size", 10_000_000);
        settings.put("max.block.ms", 1_000); // an unknown topic is an error when this has passed
        List<Long> offsets = new ArrayList<>();
        try (var producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : asked.get("records")) {
                sent.add(producer.send(recordOf(asked, record)));
            }
            for (Future<RecordMetadata> one : sent) {
                RecordMetadata told = one.get(PATIENCE_MS, TimeUnit.MILLISECONDS);
                offsets.add(told.hasOffset() ? told.offset() : -1);
            }
        }
        return offsets;
    }

    ProducerRecord<byte[], byte[]> recordOf(JsonNode asked, JsonNode record) throws Exception {
        List<Header> headers = new ArrayList<>();
        for (JsonNode pair : record.get("headers")) {
            headers.add(new RecordHeader(pair.get(0).textValue(), bytes(pair.get(1))));
        }
        JsonNode time = record.get("timestamp");
        return new ProducerRecord<>(
            asked.get("topic").asText(),
            asked.get("partition").isNull() ? null : (Integer) asked.get("partition").asInt(),
            time.isNull() ? null : time.longValue(),
            bytes(record.get("key")),
            bytes(record.get("value")),
            headers);
    }

    List<Object> read(JsonNode asked) {
        Map<String, Object> settings = with(new HashMap<>());
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", asked.get("maxWaitMs").asInt());
        settings.put("enable.auto.commit", false);
        List<Object> rows = new ArrayList<>();
        int count = asked.get("count").asInt();
        long deadline = System.currentTimeMillis() + asked.get("patienceMs").asLong();
        var consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        try {
            Map<TopicPartition, JsonNode> starts = new LinkedHashMap<>();
            for (JsonNode node : asked.get("starts")) {
                var place = new TopicPartition(node.get("topic").asText(), node.get("partition").asInt());
                starts.put(place, node.get("start"));
            }
            consumer.assign(starts.keySet());
            starts.forEach((place, start) -> {
                if (start.isNull()) {
                    consumer.seekToBeginning(List.of(place));
                } else {
                    consumer.seek(place, start.asLong());
                }
            });
            while (rows.size() < count && System.currentTimeMillis() < deadline) {
                consumer.poll(Duration.ofMillis(500)).forEach(record -> rows.add(rowOf(record)));
            }
        } finally {
            consumer.close(CloseOptions.timeout(Duration.ZERO));
        }
        return rows;
    }

    static Map<String, Object> rowOf(ConsumerRecord<byte[], byte[]> record) {
        Map<String, Object> row = new HashMap<>();
        row.put("topic", record.topic());
        row.put("partition", record.partition());
        row.put("offset", record.offset());
        row.put("timestamp", record.timestamp());
        row.put("key", record.key());
        row.put("value", record.value());
        List<Object> headers = new ArrayList<>();
        record.headers().forEach(header -> headers.add(Arrays.asList(header.key(), header.value())));
        row.put("headers", headers);
        return row;
    }

    // Offsets

    long offset(String topic, OffsetSpec spec) throws Exception {
        var place = new TopicPartition(topic, 0);
        return admin.listOffsets(Map.of(place, spec)).partitionResult(place).get().offset();
    }

    Object offsetAt(String topic, long timestamp) {
        var place = new TopicPartition(topic, 0);
        try (var consumer = new KafkaConsumer<>(
                with(new HashMap<>()), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            var found = consumer.offsetsForTimes(Map.of(place, timestamp)).get(place);
            return found == null ? null : found.offset();
        }
    }

    long deleteRecords(String topic, long offset) throws Exception {
        var place = new TopicPartition(topic, 0);
        var deleted = admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(offset)));
        return deleted.lowWatermarks().get(place).get().lowWatermark();
    }

    // Topics and the cluster

    Map<String, Integer> topics() throws Exception {
        Map<String, Integer> topics = new HashMap<>();
        admin.describeTopics(admin.listTopics().names().get()).allTopicNames().get()
            .forEach((name, topic) -> topics.put(name, topic.partitions().size()));
        return topics;
    }

    Map<String, Object> cluster() throws Exception {
        var found = admin.describeCluster();
        List<Object> brokers = new ArrayList<>();
        found.nodes().get().forEach(
            node -> brokers.add(List.of(node.id(), node.host() + ":" + node.port())));
        return Map.of(
            "id", found.clusterId().get(),
            "controller", found.controller().get().id(),
            "brokers", brokers);
    }

    Object createTopic(JsonNode asked) throws Exception {
        Map<String, String> configs = new HashMap<>();
        asked.get("configs").properties()
            .forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        var topic =
            new NewTopic(asked.get("topic").asText(), asked.get("partitions").asInt(), (short) 1);
        return admin.createTopics(List.of(topic.configs(configs))).all().get();
    }

    static ConfigResource resourceOf(String topic) {
        return new ConfigResource(ConfigResource.Type.TOPIC, topic);
    }

    Map<String, String> configs(String topic) throws Exception {
        Map<String, String> configs = new HashMap<>();
        KafkaFuture<Config> found =
            admin.describeConfigs(List.of(resourceOf(topic))).values().get(resourceOf(topic));
        found.get().entries().forEach(entry -> configs.put(entry.name(), entry.value()));
        return configs;
    }

    Object alterConfigs(String topic, JsonNode changes) throws Exception {
        List<AlterConfigOp> operations = new ArrayList<>();
        changes.properties().forEach(entry -> operations.add(new AlterConfigOp(
            new ConfigEntry(entry.getKey(), entry.getValue().asText()), AlterConfigOp.OpType.SET)));
        return admin.incrementalAlterConfigs(Map.of(resourceOf(topic), operations)).all().get();
    }
}
