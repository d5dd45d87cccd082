import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.ServerSocket;
import org.testcontainers.containers.FixedHostPortGenericContainer;
import org.testcontainers.containers.wait.strategy.Wait;

/**
 * A broker in a container, for tests with Testcontainers:
 *
 * <pre>{@code
 * try (var broker = new OttlaContainer("ottla")) {
 *   broker.start();
 *   properties.put("bootstrap.servers", broker.getBootstrapServers());
 * }
 * }</pre>
 */
public class OttlaContainer extends FixedHostPortGenericContainer<OttlaContainer> {
  private final int port;

  public OttlaContainer(String image) {
    super(image);
    // Clients are told the address to connect to, so the port is chosen before the start.
    port = freePort();
    withFixedExposedPort(port, port);
    withEnv("OTTLA_LISTENERS", "PLAINTEXT://:" + port);
    withEnv("OTTLA_ADVERTISED_LISTENERS", "PLAINTEXT://localhost:" + port);
    withEnv("OTTLA_ALLOW_INSECURE_LISTENERS", "true");
    withEnv("OTTLA_LOG_DURABILITY", "page-cache");
    withEnv("OTTLA_GROUP_INITIAL_REBALANCE_DELAY_MS", "0");
    waitingFor(Wait.forLogMessage(".*\\bready\\b.*\\n", 1));
  }

  /** Returns the address for clients on this machine. */
  public String getBootstrapServers() {
    return "localhost:" + port;
  }

  private static int freePort() {
    try (var socket = new ServerSocket(0)) {
      return socket.getLocalPort();
    } catch (IOException error) {
      throw new UncheckedIOException(error);
    }
  }
}
