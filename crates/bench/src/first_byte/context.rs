//! A server with prepared data, and connections to it.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use serde_json::Value;
use sinews::{Config, blocking};
use sinews_stream::record::{RecordBuilder, RecordLimits, ValueKind};

use crate::streams::connection::{self, EncodedMessage, ServerAddresses, StreamConnection};
use crate::streams::{ProducerAck, StreamTransport};

/// Prefix for topics stored in streams.
pub(super) const DURABLE_TOPICS: &str = "bench.kept.";

/// Prefix for topics with a history in memory.
pub(super) const HISTORY_TOPICS: &str = "bench.memory.";

/// Answer timeout.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The operations' topics and streams. No other client uses these names.
pub(super) struct OperationContext {
    pub(super) addresses: ServerAddresses,
    idle: Duration,
    run: u32,
    /// Counter for unique group and topic names.
    next: Cell<u64>,
}

impl OperationContext {
    /// Publishes the messages that operations read.
    pub(super) fn prepare(addresses: ServerAddresses, idle: Duration) -> Result<Self, String> {
        let context = Self { addresses, idle, run: std::process::id(), next: Cell::new(0) };
        for name in [DURABLE_TOPICS, HISTORY_TOPICS] {
            for _ in 0..3 {
                context
                    .http(&format!("POST /topics/{name}{} HTTP/1.1", context.run), "hello")?
                    .wait_for_head()?;
            }
        }
        for _ in 0..3 {
            context
                .http(&format!("POST /streams/{} HTTP/1.1", context.stream()), "hello")?
                .wait_for_head()?;
        }
        Ok(context)
    }

    pub(super) fn stream(&self) -> String {
        format!("bench.log.{}", self.run)
    }

    /// Fills in the names `{stream}`, `{kept}`, `{memory}`, `{topic}` and `{new}`, which is unique on each use.
    pub(super) fn expand(&self, template: &str) -> String {
        let number = self.next.replace(self.next.get() + 1);
        let (run, stream) = (self.run, self.stream());
        let names = [
            ("{stream}", stream),
            ("{kept}", format!("{DURABLE_TOPICS}{run}")),
            ("{memory}", format!("{HISTORY_TOPICS}{run}")),
            ("{topic}", format!("bench.topic.{run}")),
            ("{new}", format!("new-{run}-{number}")),
        ];
        names.iter().fold(template.to_owned(), |text, (name, value)| text.replace(name, value))
    }

    /// Leaves the server idle, and starts the clock.
    pub(super) fn idle_then_start(&self) -> Instant {
        thread::sleep(self.idle);
        Instant::now()
    }

    pub(super) fn websocket(&self, path: &str) -> Result<JsonConnection, String> {
        let stream = connection::connect(&self.addresses.address()?)?;
        // Shorter than the server's ping interval: a ping would count as data.
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(|error| error.to_string())?;
        let opened = blocking::connect(format!("{}{path}", self.addresses.url)).config(Config::default());
        let (socket, _) = opened.over(stream).open().map_err(|error| format!("{path}: {error}"))?;
        Ok(JsonConnection(socket))
    }

    pub(super) fn binary(&self, transport: StreamTransport) -> Result<StreamConnection, String> {
        StreamConnection::open(transport, &self.addresses, &self.stream())
    }

    /// Sends a request.
    pub(super) fn http(&self, line: &str, body: &str) -> Result<HttpConnection, String> {
        let mut http = HttpConnection(connection::connect(&self.addresses.address()?)?);
        http.send_request(line, body)?;
        Ok(http)
    }
}

/// A client for the JSON protocol, or for a raw topic.
pub(super) struct JsonConnection(blocking::WebSocket<TcpStream>);

impl JsonConnection {
    pub(super) fn send(&mut self, reply: &str) -> Result<(), String> {
        self.0.send_text(reply).map_err(|error| format!("sending: {error}"))
    }

