// Drive the Java client through as many of its features as possible.
//
//     java -cp 'LIBS/*' DriveJava.java BOOTSTRAP [SASL_BOOTSTRAP]
//
// LIBS are the jars of Apache Kafka: its clients, and Jackson to parse the corpus.
// The corpus is in the environment variable GOLDEN_CORPUS: see record.py.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.DescribeConsumerGroupsOptions;
import org.apache.kafka.clients.admin.DescribeTopicsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsOptions;
import org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec;
import org.apache.kafka.clients.admin.ListGroupsOptions;
import org.apache.kafka.clients.admin.ListOffsetsOptions;
import org.apache.kafka.clients.admin.ListTopicsOptions;
import org.apache.kafka.clients.admin.ListTransactionsOptions;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.admin.TransactionState;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.GroupState;
import org.apache.kafka.common.GroupType;
import org.apache.kafka.common.IsolationLevel;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionReplica;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

class DriveJava {
    static final String TOPIC = "golden-java";
    static final String LIMITED = TOPIC + "-assigned";
    static final List<String> CODECS = List.of("none", "gzip", "snappy", "lz4", "zstd");
    static final TopicPartition FIRST = new TopicPartition(TOPIC, 0);
    static final TopicPartition SECOND = new TopicPartition(TOPIC, 1);
    static final long SOME_TIME = 1_600_000_000_000L;
    static final int TIMEOUT = 10_000;

    final String plain;
    final Admin admin;
    final JsonNode corpus;

    DriveJava(String plain) throws Exception {
        this.plain = plain;
        corpus = new ObjectMapper().readTree(System.getenv("GOLDEN_CORPUS"));
        admin = Admin.create(
            with(Map.of("default.api.timeout.ms", TIMEOUT, "request.timeout.ms", 5_000)));
    }

    public static void main(String[] arguments) throws Exception {
        DriveJava drive = new DriveJava(arguments[0]);
        Map<String, Step> steps = drive.steps();
        if (arguments.length > 1) {
            steps.put("sasl", () -> login(arguments[1], "golden"));
            steps.put("saslWrong", () -> login(arguments[1], "wrong"));
        }
        steps.forEach(DriveJava::run);
        drive.admin.close();
        // Exit even if threads of a client that could not be closed still run.
        System.exit(0);
    }

    interface Step {
        void run() throws Exception;
    }

    // Errors are worth recording, too: a step that fails is reported, and the next one starts.
    static void run(String name, Step step) {
        try {
            step.run();
            System.out.println("  " + name);
        } catch (Exception error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            String kind = cause.getClass().getSimpleName();
            System.out.println("  " + name + ": " + kind + ": " + cause.getMessage());
        }
    }

    Map<String, Step> steps() {
        Map<String, Step> steps = new LinkedHashMap<>();
        steps.put("createTopics", this::createTopics);
        steps.put("createTopicsThatCannotBe", this::createTopicsThatCannotBe);
        steps.put("createPartitions", this::createPartitions);
        steps.put("produceCorpus", this::produceCorpus);
        steps.put("produceAcks", this::produceAcks);
        steps.put("produceIdempotent", this::produceIdempotent);
        steps.put("groupClassic", this::groupClassic);
        steps.put("groupOfTwo", this::groupOfTwo);
        steps.put("groupStatic", this::groupStatic);
        steps.put("groupNewProtocol", this::groupNewProtocol);
        steps.put("groupNewProtocolByPattern", this::groupNewProtocolByPattern);
        steps.put("deleteGroupInUse", this::deleteGroupInUse);
        steps.put("seekWithEpoch", this::seekWithEpoch);
        steps.put("seekToNowhere", this::seekToNowhere);
        steps.put("offsetsForTimes", this::offsetsForTimes);
        steps.put("transactions", this::transactions);
        steps.put("fenced", this::fenced);
        steps.put("fenceByAdmin", this::fenceByAdmin);
        steps.put("readCommitted", this::readCommitted);
        steps.put("describeGroups", this::describeGroups);
        steps.put("listGroups", this::listGroups);
        steps.put("groupOffsets", this::groupOffsets);
        steps.put("deleteGroupOffsets", this::deleteGroupOffsets);
        steps.put("describeConfigs", this::describeConfigs);
        steps.put("describeConfigsOfNothing", this::describeConfigsOfNothing);
        steps.put("alterConfigs", this::alterConfigs);
        steps.put("alterConfigsWrongly", this::alterConfigsWrongly);
        steps.put("produceTooLarge", this::produceTooLarge);
        steps.put("listOffsets", this::listOffsets);
        steps.put("deleteRecords", this::deleteRecords);
        steps.put("describeTopics", this::describeTopics);
        steps.put("describeTopicsById", this::describeTopicsById);
        steps.put("describeCluster", this::describeCluster);
        steps.put("describeLogDirs", this::describeLogDirs);
        steps.put("acls", this::acls);
        steps.put("deleteGroups", this::deleteGroups);
        steps.put("deleteTopicsById", this::deleteTopicsById);
        steps.put("deleteTopics", this::deleteTopics);
        return steps;
    }

