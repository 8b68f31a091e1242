//! The operations: preparation before the clock starts, the request, and the result that stops the clock.

use std::time::Duration;

use super::context::{self, OperationContext};
use crate::streams::connection::{EncodedMessage, op};
use crate::streams::{ProducerAck, StreamTransport};

/// One operation in one protocol.
#[derive(Clone, Debug)]
pub(super) enum MeasuredOperation {
    Json(JsonOperation),
    Raw(RawOperation),
    Binary(StreamTransport, BinaryOperation),
    Http(HttpOperation),
}

/// JSON at `/ws` or at a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct JsonOperation {
    name: &'static str,
    path: &'static str,
    /// Messages sent before the measurement, each acknowledged.
    before: &'static [&'static str],
    ask: &'static str,
    /// The awaited message's `op`.
    until: &'static str,
}

/// Raw messages at `/topics/{name}` and `/echo`.
#[derive(Clone, Copy, Debug)]
pub(super) struct RawOperation {
    name: &'static str,
    path: &'static str,
    /// The message's sender: the waiting client, another client, or an HTTP request.
    from: MessageOrigin,
}

#[derive(Clone, Copy, Debug)]
enum MessageOrigin {
    Itself,
    Another,
    Request,
}

/// Binary messages.
#[derive(Clone, Copy, Debug)]
pub(super) enum BinaryOperation {
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
pub(super) struct HttpOperation {
    line: &'static str,
    body: &'static str,
    /// A connection's second request.
    reuse: bool,
}

/// All measured operations, in the order of the documentation.
pub(super) fn all() -> Vec<MeasuredOperation> {
    let json = JSON.iter().map(|one| MeasuredOperation::Json(*one));
    let raw = RAW.iter().map(|one| MeasuredOperation::Raw(*one));
    let binary = [StreamTransport::WebSocket, StreamTransport::Tcp].into_iter().flat_map(|transport| {
        BINARY.iter().map(move |(_, binary)| MeasuredOperation::Binary(transport, *binary))
    });
    let http = HTTP.iter().map(|one| MeasuredOperation::Http(*one));
    json.chain(raw).chain(binary).chain(http).collect()
}

impl MeasuredOperation {
    pub(super) fn name(&self) -> String {
        match self {
            Self::Json(json) if json.path == WS => format!("/ws {}", json.name),
            Self::Json(json) => format!("{} {}", json.path, json.name),
            Self::Raw(raw) => raw.name.to_owned(),
            Self::Binary(transport, binary) => format!("binary {} {}", transport.name(), binary.name()),
            Self::Http(http) => {
                let line = http.line.trim_end_matches(" HTTP/1.1");
                if http.reuse { format!("{line}, kept alive") } else { line.to_owned() }
            }
        }
    }

    /// Runs the operation once. Returns the time to the first byte.
    pub(super) fn run(&self, context: &OperationContext) -> Result<Duration, String> {
        match self {
            Self::Json(json) => json.run(context),
            Self::Raw(raw) => raw.run(context),
            Self::Binary(transport, binary) => binary.run(*transport, context),
            Self::Http(http) => http.run(context),
        }
    }
}

impl JsonOperation {
    fn run(&self, context: &OperationContext) -> Result<Duration, String> {
        if self.ask.is_empty() {
            // Measure the handshake itself and the server's first message.
            let started = context.idle_then_start();
            context.websocket(&context.expand(self.path))?.wait_for(self.until)?;
            return Ok(started.elapsed());
        }
        let mut client = context.websocket(&context.expand(self.path))?;
        client.wait_for("welcome")?;
        for message in self.before {
            client.send(&context.expand(message))?;
            client.wait_for("ack")?;
        }
        let message = context.expand(self.ask);
        let started = context.idle_then_start();
        client.send(&message)?;
        client.wait_for(self.until)?;
        Ok(started.elapsed())
    }
}

impl RawOperation {
    fn run(&self, context: &OperationContext) -> Result<Duration, String> {
        let path = context.expand(self.path);
        let mut receiver = context.websocket(&path)?;
        let mut other =
            if matches!(self.from, MessageOrigin::Another) { Some(context.websocket(&path)?) } else { None };
        let started = context.idle_then_start();
        match (&mut other, self.from) {
            (Some(other), _) => other.send("hello")?,
            (None, MessageOrigin::Request) => drop(context.http(&format!("POST {path} HTTP/1.1"), "hello")?),
            (None, _) => receiver.send("hello")?,
        }
        receiver.next()?;
        Ok(started.elapsed())
    }
}

impl BinaryOperation {
    fn name(self) -> &'static str {
        let known =
            BINARY.iter().find(|(_, one)| std::mem::discriminant(one) == std::mem::discriminant(&self));
        known.map_or("", |(name, _)| name)
    }

