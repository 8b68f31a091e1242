//! The operations: preparation before the clock starts, the request, and the result that stops the clock.

use std::time::Duration;

use super::super::durable::wire::{Message, op};
use super::super::durable::{Ack, Way};
use super::stage::{self, Stage};

/// One operation of one protocol.
#[derive(Clone, Debug)]
pub(super) enum Operation {
    Json(Json),
    Raw(Raw),
    Binary(Way, Binary),
    Http(Http),
}

/// JSON at `/ws` or at a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct Json {
    name: &'static str,
    path: &'static str,
    /// Messages sent before the measurement, each acknowledged.
    before: &'static [&'static str],
    ask: &'static str,
    /// The `op` of the awaited message.
    until: &'static str,
}

/// Raw messages at `/topics/{name}` and `/echo`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    name: &'static str,
    path: &'static str,
    /// Sender of the message: the waiting client, another client, or an HTTP request.
    from: From,
}

#[derive(Clone, Copy, Debug)]
enum From {
    Itself,
    Another,
    Request,
}

/// Binary messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum Binary {
    Open,
    Memory,
    Disk,
    Fetch,
    Subscribe,
    Records,
    Assigned,
    GroupRecords,
    Commit,
    Unsubscribe,
    Ping,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Http {
    line: &'static str,
    body: &'static str,
    /// The second request of a connection.
    again: bool,
}

/// All measured operations, in the order of the documentation.
pub(super) fn all() -> Vec<Operation> {
    let json = JSON.iter().map(|one| Operation::Json(*one));
    let raw = RAW.iter().map(|one| Operation::Raw(*one));
    let binary = [Way::WebSocket, Way::Tcp]
        .into_iter()
        .flat_map(|way| BINARY.iter().map(move |(_, binary)| Operation::Binary(way, *binary)));
    let http = HTTP.iter().map(|one| Operation::Http(*one));
    json.chain(raw).chain(binary).chain(http).collect()
}

impl Operation {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Json(json) if json.path == WS => format!("/ws {}", json.name),
            Self::Json(json) => format!("{} {}", json.path, json.name),
            Self::Raw(raw) => raw.name.to_owned(),
            Self::Binary(way, binary) => format!("binary {} {}", way.name(), binary.name()),
            Self::Http(http) => {
                let line = http.line.trim_end_matches(" HTTP/1.1");
                if http.again { format!("{line}, kept alive") } else { line.to_owned() }
            }
        }
    }

    /// Runs the operation once. Returns the time to the first byte.
    pub(super) fn run(&self, stage: &Stage) -> Result<Duration, String> {
        match self {
            Self::Json(json) => json.run(stage),
            Self::Raw(raw) => raw.run(stage),
            Self::Binary(way, binary) => binary.run(*way, stage),
            Self::Http(http) => http.run(stage),
        }
    }
}

impl Json {
    fn run(&self, stage: &Stage) -> Result<Duration, String> {
        if self.ask.is_empty() {
            // Measure the handshake itself and the server's first message.
            let begun = stage.rest();
            stage.websocket(&stage.fill(self.path))?.until(self.until)?;
            return Ok(begun.elapsed());
        }
        let mut client = stage.websocket(&stage.fill(self.path))?;
        client.until("welcome")?;
        for words in self.before {
            client.say(&stage.fill(words))?;
            client.until("ack")?;
        }
        let words = stage.fill(self.ask);
        let begun = stage.rest();
        client.say(&words)?;
        client.until(self.until)?;
        Ok(begun.elapsed())
    }
}

impl Raw {
    fn run(&self, stage: &Stage) -> Result<Duration, String> {
        let path = stage.fill(self.path);
        let mut hearer = stage.websocket(&path)?;
        let mut another =
            if matches!(self.from, From::Another) { Some(stage.websocket(&path)?) } else { None };
        let begun = stage.rest();
        match (&mut another, self.from) {
            (Some(another), _) => another.say("hello")?,
            (None, From::Request) => drop(stage.http(&format!("POST {path} HTTP/1.1"), "hello")?),
            (None, _) => hearer.say("hello")?,
        }
        hearer.next()?;
        Ok(begun.elapsed())
    }
}

