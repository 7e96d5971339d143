import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Somebody else's program, as a person runs it by mistake: java ForeignProducer.java SERVERS TOPIC CODEC... */
public class ForeignProducer {
    public static void main(String[] arguments) throws Exception {
        for (int i = 2; i < arguments.length; i++) {
            Properties properties = new Properties();
            properties.put("bootstrap.servers", arguments[0]);
            properties.put("compression.type", arguments[i]);
            properties.put("key.serializer", ByteArraySerializer.class);
            properties.put("value.serializer", ByteArraySerializer.class);
            try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(properties)) {
                byte[] value = "{\"hello\": \"world\"}".repeat(100).getBytes();
                ProducerRecord<byte[], byte[]> record = new ProducerRecord<>(arguments[1], 0, null, value);
                record.headers().add("trace", new byte[] {1, 2, 3});
                producer.send(record).get();
            }
        }
    }
}