    fn run(self, transport: StreamTransport, context: &OperationContext) -> Result<Duration, String> {
        if matches!(self, Self::Open) {
            let started = context.idle_then_start();
            context.binary(transport)?;
            return Ok(started.elapsed());
        }
        let mut connection = context.binary(transport)?;
        let group = context.expand("{new}");
        let (ask, expected): (EncodedMessage, u8) = match self {
            Self::Open | Self::Ping => (context::ping(), op::PONG),
            Self::Memory => (context::publish(ProducerAck::Memory)?, op::PUBLISHED),
            Self::Disk => (context::publish(ProducerAck::Disk)?, op::PUBLISHED),
            Self::Fetch => (EncodedMessage::fetch(0, 1), op::BATCHES),
            Self::Subscribe => (context::subscribe(""), op::SUBSCRIBED),
            Self::Records => (context::subscribe(""), op::BATCHES),
            Self::Assigned => (context::subscribe(&group), op::ASSIGNED),
            Self::GroupRecords => (context::subscribe(&group), op::BATCHES),
            Self::Commit => (context::commit(COMMITS), op::COMMITTED),
            Self::Unsubscribe => {
                connection.send(&context::subscribe(""))?;
                context::wait_for(&mut connection, op::BATCHES)?;
                (context::unsubscribe(), op::UNSUBSCRIBED)
            }
        };
        let started = context.idle_then_start();
        connection.send(&ask)?;
        context::wait_for(&mut connection, expected)?;
        Ok(started.elapsed())
    }
}

