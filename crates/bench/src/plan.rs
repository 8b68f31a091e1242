//! The plan of a run: its target, amount, content and mode.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::ValueEnum;
use sinews_engine::BackendChoice;
use sinews_proto::handshake::ClientRequest;

use crate::payload::Corpus;
use crate::target::LoadTarget;

/// One run, shared by its threads.
#[derive(Clone, Debug)]
pub(crate) struct LoadPlan {
    pub(crate) target: LoadTarget,
    pub(crate) mode: LoadMode,
    pub(crate) corpus: Corpus,
    pub(crate) kind: sinews_proto::Kind,
    pub(crate) connections: usize,
    /// WebSockets over HTTP/2.
    pub(crate) http2: bool,
    /// WebSockets, sessions or requests over HTTP/3.
    pub(crate) http3: bool,
    /// Sessions of WebTransport in the place of WebSockets.
    pub(crate) webtransport: bool,
    /// Value of `:protocol` over HTTP/3.
    pub(crate) http3_protocol: String,
    /// More than one over HTTP/2 and HTTP/3 only.
    pub(crate) sockets_per_connection: usize,
    pub(crate) threads: usize,
    pub(crate) in_flight: usize,
    /// The next messages of a connection follow when all are answered (in fan-out: delivered).
    pub(crate) bursts: bool,
    /// Wait for answers without sleeping.
    pub(crate) busy_poll: bool,
    pub(crate) duration: Duration,
    pub(crate) count: Option<u64>,
    /// Messages per second over all threads.
    pub(crate) rate: Option<f64>,
    pub(crate) warm_up: Duration,
    pub(crate) ramp_up: Duration,
    /// Idle time of the open connections at the end.
    pub(crate) settle: Duration,
    pub(crate) timeout: Duration,
    pub(crate) sources: Vec<IpAddr>,
    /// Connections open in stages ([`LoadCommand::Open`](crate::load::LoadCommand)), with at most this number of
    /// handshakes in progress on each thread. `None`: all connections open at the start, without this limit.
    pub(crate) staged_handshakes: Option<usize>,
    pub(crate) backend: BackendChoice,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    /// WebSocket handshakes, by topic if topics are used.
    pub(crate) handshakes: Vec<ClientRequest>,
    /// Target and handshakes of publishers, if they differ from those of subscribers.
    pub(crate) publish_at: Option<PublishTarget>,
    pub(crate) request: RequestTemplate,
    pub(crate) fan_out: FanOut,
}

/// The load on each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadMode {
    Echo,
    Storm,
    Idle,
    FanOut,
}

impl LoadMode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Echo => "echo",
            Self::Storm => "storm",
            Self::Idle => "idle",
            Self::FanOut => "fan-out",
        }
    }
}

/// An HTTP request without its body.
#[derive(Clone, Debug)]
pub(crate) struct RequestTemplate {
    /// The head up to the length of the body; the whole head without a body.
    pub(crate) head: Vec<u8>,
    /// The last request of each connection, with --requests-per-connection.
    pub(crate) last: Option<FinalRequest>,
    pub(crate) method: String,
    /// Names and values of --header.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) has_body: bool,
    /// The response has no body (HEAD), despite its headers.
    pub(crate) is_head: bool,
    pub(crate) expect: ExpectedBody,
}

/// The last request of a connection.
#[derive(Clone, Debug)]
pub(crate) struct FinalRequest {
    /// Requests of the connection.
    pub(crate) number: u32,
    /// Its head, as that of the others, with `Connection: close`.
    pub(crate) head: Vec<u8>,
}

/// Expected response body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedBody {
    Any,
    Echo,
    Exact(Vec<u8>),
}

/// Where publishers connect.
#[derive(Clone, Debug)]
pub(crate) struct PublishTarget {
    pub(crate) target: LoadTarget,
    pub(crate) handshakes: Vec<ClientRequest>,
}

#[derive(Clone, Debug)]
pub(crate) struct FanOut {
    pub(crate) publishers: usize,
    /// Subscribers that do not read.
    pub(crate) stalled: usize,
    pub(crate) topics: usize,
    pub(crate) login: Option<String>,
    pub(crate) subscribe: Option<String>,
    pub(crate) publish: String,
}

impl FanOut {
    pub(crate) fn topic(number: usize) -> String {
        format!("bench-{number}")
    }
}

impl LoadPlan {
    /// Returns the target of a connection, and its handshake by topic; without templates, its path contains the topic.
    pub(crate) fn endpoint(&self, publishes: bool, topic: usize) -> (&LoadTarget, Option<&ClientRequest>) {
        let (target, handshakes) = match &self.publish_at {
            Some(at) if publishes => (&at.target, &at.handshakes),
            _ => (&self.target, &self.handshakes),
        };
        (target, handshakes.get(topic % handshakes.len().max(1)))
    }

    /// Number of sockets of all connections.
    pub(crate) fn sockets(&self) -> usize {
        self.connections * self.sockets_per_connection
    }

    pub(crate) fn is_fan_out(&self) -> bool {
        self.mode == LoadMode::FanOut
    }

    /// Connections of a thread: every n-th ordinal.
    pub(crate) fn ordinals(&self, thread: usize) -> impl Iterator<Item = usize> + use<> {
        (thread..self.connections).step_by(self.threads)
    }

    /// Number of reading subscribers of a topic. A subscription without the topic's name is one pattern that matches all topics.
    pub(crate) fn subscribers(&self, topic: usize) -> u64 {
        let all = self.sockets().saturating_sub(self.fan_out.publishers + self.fan_out.stalled);
        if self.fan_out.subscribe.as_ref().is_some_and(|template| !template.contains("{topic}")) {
            return all as u64;
        }
        let (each, more) = (all / self.fan_out.topics, all % self.fan_out.topics);
        (each + usize::from(topic < more)) as u64
    }
}

#[cfg(test)]
mod tests {
    use crate::args::{BenchArgs, load_plan};

    fn subscribers_by_topic(subscribe: &str) -> Vec<u64> {
        let url = "ws://127.0.0.1:1/ws";
        let options = [url, "-m", "fan-out", "-c", "9", "--publishers", "2", "--topics", "2"];
        let templates = ["--subscribe", subscribe, "--publish", "{topic} {payload}"];
        let args = BenchArgs::parse([&options[..], &templates].concat()).unwrap();
        let plan = load_plan(url, &args.load).unwrap();
        (0..2).map(|topic| plan.subscribers(topic)).collect()
    }

    #[test]
    fn subscription_without_the_topic_matches_all_topics() {
        assert_eq!(subscribers_by_topic("subscribe {topic}"), [4, 3]);
        assert_eq!(subscribers_by_topic("subscribe *"), [7, 7]);
    }
}
