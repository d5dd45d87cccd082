// Apache Kafka's client as an agent process: see agents.py.
//
//     java -cp 'LIBS/*' JavaAgent.java
//
// LIBS is the folder of Apache Kafka's jars, which include Jackson.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.CloseOptions;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
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
    static final int TIMEOUT_MS = 20_000;

    final String bootstrap;
    final Admin admin;

    JavaAgent(String bootstrap) {
        this.bootstrap = bootstrap;
        admin = Admin.create(with(Map.of("default.api.timeout.ms", TIMEOUT_MS, "request.timeout.ms", TIMEOUT_MS)));
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, JavaAgent> agents = new HashMap<>();
        var input = new InputStreamReader(System.in, StandardCharsets.UTF_8);
        var lines = new BufferedReader(input);
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode request = JSON.readTree(line);
            JavaAgent agent =
                agents.computeIfAbsent(request.get("bootstrap").asText(), JavaAgent::new);
            System.out.println(JSON.writeValueAsString(agent.respond(request)));
        }
        // Do not wait for threads of clients that could not be closed.
        System.exit(0);
    }

    Map<String, Object> respond(JsonNode request) {
        Map<String, Object> response = new HashMap<>();
        try {
            response.put("result", perform(request));
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            // The consumer has its own exception for this code.
            Errors known = cause instanceof OffsetOutOfRangeException
                ? Errors.OFFSET_OUT_OF_RANGE : Errors.forException(cause);
            // A timeout is raised by the client: the broker sent no error code.
            boolean isFromBroker =
                known != Errors.UNKNOWN_SERVER_ERROR && !(cause instanceof TimeoutException);
            response.put("error", isFromBroker ? known.code() : null);
            response.put("message", cause.getClass().getSimpleName() + ": " + cause.getMessage());
        }
        return response;
    }

    Object perform(JsonNode request) throws Exception {
        String topic = request.path("topic").asText();
        String group = request.path("group").asText();
        return switch (request.get("method").asText()) {
            case "close" -> close();
            case "produce" -> produce(request);
            case "consume" -> consume(request);
            case "watermarks" -> List.of(
                offset(topic, OffsetSpec.earliest()), offset(topic, OffsetSpec.latest()));
            case "maxTimestampOffset" -> offset(topic, OffsetSpec.maxTimestamp());
            case "offsetForTime" -> offsetForTime(topic, request.get("timestamp").asLong());
            case "topics" -> topics();
            case "cluster" -> cluster();
            case "createTopic" -> createTopic(request);
            case "deleteTopic" -> admin.deleteTopics(List.of(topic)).all().get();
            case "createPartitions" -> admin.createPartitions(
                Map.of(topic, NewPartitions.increaseTo(request.get("total").asInt()))).all().get();
            case "configs" -> configs(topic);
            case "alterConfigs" -> alterConfigs(topic, request.get("changes"));
            case "deleteRecords" -> deleteRecords(topic, request.get("offset").asLong());
            case "listGroups" ->
                admin.listGroups().all().get().stream().map(GroupListing::groupId).toList();
            case "describeGroup" -> describeGroup(group);
            case "groupOffsets" -> groupOffsets(group);
            case "alterGroupOffsets" -> alterGroupOffsets(group, topic, request.get("offsets"));
            case "deleteGroupOffsets" -> deleteGroupOffsets(group, topic, request.get("partitions"));
            case "deleteGroup" -> admin.deleteConsumerGroups(List.of(group)).all().get();
            case "removeMember" -> admin.removeMembersFromConsumerGroup(
                group,
                new RemoveMembersFromConsumerGroupOptions(
                    Set.of(new MemberToRemove(request.get("instance").asText())))).all().get();
            default -> throw new IllegalArgumentException(request.toString());
        };
    }

    Object close() {
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

    List<Long> produce(JsonNode request) throws Exception {
        Map<String, Object> settings = with(new HashMap<>());
        settings.put("compression.type", request.get("codec").asText());
        settings.put("acks", request.get("acks").asText());
        boolean idempotent = request.get("idempotent").asBoolean();
        settings.put("enable.idempotence", idempotent);
        settings.put("linger.ms", 20);
        settings.put("max.request.size", 10_000_000);
        // An unknown topic is an error when this has passed. Failovers take longer.
        settings.put("max.block.ms", idempotent ? TIMEOUT_MS : 1_000);
        List<Long> offsets = new ArrayList<>();
        try (var producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonNode record : request.get("records")) {
                sent.add(producer.send(recordOf(request, record)));
            }
            for (Future<RecordMetadata> one : sent) {
                RecordMetadata metadata = one.get(TIMEOUT_MS, TimeUnit.MILLISECONDS);
                offsets.add(metadata.hasOffset() ? metadata.offset() : -1);
            }
        }
        return offsets;
    }

    ProducerRecord<byte[], byte[]> recordOf(JsonNode request, JsonNode record) throws Exception {
        List<Header> headers = new ArrayList<>();
        for (JsonNode pair : record.get("headers")) {
            headers.add(new RecordHeader(pair.get(0).textValue(), bytes(pair.get(1))));
        }
        JsonNode time = record.get("timestamp");
        return new ProducerRecord<>(
            request.get("topic").asText(),
            request.get("partition").isNull() ? null : (Integer) request.get("partition").asInt(),
            time.isNull() ? null : time.longValue(),
            bytes(record.get("key")),
            bytes(record.get("value")),
            headers);
    }

    List<Object> consume(JsonNode request) {
        Map<String, Object> settings = with(new HashMap<>());
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", request.get("maxWaitMs").asInt());
        settings.put("enable.auto.commit", false);
        List<Object> rows = new ArrayList<>();
        int count = request.get("count").asInt();
        long deadline = System.currentTimeMillis() + request.get("timeoutMs").asLong();
        var consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        try {
            Map<TopicPartition, JsonNode> starts = new LinkedHashMap<>();
            for (JsonNode node : request.get("starts")) {
                var partition = new TopicPartition(node.get("topic").asText(), node.get("partition").asInt());
                starts.put(partition, node.get("start"));
            }
            consumer.assign(starts.keySet());
            starts.forEach((partition, start) -> {
                if (start.isNull()) {
                    consumer.seekToBeginning(List.of(partition));
                } else {
                    consumer.seek(partition, start.asLong());
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
        var partition = new TopicPartition(topic, 0);
        return admin.listOffsets(Map.of(partition, spec)).partitionResult(partition).get().offset();
    }

    Object offsetForTime(String topic, long timestamp) {
        var partition = new TopicPartition(topic, 0);
        try (var consumer = new KafkaConsumer<>(
                with(new HashMap<>()), new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            var found = consumer.offsetsForTimes(Map.of(partition, timestamp)).get(partition);
            return found == null ? null : found.offset();
        }
    }

    long deleteRecords(String topic, long offset) throws Exception {
        var partition = new TopicPartition(topic, 0);
        var deleted = admin.deleteRecords(Map.of(partition, RecordsToDelete.beforeOffset(offset)));
        return deleted.lowWatermarks().get(partition).get().lowWatermark();
    }

    // Topics and the cluster

    Map<String, Integer> topics() throws Exception {
        Map<String, Integer> topics = new HashMap<>();
        admin.describeTopics(admin.listTopics().names().get()).allTopicNames().get()
            .forEach((name, topic) -> topics.put(name, topic.partitions().size()));
        return topics;
    }

    Map<String, Object> cluster() throws Exception {
        var cluster = admin.describeCluster();
        List<Object> brokers = new ArrayList<>();
        cluster.nodes().get().forEach(
            node -> brokers.add(List.of(node.id(), node.host() + ":" + node.port())));
        return Map.of(
            "id", cluster.clusterId().get(),
            "controller", cluster.controller().get().id(),
            "brokers", brokers);
    }

    Object createTopic(JsonNode request) throws Exception {
        Map<String, String> configs = new HashMap<>();
        request.get("configs").properties()
            .forEach(entry -> configs.put(entry.getKey(), entry.getValue().asText()));
        var topic =
            new NewTopic(request.get("topic").asText(), request.get("partitions").asInt(), (short) 1);
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

    // Groups

    Object describeGroup(String group) throws Exception {
        ConsumerGroupDescription description =
            admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        Map<String, Map<String, List<Integer>>> assignments = new HashMap<>();
        for (MemberDescription member : description.members()) {
            Map<String, List<Integer>> assigned = new HashMap<>();
            for (TopicPartition partition : member.assignment().topicPartitions()) {
                assigned.computeIfAbsent(partition.topic(), topic -> new ArrayList<>())
                    .add(partition.partition());
            }
            assignments.put(member.clientId(), assigned);
        }
        return Map.of(
            "state", description.groupState().toString(),
            "assignor", description.partitionAssignor(),
            "assignments", assignments);
    }

    Object groupOffsets(String group) throws Exception {
        List<List<Number>> rows = new ArrayList<>();
        admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get().forEach(
            (partition, committed) -> rows.add(List.of(partition.partition(), committed.offset())));
        return rows;
    }

    Object alterGroupOffsets(String group, String topic, JsonNode rows) throws Exception {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (JsonNode row : rows) {
            var partition = new TopicPartition(topic, row.get(0).asInt());
            offsets.put(partition, new OffsetAndMetadata(row.get(1).asLong()));
        }
        return admin.alterConsumerGroupOffsets(group, offsets).all().get();
    }

    Object deleteGroupOffsets(String group, String topic, JsonNode numbers) throws Exception {
        Set<TopicPartition> partitions = new HashSet<>();
        numbers.forEach(number -> partitions.add(new TopicPartition(topic, number.asInt())));
        return admin.deleteConsumerGroupOffsets(group, partitions).all().get();
    }
}
