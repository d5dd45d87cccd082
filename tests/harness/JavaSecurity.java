// One record to each secured listener and back: JavaSecurity TOPIC=client.properties …
// With -Dreauthentications=N records are sent until the producer has authenticated again N times.
import java.io.FileInputStream;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

public class JavaSecurity {
    public static void main(String[] arguments) throws Exception {
        for (String argument : arguments) {
            String topic = argument.substring(0, argument.indexOf('='));
            Properties properties = new Properties();
            try (FileInputStream file = new FileInputStream(argument.substring(argument.indexOf('=') + 1))) {
                properties.load(file);
            }
            String result;
            try {
                int count = Integer.getInteger("reauthentications", 0);
                result = count > 0 ? sendUntil(count, topic, properties) : roundTrip(topic, properties);
            } catch (Exception error) {
                result = error.toString();
            }
            System.out.println(topic + " " + result);
        }
    }

    static String sendUntil(int count, String topic, Properties properties) throws Exception {
        properties.put("retries", "0");
        try (var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            int sent = 0;
            while (reauthentications(producer) < count) {
                var results = new ArrayList<Future<RecordMetadata>>();
                for (int number = 0; number < 100; number++) {
                    results.add(producer.send(new ProducerRecord<>(topic, "java")));
                }
                for (var result : results) {
                    result.get();
                }
                sent += results.size();
            }
            return String.valueOf(sent);
        }
    }

    static double reauthentications(KafkaProducer<?, ?> producer) {
        for (var metric : producer.metrics().values()) {
            if (metric.metricName().name().equals("successful-reauthentication-total")) {
                return (double) metric.metricValue();
            }
        }
        throw new IllegalStateException();
    }

    static String roundTrip(String topic, Properties properties) throws Exception {
        try (var producer = new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer())) {
            producer.send(new ProducerRecord<>(topic, "java")).get();
        }
        properties.put("auto.offset.reset", "earliest");
        try (var consumer = new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.assign(List.of(new TopicPartition(topic, 0)));
            for (var record : consumer.poll(Duration.ofSeconds(30))) {
                return record.value();
            }
        }
        return "nothing";
    }
}
