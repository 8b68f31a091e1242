import com.google.gson.Gson;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.pusher.client.AuthorizationFailureException;
import com.pusher.client.Pusher;
import com.pusher.client.PusherOptions;
import com.pusher.client.channel.PresenceChannel;
import com.pusher.client.channel.PrivateChannel;
import com.pusher.client.channel.PusherEvent;
import com.pusher.client.connection.ConnectionState;
import com.pusher.rest.PusherAsync;
import com.pusher.rest.data.Event;
import com.pusher.rest.data.PresenceUser;
import com.pusher.rest.data.Result;
import com.pusher.rest.data.Validity;
import java.net.URI;
import java.nio.charset.StandardCharsets;
import java.security.GeneralSecurityException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;

/**
 * Unmodified Java libraries of the Pusher protocol against the server: PusherLibraries BASE LIMITED
 *
 * <p>{@code pusher-java-client} is the client, {@code pusher-http-java} the library for servers. The app is that of
 * dev/interop/pusher/sinews.toml. SINEWS is the path of the program: two checks start a server of their own.
 */
public final class PusherLibraries {
  private static final String KEY = "278d425bdf160c739803";
  private static final String SECRET = "7ad3773142a6692b25b8";
  private static final Gson GSON = new Gson();

  private final String host;
  private final int port;
  private final com.pusher.rest.Pusher server;
  private final List<Pusher> clients = new ArrayList<>();

  private PusherLibraries(String host, int port) {
    this.host = host;
    this.port = port;
    server = server(SECRET, (byte) 7);
  }

  private interface Check {
    void run() throws Exception;
  }

  public static void main(String[] arguments) {
    URI base = URI.create(arguments[0]);
    PusherLibraries run = new PusherLibraries(base.getHost(), base.getPort());
    Map<String, Check> checks = new LinkedHashMap<>();
    checks.put("public channel: event, number of subscribers, unsubscription", run::publicChannel);
    checks.put("private channel: authorization, client event, refusal", run::privateChannel);
    checks.put("presence channel: members, added, removed, client event with its sender", run::presenceChannel);
    checks.put("encrypted channel, and an event of another key", run::encryptedChannel);
    checks.put("cache channel: miss, then the last event", run::cacheChannel);
    checks.put("user: sign-in, event, termination", run::user);
    checks.put("unknown app: 4001, and no further attempt", run::unknownApp);
    checks.put("lost connection: all subscriptions again", run::lostConnection);
    checks.put("server that starts again: all subscriptions again", run::serverThatStartsAgain);
    checks.put("server library: several channels, batch, excluded socket", run::triggers);
    checks.put("server library: channels, attributes, users", run::channels);
    checks.put("server library: asynchronous client", run::asynchronous);
    checks.put("server library: statuses of faults", run::faults);
    checks.put("server library: webhooks are valid", run::webhooks);
    boolean failed = false;
    for (Map.Entry<String, Check> check : checks.entrySet()) {
      try {
        check.getValue().run();
        System.out.println("ok " + check.getKey());
      } catch (Exception | AssertionError fault) {
        failed = true;
        System.out.println("FAIL " + check.getKey() + ": " + fault);
        fault.printStackTrace();
      }
      run.clients.forEach(Pusher::disconnect);
      run.clients.clear();
    }
    System.exit(failed ? 1 : 0);
  }

  private void publicChannel() throws Exception {
    Pusher client = connect((String) null);
    Events events = new Events();
    client.subscribe("java-public", events, "news", "pusher:subscription_count");
    events.next("subscribed");
    expect(events.next("pusher:subscription_count"), "{\"subscription_count\":1}", "the number of subscribers");
    for (Object data : List.of(Map.of("text", "ü€😀"), List.of(1, 2), "text", 7)) {
      succeed(server.trigger("java-public", "news", data));
      expect(events.next("news"), GSON.toJson(data), "the data");
    }
    client.unsubscribe("java-public");
    Events others = new Events();
    connect((String) null).subscribe("java-public", others, "news");
    client.subscribe("java-done", others, "news");
    others.next("subscribed");
    others.next("subscribed");
    succeed(server.trigger(List.of("java-public", "java-done"), "news", "after"));
    others.next("news");
    others.next("news");
    expect(events.count("news"), 0, "events after the unsubscription");
  }