impl Binary {
    fn name(self) -> &'static str {
        let known =
            BINARY.iter().find(|(_, one)| std::mem::discriminant(one) == std::mem::discriminant(&self));
        known.map_or("", |(name, _)| name)
    }

    fn run(self, way: Way, stage: &Stage) -> Result<Duration, String> {
        if matches!(self, Self::Open) {
            let begun = stage.rest();
            stage.binary(way)?;
            return Ok(begun.elapsed());
        }
        let mut wire = stage.binary(way)?;
        let group = stage.fill("{new}");
        let (ask, wanted): (Message, u8) = match self {
            Self::Open | Self::Ping => (stage::ping(), op::PONG),
            Self::Memory => (stage::publish(Ack::Memory)?, op::PUBLISHED),
            Self::Disk => (stage::publish(Ack::Disk)?, op::PUBLISHED),
            Self::Fetch => (Message::fetch(0, 1), op::BATCHES),
            Self::Subscribe => (stage::subscribe(""), op::SUBSCRIBED),
            Self::Records => (stage::subscribe(""), op::BATCHES),
            Self::Assigned => (stage::subscribe(&group), op::ASSIGNED),
            Self::GroupRecords => (stage::subscribe(&group), op::BATCHES),
            Self::Commit => (stage::commit(COMMITS), op::COMMITTED),
            Self::Unsubscribe => {
                wire.say(&stage::subscribe(""))?;
                stage::until(&mut wire, op::BATCHES)?;
                (stage::unsubscribe(), op::UNSUBSCRIBED)
            }
        };
        let begun = stage.rest();
        wire.say(&ask)?;
        stage::until(&mut wire, wanted)?;
        Ok(begun.elapsed())
    }
}

impl Http {
    fn run(&self, stage: &Stage) -> Result<Duration, String> {
        let line = stage.fill(self.line);
        if !self.again {
            let begun = stage.rest();
            stage.http(&line, self.body)?.until_head()?;
            return Ok(begun.elapsed());
        }
        let mut client = stage.http(&line, self.body)?;
        let body = client.until_head()?;
        client.skip(body)?;
        let begun = stage.rest();
        client.ask(&line, self.body)?;
        client.until_head()?;
        Ok(begun.elapsed())
    }
}

const WS: &str = "/ws";

/// The group that commits offsets.
const COMMITS: &str = "bench";

const fn at_ws(
    name: &'static str,
    before: &'static [&'static str],
    ask: &'static str,
    until: &'static str,
) -> Json {
    Json { name, path: WS, before, ask, until }
}

const fn at_stream(name: &'static str, ask: &'static str, until: &'static str) -> Json {
    Json { name, path: "/streams/{stream}", before: &[], ask, until }
}

