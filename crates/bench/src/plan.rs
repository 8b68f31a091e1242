//! The plan of a run: checked and resolved options.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sinews_engine::BackendChoice;
use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::ClientRequest;

use super::args::{LoadArgs, Mode};
use super::payload::Corpus;
use super::target::{Protocol, Target};
use crate::trust;

/// One run, shared by its threads.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) mode: Mode,
    pub(crate) corpus: Corpus,
    pub(crate) kind: sinews_proto::Kind,
    pub(crate) connections: usize,
    pub(crate) threads: usize,
    pub(crate) in_flight: usize,
    pub(crate) duration: Duration,
    pub(crate) count: Option<u64>,
    /// Messages per second over all threads.
    pub(crate) rate: Option<f64>,
    pub(crate) warm_up: Duration,
    pub(crate) ramp_up: Duration,
    pub(crate) timeout: Duration,
    pub(crate) sources: Vec<IpAddr>,
    pub(crate) backend: BackendChoice,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    /// WebSocket handshakes, by topic if topics are used.
    pub(crate) handshakes: Vec<ClientRequest>,
    pub(crate) request: Request,
    pub(crate) fan_out: FanOut,
}

/// An HTTP request without its body.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The head up to the length of the body; the whole head without a body.
    pub(crate) head: Vec<u8>,
    pub(crate) has_body: bool,
    /// The response has no body (HEAD), despite its headers.
    pub(crate) is_head: bool,
    pub(crate) expect: Expect,
}

/// Expected response body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Anything,
    Echo,
    This(Vec<u8>),
}

#[derive(Clone, Debug)]
pub(crate) struct FanOut {
    pub(crate) publishers: usize,
    pub(crate) topics: usize,
    pub(crate) subscribe: Option<String>,
    pub(crate) publish: String,
}

impl FanOut {
    pub(crate) fn topic(number: usize) -> String {
        format!("bench-{number}")
    }
}

impl Plan {
    /// # Errors
    ///
    /// Returns an error if options conflict, a file cannot be read, or the host is unknown.
    pub(crate) fn new(url: &str, args: &LoadArgs) -> Result<Self, String> {
        let LoadArgs { amount, content, connection, mode } = args;
        let target = Target::new(url, connection.unix.as_deref())?;
        let fan_out = mode.mode == Mode::FanOut;
        let text = !content.binary && target.protocol == Protocol::WebSocket || fan_out;
        check(args, &target)?;
        let corpus = match &content.file {
            Some(file) => Corpus::recorded(file, text)?,
            None => Corpus::made(&content.size, text),
        };
        let count = amount.count.map(std::num::NonZeroU64::get);
        let default_rate = fan_out.then_some(RATE_OF_PUBLISHER * mode.publishers.get() as f64);
        let rate = amount.rate.or(default_rate);
        let default_in_flight = if rate.is_some() { IN_FLIGHT_AT_RATE } else { 1 };
        Ok(Self {
            mode: mode.mode,
            kind: if text { sinews_proto::Kind::Text } else { sinews_proto::Kind::Binary },
            corpus,
            connections: amount.connections.get(),
            threads: amount.threads.get().min(amount.connections.get()),
            in_flight: amount.in_flight.map_or(default_in_flight, |depth| depth.get() as usize),
            duration: amount.duration,
            count,
            rate,
            warm_up: if count.is_some() { Duration::ZERO } else { amount.warm_up },
            ramp_up: amount.ramp_up,
            timeout: amount.timeout,
            sources: connection.source.iter().flatten().copied().collect(),
            backend: connection.backend,
            tls: target.tls.then(|| tls(connection.insecure, &connection.ca)).transpose()?,
            handshakes: handshakes(&target, args)?,
            request: request(&target, args)?,
            fan_out: FanOut {
                publishers: mode.publishers.get(),
                topics: mode.topics.get(),
                subscribe: mode.subscribe.clone(),
                publish: mode.publish.clone().unwrap_or_else(|| "{payload}".to_owned()),
            },
            target,
        })
    }

    /// Returns a topic's handshake; without templates, its path contains the topic.
    pub(crate) fn handshake(&self, topic: usize) -> Option<&ClientRequest> {
        self.handshakes.get(topic % self.handshakes.len().max(1))
    }

    pub(crate) fn is_fan_out(&self) -> bool {
        self.mode == Mode::FanOut
    }

    /// Connections of a thread: every n-th ordinal.
    pub(crate) fn ordinals(&self, thread: usize) -> impl Iterator<Item = usize> + use<> {
        (thread..self.connections).step_by(self.threads)
    }

    /// Number of subscribers of a topic.
    pub(crate) fn subscribers(&self, topic: usize) -> u64 {
        let all = self.connections.saturating_sub(self.fan_out.publishers);
        let (each, more) = (all / self.fan_out.topics, all % self.fan_out.topics);
        (each + usize::from(topic < more)) as u64
    }
}

