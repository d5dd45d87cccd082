// An admin of groups at the other end of a pipe, as in admins.py: Apache Kafka's own.
//
//     java -cp 'LIBS/*' Admins.java BOOTSTRAP

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.GroupListing;
import org.apache.kafka.clients.admin.MemberDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.protocol.Errors;

class Admins {
    static final ObjectMapper JSON = new ObjectMapper();

    final Admin admin;

    Admins(String bootstrap) {
        admin = Admin.create(Map.of("bootstrap.servers", bootstrap, "default.api.timeout.ms", 20_000, "request.timeout.ms", 20_000));
    }

    public static void main(String[] arguments) throws Exception {
        Admins admins = new Admins(arguments[0]);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Map<String, Object> answer = new HashMap<>();
            try {
                answer.put("done", admins.answer(JSON.readTree(line)));
            } catch (ExecutionException refused) {
                answer.put("refused", Errors.forException(refused.getCause()).code());
                answer.put("message", String.valueOf(refused.getCause()));
            }
            System.out.println(JSON.writeValueAsString(answer));
        }
        admins.admin.close();
    }

    Object answer(JsonNode asked) throws Exception {
        String group = asked.path("group").asText();
        String topic = asked.path("topic").asText();
        switch (asked.get("do").asText()) {
            case "groups":
                return admin.listGroups().all().get().stream().map(GroupListing::groupId).toList();
            case "describe":
                return describe(group);
            case "offsets":
                return offsets(group);
            case "alter":
                Map<TopicPartition, OffsetAndMetadata> wanted = new HashMap<>();
                for (JsonNode row : asked.get("offsets")) {
                    TopicPartition place = new TopicPartition(topic, row.get(0).asInt());
                    wanted.put(place, new OffsetAndMetadata(row.get(1).asLong()));
                }
                return admin.alterConsumerGroupOffsets(group, wanted).all().get();
            case "forget":
                Set<TopicPartition> places = new HashSet<>();
                asked.get("partitions").forEach(number -> places.add(new TopicPartition(topic, number.asInt())));
                return admin.deleteConsumerGroupOffsets(group, places).all().get();
            case "remove":
                MemberToRemove member = new MemberToRemove(asked.get("instance").asText());
                return admin.removeMembersFromConsumerGroup(
                                group, new RemoveMembersFromConsumerGroupOptions(Set.of(member)))
                        .all()
                        .get();
            default:
                return admin.deleteConsumerGroups(List.of(group)).all().get();
        }
    }

    Object describe(String group) throws Exception {
        ConsumerGroupDescription found =
                admin.describeConsumerGroups(List.of(group)).all().get().get(group);
        Map<String, Map<String, List<Integer>>> shares = new HashMap<>();
        for (MemberDescription member : found.members()) {
            Map<String, List<Integer>> share = new HashMap<>();
            for (TopicPartition place : member.assignment().topicPartitions()) {
                share.computeIfAbsent(place.topic(), topic -> new ArrayList<>()).add(place.partition());
            }
            shares.put(member.clientId(), share);
        }
        return Map.of(
                "state", found.groupState().toString(), "assignor", found.partitionAssignor(), "shares", shares);
    }

    Object offsets(String group) throws Exception {
        List<List<Number>> rows = new ArrayList<>();
        admin.listConsumerGroupOffsets(group)
                .partitionsToOffsetAndMetadata()
                .get()
                .forEach((place, found) -> rows.add(List.of(place.partition(), found.offset())));
        return rows;
    }
}
