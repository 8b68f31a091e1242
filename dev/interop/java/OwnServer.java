import com.sun.net.httpserver.HttpServer;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** A server that sends webhooks to this program, and can start again at its port. SINEWS is the path of the program. */
final class OwnServer implements Closeable {
  /** A request of a webhook, as received. */
  record Request(String key, String signature, String body) {}

  private static final Pattern LISTENING = Pattern.compile("http://127\\.0\\.0\\.1:(\\d+)/");

  final BlockingQueue<Request> webhooks = new LinkedBlockingQueue<>();
  private final HttpServer receiver = HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 0);
  private final Path config = Files.createTempFile("sinews-webhooks-", ".toml");
  private Process process;
  private int port;

  OwnServer(String key, String secret) throws IOException {
    receiver.createContext("/", exchange -> {
      var headers = exchange.getRequestHeaders();
      String body = new String(exchange.getRequestBody().readAllBytes(), StandardCharsets.UTF_8);
      webhooks.add(new Request(headers.getFirst("X-Pusher-Key"), headers.getFirst("X-Pusher-Signature"), body));
      exchange.sendResponseHeaders(200, -1);
      exchange.close();
    });
    receiver.start();
    Files.writeString(config, """
        [[pusher.app]]
        id = "3"
        key = "%s"
        secret = "%s"
        client_events = true
        webhooks = ["http://127.0.0.1:%d/"]
        webhook_channels = ["java-hook"]
        webhook_grace = "0s"
        webhook_private = true
        """.formatted(key, secret, receiver.getAddress().getPort()));
    try {
      start();
    } catch (IOException fault) {
      close();
      throw fault;
    }
  }

  int port() {
    return port;
  }

  /** Starts the program, at the same port as before. */
  void start() throws IOException {
    String program = System.getenv("SINEWS");
    if (program == null) {
      throw new IOException("the variable SINEWS is not set");
    }
    ProcessBuilder builder = new ProcessBuilder(
        program, "serve", "--listen", "127.0.0.1:" + port, "--threads", "1", "--config", config.toString());
    // Settings of a server that the environment may have, except for the backend.
    builder.environment().keySet().removeIf(name -> name.startsWith("SINEWS") && !name.equals("SINEWS_BACKEND"));
    process = builder.redirectError(ProcessBuilder.Redirect.INHERIT).start();
    BufferedReader output = process.inputReader();
    for (String line = output.readLine(); line != null && !line.contains("Ctrl-C stops."); line = output.readLine()) {
      Matcher listening = LISTENING.matcher(line);
      if (listening.find()) {
        port = Integer.parseInt(listening.group(1));
      }
    }
    if (!process.isAlive() || port == 0) {
      throw new IOException("the server did not start");
    }
  }

  /** Stops the program gracefully. */
  void stop() throws Exception {
    process.destroy();
    if (!process.waitFor(Events.LIMIT_SECONDS, TimeUnit.SECONDS)) {
      throw new AssertionError("the server did not stop within " + Events.LIMIT_SECONDS + " s");
    }
  }

  @Override
  public void close() throws IOException {
    if (process != null) {
      process.destroyForcibly();
    }
    receiver.stop(0);
    Files.delete(config);
  }
}