const SUBSCRIBED: &[&str] = &[r#"{"op":"subscribe","id":1,"topic":"{topic}"}"#];
const SUBSCRIBED_TO_KEPT: &[&str] = &[r#"{"op":"subscribe","id":1,"topic":"{kept}"}"#];
const CONSUMING: &[&str] = &[r#"{"op":"consume","id":1,"stream":"{stream}"}"#];

const LAST: &str = r#"{"op":"subscribe","id":2,"topic":"{memory}","last":2}"#;
const LAST_KEPT: &str = r#"{"op":"subscribe","id":2,"topic":"{kept}","last":2}"#;
const CONSUME: &str = r#"{"op":"consume","id":2,"stream":"{stream}","from":"earliest"}"#;
const JOIN: &str = r#"{"op":"consume","id":2,"stream":"{stream}","group":"{new}"}"#;

const JSON: &[Json] = &[
    at_ws("open", &[], "", "welcome"),
    at_ws("ping", &[], r#"{"op":"ping","id":2}"#, "pong"),
    at_ws("subscribe", &[], r#"{"op":"subscribe","id":2,"topic":"{topic}"}"#, "ack"),
    at_ws(
        "subscribe with presence",
        &[],
        r#"{"op":"subscribe","id":2,"topic":"{topic}","presence":true}"#,
        "ack",
    ),
    at_ws("unsubscribe", SUBSCRIBED, r#"{"op":"unsubscribe","id":2,"topic":"{topic}"}"#, "ack"),
    at_ws("publish", SUBSCRIBED, r#"{"op":"publish","id":2,"topic":"{topic}","data":1}"#, "ack"),
    at_ws("publish, heard", SUBSCRIBED, r#"{"op":"publish","topic":"{topic}","data":1}"#, "message"),
    at_ws("presence", SUBSCRIBED, r#"{"op":"presence","id":2,"topic":"{topic}"}"#, "presence"),
    at_ws("subscribe last", &[], LAST, "ack"),
    at_ws("subscribe last, first message", &[], LAST, "message"),
    at_ws(
        "subscribe last without id, first message",
        &[],
        r#"{"op":"subscribe","topic":"{memory}","last":2}"#,
        "message",
    ),
    at_ws("history", &[], r#"{"op":"history","id":2,"topic":"{memory}","last":2}"#, "history"),
    at_ws("subscribe kept", &[], r#"{"op":"subscribe","id":2,"topic":"{kept}"}"#, "ack"),
    at_ws("subscribe kept last", &[], LAST_KEPT, "ack"),
    at_ws("subscribe kept last, first message", &[], LAST_KEPT, "message"),
    at_ws(
        "subscribe kept last without id, first message",
        &[],
        r#"{"op":"subscribe","topic":"{kept}","last":2}"#,
        "message",
    ),
    at_ws("history kept", &[], r#"{"op":"history","id":2,"topic":"{kept}","last":2}"#, "history"),
    at_ws("publish kept", SUBSCRIBED_TO_KEPT, r#"{"op":"publish","id":2,"topic":"{kept}","data":1}"#, "ack"),
    at_ws(
        "publish kept, heard",
        SUBSCRIBED_TO_KEPT,
        r#"{"op":"publish","topic":"{kept}","data":1}"#,
        "message",
    ),
    at_ws("append", &[], r#"{"op":"append","id":2,"stream":"{stream}","data":1}"#, "ack"),
    at_ws(
        "append, memory",
        &[],
        r#"{"op":"append","id":2,"stream":"{stream}","data":1,"ack":"memory"}"#,
        "ack",
    ),
    at_ws("append, heard", CONSUMING, r#"{"op":"append","stream":"{stream}","data":1}"#, "records"),
    at_ws("read", &[], r#"{"op":"read","id":2,"stream":"{stream}","offset":0,"max":1}"#, "records"),
    at_ws("stream", &[], r#"{"op":"stream","id":2,"stream":"{stream}"}"#, "stream"),
    at_ws("stop", CONSUMING, r#"{"op":"stop","id":2,"stream":"{stream}"}"#, "ack"),
    at_ws("consume", &[], CONSUME, "ack"),
    at_ws("consume, first records", &[], CONSUME, "records"),
    at_ws(
        "consume without id, first records",
        &[],
        r#"{"op":"consume","stream":"{stream}","from":"earliest"}"#,
        "records",
    ),
    at_ws("consume in a group, assigned", &[], JOIN, "assigned"),
    at_ws("consume in a group, first records", &[], JOIN, "records"),
    at_ws(
        "consume in a group without id, first records",
        &[],
        r#"{"op":"consume","stream":"{stream}","group":"{new}"}"#,
        "records",
    ),
    at_ws(
        "commit",
        &[],
        r#"{"op":"commit","id":2,"stream":"{stream}","group":"bench","partition":0,"offset":1}"#,
        "ack",
    ),
    at_stream("append", r#"{"op":"append","id":2,"data":1}"#, "ack"),
    at_stream("consume, first records", r#"{"op":"consume","id":2,"from":"earliest"}"#, "records"),
    at_stream("consume in a group, first records", r#"{"op":"consume","id":2,"group":"{new}"}"#, "records"),
];

const RAW: &[Raw] = &[
    Raw { name: "/echo", path: "/echo", from: From::Itself },
    Raw { name: "/topics message, own", path: "/topics/{topic}", from: From::Itself },
    Raw { name: "/topics message, another's", path: "/topics/{topic}", from: From::Another },
    Raw { name: "/topics message, by POST", path: "/topics/{topic}", from: From::Request },
    Raw { name: "/topics kept message, own", path: "/topics/{kept}", from: From::Itself },
    Raw { name: "/topics kept message, by POST", path: "/topics/{kept}", from: From::Request },
];

const BINARY: &[(&str, Binary)] = &[
    ("open", Binary::Open),
    ("publish, memory", Binary::Memory),
    ("publish, disk", Binary::Disk),
    ("fetch", Binary::Fetch),
    ("subscribe", Binary::Subscribe),
    ("subscribe, first records", Binary::Records),
    ("subscribe in a group, assigned", Binary::Assigned),
    ("subscribe in a group, first records", Binary::GroupRecords),
    ("commit", Binary::Commit),
    ("unsubscribe", Binary::Unsubscribe),
    ("ping", Binary::Ping),
];

const HTTP: &[Http] = &[
    Http { line: "GET / HTTP/1.1", body: "", again: false },
    Http { line: "GET /readyz HTTP/1.1", body: "", again: true },
    Http { line: "GET /metrics HTTP/1.1", body: "", again: false },
    Http { line: "POST /topics/{topic} HTTP/1.1", body: "hello", again: true },
    Http { line: "POST /topics/{memory} HTTP/1.1", body: "hello", again: false },
    Http { line: "POST /topics/{kept} HTTP/1.1", body: "hello", again: true },
    Http { line: "POST /streams/{stream} HTTP/1.1", body: "hello", again: true },
    Http { line: "POST /streams/{stream}?ack=memory HTTP/1.1", body: "hello", again: false },
    Http { line: "GET /streams/{stream}?from=earliest&max=1 HTTP/1.1", body: "", again: true },
    Http { line: "GET /streams HTTP/1.1", body: "", again: false },
];
