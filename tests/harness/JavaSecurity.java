// One record to each secured listener and back: JavaSecurity TOPIC=client.properties …
import java.io.FileInputStream;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
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
                result = roundTrip(topic, properties);
            } catch (Exception error) {
                result = error.toString();
            }
            System.out.println(topic + " " + result);
        }
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
