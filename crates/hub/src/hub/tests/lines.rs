//! A client protocol in one file: lines of text at `/lines`. The hub's other parts do not know it. A client sends
//! `SUB topic`, `UNSUB topic` and `PUB topic text`. It receives `MSG topic text`, `BIN topic base64` and `ERR reason`.
//! docs/book/src/internals/own-protocol.md explains the parts.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sinews_server::{Closed, Kind, Request};

use super::*;
use crate::access::auth::{Action, RightsChange, TokenKeys};
use crate::closing::{EXPIRED, TOKEN_EXPIRED, close};
use crate::connections::{ConnectionPath, ConnectionSelector};
use crate::model::encoding::EncodedTopics;
use crate::model::problem::{Problem, code, problem};
use crate::model::{brief::brief, check_name, check_subscription, is_reserved};
use crate::session::client_session::ClientSession;
use crate::topics::subscription_fault;

const LINES: EncodedTopics = EncodedTopics::new("l.");
const EXPECTED: &str = "expected SUB topic, UNSUB topic or PUB topic text";

/// Encodes publications as lines, and counts them.
#[derive(Debug, Default)]
struct LineEncoding(AtomicUsize);

impl Encoding for LineEncoding {
    fn topics(&self) -> EncodedTopics {
        LINES
    }

    /// A space ends a topic's name in a line.
    fn name<'a>(&self, topic: &'a str) -> Option<std::borrow::Cow<'a, str>> {
        (!is_reserved(topic) && !topic.contains(' ')).then_some(topic.into())
    }

    fn encode(&self, publication: &Publication<'_, '_>, topic: &str, _: Option<Position>) -> Prepared {
        self.0.fetch_add(1, Ordering::Relaxed);
        let message = publication.content.message().plain();
        Prepared::text(match message.kind() {
            Kind::Text => format!("MSG {topic} {}", String::from_utf8_lossy(message.payload())),
            Kind::Binary => format!("BIN {topic} {}", STANDARD.encode(message.payload())),
        })
    }
}

struct LineClient {
    session: ClientSession,
    subscriptions: BTreeSet<String>,
}

impl LineClient {
    fn execute(&mut self, line: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        match line.splitn(3, ' ').collect::<Vec<_>>()[..] {
            ["SUB", topic] => self.subscribe(topic, cx),
            ["UNSUB", topic] => self.unsubscribe(topic, cx),
            ["PUB", topic, text] => self.publish(topic, text, cx),
            _ => Err(problem(code::MALFORMED, EXPECTED)),
        }
    }

    /// Checks what a protocol without hooks and streams cannot do.
    fn check(&self, action: Action, topic: &str) -> Result<(), Problem> {
        self.session.may(action, topic)?;
        self.session.rights().check_without_hooks(action, topic)?;
        if self.session.hub().is_durable(topic) {
            return Err(problem(code::TOPIC, format!("{} is durable: use /ws", brief(topic))));
        }
        Ok(())
    }

    fn subscribe(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        check_subscription(topic).map_err(|text| problem(code::TOPIC, text))?;
        self.check(Action::Subscribe, topic)?;
        self.session.check_subscribe_rate(topic)?;
        cx.subscribe(&LINES.topic(topic)).map_err(|fault| problem(code::TOPIC, subscription_fault(fault)))?;
        if self.subscriptions.insert(topic.to_owned()) {
            self.session.hub().add_subscriber(cx, LINES, topic);
            self.session.hub().retry_rejected(topic);
        }
        Ok(())
    }

    fn unsubscribe(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        if !self.subscriptions.remove(topic) {
            return Err(problem(code::NOT_SUBSCRIBED, format!("not subscribed to {}", brief(topic))));
        }
        cx.unsubscribe(&LINES.topic(topic));
        self.session.hub().remove_subscriber(cx, LINES, topic);
        Ok(())
    }

    fn publish(&mut self, topic: &str, text: &str, cx: &mut Context<'_>) -> Result<(), Problem> {
        check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
        self.check(Action::Publish, topic)?;
        self.session.check_publication(topic, text.len())?;
        let content = MessageContent::Text(text.to_owned().into());
        self.session.report_message(topic, &content);
        self.session.hub().publish(cx, &Publication::new(topic, &(&content).into()));
        Ok(())
    }
}

/// Sends an error. After a Close, the line is dropped.
fn answer(result: Result<(), Problem>, cx: &mut Context<'_>) {
    let _ = result.map_err(|problem| cx.send_text(&format!("ERR {}", problem.text)));
}

impl Handler for LineClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        // A protocol of the program has its own path.
        self.session.open(ConnectionPath::Protocol, cx);
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        // A binary message is no line.
        answer(self.execute(payload.text().unwrap_or_default(), cx), cx);
    }

    /// Executes the backend's commands. Subscriptions end if changed rights do not cover them.
    fn woken(&mut self, cx: &mut Context<'_>) {
        for change in self.session.execute_commands(None, cx) {
            self.session.change_rights(&change, cx);
        }
        for topic in self.subscriptions.clone() {
            if let Err(denied) = self.session.may(Action::Subscribe, &topic) {
                let ended = self.unsubscribe(&topic, cx);
                answer(ended.and_then(|()| Err(denied.into())), cx);
            }
        }
    }

    fn deadline(&self) -> Option<std::time::Instant> {
        self.session.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, EXPIRED);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        self.session.end(closed);
        for topic in std::mem::take(&mut self.subscriptions) {
            self.session.hub().remove_subscriber(cx, LINES, &topic);
        }
    }
}

