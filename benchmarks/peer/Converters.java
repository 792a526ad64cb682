import java.io.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import com.fasterxml.jackson.databind.*;
import com.fasterxml.jackson.databind.node.*;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.storage.Converter;
import org.apache.kafka.connect.storage.HeaderConverter;
import org.apache.kafka.common.header.internals.RecordHeaders;
import io.confluent.kafka.schemaregistry.client.MockSchemaRegistryClient;
import io.confluent.kafka.schemaregistry.client.SchemaRegistryClient;

/**
 * Reads one question per line: a Connect value with its schema as the JSON converter writes them, and the converter
 * to put it through. Answers, per line, with the bytes that it writes, the schema that it registers (in a registry
 * in memory), and with "back" the value that it reads from them.
 */
public final class Converters {

    private Converters() {
    }

    /** Puts a value through a converter of headers; null for no bytes. */
    private static String header(JsonNode ask, ObjectMapper mapper, Map<String, Object> config) throws Exception {
        HeaderConverter converter = (HeaderConverter) Class.forName(ask.get("class").asText()).getDeclaredConstructor().newInstance();
        config.put("converter.type", "header");
        converter.configure(config);
        JsonConverter json = new JsonConverter();
        json.configure(Map.of("schemas.enable", "true", "replace.null.with.default", "false"), false);
        SchemaAndValue data = json.toConnectData("t", mapper.writeValueAsBytes(ask.get("data")));
        byte[] bytes = converter.fromConnectHeader("t", ask.get("header").asText(), data.schema(), data.value());
        return bytes == null ? null : Base64.getEncoder().encodeToString(bytes);
    }

    public static void main(String[] args) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, "UTF-8");
        Map<String, Converter> made = new HashMap<>();
        Map<String, SchemaRegistryClient> clients = new HashMap<>();
        String line;
        while ((line = in.readLine()) != null) {
            JsonNode ask = mapper.readTree(line);
            ObjectNode answer = mapper.createObjectNode();
            try {
                Map<String, Object> config = new HashMap<>();
                ask.get("config").fields().forEachRemaining(e -> config.put(e.getKey(), e.getValue().asText()));
                if (ask.has("header")) {
                    answer.put("bytes", header(ask, mapper, config));
                    out.println(mapper.writeValueAsString(answer));
                    continue;
                }
                boolean key = ask.get("key").asBoolean();
                String place = ask.get("class").asText() + config + key;
                Converter converter = made.get(place);
                SchemaRegistryClient client = clients.get(place);
                if (converter == null) {
                    Class<?> type = Class.forName(ask.get("class").asText());
                    if (type.getName().startsWith("io.confluent")) {
                        client = type.getName().contains("protobuf")
                            ? new MockSchemaRegistryClient(List.of(new io.confluent.kafka.schemaregistry.protobuf.ProtobufSchemaProvider()))
                            : new MockSchemaRegistryClient();
                        clients.put(place, client);
                        converter = (Converter) type.getConstructor(SchemaRegistryClient.class).newInstance(client);
                    } else {
                        converter = (Converter) type.getDeclaredConstructor().newInstance();
                    }
                    converter.configure(config, key);
                    made.put(place, converter);
                }
                JsonConverter json = new JsonConverter();
                json.configure(Map.of("schemas.enable", "true", "replace.null.with.default", "false"), key);
                String topic = ask.get("topic").asText();
                SchemaAndValue data = json.toConnectData(topic, mapper.writeValueAsBytes(ask.get("data")));
                RecordHeaders headers = new RecordHeaders();
                for (JsonNode each : ask.path("headers")) {
                    headers.add(each.get("name").asText(), mapper.writeValueAsBytes(each.get("data")));
                }
                byte[] bytes = converter.fromConnectData(topic, headers, data.schema(), data.value());
                answer.put("bytes", bytes == null ? null : Base64.getEncoder().encodeToString(bytes));
                if (client != null && bytes != null && bytes[0] == 0) {
                    int id = java.nio.ByteBuffer.wrap(bytes, 1, 4).getInt();
                    for (String subject : client.getAllSubjects()) {
                        try {
                            var parsed = client.getSchemaBySubjectAndId(subject, id);
                            answer.put("subject", subject);
                            answer.put("schema", parsed.canonicalString());
                            ArrayNode references = answer.putArray("references");
                            for (var each : parsed.references()) references.add(each.getName());
                        } catch (Exception e) { }
                    }
                }
                if (bytes != null && ask.path("back").asBoolean(false)) {
                    SchemaAndValue back = converter.toConnectData(topic, bytes);
                    answer.put("back", new String(json.fromConnectData(topic, back.schema(), back.value()), StandardCharsets.UTF_8));
                }
            } catch (Throwable e) {
                Throwable t = e;
                StringBuilder said = new StringBuilder();
                while (t != null) { said.append(t).append(" | "); t = t.getCause(); }
                answer.put("error", said.toString());
            }
            out.println(mapper.writeValueAsString(answer));
        }
    }
}