fn check(args: &LoadArgs, target: &Target) -> Result<(), String> {
    let LoadArgs { amount, content, connection, mode } = args;
    let is = |protocol| target.protocol == protocol;
    let wrong = [
        (mode.mode == Mode::FanOut && !is(Protocol::WebSocket), "--mode fan-out needs a ws:// or wss:// URL"),
        (
            mode.mode == Mode::FanOut && mode.publishers.get() >= amount.connections.get(),
            "--mode fan-out needs more --connections than --publishers: the rest subscribe",
        ),
        (mode.mode == Mode::FanOut && content.binary, "--mode fan-out sends text and excludes --binary"),
        (
            mode.mode == Mode::FanOut && content.file.is_some(),
            "--mode fan-out generates its messages and excludes --file",
        ),
        (
            mode.mode == Mode::FanOut && amount.count.is_some(),
            "--count is for --mode echo and storm; use --duration",
        ),
        (mode.mode != Mode::FanOut && mode.publish.is_some(), "--publish is for --mode fan-out"),
        (connection.deflate && !is(Protocol::WebSocket), "--deflate is for ws:// and wss:// URLs"),
        (!connection.subprotocol.is_empty() && !is(Protocol::WebSocket), "--subprotocol is for WebSocket"),
        (!connection.header.is_empty() && is(Protocol::Tcp), "--header is not for tcp:// URLs"),
        (connection.insecure && !target.tls, "--insecure is for wss:// and https:// URLs"),
        (!connection.ca.is_empty() && !target.tls, "--ca is for wss:// and https:// URLs"),
        (
            content.expect.is_some() && !is(Protocol::Http),
            "--expect is for http:// URLs; other protocols always verify the echo",
        ),
        (content.method != "GET" && !is(Protocol::Http), "--method is for http:// URLs"),
        (
            mode.mode != Mode::Echo && mode.mode != Mode::FanOut && amount.rate.is_some(),
            "--rate is for --mode echo and fan-out",
        ),
        (connection.unix.is_some() && !connection.source.is_empty(), "--source is not for Unix sockets"),
    ];
    match wrong.into_iter().find(|(wrong, _)| *wrong) {
        Some((_, why)) => Err(why.to_owned()),
        None => Ok(()),
    }
}

fn tls(insecure: bool, ca: &[PathBuf]) -> Result<Arc<rustls::ClientConfig>, String> {
    Ok(Arc::new(trust::client(insecure, ca)?.with_no_client_auth()))
}

/// Parses `Name: value`.
fn header(line: &str) -> Result<(&str, &str), String> {
    let (name, value) =
        line.split_once(':').ok_or_else(|| format!("--header {line}: expected NAME: VALUE"))?;
    Ok((name.trim(), value.trim()))
}

fn handshakes(target: &Target, args: &LoadArgs) -> Result<Vec<ClientRequest>, String> {
    if target.protocol != Protocol::WebSocket {
        return Ok(Vec::new());
    }
    let fan_out = args.mode.mode == Mode::FanOut;
    let topics = if fan_out { args.mode.topics.get() } else { 1 };
    let ours = fan_out && args.mode.publish.is_none() && !target.path.contains("{topic}");
    let path = if ours {
        format!("{}/topics/{{topic}}", target.path.trim_end_matches('/'))
    } else {
        target.path.clone()
    };
    let one = |topic: usize| -> Result<ClientRequest, String> {
        let path = if fan_out { path.replace("{topic}", &FanOut::topic(topic)) } else { path.clone() };
        let mut request =
            ClientRequest::new(target.host.as_str(), path).map_err(|error| error.to_string())?;
        for line in &args.connection.header {
            let (name, value) = header(line)?;
            request =
                request.with_header(name, value).map_err(|error| format!("--header {line}: {error}"))?;
        }
        for name in &args.connection.subprotocol {
            request = request.with_subprotocol(name.as_str()).map_err(|error| error.to_string())?;
        }
        Ok(if args.connection.deflate { request.with_deflate(DeflateConfig::new()) } else { request })
    };
    (0..topics).map(one).collect()
}

fn request(target: &Target, args: &LoadArgs) -> Result<Request, String> {
    let method = args.content.method.to_ascii_uppercase();
    let is_token = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic());
    if !is_token || method == "CONNECT" {
        return Err(format!("--method {method}: expected a method such as GET or POST"));
    }
    let has_body = matches!(method.as_str(), "POST" | "PUT" | "PATCH");
    let expect = match args.content.expect.as_deref() {
        None => Expect::Anything,
        Some("echo") if has_body => Expect::Echo,
        Some("echo") => return Err("--expect echo needs --method POST, PUT or PATCH".to_owned()),
        Some(text) => match text.strip_prefix('@') {
            Some(file) => {
                Expect::This(std::fs::read(PathBuf::from(file)).map_err(|error| format!("{file}: {error}"))?)
            }
            None => Expect::This(text.as_bytes().to_vec()),
        },
    };
    let mut head = format!("{method} {} HTTP/1.1\r\nHost: {}\r\n", target.path, target.host);
    for line in &args.connection.header {
        let (name, value) = header(line)?;
        // `ClientRequest` validates headers, and rejects headers that frame the message.
        ClientRequest::new("a", "/")
            .and_then(|request| request.with_header(name, value))
            .map_err(|error| format!("--header {line}: {error}"))?;
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(if has_body { "Content-Length: " } else { "\r\n" });
    Ok(Request { head: head.into_bytes(), has_body, is_head: method == "HEAD", expect })
}

/// Default rate of a publisher.
const RATE_OF_PUBLISHER: f64 = 100.0;

const IN_FLIGHT_AT_RATE: usize = 1024;
