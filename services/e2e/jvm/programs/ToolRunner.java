import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.internals.Exit;

/**
 * Runs the main classes of command-line tools one after the other, so that a JVM starts, and warms up, once for all of them.
 *
 * A line of the input is a call: standard input, class and arguments, each in Base64, with blanks between. A line of the output
 * is the result: the exit code, and in Base64 what the tool has printed.
 */
public final class ToolRunner {
    /** Unwinds a tool that wants to end the JVM. */
    private static final class Ended extends RuntimeException {
        private static final long serialVersionUID = 1;

        Ended() {
            super(null, null, false, false);
        }
    }

    /** The code with which the tool has ended first. Many catch whatever is thrown at them, this end too, and end again. */
    private static volatile Integer exitCode;

    public static void main(String[] unused) throws Exception {
        PrintStream results = System.out;
        BufferedReader calls = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        Exit.Procedure end = (code, message) -> {
            if (exitCode == null) {
                exitCode = code;
                System.setOut(new PrintStream(OutputStream.nullOutputStream()));
                System.setErr(System.out);
            }
            throw new Ended();
        };
        Exit.setExitProcedure(end);
        Exit.setHaltProcedure(end);
        for (String line = calls.readLine(); line != null; line = calls.readLine()) {
            String[] call = line.split(" ", -1);
            for (int i = 0; i < call.length; i++) {
                call[i] = new String(Base64.getDecoder().decode(call[i]), StandardCharsets.UTF_8);
            }
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            PrintStream out = new PrintStream(printed, true, StandardCharsets.UTF_8);
            System.setIn(new ByteArrayInputStream(call[0].getBytes(StandardCharsets.UTF_8)));
            System.setOut(out);
            System.setErr(out);
            int code = run(call[1], Arrays.copyOfRange(call, 2, call.length));
            out.flush();
            results.println(code + " " + Base64.getEncoder().encodeToString(printed.toByteArray()));
            results.flush();
        }
        Runtime.getRuntime().halt(0); // Whatever the tools have left running.
    }

    private static int run(String tool, String[] args) throws Exception {
        exitCode = null;
        try {
            Class.forName(tool).getMethod("main", String[].class).invoke(null, (Object) args);
            return exitCode == null ? 0 : exitCode;
        } catch (InvocationTargetException e) {
            if (exitCode == null) {
                e.getCause().printStackTrace();
                return 1;
            }
            return exitCode;
        }
    }
}