    /// Waits for a message with this `op`.
    pub(super) fn wait_for(&mut self, op: &str) -> Result<(), String> {
        loop {
            let reply: Value = serde_json::from_str(&self.next()?).map_err(|error| error.to_string())?;
            match reply["op"].as_str() {
                Some(found) if found == op => return Ok(()),
                Some("error") => return Err(format!("server error: {reply}")),
                _ => {}
            }
        }
    }

    pub(super) fn next(&mut self) -> Result<String, String> {
        match self.0.next_borrowed() {
            Some(Ok(message)) => Ok(String::from_utf8_lossy(message.into_payload()).into_owned()),
            Some(Err(error)) => Err(format!("no answer: {error}")),
            None => Err("the server has closed the connection".to_owned()),
        }
    }
}

/// A connection for sequential requests.
pub(super) struct HttpConnection(TcpStream);

impl HttpConnection {
    pub(super) fn send_request(&mut self, line: &str, body: &str) -> Result<(), String> {
        let request = format!("{line}\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        self.0.write_all(request.as_bytes()).map_err(|error| format!("sending: {error}"))
    }

    /// Waits for the response head and checks its status. Returns the body's remaining length.
    pub(super) fn wait_for_head(&mut self) -> Result<usize, String> {
        let mut head = Vec::new();
        let mut chunk = [0; 4096];
        while !head.windows(4).any(|end| end == b"\r\n\r\n") {
            match self.0.read(&mut chunk) {
                Ok(0) => return Err("the server has closed the connection".to_owned()),
                Ok(count) => head.extend_from_slice(&chunk[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(format!("no answer: {error}")),
            }
        }
        let text = String::from_utf8_lossy(&head);
        let (lines, body) = text.split_once("\r\n\r\n").unwrap_or_default();
        let status = lines.lines().next().unwrap_or_default();
        if !status.starts_with("HTTP/1.1 2") {
            return Err(format!("unexpected status line: {status}"));
        }
        let length = lines.lines().filter_map(|line| line.split_once(':')).find_map(|(name, value)| {
            name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
        });
        Ok(length.unwrap_or_default().saturating_sub(body.len()))
    }

    /// Reads and discards bytes.
    pub(super) fn skip(&mut self, mut count: usize) -> Result<(), String> {
        let mut chunk = [0; 4096];
        while count > 0 {
            let most = count.min(chunk.len());
            self.0.read_exact(&mut chunk[..most]).map_err(|error| format!("no answer: {error}"))?;
            count -= most;
        }
        Ok(())
    }
}

/// Waits for a message of this kind.
pub(super) fn wait_for(connection: &mut StreamConnection, expected: u8) -> Result<(), String> {
    while connection.next()?.0 != expected {}
    Ok(())
}

/// Builds a batch with one record.
pub(super) fn publish(ack: ProducerAck) -> Result<EncodedMessage, String> {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let mut builder = RecordBuilder::with_limits(RecordLimits::default());
    builder
        .push(since.as_micros() as u64, b"", b"hello", ValueKind::Text)
        .map_err(|error| error.to_string())?;
    let records = builder.finish().ok_or("batch has no records")?;
    Ok(EncodedMessage::publish(ack, records.bytes()))
}

/// Subscribes from the first record on, alone or as a group member.
pub(super) fn subscribe(group: &str) -> EncodedMessage {
    EncodedMessage::to(connection::ALL, 2, 0, |body| {
        body.extend_from_slice(&[0; 16]);
        body.extend_from_slice(group.as_bytes());
    })
}

pub(super) fn commit(group: &str) -> EncodedMessage {
    EncodedMessage::new(4, 0, |body| {
        body.extend_from_slice(&1u64.to_le_bytes());
        body.extend_from_slice(group.as_bytes());
    })
}

/// Ends the subscription from [`subscribe`]: all ids are the same.
pub(super) fn unsubscribe() -> EncodedMessage {
    EncodedMessage::new(5, 0, |body| body.extend_from_slice(&1u32.to_le_bytes()))
}

pub(super) fn ping() -> EncodedMessage {
    EncodedMessage::new(6, 0, |_| {})
}
