//! A chat between several clients over loopback, and its page.

use std::net::SocketAddr;
use std::time::Duration;

use chat_axum::Options;
use serde_json::{Value, json};
use sinews::tokio::Stream;
use sinews::{Cause, CloseCode, Message, OriginPolicy, Overflow, WebSocket};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// A server on its own port.
struct Server {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Server {
    async fn start(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let (stop, stopped) = oneshot::channel();
        let serving = tokio::spawn(chat_axum::serve(listener, options, async {
            let _ = stopped.await;
        }));
        Self { address, stop, serving }
    }

    fn url(&self, room: &str, name: &str) -> String {
        format!("ws://{}/rooms/{room}?name={name}", self.address)
    }

    async fn join(&self, room: &str, name: &str) -> Client<Stream> {
        Client(sinews::connect(self.url(room, name)).await.expect("connected"))
    }

    /// Returns the status and the rest of the answer to a GET.
    async fn get(&self, path: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.address).await.expect("connected");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.address);
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        (answer[9..12].parse().expect("a status"), answer)
    }
}

struct Client<S>(WebSocket<S>);

impl<S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin> Client<S> {
    async fn say(&mut self, text: &str) {
        self.0.send(json!({ "say": text }).to_string()).await.expect("sent");
    }

    async fn hear(&mut self) -> Value {
        let message = self.0.next().await.expect("a message").expect("in order");
        serde_json::from_slice(message.as_bytes()).unwrap_or_else(|error| panic!("{error}: {message:?}"))
    }

    async fn hears_that(&mut self, from: &str, text: &str) {
        let event = self.hear().await;
        assert_eq!(
            (&event["type"], &event["from"], &event["text"]),
            (&json!("said"), &json!(from), &json!(text))
        );
    }

    /// Reads to the end; returns the code of the server's Close.
    async fn end(&mut self) -> Option<CloseCode> {
        while let Some(message) = self.0.next().await {
            message.expect("in order");
        }
        let closed = self.0.closed().expect("over");
        assert_eq!(closed.cause(), Cause::Peer);
        closed.code()
    }
}

async fn bounded(test: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(60), test).await.expect("bounded in time");
}