/// Runs a hub with the encoding and the route.
fn run_with_lines(builder: HubBuilder, test: impl FnOnce(&RunningHub, SocketAddr, &LineEncoding)) {
    let mut hub = builder.without_pages().build().unwrap();
    let encoding = Arc::new(LineEncoding::default());
    register(&mut hub, Arc::clone(&encoding) as _);
    let (topics, live) = (Arc::clone(&hub.topics), hub.config());
    let route = WebSocketRoute::boxed(move |request: &Request<'_>| {
        let (config, live, topics) = (live.config(), live.clone(), Arc::clone(&topics));
        config.admit(request, || {
            let session = ClientSession::new(config.rights(request)?, &live, topics);
            Ok(LineClient { session, subscriptions: BTreeSet::new() })
        })
    });
    run(hub, Router::new().websocket("/lines", route), |hub, address| test(hub, address, &encoding));
}

/// Sends a line. Returns the lines that arrive until the server has executed it.
fn execute(client: &mut TestClient, line: &str) -> Vec<String> {
    [line, "UNSUB last"].iter().for_each(|line| client.0.send_text(line).unwrap());
    std::iter::repeat_with(|| client.text()).take_while(|line| line != "ERR not subscribed to last").collect()
}

#[test]
fn lines_have_the_publications_of_each_protocol_and_are_encoded_once() {
    run_with_lines(Hub::builder(), |_, address, encoding| {
        let paths = ["/ws", "/topics/live.a", "/lines", "/lines"];
        let mut clients = paths.map(|path| TestClient::connect(address, path));
        assert_eq!(clients[0].receive()["op"], "welcome");
        clients[0].0.send_text(r#"{"op":"subscribe","topic":"live.a"}"#).unwrap();
        assert!(execute(&mut clients[2], "SUB live.a").is_empty());
        assert!(execute(&mut clients[3], "SUB live.*").is_empty());
        let messages = [
            (0, r#"{"op":"publish","topic":"live.a","data":"a text"}"#, "MSG live.a a text"),
            (0, r#"{"op":"publish","topic":"live.a","data":{"n":1}}"#, r#"MSG live.a {"n":1}"#),
            (0, r#"{"op":"publish","topic":"live.a","b64":"AP8="}"#, "BIN live.a AP8="),
            (1, "raw", "MSG live.a raw"),
            (2, "PUB live.a two words", "MSG live.a two words"),
        ];
        for (number, (publisher, message, line)) in messages.into_iter().enumerate() {
            // No line can name this topic.
            clients[0].0.send_text(r#"{"op":"publish","topic":"live.a b","data":1}"#).unwrap();
            clients[publisher].0.send_text(message).unwrap();
            clients[2..].iter_mut().for_each(|client| assert_eq!(client.text(), line));
            assert_eq!(encoding.0.load(Ordering::Relaxed), number + 1, "one call for both clients");
        }
        while clients[0].receive()["data"] != "two words" {}
        assert!(execute(&mut clients[2], "UNSUB live.a").is_empty());
        assert!(execute(&mut clients[3], "UNSUB live.*").is_empty());
        clients[1].0.send_text("later").unwrap();
        while clients[0].receive()["data"] != "later" {}
        assert_eq!(encoding.0.load(Ordering::Relaxed), 5, "without subscribers, nothing is encoded");
    });
}

#[test]
fn lines_need_rights_and_errors_are_lines() {
    let files = tempfile::tempdir().unwrap();
    let streams = crate::StreamOptions::in_directory(files.path()).with_durable_topics(["open.log".into()]);
    let secret = "a secret of at least thirty-two bytes for HS256";
    let options = AuthOptions::new().with_keys(TokenKeys::Secret(secret.to_owned()));
    let options = options.with_public_subscribe(["open.>".into()]);
    let config = HubConfig::new(Auth::new(&options).unwrap(), HostRules::default());
    let claims = json!({ "sub": "anna", "subscribe": "closed.>", "exp": 4e9 });
    let key = jsonwebtoken::EncodingKey::from_secret(secret.as_bytes());
    let token = jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap();
    run_with_lines(Hub::builder().config(config).streams(streams), |hub, address, _| {
        let mut client = TestClient::connect(address, "/lines");
        for (line, error) in [
            ("", EXPECTED),
            ("PUB open.* x", "wildcards are for subscriptions: name one topic"),
            ("SUB closed.a", "a token is needed to subscribe to closed.a"),
            ("PUB closed.a x", "a token is needed to publish to closed.a"),
            ("SUB open.log", "open.log is durable: use /ws"),
        ] {
            assert_eq!(execute(&mut client, line), [format!("ERR {error}")], "{line}");
        }
        let mut client = TestClient::connect(address, &format!("/lines?token={token}"));
        assert!(execute(&mut client, "SUB closed.a").is_empty());
        assert_eq!(execute(&mut client, "PUB closed.a x"), ["ERR this token may not publish to closed.a"]);
        let change = RightsChange::Claims(serde_json::from_str(r#"{"sub":"anna","exp":4e9}"#).unwrap());
        hub.topics.connections().refresh_all(&ConnectionSelector::User("anna".to_owned()), change);
        assert_eq!(client.text(), "ERR this token may not subscribe to closed.a");
    });
}
