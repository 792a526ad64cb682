import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;

import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.data.SchemaAndValue;
import org.apache.kafka.connect.header.ConnectHeaders;
import org.apache.kafka.connect.header.Header;
import org.apache.kafka.connect.json.JsonConverter;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.transforms.Transformation;

/**
 * Reads one question per line: a transform's class, its configuration, and records whose keys, values and headers are
 * written as the JSON converter writes them with schemas. Answers, per line, with the records that come of them, in
 * the same form; or with the error that ended it, and how many records it had taken before.
 */
public final class Transforms {

    private static final ObjectMapper MAPPER = new ObjectMapper();
    private static final JsonConverter JSON = new JsonConverter();
    /** As many entries as Debezium's: EnforceRecordSize counts them. */
    private static final Map<String, ?> PARTITION = Map.of("server", "t");
    private static final Map<String, ?> OFFSET = Map.of("lsn", 1, "lsn_proc", 1, "lsn_commit", 1, "txId", 1, "ts_usec", 1,
            "messageType", "INSERT");

    private Transforms() {
    }

    public static void main(String[] args) throws Exception {
        JSON.configure(Map.of("schemas.enable", "true", "replace.null.with.default", "false"), false);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        String line;
        while ((line = in.readLine()) != null) {
            JsonNode ask = MAPPER.readTree(line);
            ObjectNode answer = MAPPER.createObjectNode();
            ArrayNode made = answer.putArray("records");
            int taken = 0;
            try {
                Map<String, Object> config = new HashMap<>();
                ask.get("config").fields().forEachRemaining(e -> config.put(e.getKey(), e.getValue().asText()));
                @SuppressWarnings("unchecked")
                Transformation<SourceRecord> transform = (Transformation<SourceRecord>) Class
                        .forName(ask.get("class").asText()).getDeclaredConstructor().newInstance();
                transform.configure(config);
                for (JsonNode each : ask.get("records")) {
                    SourceRecord record = transform.apply(read(each));
                    if (record != null) {
                        made.add(written(record));
                    }
                    taken++;
                }
                transform.close();
            }
            catch (Throwable e) {
                StringBuilder said = new StringBuilder();
                for (Throwable t = e; t != null; t = t.getCause()) {
                    said.append(t).append(" | ");
                }
                answer.put("error", said.toString());
                answer.put("taken", taken);
            }
            out.println(MAPPER.writeValueAsString(answer));
        }
    }

    private static SourceRecord read(JsonNode record) throws Exception {
        SchemaAndValue key = data(record.get("key"));
        SchemaAndValue value = data(record.get("value"));
        ConnectHeaders headers = new ConnectHeaders();
        for (JsonNode header : record.get("headers")) {
            SchemaAndValue held = data(header.get("data"));
            headers.add(header.get("name").asText(), held.value(), held.schema());
        }
        Integer partition = record.get("partition").isNull() ? null : record.get("partition").asInt();
        Long timestamp = record.get("timestamp").isNull() ? null : record.get("timestamp").asLong();
        return new SourceRecord(PARTITION, OFFSET, record.get("topic").asText(), partition, key.schema(), key.value(),
                value.schema(), value.value(), timestamp, headers);
    }

    private static SchemaAndValue data(JsonNode node) throws Exception {
        return node.isNull() ? SchemaAndValue.NULL : JSON.toConnectData("t", MAPPER.writeValueAsBytes(node));
    }

    private static JsonNode data(Schema schema, Object value) throws Exception {
        byte[] bytes = JSON.fromConnectData("t", schema, value);
        return bytes == null ? MAPPER.nullNode() : MAPPER.readTree(bytes);
    }

    private static ObjectNode written(SourceRecord record) throws Exception {
        ObjectNode node = MAPPER.createObjectNode();
        node.put("topic", record.topic());
        node.set("key", data(record.keySchema(), record.key()));
        node.set("value", data(record.valueSchema(), record.value()));
        ArrayNode headers = node.putArray("headers");
        for (Header header : record.headers()) {
            ObjectNode held = headers.addObject();
            held.put("name", header.key());
            held.set("data", data(header.schema(), header.value()));
        }
        node.put("partition", record.kafkaPartition());
        node.put("timestamp", record.timestamp());
        return node;
    }
}