impl HttpOperation {
    fn run(&self, context: &OperationContext) -> Result<Duration, String> {
        let line = context.expand(self.line);
        if !self.reuse {
            let started = context.idle_then_start();
            context.http(&line, self.body)?.wait_for_head()?;
            return Ok(started.elapsed());
        }
        let mut client = context.http(&line, self.body)?;
        let body = client.wait_for_head()?;
        client.skip(body)?;
        let started = context.idle_then_start();
        client.send_request(&line, self.body)?;
        client.wait_for_head()?;
        Ok(started.elapsed())
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
) -> JsonOperation {
    JsonOperation { name, path: WS, before, ask, until }
}

const fn at_stream(name: &'static str, ask: &'static str, until: &'static str) -> JsonOperation {
    JsonOperation { name, path: "/streams/{stream}", before: &[], ask, until }
}

const SUBSCRIBED: &[&str] = &[r#"{"op":"subscribe","id":1,"topic":"{topic}"}"#];
const SUBSCRIBED_TO_KEPT: &[&str] = &[r#"{"op":"subscribe","id":1,"topic":"{kept}"}"#];
const CONSUMING: &[&str] = &[r#"{"op":"consume","id":1,"stream":"{stream}"}"#];

const LAST: &str = r#"{"op":"subscribe","id":2,"topic":"{memory}","last":2}"#;
const LAST_KEPT: &str = r#"{"op":"subscribe","id":2,"topic":"{kept}","last":2}"#;
const LAST_WITHOUT_ID: &str = r#"{"op":"subscribe","topic":"{memory}","last":2}"#;
const LAST_KEPT_WITHOUT_ID: &str = r#"{"op":"subscribe","topic":"{kept}","last":2}"#;
const CONSUME: &str = r#"{"op":"consume","id":2,"stream":"{stream}","from":"earliest"}"#;
const CONSUME_WITHOUT_ID: &str = r#"{"op":"consume","stream":"{stream}","from":"earliest"}"#;
const JOIN: &str = r#"{"op":"consume","id":2,"stream":"{stream}","group":"{new}"}"#;
const JOIN_WITHOUT_ID: &str = r#"{"op":"consume","stream":"{stream}","group":"{new}"}"#;

const JSON: &[JsonOperation] = &[
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
    at_ws("subscribe last without id, first message", &[], LAST_WITHOUT_ID, "message"),
    at_ws("history", &[], r#"{"op":"history","id":2,"topic":"{memory}","last":2}"#, "history"),
    at_ws("subscribe kept", &[], r#"{"op":"subscribe","id":2,"topic":"{kept}"}"#, "ack"),
    at_ws("subscribe kept last", &[], LAST_KEPT, "ack"),
    at_ws("subscribe kept last, first message", &[], LAST_KEPT, "message"),
    at_ws("subscribe kept last without id, first message", &[], LAST_KEPT_WITHOUT_ID, "message"),
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
    at_ws("consume without id, first records", &[], CONSUME_WITHOUT_ID, "records"),
    at_ws("consume in a group, assigned", &[], JOIN, "assigned"),
    at_ws("consume in a group, first records", &[], JOIN, "records"),
    at_ws("consume in a group without id, first records", &[], JOIN_WITHOUT_ID, "records"),
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

const RAW: &[RawOperation] = &[
    RawOperation { name: "/echo", path: "/echo", from: MessageOrigin::Itself },
    RawOperation { name: "/topics message, own", path: "/topics/{topic}", from: MessageOrigin::Itself },
    RawOperation {
        name: "/topics message, another's",
        path: "/topics/{topic}",
        from: MessageOrigin::Another,
    },
    RawOperation { name: "/topics message, by POST", path: "/topics/{topic}", from: MessageOrigin::Request },
    RawOperation { name: "/topics kept message, own", path: "/topics/{kept}", from: MessageOrigin::Itself },
    RawOperation {
        name: "/topics kept message, by POST",
        path: "/topics/{kept}",
        from: MessageOrigin::Request,
    },
];

const BINARY: &[(&str, BinaryOperation)] = &[
    ("open", BinaryOperation::Open),
    ("publish, memory", BinaryOperation::Memory),
    ("publish, disk", BinaryOperation::Disk),
    ("fetch", BinaryOperation::Fetch),
    ("subscribe", BinaryOperation::Subscribe),
    ("subscribe, first records", BinaryOperation::Records),
    ("subscribe in a group, assigned", BinaryOperation::Assigned),
    ("subscribe in a group, first records", BinaryOperation::GroupRecords),
    ("commit", BinaryOperation::Commit),
    ("unsubscribe", BinaryOperation::Unsubscribe),
    ("ping", BinaryOperation::Ping),
];

const HTTP: &[HttpOperation] = &[
    HttpOperation { line: "GET / HTTP/1.1", body: "", reuse: false },
    HttpOperation { line: "GET /readyz HTTP/1.1", body: "", reuse: true },
    HttpOperation { line: "GET /metrics HTTP/1.1", body: "", reuse: false },
    HttpOperation { line: "POST /topics/{topic} HTTP/1.1", body: "hello", reuse: true },
    HttpOperation { line: "POST /topics/{memory} HTTP/1.1", body: "hello", reuse: false },
    HttpOperation { line: "POST /topics/{kept} HTTP/1.1", body: "hello", reuse: true },
    HttpOperation { line: "POST /streams/{stream} HTTP/1.1", body: "hello", reuse: true },
    HttpOperation { line: "POST /streams/{stream}?ack=memory HTTP/1.1", body: "hello", reuse: false },
    HttpOperation { line: "GET /streams/{stream}?from=earliest&max=1 HTTP/1.1", body: "", reuse: true },
    HttpOperation { line: "GET /streams HTTP/1.1", body: "", reuse: false },
];