    // Configs

    Map<String, Object> with(Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("bootstrap.servers", plain);
        return all;
    }

    KafkaProducer<byte[], byte[]> producer(Map<String, Object> settings) {
        Map<String, Object> all = with(settings);
        all.putIfAbsent("max.block.ms", TIMEOUT);
        return new KafkaProducer<>(all, new ByteArraySerializer(), new ByteArraySerializer());
    }

    KafkaConsumer<byte[], byte[]> consumer(Map<String, Object> settings) {
        Map<String, Object> all = with(settings);
        all.putIfAbsent("auto.offset.reset", "earliest");
        all.put("enable.auto.commit", false);
        all.put("default.api.timeout.ms", TIMEOUT);
        return new KafkaConsumer<>(all, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    KafkaConsumer<byte[], byte[]> member(String group, Map<String, Object> settings) {
        Map<String, Object> all = new HashMap<>(settings);
        all.put("group.id", group);
        // With the consumer protocol, the broker sets the heartbeat interval.
        if (!"consumer".equals(settings.get("group.protocol"))) {
            all.put("group.protocol", "classic");
            all.put("heartbeat.interval.ms", 300);
        }
        KafkaConsumer<byte[], byte[]> member = consumer(all);
        member.subscribe(List.of(TOPIC));
        return member;
    }

    static void poll(KafkaConsumer<byte[], byte[]> consumer, int count) {
        long deadline = System.currentTimeMillis() + TIMEOUT;
        for (int seen = 0; seen < count && System.currentTimeMillis() < deadline; ) {
            seen += consumer.poll(Duration.ofMillis(200)).count();
        }
    }

    static void pollFor(Duration time, List<KafkaConsumer<byte[], byte[]>> consumers) {
        long deadline = System.currentTimeMillis() + time.toMillis();
        while (System.currentTimeMillis() < deadline) {
            consumers.forEach(consumer -> consumer.poll(Duration.ofMillis(50)));
        }
    }

    // Producing

    byte[] bytes(JsonNode node) throws Exception {
        return node.isNull() ? null : node.binaryValue();
    }

    ProducerRecord<byte[], byte[]> recordOf(JsonNode node, String topic) throws Exception {
        List<Header> headers = new ArrayList<>();
        for (JsonNode pair : node.get("headers")) {
            headers.add(new RecordHeader(pair.get(0).textValue(), bytes(pair.get(1))));
        }
        byte[] key = bytes(node.get("key"));
        byte[] value = bytes(node.get("value"));
        long timestamp = node.get("timestamp").longValue();
        return new ProducerRecord<>(topic, 0, timestamp, key, value, headers);
    }

    void produceCorpus() throws Exception {
        for (String codec : CODECS) {
            // The records must be sent in one batch; closing the producer would flush early.
            try (var producer = producer(Map.of("compression.type", codec, "linger.ms", 500))) {
                for (JsonNode node : corpus.get("records")) {
                    producer.send(recordOf(node, corpusTopic(codec)));
                }
                Thread.sleep(1_000);
            }
        }
    }

    void sendSome(KafkaProducer<byte[], byte[]> producer) throws Exception {
        for (int number = 0; number < 3; number++) {
            byte[] key = ("key " + number).getBytes();
            byte[] value = ("value " + number).getBytes();
            producer.send(new ProducerRecord<>(TOPIC, number % 2, key, value));
        }
        producer.flush();
    }

    void produceAcks() throws Exception {
        for (String acks : List.of("0", "1", "all")) {
            try (var producer = producer(Map.of("acks", acks, "enable.idempotence", false))) {
                sendSome(producer);
            }
        }
    }

    void produceIdempotent() throws Exception {
        try (var producer = producer(Map.of("enable.idempotence", true))) {
            sendSome(producer);
        }
    }

    // The broker rejects batches above max.message.bytes.
    void produceTooLarge() throws Exception {
        try (var producer = producer(Map.of())) {
            producer.send(new ProducerRecord<>(LIMITED, new byte[2_000])).get();
        }
    }

    // Groups and positions

    void groupClassic() throws Exception {
        try (var member = member(TOPIC, Map.of("client.rack", "rack"))) {
            poll(member, 3);
            var position = new OffsetAndMetadata(1, Optional.of(0), "with metadata");
            member.commitSync(Map.of(FIRST, position));
            member.committed(Set.of(FIRST, SECOND));
            member.enforceRebalance("to see the reason");
            pollFor(Duration.ofSeconds(1), List.of(member));
            describeGroups();
        }
    }

    // Two members; with the cooperative assignor the rebalance takes two rounds.
    void groupOfTwo() {
        Map<String, Object> settings =
            Map.of("partition.assignment.strategy", CooperativeStickyAssignor.class.getName());
        String group = TOPIC + "-two";
        try (var one = member(group, settings); var other = member(group, settings)) {
            poll(one, 3);
            pollFor(Duration.ofSeconds(3), List.of(one, other));
            one.commitSync();
        }
    }

    void groupStatic() throws Exception {
        String group = TOPIC + "-static";
        try (var member = member(group, Map.of("group.instance.id", "instance"))) {
            poll(member, 3);
            member.commitSync();
        }
        // A static member does not leave by itself.
        var options =
            new RemoveMembersFromConsumerGroupOptions(
                List.of(new MemberToRemove("instance"), new MemberToRemove("missing")));
        options.reason("to see the reason");
        admin.removeMembersFromConsumerGroup(group, options).all().get();
    }

    void groupNewProtocol() throws Exception {
        try (var member = member(TOPIC + "-new", Map.of("group.protocol", "consumer"))) {
            poll(member, 3);
            member.commitSync();
            pollFor(Duration.ofSeconds(2), List.of(member));
            describeGroups();
        }
    }

    void groupNewProtocolByPattern() {
        Map<String, Object> settings =
            Map.of(
                "group.protocol", "consumer",
                "group.instance.id", "instance",
                "group.remote.assignor", "range",
                "client.rack", "rack");
        try (var member = member(TOPIC + "-new-static", settings)) {
            member.unsubscribe();
            member.subscribe(new SubscriptionPattern("golden-ja.*"));
            poll(member, 3);
        }
    }

    void deleteGroupInUse() throws Exception {
        try (var member = member(TOPIC + "-alive", Map.of())) {
            poll(member, 1);
            admin.deleteConsumerGroups(List.of(TOPIC + "-alive")).all().get();
        }
    }

    // A position with a leader epoch makes the client send OffsetForLeaderEpoch.
    void seekWithEpoch() {
        try (var consumer = consumer(Map.of())) {
            consumer.assign(List.of(FIRST, SECOND));
            consumer.seek(FIRST, new OffsetAndMetadata(1, Optional.of(0), ""));
            consumer.seek(SECOND, new OffsetAndMetadata(2, Optional.of(0), ""));
            poll(consumer, 1);
        }
    }

    void seekToNowhere() {
        try (var consumer = consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(FIRST));
            consumer.seek(FIRST, 10_000);
            poll(consumer, 1);
        }
    }

    void offsetsForTimes() {
        try (var consumer = consumer(Map.of())) {
            long future = System.currentTimeMillis() + 100_000;
            consumer.offsetsForTimes(Map.of(FIRST, SOME_TIME, SECOND, future));
            consumer.beginningOffsets(List.of(FIRST, SECOND));
            consumer.endOffsets(List.of(FIRST, SECOND));
            consumer.listTopics();
        }
    }

    // Transactions

    void transactions() throws Exception {
        Map<String, Object> settings =
            Map.of("transactional.id", TOPIC, "transaction.timeout.ms", 20_000);
        try (var producer = producer(settings); var member = member(TOPIC + "-txn", Map.of())) {
            poll(member, 3);
            Map<TopicPartition, OffsetAndMetadata> positions = new HashMap<>();
            for (TopicPartition partition : member.assignment()) {
                positions.put(partition, new OffsetAndMetadata(member.position(partition)));
            }
            producer.initTransactions();
            producer.beginTransaction();
            sendSome(producer);
            producer.sendOffsetsToTransaction(positions, member.groupMetadata());
            describeTransactions();
            producer.commitTransaction();
            producer.beginTransaction();
            sendSome(producer);
            producer.abortTransaction();
        }
    }

    void describeTransactions() throws Exception {
        admin.listTransactions().all().get();
        var ongoing = new ListTransactionsOptions().filterStates(Set.of(TransactionState.ONGOING));
        admin.listTransactions(ongoing.filterOnDuration(1)).all().get();
        var unknown = new ListTransactionsOptions().filterProducerIds(List.of(999L));
        admin.listTransactions(unknown).all().get();
        admin.describeTransactions(List.of(TOPIC)).all().get();
        admin.describeProducers(List.of(FIRST, SECOND)).all().get();
    }

    // A second producer with the same transactional id fences the first.
    void fenced() throws Exception {
        try (var first = producer(Map.of("transactional.id", TOPIC));
             var second = producer(Map.of("transactional.id", TOPIC))) {
            first.initTransactions();
            first.beginTransaction();
            sendSome(first);
            second.initTransactions();
            sendSome(first);
            first.commitTransaction();
        }
    }

    void fenceByAdmin() throws Exception {
        admin.fenceProducers(List.of(TOPIC)).all().get();
    }

    // Reads past an aborted transaction.
    void readCommitted() {
        try (var consumer = consumer(Map.of("isolation.level", "read_committed"))) {
            consumer.assign(List.of(FIRST, SECOND));
            poll(consumer, 12);
            consumer.endOffsets(List.of(FIRST));
        }
    }

    // Groups, by the admin client

    void describeGroups() throws Exception {
        List<String> names =
            List.of(TOPIC, TOPIC + "-static", TOPIC + "-new", TOPIC + "-new-static", "missing");
        var options = new DescribeConsumerGroupsOptions().includeAuthorizedOperations(true);
        settle(admin.describeClassicGroups(names).all());
        settle(admin.describeConsumerGroups(names, options).all());
    }

    // Waits for a response, which may be an error.
    static void settle(KafkaFuture<?> future) {
        try {
            future.get();
        } catch (Exception error) {
            // The error response was recorded.
        }
    }

    void listGroups() throws Exception {
        admin.listGroups().all().get();
        var empty = new ListGroupsOptions().inGroupStates(Set.of(GroupState.EMPTY));
        admin.listGroups(empty).all().get();
        var ofNewKind = new ListGroupsOptions().withTypes(Set.of(GroupType.CONSUMER));
        admin.listGroups(ofNewKind).all().get();
    }

    void groupOffsets() throws Exception {
        var everything = new ListConsumerGroupOffsetsSpec();
        var some = new ListConsumerGroupOffsetsSpec().topicPartitions(List.of(FIRST));
        var stable = new ListConsumerGroupOffsetsOptions().requireStable(true);
        var specs = Map.of(TOPIC, some, TOPIC + "-static", everything);
        admin.listConsumerGroupOffsets(specs, stable).all().get();
        admin.listConsumerGroupOffsets(TOPIC).all().get();
        admin.alterConsumerGroupOffsets(TOPIC, Map.of(FIRST, new OffsetAndMetadata(1))).all().get();
    }

    void deleteGroupOffsets() throws Exception {
        admin.deleteConsumerGroupOffsets(TOPIC, Set.of(FIRST)).all().get();
        admin.deleteConsumerGroupOffsets("missing", Set.of(FIRST)).all().get();
    }

    void deleteGroups() throws Exception {
        admin.deleteConsumerGroups(List.of(TOPIC, TOPIC + "-new", "missing")).all().get();
    }

    // Topics and the cluster

    void createTopics() throws Exception {
        List<NewTopic> topics = new ArrayList<>();
        topics.add(new NewTopic(TOPIC, 2, (short) 1).configs(Map.of("cleanup.policy", "delete")));
        topics.add(new NewTopic(LIMITED, Map.of(0, List.of(1), 1, List.of(1))));
        topics.add(new NewTopic(TOPIC + "-default", Optional.empty(), Optional.empty()));
        CODECS.forEach(codec -> topics.add(new NewTopic(corpusTopic(codec), 1, (short) 1)));
        admin.createTopics(topics).all().get();
    }

    String corpusTopic(String codec) {
        return corpus.get("topicPrefix").textValue() + codec;
    }

    void createTopicsThatCannotBe() throws Exception {
        List<NewTopic> topics =
            List.of(new NewTopic(TOPIC, 1, (short) 1), new NewTopic("no spaces", 1, (short) 9));
        admin.createTopics(topics, new CreateTopicsOptions().validateOnly(true)).all().get();
    }

    void createPartitions() throws Exception {
        admin.createPartitions(
                Map.of(
                    LIMITED, NewPartitions.increaseTo(3, List.of(List.of(1))),
                    TOPIC + "-default", NewPartitions.increaseTo(3),
                    "missing", NewPartitions.increaseTo(2)))
            .all()
            .get();
    }

    static ConfigResource topicResource(String name) {
        return new ConfigResource(ConfigResource.Type.TOPIC, name);
    }

    void describeConfigs() throws Exception {
        var broker = new ConfigResource(ConfigResource.Type.BROKER, "1");
        admin.describeConfigs(List.of(topicResource(TOPIC), broker)).all().get();
        var options = new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true);
        admin.describeConfigs(List.of(topicResource(TOPIC)), options).all().get();
    }

