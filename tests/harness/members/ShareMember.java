// A member of a share group as in share_member.py, with Apache Kafka's client.
//
//     java -cp 'LIBS/*:CLASSES' ShareMember CONFIG

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
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

class ShareMember {
    final String name;
    final FileChannel events;
    final boolean isExplicit;
    // What was said last about a record, by partition and offset.
    final Map<String, AcknowledgeType> said = new HashMap<>();
    volatile boolean isStopping;

    ShareMember(JsonNode config) throws IOException {
        name = config.get("name").asText();
        isExplicit = !config.get("mode").asText().equals("implicit");
        Path path = Path.of(config.get("events").asText());
        events = FileChannel.open(path, StandardOpenOption.WRITE, StandardOpenOption.APPEND);
    }

    public static void main(String[] arguments) throws Exception {
        JsonNode config = new ObjectMapper().readTree(arguments[0]);
        ShareMember member = new ShareMember(config);
        Map<String, Object> settings = new HashMap<>();
        settings.put("bootstrap.servers", config.get("bootstrap").asText());
        settings.put("group.id", config.get("group").asText());
        settings.put("client.id", config.get("name").asText());
        settings.put("share.acknowledgement.mode", member.isExplicit ? "explicit" : "implicit");
        settings.put("share.acquire.mode", "record_limit");
        settings.put("max.poll.records", 10);
        settings.put("fetch.max.wait.ms", 100);
        settings.put("reconnect.backoff.ms", 50);
        settings.put("reconnect.backoff.max.ms", 250);
        settings.put("retry.backoff.ms", 50);
        settings.put("retry.backoff.max.ms", 250);
        var deserializer = new StringDeserializer();
        var consumer = new KafkaShareConsumer<>(settings, deserializer, deserializer);
        Thread main = Thread.currentThread();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            member.isStopping = true;
            try {
                main.join(15_000);
            } catch (InterruptedException ignored) {
                // The JVM exits anyway.
            }
        }));
        member.run(consumer, config.get("topic").asText(), config.get("mode").asText().equals("stalled"));
    }

    void run(KafkaShareConsumer<String, String> consumer, String topic, boolean isStalled) throws InterruptedException {
        consumer.setAcknowledgementCommitCallback(this::acknowledged);
        consumer.subscribe(List.of(topic));
        while (!isStopping) {
            for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(100))) {
                AcknowledgeType before = said.get(key(record.partition(), record.offset()));
                int count = record.deliveryCount().get();
                boolean isRenewed = before == AcknowledgeType.RENEW;
                if (!isRenewed) {
                    log("received", record.partition() + " " + record.offset() + " " + count + " " + record.value());
                }
                while (isStalled && !isStopping) Thread.sleep(100);
                if (isStopping) break;
                AcknowledgeType type = decide(record.offset(), count, isRenewed);
                said.put(key(record.partition(), record.offset()), type);
                if (type != AcknowledgeType.RENEW) log("sending", record.partition() + " " + record.offset() + " " + type.toString().toLowerCase());
                if (isExplicit) consumer.acknowledge(record, type);
            }
            if (isExplicit && !isStopping) consumer.commitSync();
            Thread.sleep(5);
        }
        consumer.close();
        log("left", "");
    }

    AcknowledgeType decide(long offset, int count, boolean isRenewed) {
        if (!isExplicit) return AcknowledgeType.ACCEPT;
        if (offset % 7 == 3 && count == 1) return AcknowledgeType.RELEASE;
        if (offset % 11 == 5) return AcknowledgeType.REJECT;
        if (offset % 13 == 7 && !isRenewed) return AcknowledgeType.RENEW;
        return AcknowledgeType.ACCEPT;
    }

    void acknowledged(Map<TopicIdPartition, Set<Long>> offsets, Exception error) {
        offsets.forEach((tp, some) -> some.forEach(offset -> {
            String key = key(tp.partition(), offset);
            // Nothing was said about a record that is released before the application gets it.
            AcknowledgeType type = said.getOrDefault(key, AcknowledgeType.RELEASE);
            if (error != null || type != AcknowledgeType.RENEW) said.remove(key);
            String result = error == null ? type.toString().toLowerCase() : error.getClass().getSimpleName();
            log(error == null ? "acknowledged" : "failed", tp.partition() + " " + offset + " " + result);
        }));
    }

    static String key(int partition, long offset) {
        return partition + ":" + offset;
    }

    void log(String event, String words) {
        try {
            String line = (name + " " + event + " " + words).strip() + "\n";
            events.write(ByteBuffer.wrap(line.getBytes(StandardCharsets.UTF_8)));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