#[tokio::test]
async fn people_join_talk_and_leave() {
    bounded(async {
        let server = Server::start(Options::default()).await;
        let mut ada = server.join("lobby", "Ada").await;
        let welcome = ada.hear().await;
        assert_eq!(welcome, json!({"type": "welcome", "you": "Ada", "people": ["Ada"], "history": []}));
        ada.say("Is anybody here?").await;
        ada.hears_that("Ada", "Is anybody here?").await;

        let mut bob = server.join("lobby", "Bob").await;
        let welcome = bob.hear().await;
        assert_eq!((&welcome["type"], &welcome["people"]), (&json!("welcome"), &json!(["Ada", "Bob"])));
        assert_eq!(welcome["history"][0]["text"], "Is anybody here?");
        assert_eq!(ada.hear().await, json!({"type": "joined", "name": "Bob"}));

        // Another room does not receive messages of this room, and there may be a second Ada, but with
        // another name.
        let mut other = server.join("elsewhere", "Ada").await;
        assert_eq!(other.hear().await["you"], "Ada");
        let mut second = server.join("lobby", "Ada").await;
        assert_eq!(second.hear().await["you"], "Ada (2)");
        assert_eq!(ada.hear().await, json!({"type": "joined", "name": "Ada (2)"}));
        assert_eq!(bob.hear().await, json!({"type": "joined", "name": "Ada (2)"}));

        bob.say("  I am, \"Ada\" \u{1f44b}\n").await;
        for client in [&mut ada, &mut bob, &mut second] {
            client.hears_that("Bob", "I am, \"Ada\" \u{1f44b}").await;
        }
        bob.0.close(CloseCode::NORMAL, "").await.expect("closed");
        // This client disconnects without a Close.
        drop(second);
        let mut gone = [ada.hear().await, ada.hear().await];
        gone.sort_by_key(|event| event["name"].as_str().map(str::to_owned));
        assert_eq!(gone, ["Ada (2)", "Bob"].map(|name| json!({"type": "left", "name": name})));

        other.say("Nobody.").await;
        other.hears_that("Ada", "Nobody.").await;
        let (status, health) = server.get("/healthz").await;
        assert_eq!(status, 200);
        assert!(health.ends_with(r#"{"people":2,"rooms":2,"status":"ok"}"#), "{health}");
    })
    .await;
}

#[tokio::test]
async fn the_page_is_served_and_connects_to_its_own_address() {
    bounded(async {
        let server = Server::start(Options::default()).await;
        let (status, answer) = server.get("/").await;
        assert!(status == 307 && answer.contains("location: /rooms/lobby\r\n"), "{answer}");
        let (status, answer) = server.get("/rooms/lobby").await;
        assert_eq!(status, 200);
        assert!(answer.contains("content-security-policy: default-src 'none'"), "{answer}");
        assert!(answer.contains("new WebSocket(url)"), "{answer}");
        assert_eq!(server.get("/rooms/No%20Room").await.0, 404);

        // Headers of a browser on this page, and on another site.
        let own = format!("http://{}", server.address);
        let connect = sinews::connect(server.url("lobby", "Ada"));
        connect.clone().header("origin", own).await.expect("its own page");
        let error = connect.header("origin", "https://example.com").await.expect_err("another page");
        assert_eq!(error.status().map(|status| status.as_u16()), Some(403), "{error}");
    })
    .await;
}

#[tokio::test]
async fn pages_elsewhere_can_be_allowed() {
    bounded(async {
        let mut options = Options::default();
        options.origins = OriginPolicy::list(["https://example.com"]).expect("an origin");
        let server = Server::start(options).await;
        let connect = sinews::connect(server.url("lobby", "Ada"));
        connect.header("origin", "https://example.com").await.expect("listed");
    })
    .await;
}

#[tokio::test]
async fn names_and_messages_have_limits() {
    bounded(async {
        let mut options = Options::default();
        options.history_max = 2;
        options.pace = (6, Duration::from_secs(3600));
        let server = Server::start(options).await;
        let long = "x".repeat(33);
        for name in ["", "%20", "a%0Ab", &long] {
            let error = sinews::connect(server.url("lobby", name)).await.expect_err("no name");
            assert_eq!(error.status().map(|status| status.as_u16()), Some(400), "{name}: {error}");
        }

        let mut ada = server.join("lobby", &long[1..]).await;
        ada.hear().await;
        ada.say(&"y".repeat(2001)).await;
        assert_eq!(ada.hear().await, json!({"type": "refused", "why": "at most 2000 characters at once"}));
        ada.0.send("Hello").await.expect("sent");
        assert_eq!(ada.hear().await["type"], "refused");
        for n in 1..=6 {
            ada.say(&n.to_string()).await;
            ada.hears_that(&long[1..], &n.to_string()).await;
        }
        ada.say("one too many").await;
        assert_eq!(ada.hear().await["type"], "refused");
        let mut bob = server.join("lobby", "Bob").await;
        let history = bob.hear().await["history"].take();
        let texts: Vec<&Value> =
            history.as_array().expect("a list").iter().map(|said| &said["text"]).collect();
        assert_eq!(texts, ["5", "6"]);

        bob.0.send(Message::binary(vec![b' '; 33 << 10])).await.expect("sent");
        assert_eq!(bob.end().await, Some(CloseCode::TOO_BIG));
    })
    .await;
}

#[tokio::test]
async fn rooms_and_the_people_in_them_are_counted() {
    bounded(async {
        let mut options = Options::default();
        (options.rooms_max, options.people_max) = (1, 1);
        let server = Server::start(options).await;
        let mut ada = server.join("one", "Ada").await;
        ada.hear().await;
        assert_eq!(server.join("one", "Bob").await.end().await, Some(CloseCode::TRY_AGAIN_LATER));
        assert_eq!(server.join("two", "Bob").await.end().await, Some(CloseCode::TRY_AGAIN_LATER));
        // An empty room is removed.
        ada.0.close(CloseCode::NORMAL, "").await.expect("closed");
        assert_eq!(server.join("two", "Bob").await.hear().await["type"], "welcome");
    })
    .await;
}

/// Connects a client with a small receive buffer. The buffer is larger than a packet: otherwise TCP itself
/// becomes slow.
async fn connect_with_little_room(server: &Server, name: &str) -> Client<TcpStream> {
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.set_recv_buffer_size(128 << 10).expect("a smaller buffer");
    let stream = socket.connect(server.address).await.expect("connected");
    Client(sinews::connect(server.url("lobby", name)).over(stream).await.expect("a WebSocket"))
}

/// Options for tests that fill queues.
fn unhurried(slow_consumer: Overflow) -> Options {
    let mut options = Options::default();
    options.pace = (u32::MAX, Duration::ZERO);
    // A slow client stays as long as its test.
    options.write_timeout = Duration::from_secs(60);
    (options.queue_max, options.slow_consumer) = (64 << 10, slow_consumer);
    options
}

/// A number of messages of 2,000 characters that exceeds any buffer of a loopback connection: 32 MB.
const TOO_MANY: usize = 16_000;

#[tokio::test]
async fn slow_client_is_disconnected_at_queue_max() {
    bounded(async {
        let server = Server::start(unhurried(Overflow::Close)).await;
        let mut slow = connect_with_little_room(&server, "Slow").await;
        slow.hear().await;
        let mut ada = server.join("lobby", "Ada").await;
        ada.hear().await;
        let text = "z".repeat(2000);
        let mut said = 0;
        loop {
            ada.say(&text).await;
            said += 1;
            let event = ada.hear().await;
            if event["type"] == "left" {
                assert_eq!(event["name"], "Slow");
                break;
            }
            assert!(said < TOO_MANY, "the queue of the slow client has no end");
        }
        // It reads after all: the messages in transit, and then the Close.
        assert_eq!(slow.end().await, Some(CloseCode::POLICY));
    })
    .await;
}

#[tokio::test]
async fn slow_client_misses_messages_with_drop_newest() {
    bounded(async {
        let server = Server::start(unhurried(Overflow::DropNewest)).await;
        let mut slow = connect_with_little_room(&server, "Slow").await;
        slow.hear().await;
        let mut ada = server.join("lobby", "Ada").await;
        ada.hear().await;
        let padding = "z".repeat(1990);
        for n in 0..6_000 {
            ada.say(&format!("{n} {padding}")).await;
            assert_eq!(ada.hear().await["type"], "said");
        }
        assert_eq!(slow.hear().await["type"], "joined");
        let mut heard = 0;
        loop {
            // A client that reads again receives all later messages.
            ada.say("still there?").await;
            let event = slow.hear().await;
            heard += 1;
            if event["text"] == "still there?" {
                break;
            }
        }
        assert!(heard < 6_000, "nothing was dropped");
    })
    .await;
}

#[tokio::test]
async fn shutdown_closes_all_connections_with_1001() {
    bounded(async {
        let server = Server::start(Options::default()).await;
        let mut clients = Vec::new();
        for n in 0..5 {
            let mut client = server.join("lobby", &format!("client-{n}")).await;
            client.hear().await;
            clients.push(client);
        }
        let Server { address, stop, serving } = server;
        stop.send(()).expect("it runs");
        for client in &mut clients {
            assert_eq!(client.end().await, Some(CloseCode::GOING_AWAY));
        }
        serving.await.expect("no panic").expect("no error");
        TcpStream::connect(address).await.expect_err("the listener is closed");
    })
    .await;
}