    void describeConfigsOfNothing() throws Exception {
        admin.describeConfigs(List.of(topicResource("missing"))).all().get();
    }

    static AlterConfigOp change(AlterConfigOp.OpType type, String name, String value) {
        return new AlterConfigOp(new ConfigEntry(name, value), type);
    }

    void alterConfigs() throws Exception {
        Collection<AlterConfigOp> changes =
            List.of(
                change(AlterConfigOp.OpType.SET, "retention.ms", "86400000"),
                change(AlterConfigOp.OpType.APPEND, "cleanup.policy", "compact"),
                change(AlterConfigOp.OpType.DELETE, "segment.bytes", null));
        Collection<AlterConfigOp> limit =
            List.of(change(AlterConfigOp.OpType.SET, "max.message.bytes", "1000"));
        admin.incrementalAlterConfigs(
                Map.of(topicResource(TOPIC + "-default"), changes, topicResource(LIMITED), limit))
            .all()
            .get();
    }

    void alterConfigsWrongly() throws Exception {
        Collection<AlterConfigOp> wrong =
            List.of(change(AlterConfigOp.OpType.SET, "retention.ms", "no"));
        admin.incrementalAlterConfigs(Map.of(topicResource(TOPIC), wrong)).all().get();
    }

    void listOffsets() throws Exception {
        for (OffsetSpec spec :
            List.of(
                OffsetSpec.earliest(),
                OffsetSpec.latest(),
                OffsetSpec.maxTimestamp(),
                OffsetSpec.earliestLocal(),
                OffsetSpec.latestTiered(),
                OffsetSpec.forTimestamp(SOME_TIME))) {
            var options = new ListOffsetsOptions(IsolationLevel.READ_COMMITTED);
            admin.listOffsets(Map.of(FIRST, spec, SECOND, spec), options).all().get();
        }
    }

