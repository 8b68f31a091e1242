import com.pusher.client.channel.PresenceChannelEventListener;
import com.pusher.client.channel.PrivateEncryptedChannelEventListener;
import com.pusher.client.channel.PusherEvent;
import com.pusher.client.channel.User;
import com.pusher.client.connection.ConnectionEventListener;
import com.pusher.client.connection.ConnectionStateChange;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.stream.Collectors;

/** Calls of the client's library for a channel or a connection, in a queue for each name. */
final class Events
    implements PresenceChannelEventListener, PrivateEncryptedChannelEventListener, ConnectionEventListener {
  static final int LIMIT_SECONDS = 60;

  private final Map<String, BlockingQueue<PusherEvent>> queues = new ConcurrentHashMap<>();

  /** Returns the data of the next event with the name. */
  String next(String name) throws Exception {
    return nextEvent(name).getData();
  }

  PusherEvent nextEvent(String name) throws Exception {
    PusherEvent event = queue(name).poll(LIMIT_SECONDS, TimeUnit.SECONDS);
    if (event == null) {
      throw new AssertionError("no " + name + " within " + LIMIT_SECONDS + " s; queued: " + queues.keySet());
    }
    return event;
  }

  /** The number of events with the name that no call has taken. */
  int count(String name) {
    return queue(name).size();
  }

  BlockingQueue<PusherEvent> queue(String name) {
    return queues.computeIfAbsent(name, key -> new LinkedBlockingQueue<>());
  }

  private void add(String name, String data) {
    queue(name).add(new PusherEvent(name, "", "", data));
  }

  @Override
  public void onEvent(PusherEvent event) {
    queue(event.getEventName()).add(event);
  }

  @Override
  public void onSubscriptionSucceeded(String channel) {
    add("subscribed", channel);
  }

  @Override
  public void onAuthenticationFailure(String message, Exception fault) {
    add("authorization failed", message);
  }

  @Override
  public void onDecryptionFailure(String event, String reason) {
    add("not decrypted", event);
  }

  @Override
  public void onUsersInformationReceived(String channel, Set<User> users) {
    add("members", users.stream().map(User::getId).sorted().collect(Collectors.joining(",")));
  }

  @Override
  public void userSubscribed(String channel, User user) {
    add("added", user.getId() + " " + user.getInfo());
  }

  @Override
  public void userUnsubscribed(String channel, User user) {
    add("removed", user.getId());
  }

  @Override
  public void onConnectionStateChange(ConnectionStateChange change) {
    add(change.getCurrentState().name(), "");
  }

  @Override
  public void onError(String message, String code, Exception fault) {
    add("error", code);
  }

  @Override
  public void onError(String message, Exception fault) {
    add("error", message);
  }
}