  private void privateChannel() throws Exception {
    Events one = new Events();
    Events two = new Events();
    PrivateChannel channel = connect((String) null).subscribePrivate("private-java", one, "client-typing", "done");
    connect((String) null).subscribePrivate("private-java", two, "client-typing", "done");
    one.next("subscribed");
    two.next("subscribed");
    channel.trigger("client-typing", "{\"on\":true}");
    expect(two.next("client-typing"), "{\"on\":true}", "the client event");
    succeed(server.trigger("private-java", "done", ""));
    one.next("done");
    expect(one.count("client-typing"), 0, "events of the sender");

    Events refused = new Events();
    com.pusher.rest.Pusher wrong = server("wrong", (byte) 7);
    PusherOptions options = options(port).setChannelAuthorizer((name, socket) -> wrong.authenticate(socket, name));
    connect(options).subscribePrivate("private-java", refused, "pusher:subscription_error");
    JsonObject fault = JsonParser.parseString(refused.next("pusher:subscription_error")).getAsJsonObject();
    expect(fault.get("status").getAsInt(), 401, "the status");
    expect(refused.count("subscribed"), 0, "subscriptions with a wrong signature");

    Events unauthorized = new Events();
    connect(options(port).setChannelAuthorizer((name, socket) -> {
      throw new AuthorizationFailureException("no");
    })).subscribePrivate("private-java", unauthorized);
    unauthorized.next("authorization failed");
  }

  private void presenceChannel() throws Exception {
    Events one = new Events();
    Events two = new Events();
    PresenceChannel first = connect("1").subscribePresence("presence-java", one, "client-typing");
    expect(one.next("members"), "1", "the members");
    expect(first.getMe().getInfo(), "{\"name\":\"name of 1\"}", "the own data");
    Pusher other = connect("2");
    PresenceChannel second = other.subscribePresence("presence-java", two);
    expect(two.next("members"), "1,2", "the members");
    expect(one.next("added"), "2 {\"name\":\"name of 2\"}", "the added member");
    expect(first.getUsers().size(), 2, "the number of members");
    second.trigger("client-typing", "{\"on\":true}");
    PusherEvent typing = one.nextEvent("client-typing");
    expect(typing.getData() + typing.getUserId(), "{\"on\":true}2", "the client event and its sender");
    other.unsubscribe("presence-java");
    expect(one.next("removed"), "2", "the member without subscription");
    other.subscribePresence("presence-java", two);
    one.next("added");
    other.disconnect();
    expect(one.next("removed"), "2", "the member without connection");
    expect(one.count("added") + one.count("removed"), 0, "further changes");
  }

  private void encryptedChannel() throws Exception {
    Events events = new Events();
    connect((String) null).subscribePrivateEncrypted("private-encrypted-java", events, "secret");
    events.next("subscribed");
    succeed(server.trigger("private-encrypted-java", "secret", Map.of("text", "hidden")));
    expect(events.next("secret"), "{\"text\":\"hidden\"}", "the decrypted data");
    succeed(server(SECRET, (byte) 8).trigger("private-encrypted-java", "secret", "hidden"));
    events.next("not decrypted");
    expect(events.count("secret"), 0, "events of another key");
  }

  private void cacheChannel() throws Exception {
    // The server may retain the event of an earlier run.
    String name = "cache-java-" + ProcessHandle.current().pid();
    Events first = new Events();
    connect((String) null).subscribe(name, first, "news", "pusher:cache_miss");
    // The event has no data.
    first.nextEvent("pusher:cache_miss");
    succeed(server.trigger(name, "news", "1"));
    first.next("news");
    Events second = new Events();
    connect((String) null).subscribe(name, second, "news", "pusher:cache_miss");
    expect(second.next("news"), "\"1\"", "the cached event");
    expect(second.count("pusher:cache_miss"), 0, "missed events");
  }

  private void user() throws Exception {
    Events states = new Events();
    Events events = new Events();
    Pusher client = new Pusher(KEY, options(port).setUserAuthenticator(socket -> {
      String data = "{\"id\":\"java-user\"}";
      return GSON.toJson(Map.of("auth", KEY + ":" + sign(socket + "::user::" + data), "user_data", data));
    }));
    clients.add(client);
    client.user().bind("news", events);
    // The library may sign in twice if this comes while it connects.
    client.signin();
    client.connect(states, ConnectionState.ALL);
    // The library does not tell when it is subscribed to the events of the user.
    String event = "{\"name\":\"news\",\"channels\":[\"#server-to-user-java-user\"],\"data\":\"a\"}";
    long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(Events.LIMIT_SECONDS);
    do {
      expect(System.nanoTime() < end, true, "an event of the user in time");
      succeed(server.post("/events", event));
    } while (events.queue("news").poll(50, TimeUnit.MILLISECONDS) == null);
    expect(client.user().userId(), "java-user", "the user");
    succeed(server.post("/users/java-user/terminate_connections", "{}"));
    expect(states.next("error"), "4009", "the code");
    states.next("DISCONNECTED");
    expect(states.count("RECONNECTING"), 0, "further attempts");
  }

