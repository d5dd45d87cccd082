// Runs the command line tools of Apache Kafka, one after another in one JVM.
//
//     java -cp 'LIBS/*' KafkaTools.java
//
// Each line of the input is {"tool": CLASS, "arguments": [...]}, and is answered with
// {"result": {"status": ..., "output": ..., "errors": ...}}.

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.PrintWriter;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

class KafkaTools {
    // What Exit.exit throws instead of ending the JVM. Tools that catch everything print it, and exit
    // once more.
    static class Exited extends Error {
        Exited() {
            super("", null, false, false);
        }

        @Override
        public void printStackTrace(PrintWriter writer) {}
    }

    // What a tool exits with; null: it did not.
    static Integer status;

    public static void main(String[] none) throws Exception {
        ObjectMapper json = new ObjectMapper();
        PrintStream out = System.out;
        PrintStream err = System.err;
        Exit.setExitProcedure(KafkaTools::exit);
        Exit.setHaltProcedure(KafkaTools::exit);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode request = json.readTree(line);
            List<String> arguments = new ArrayList<>();
            request.get("arguments").forEach(one -> arguments.add(one.asText()));
            ByteArrayOutputStream output = new ByteArrayOutputStream();
            ByteArrayOutputStream errors = new ByteArrayOutputStream();
            System.setOut(new PrintStream(output, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errors, true, StandardCharsets.UTF_8));
            // Scala's println has a stream of its own.
            int code = scala.Console.withOut(System.out, () -> run(request.get("tool").asText(), arguments));
            System.setOut(out);
            System.setErr(err);
            out.println(json.writeValueAsString(Map.of("result", Map.of(
                "status", code,
                "output", output.toString(StandardCharsets.UTF_8),
                "errors", errors.toString(StandardCharsets.UTF_8)))));
            out.flush();
        }
    }

    static void exit(int code, String message) {
        if (status == null) {
            status = code;
            if (message != null) System.err.println(message);
        }
        throw new Exited();
    }

    static int run(String tool, List<String> arguments) {
        status = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) arguments.toArray(new String[0]));
        } catch (InvocationTargetException error) {
            if (status == null) {
                error.getCause().printStackTrace();
                status = 1;
            }
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException(error);
        }
        return status == null ? 0 : status;
    }
}