    void deleteRecords() throws Exception {
        var possible = RecordsToDelete.beforeOffset(1);
        var tooMany = RecordsToDelete.beforeOffset(9_999);
        admin.deleteRecords(Map.of(FIRST, possible, SECOND, tooMany)).all().get();
    }

    void describeTopics() throws Exception {
        admin.listTopics(new ListTopicsOptions().listInternal(true)).names().get();
        // The limit makes the response come in pages, with a cursor.
        var options =
            new DescribeTopicsOptions()
                .includeAuthorizedOperations(true)
                .partitionSizeLimitPerResponse(2);
        admin.describeTopics(List.of(TOPIC, LIMITED, "missing"), options).allTopicNames().get();
    }

    void describeTopicsById() throws Exception {
        Uuid id = admin.describeTopics(List.of(TOPIC)).allTopicNames().get().get(TOPIC).topicId();
        var ids = TopicCollection.ofTopicIds(List.of(id, Uuid.randomUuid()));
        admin.describeTopics(ids).allTopicIds().get();
    }

    void describeCluster() throws Exception {
        admin.describeCluster().nodes().get();
        var options = new DescribeClusterOptions().includeAuthorizedOperations(true);
        admin.describeCluster(options).nodes().get();
    }

    void describeLogDirs() throws Exception {
        admin.describeLogDirs(List.of(1)).allDescriptions().get();
        var replicas =
            List.of(
                new TopicPartitionReplica(TOPIC, 0, 1),
                new TopicPartitionReplica("missing", 0, 1));
        admin.describeReplicaLogDirs(replicas).all().get();
    }