  private void unknownApp() throws Exception {
    Events states = new Events();
    Pusher client = new Pusher("unknown", options(port));
    clients.add(client);
    client.connect(states, ConnectionState.ALL);
    expect(states.next("error"), "4001", "the code");
    states.next("DISCONNECTED");
    expect(states.count("RECONNECTING"), 0, "further attempts");
  }

  private void lostConnection() throws Exception {
    try (Relay relay = new Relay(port)) {
      reconnects(relay.port(), port, relay::lose);
    }
  }

  private void serverThatStartsAgain() throws Exception {
    try (OwnServer own = new OwnServer(KEY, SECRET)) {
      reconnects(own.port(), own.port(), () -> {
        own.stop();
        own.start();
      });
    }
  }

  /** Subscribes to channels of each kind, interrupts the connection, and expects events of all channels. */
  private void reconnects(int through, int target, Check interrupt) throws Exception {
    Events states = new Events();
    Events events = new Events();
    Events presence = new Events();
    PusherOptions options = options(through).setMaxReconnectGapInSeconds(1).setMaxReconnectionAttempts(20);
    Pusher client = connect(options.setChannelAuthorizer((name, socket) -> authorize("9", name, socket)));
    client.getConnection().bind(ConnectionState.ALL, states);
    List<String> channels = List.of("java-again", "private-java-again", "private-encrypted-java-again");
    client.subscribe(channels.get(0), events, "news");
    client.subscribePrivate(channels.get(1), events, "news");
    client.subscribePrivateEncrypted(channels.get(2), events, "news");
    client.subscribePresence("presence-java-again", presence, "news");
    for (int round = 0; round < 2; round++) {
      Set<String> subscribed = new TreeSet<>();
      for (String unused : channels) {
        subscribed.add(events.next("subscribed"));
      }
      expect(subscribed, new TreeSet<>(channels), "the subscriptions");
      expect(presence.next("members"), "9", "the members");
      // An idle connection of the library would delay the stop of the server.
      try (com.pusher.rest.Pusher library = server(SECRET, (byte) 7)) {
        library.setHost(host + ":" + target);
        for (String channel : channels) {
          succeed(library.trigger(channel, "news", channel));
          expect(events.next("news"), GSON.toJson(channel), "the data");
        }
      }
      if (round == 0) {
        interrupt.run();
        states.next("RECONNECTING");
        states.next("CONNECTED");
      }
    }
  }

  private void triggers() throws Exception {
    Events one = new Events();
    Events two = new Events();
    Pusher first = connect((String) null);
    first.subscribe("java-one", one, "news", "done");
    connect((String) null).subscribe("java-two", two, "news", "done");
    one.next("subscribed");
    two.next("subscribed");
    succeed(server.trigger(List.of("java-one", "java-two"), "news", "1", first.getConnection().getSocketId()));
    expect(two.next("news"), "\"1\"", "the event of several channels");
    succeed(server.trigger(List.of(
        new Event("java-one", "news", "2"), new Event("java-two", "news", Map.of("n", 3)), new Event("java-one", "done", "4"))));
    expect(one.next("news") + one.next("done") + two.next("news"), "\"2\"\"4\"{\"n\":3}", "the events of the batch");
    expect(one.count("news"), 0, "events of the excluded socket");
  }

  private void channels() throws Exception {
    Events events = new Events();
    connect("7").subscribePresence("presence-javalist", events);
    events.next("subscribed");
    Map<String, String> parameters = Map.of("filter_by_prefix", "presence-javalist", "info", "user_count");
    expect(succeed(server.get("/channels", parameters)), "{\"channels\":{\"presence-javalist\":{\"user_count\":1}}}", "the channels");
    JsonObject channel =
        JsonParser.parseString(succeed(server.get("/channels/presence-javalist", Map.of("info", "user_count")))).getAsJsonObject();
    expect(channel.get("occupied").getAsBoolean() + " " + channel.get("user_count"), "true 1", "the attributes");
    expect(succeed(server.get("/channels/presence-javalist/users")), "{\"users\":[{\"id\":\"7\"}]}", "the users");
  }

