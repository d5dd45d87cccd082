import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.nio.ByteBuffer;
import java.util.Collection;
import java.util.HexFormat;
import java.util.List;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.message.RequestHeaderData;
import org.apache.kafka.common.message.ResponseHeaderData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.protocol.ApiMessage;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.record.internal.BaseRecords;
import org.apache.kafka.common.record.internal.MemoryRecords;

/**
 * Print a request and a response of every version of the given APIs, as encoded by Kafka's classes:
 * once with every field set, once with the defaults.
 *
 *     java -cp 'libs/*' tests/golden/JavaMessages.java 76 77 ... > tests/golden/java-messages.txt
 *
 * For APIs that no client of the recordings uses.
 */
class JavaMessages {
    private int count = 0;

    public static void main(String[] arguments) throws Exception {
        for (String argument : arguments) {
            ApiKeys api = ApiKeys.forId(Integer.parseInt(argument));
            for (short version = api.oldestVersion();
                 version <= api.latestVersion(true);
                 version++) {
                for (boolean set : new boolean[] {true, false}) {
                    print(api, version, "request", set);
                    print(api, version, "response", set);
                }
            }
        }
    }

    private static void print(ApiKeys api, short version, String direction, boolean set)
        throws Exception {
        boolean isRequest = direction.equals("request");
        ApiMessage message = isRequest ? api.messageType.newRequest() : api.messageType.newResponse();
        if (set) {
            new JavaMessages().fill(message, version);
        }
        ByteBuffer header = isRequest
            ? MessageUtil.toByteBufferAccessor(
                new RequestHeaderData()
                    .setRequestApiKey(api.id)
                    .setRequestApiVersion(version)
                    .setCorrelationId(7)
                    .setClientId("golden"),
                api.requestHeaderVersion(version)).buffer()
            : MessageUtil.toByteBufferAccessor(
                new ResponseHeaderData().setCorrelationId(7),
                api.responseHeaderVersion(version)).buffer();
        ByteBuffer body = MessageUtil.toByteBufferAccessor(message, version).buffer();
        System.out.println(
            api.name + " " + version + " " + direction + " " + hex(header) + hex(body));
    }

    private static String hex(ByteBuffer buffer) {
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    // Sets every field that the version has.
    private void fill(Object message, short version) throws Exception {
        for (Field field : message.getClass().getDeclaredFields()) {
            if (Modifier.isStatic(field.getModifiers())
                || List.of("_unknownTaggedFields", "next", "prev").contains(field.getName())) {
                continue;
            }
            field.setAccessible(true);
            Object before = field.get(message);
            field.set(message, value(field, before, version));
            if (!hasField((Message) message, version)) {
                field.set(message, before);
            }
        }
    }

    private static boolean hasField(Message message, short version) {
        try {
            MessageUtil.toByteBufferAccessor(message, version);
            return true;
        } catch (UnsupportedVersionException error) {
            return false;
        } catch (NullPointerException error) {
            // A field that must not be null is not set yet.
            return true;
        }
    }

    private Object value(Field field, Object before, short version) throws Exception {
        Class<?> type = field.getType();
        if (Collection.class.isAssignableFrom(type)) {
            return elements(field, before, version);
        }
        Object value = scalar(type, field.getName());
        if (value == null) {
            value = type.getDeclaredConstructor().newInstance();
            fill(value, version);
        }
        return value;
    }

    @SuppressWarnings("unchecked")
    private Object elements(Field field, Object before, short version) throws Exception {
        // The type of the elements of List<T>, or of a class that extends a collection of T.
        var generic = field.getGenericType() instanceof ParameterizedType own
            ? own
            : (ParameterizedType) field.getType().getGenericSuperclass();
        Class<?> element = (Class<?>) generic.getActualTypeArguments()[0];
        Collection<Object> elements =
            before == null || field.getType() == List.class
                ? new java.util.ArrayList<>()
                : (Collection<Object>) before;
        for (int index = 0; index < 2; index++) {
            Object value = scalar(element, field.getName());
            if (value == null) {
                value = element.getDeclaredConstructor().newInstance();
                fill(value, version);
            }
            elements.add(value);
        }
        return elements;
    }

    private Object scalar(Class<?> type, String name) {
        count++;
        if (type == String.class) {
            return name + "-" + count;
        } else if (type == boolean.class) {
            return true;
        } else if (type == byte.class || type == Byte.class) {
            return (byte) (count % 128);
        } else if (type == short.class || type == Short.class) {
            return (short) (count * 3);
        } else if (type == int.class || type == Integer.class) {
            return count * 70_000;
        } else if (type == long.class || type == Long.class) {
            return count * 7_000_000_000L;
        } else if (type == Uuid.class) {
            return new Uuid(count, count * 5L);
        } else if (type == BaseRecords.class) {
            return MemoryRecords.readableRecords(ByteBuffer.wrap(new byte[] {1, 2, 3, 4, 5}));
        }
        return null;
    }
}