    void acls() throws Exception {
        var entry =
            new AccessControlEntry(
                "User:golden", "*", AclOperation.READ, AclPermissionType.ALLOW);
        var topic =
            new AclBinding(
                new ResourcePattern(ResourceType.TOPIC, TOPIC, PatternType.LITERAL), entry);
        var groups =
            new AclBinding(
                new ResourcePattern(ResourceType.GROUP, TOPIC, PatternType.PREFIXED), entry);
        // Send all requests, even if Kafka has no authorizer and rejects them.
        settle(admin.createAcls(List.of(topic, groups)).all());
        settle(admin.describeAcls(AclBindingFilter.ANY).values());
        settle(admin.describeAcls(topic.toFilter()).values());
        admin.deleteAcls(List.of(topic.toFilter(), AclBindingFilter.ANY)).all().get();
    }

    void deleteTopicsById() throws Exception {
        String name = TOPIC + "-default";
        Uuid id = admin.describeTopics(List.of(name)).allTopicNames().get().get(name).topicId();
        admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id, Uuid.randomUuid()))).all().get();
    }

    void deleteTopics() throws Exception {
        List<String> names = new ArrayList<>(List.of(TOPIC, LIMITED, "missing"));
        CODECS.forEach(codec -> names.add(corpusTopic(codec)));
        admin.deleteTopics(names).all().get();
    }

    static void login(String address, String password) throws Exception {
        String jaas =
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
                + " username=\"golden\" password=\"" + password + "\";";
        Map<String, Object> settings =
            Map.of(
                "bootstrap.servers", address,
                "security.protocol", "SASL_PLAINTEXT",
                "sasl.mechanism", "PLAIN",
                "sasl.jaas.config", jaas,
                "default.api.timeout.ms", 5_000,
                "request.timeout.ms", 3_000);
        try (var client = Admin.create(settings)) {
            client.listTopics().names().get();
        }
    }
}
