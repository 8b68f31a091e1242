import java.io.Closeable;
import java.io.IOException;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

/** A TCP proxy that can lose its connections. */
final class Relay implements Closeable {
  private final ServerSocket listener = new ServerSocket(0, 16, InetAddress.getLoopbackAddress());
  private final Set<Socket> sockets = ConcurrentHashMap.newKeySet();

  Relay(int target) throws IOException {
    start(() -> {
      while (true) {
        Socket client = listener.accept();
        Socket server = new Socket(InetAddress.getLoopbackAddress(), target);
        sockets.add(client);
        sockets.add(server);
        start(() -> client.getInputStream().transferTo(server.getOutputStream()));
        start(() -> server.getInputStream().transferTo(client.getOutputStream()));
      }
    });
  }

  int port() {
    return listener.getLocalPort();
  }

  /** Resets all connections. */
  void lose() throws IOException {
    for (Socket socket : sockets) {
      socket.setSoLinger(true, 0);
      socket.close();
    }
    sockets.clear();
  }

  @Override
  public void close() throws IOException {
    listener.close();
    lose();
  }

  private interface Transfer {
    void run() throws IOException;
  }

  private static void start(Transfer transfer) {
    Thread thread = new Thread(() -> {
      try {
        transfer.run();
      } catch (IOException lost) {
        // One of both sides is closed.
      }
    });
    thread.setDaemon(true);
    thread.start();
  }
}