  private void asynchronous() throws Exception {
    Events events = new Events();
    connect((String) null).subscribe("java-async", events, "news");
    events.next("subscribed");
    try (PusherAsync library = new PusherAsync("3", KEY, SECRET)) {
      library.setHost(host + ":" + port);
      List<CompletableFuture<Result>> results = new ArrayList<>();
      for (int number = 0; number < 100; number++) {
        results.add(library.trigger("java-async", "news", String.valueOf(number)));
      }
      Set<String> received = new TreeSet<>();
      for (var result : results) {
        succeed(result.get(Events.LIMIT_SECONDS, TimeUnit.SECONDS));
        received.add(events.next("news"));
      }
      expect(received.size(), results.size(), "the events");
    }
  }

  private void faults() {
    expect(server("wrong", (byte) 7).trigger("a", "b", "c").getStatus(), Result.Status.AUTHENTICATION_ERROR, "a wrong secret");
    expect(server.trigger("a", "b", "c".repeat(11_000)).getHttpStatus(), 413, "data over the limit");
    expect(server.get("/channels/a/users").getHttpStatus(), 400, "users of a channel without presence");
  }

  private void webhooks() throws Exception {
    try (OwnServer own = new OwnServer(KEY, SECRET)) {
      Events events = new Events();
      Pusher client = connect(options(own.port()));
      client.subscribe("java-hook", events);
      events.next("subscribed");
      for (String name : List.of("channel_occupied", "channel_vacated")) {
        OwnServer.Request request = own.webhooks.poll(Events.LIMIT_SECONDS, TimeUnit.SECONDS);
        expect(request != null, true, "a webhook for " + name);
        JsonObject event =
            JsonParser.parseString(request.body()).getAsJsonObject().getAsJsonArray("events").get(0).getAsJsonObject();
        expect(event.get("name").getAsString() + " " + event.get("channel").getAsString(), name + " java-hook", "the event");
        expect(validity(request, request.body()), Validity.VALID, "the webhook");
        expect(validity(request, request.body() + " "), Validity.INVALID, "the webhook with another body");
        client.unsubscribe("java-hook");
      }
    }
  }

  private Validity validity(OwnServer.Request request, String body) {
    return server.validateWebhookSignature(request.key(), request.signature(), body);
  }

  /** The library for servers; a byte is the key of the encrypted channels. */
  private com.pusher.rest.Pusher server(String secret, byte key) {
    byte[] bytes = new byte[32];
    Arrays.fill(bytes, key);
    var library = new com.pusher.rest.Pusher("3", KEY, secret, Base64.getEncoder().encodeToString(bytes));
    library.setHost(host + ":" + port);
    return library;
  }

  private PusherOptions options(int through) {
    return new PusherOptions().setHost(host).setWsPort(through).setUseTLS(false);
  }

  /** A connected client; the user is the member of its presence channels. */
  private Pusher connect(String user) throws Exception {
    return connect(options(port).setChannelAuthorizer((name, socket) -> authorize(user, name, socket)));
  }

  private Pusher connect(PusherOptions options) throws Exception {
    Events states = new Events();
    Pusher client = new Pusher(KEY, options);
    clients.add(client);
    // The library subscribes twice to a channel that is added while it handles the connection. It has done so when this
    // subscription is answered.
    client.subscribe("java-barrier", states);
    client.connect(states, ConnectionState.ALL);
    states.next("subscribed");
    return client;
  }

  private String authorize(String user, String channel, String socket) {
    return channel.startsWith("presence-")
        ? server.authenticate(socket, channel, new PresenceUser(user, Map.of("name", "name of " + user)))
        : server.authenticate(socket, channel);
  }

  private static String sign(String text) {
    try {
      Mac mac = Mac.getInstance("HmacSHA256");
      mac.init(new SecretKeySpec(SECRET.getBytes(StandardCharsets.UTF_8), "HmacSHA256"));
      return HexFormat.of().formatHex(mac.doFinal(text.getBytes(StandardCharsets.UTF_8)));
    } catch (GeneralSecurityException fault) {
      throw new IllegalStateException(fault);
    }
  }

  /** Returns the body of an answer with success. */
  private static String succeed(Result result) {
    expect(result.getStatus(), Result.Status.SUCCESS, "the answer " + result.getMessage());
    return result.getMessage();
  }

  private static void expect(Object actual, Object wanted, String what) {
    if (!actual.equals(wanted)) {
      throw new AssertionError(what + ": " + actual + ", not " + wanted);
    }
  }
}
