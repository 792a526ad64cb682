import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.SerializationFeature;
import io.debezium.config.Field;
import io.debezium.connector.postgresql.PostgresConnector;
import io.github.classgraph.ClassGraph;
import io.github.classgraph.ClassInfo;
import io.github.classgraph.ScanResult;
import java.io.PrintStream;
import java.util.Map;
import java.util.TreeMap;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.runtime.SourceConnectorConfig;

/**
 * Prints every property that Debezium's PostgreSQL connector, its engine and Kafka Connect's source connectors
 * declare, with its default, as one JSON object. The connector's ConfigDef does not have all that
 * its code reads: fields that its classes declare are added.
 */
public final class ConfigDefs {

    private static final String JARS = "debezium-(connector-postgres|connector-common|embedded)-.*";
    private static final String NOT_OF_POSTGRES = ".*(Historized|SchemaHistory|serde|processors|transforms).*";

    private ConfigDefs() {
    }

    public static void main(String[] args) throws Exception {
        Map<String, Map<String, String>> all = new TreeMap<>();
        all.put("connector", of(new PostgresConnector().config()));
        all.put("connect", of(SourceConnectorConfig.configDef()));
        Map<String, String> fields = new TreeMap<>();
        try (ScanResult found = new ClassGraph().acceptPackages("io.debezium").ignoreClassVisibility().scan()) {
            for (ClassInfo each : found.getAllClasses()) {
                boolean ours = each.getClasspathElementFile().getName().matches(JARS);
                if (ours && !each.getName().matches(NOT_OF_POSTGRES)) {
                    addFields(each.getName(), fields);
                }
            }
        }
        all.put("fields", fields);
        ObjectMapper mapper = new ObjectMapper().enable(SerializationFeature.INDENT_OUTPUT);
        new PrintStream(System.out, true, "UTF-8").println(mapper.writeValueAsString(all));
    }

    private static void addFields(String type, Map<String, String> fields) {
        try {
            boolean jdbc = type.endsWith(".JdbcConfiguration");
            for (java.lang.reflect.Field each : Class.forName(type).getDeclaredFields()) {
                if (each.getType() == Field.class && java.lang.reflect.Modifier.isStatic(each.getModifiers())) {
                    each.setAccessible(true);
                    Field field = (Field) each.get(null);
                    fields.put((jdbc ? "database." : "") + field.name(), field.defaultValueAsString());
                }
            }
        }
        catch (Throwable e) {
            return; // a class of another database's driver, which is not there
        }
    }

    private static Map<String, String> of(ConfigDef def) {
        Map<String, String> found = new TreeMap<>();
        for (ConfigDef.ConfigKey key : def.configKeys().values()) {
            boolean some = key.hasDefault() && key.defaultValue != null;
            found.put(key.name, some ? String.valueOf(key.defaultValue).replace("class ", "") : null);
        }
        return found;
    }
}
