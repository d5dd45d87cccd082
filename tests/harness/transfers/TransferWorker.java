// The worker of the transfer job with Kafka's Java client: see worker.py.
//
// java -cp … TransferWorker BOOTSTRAP ORDERS ACCOUNTS GROUP PARTITIONS BATCH_SIZE ABORT_RATIO

import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public final class TransferWorker {
    private static final Pattern NUMBER = Pattern.compile("\"(\\w+)\": (\\d+)");

    public static void main(String[] arguments) {
        String bootstrap = arguments[0], orders = arguments[1], accounts = arguments[2], group = arguments[3];
        int partitions = Integer.parseInt(arguments[4]), batchSize = Integer.parseInt(arguments[5]);
        double abortRatio = Double.parseDouble(arguments[6]);

        KafkaProducer<String, String> producer = new KafkaProducer<>(
            Map.of("bootstrap.servers", bootstrap, "transactional.id", group, "max.block.ms", "20000",
                "reconnect.backoff.max.ms", "200"),
            new StringSerializer(), new StringSerializer());
        producer.initTransactions();
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(
            Map.of("bootstrap.servers", bootstrap, "group.id", group, "enable.auto.commit", "false",
                "isolation.level", "read_committed", "max.poll.records", String.valueOf(batchSize),
                "auto.offset.reset", "earliest", "reconnect.backoff.max.ms", "200"),
            new StringDeserializer(), new StringDeserializer());
        List<TopicPartition> assigned = IntStream.range(0, partitions)
            .mapToObj(index -> new TopicPartition(orders, index)).collect(Collectors.toList());
        consumer.assign(assigned);
        while (true) {
            Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(Map.copyOf(
                assigned.stream().collect(Collectors.toMap(tp -> tp, tp -> 0))).keySet());
            for (TopicPartition tp : assigned) {
                OffsetAndMetadata position = committed.get(tp);
                consumer.seek(tp, position == null ? 0 : position.offset());
            }
            boolean isAborted = false;
            while (!isAborted) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) continue;
                isAborted = ThreadLocalRandom.current().nextDouble() < abortRatio;
                try {
                    producer.beginTransaction();
                    Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
                    for (ConsumerRecord<String, String> record : records) {
                        transfer(producer, accounts, partitions, record.value());
                        offsets.put(new TopicPartition(record.topic(), record.partition()),
                            new OffsetAndMetadata(record.offset() + 1));
                    }
                    producer.sendOffsetsToTransaction(offsets, consumer.groupMetadata());
                    if (!isAborted) producer.commitTransaction();
                } catch (ProducerFencedException error) {
                    throw error;
                } catch (KafkaException error) {
                    isAborted = true;
                }
                // What became of a commit that failed is not known: the next worker finds out.
                if (isAborted) producer.abortTransaction();
            }
        }
    }

    private static void transfer(KafkaProducer<String, String> producer, String topic, int partitions, String order) {
        Map<String, Integer> fields = new HashMap<>();
        Matcher numbers = NUMBER.matcher(order);
        while (numbers.find()) fields.put(numbers.group(1), Integer.valueOf(numbers.group(2)));
        for (String side : List.of("from", "to")) {
            int account = fields.get(side);
            int amount = side.equals("from") ? -fields.get("amount") : fields.get("amount");
            String value = String.format("{\"order\": %d, \"account\": %d, \"amount\": %d}", fields.get("order"), account, amount);
            producer.send(new ProducerRecord<>(topic, account % partitions, null, value));
        }
    }
}
