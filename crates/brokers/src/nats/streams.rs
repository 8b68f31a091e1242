//! JetStream streams: access, creation and identity.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use async_nats::Event;
use async_nats::jetstream::ErrorCode;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, PullConsumer, pull};
use async_nats::jetstream::context::{
    CreateStreamError, CreateStreamErrorKind, GetStreamError, GetStreamErrorKind,
};
use async_nats::jetstream::{self, Context, stream};

use super::denied::{DeniedSubjects, RequestedSubject};
use super::settings::{NatsSettings, escaped};
use crate::lock::lock;
use crate::reconnect::ReconnectDelay;
use crate::shared_connection::SharedConnection;
use crate::status::Status;

/// Time without requests after which the server removes a consumer.
const CONSUMER_EXPIRY: Duration = Duration::from_secs(30);

/// The streams of one server or cluster.
pub(super) struct JetStreams {
    pub(super) settings: NatsSettings,
    pub(super) status: Arc<Status>,
    /// Used for everything except appends. It reconnects by itself.
    reader: SharedConnection<Context>,
    /// Denied requests of this connection.
    pub(super) denied: Arc<DeniedSubjects>,
    /// Streams known to exist.
    known: RefCell<HashSet<String>>,
    /// Creation times of the followed streams, in nanoseconds: a stream with another time has other records.
    created: RefCell<HashMap<String, i128>>,
}

impl JetStreams {
    pub(super) fn new(settings: NatsSettings, status: Arc<Status>) -> Self {
        Self {
            settings,
            status,
            reader: SharedConnection::default(),
            denied: Arc::default(),
            known: RefCell::default(),
            created: RefCell::default(),
        }
    }

    /// The context for everything except appends.
    pub(super) async fn reader(&self) -> Result<Context, String> {
        self.reader.get(self.open_reader()).await.map(|(context, _)| context)
    }

    async fn open_reader(&self) -> Result<Context, String> {
        let denied = Arc::clone(&self.denied);
        let (is_open, delay) = (Arc::new(AtomicBool::new(false)), Mutex::new(ReconnectDelay::default()));
        let opened = Arc::clone(&is_open);
        // The client's own delays begin again with each login.
        let reconnect_delay = move |_| {
            let is_reconnect = opened.load(Ordering::SeqCst);
            if is_reconnect { lock(&delay).next(Instant::now()) } else { Duration::ZERO }
        };
        let options = self.settings.options().await?.reconnect_delay_callback(reconnect_delay);
        let options = options.event_callback(move |event| {
            match event {
                Event::ServerError(error) => drop(denied.note(&error)),
                // The rights may have changed.
                Event::Connected => denied.clear(),
                _ => {}
            }
            std::future::ready(())
        });
        let client =
            options.connect(&self.settings.login.servers).await.map_err(|error| error.to_string())?;
        is_open.store(true, Ordering::SeqCst);
        Ok(jetstream::new(client))
    }

    /// A JetStream stream, created if it does not exist.
    pub(super) async fn stream(&self, name: &str) -> Result<stream::Stream, StreamFault> {
        let context = self.reader().await?;
        let is_known = self.known.borrow().contains(name);
        if is_known {
            match self
                .denied
                .request(RequestedSubject::Stream(name), context.get_stream(name))
                .await
                .map_err(StreamFault::rejected)?
            {
                Err(error) if is_unknown(&error) => drop(self.known.borrow_mut().remove(name)),
                stream => return stream.map_err(StreamFault::from),
            }
        }
        let stream = context.get_or_create_stream(self.settings.stream(name));
        let stream = self
            .denied
            .request(RequestedSubject::Stream(name), stream)
            .await
            .map_err(StreamFault::rejected)??;
        self.known.borrow_mut().insert(name.to_owned());
        Ok(stream)
    }

    /// Stores the creation time of a followed stream: a stream of this name with a later time is another one.
    pub(super) fn store_creation(&self, name: &str, stream: &stream::Stream) {
        self.created.borrow_mut().entry(name.to_owned()).or_insert_with(|| created(stream));
    }

    /// Forgets that a stream exists: the next access creates it if need be.
    pub(super) fn forget(&self, name: &str) {
        self.known.borrow_mut().remove(name);
    }

    /// A followed stream, which is not created again after its deletion.
    pub(super) async fn followed(&self, name: &str) -> Result<stream::Stream, StreamFault> {
        if !self.created.borrow().contains_key(name) {
            return self.stream(name).await;
        }
        let context = self.reader().await?;
        let found = self
            .denied
            .request(RequestedSubject::Stream(name), context.get_stream(name))
            .await
            .map_err(StreamFault::rejected)?;
        let label = format!("stream {name}");
        match &found {
            Ok(_) => self.status.mark_followed(&label),
            Err(error) if is_unknown(error) => {
                self.status.mark_not_followed(&label, "the stream does not exist at NATS: it was deleted")
            }
            Err(_) => {}
        }
        found.map_err(StreamFault::from)
    }

    /// The reason why this is not the stream that this node follows by that name, if so.
    pub(super) fn recreated(&self, name: &str, stream: &stream::Stream) -> Option<String> {
        let is_another = self.created.borrow().get(name).is_some_and(|known| *known != created(stream));
        is_another.then(|| {
            let created = stream.cached_info().created;
            format!(
                "NATS created the stream at {created}, after this node began to follow it: it was recreated. Remove this \
                 node's copy of it to read it again"
            )
        })
    }

    /// A JetStream stream that retains the last message of each subject: the committed offset of a group in a
    /// partition.
    pub(super) async fn groups(&self) -> Result<(stream::Stream, String), String> {
        let name = format!("{}sinews-groups", escaped(&self.settings.prefix));
        let config = stream::Config {
            subjects: vec![format!("{name}.>")],
            max_messages_per_subject: 1,
            max_bytes: -1,
            max_age: Duration::ZERO,
            ..self.settings.stream(&name)
        };
        let context = self.reader().await?;
        let stream = self
            .denied
            .request(RequestedSubject::Stream(&name), context.get_or_create_stream(config))
            .await?;
        Ok((stream.map_err(|error| error.to_string())?, name))
    }

    pub(super) fn group(&self, groups: &str, stream: &str, partition: u32, group: &str) -> String {
        format!("{groups}.{}.{}", self.settings.name(stream, partition), escaped(group))
    }
}

/// Why a stream cannot be used.
#[derive(Debug)]
pub(super) struct StreamFault {
    reason: String,
    /// The server rejects requests about this stream, on each connection.
    pub(super) is_rejected: bool,
}

impl StreamFault {
    fn rejected(reason: String) -> Self {
        Self { reason, is_rejected: true }
    }

    /// A JetStream error. Without a leader, or a server with JetStream, the same request may succeed later.
    fn answered(reason: String, error: &jetstream::Error) -> Self {
        let is_temporary = error.code() == 503 && error.error_code() != ErrorCode::INSUFFICIENT_RESOURCES;
        Self { reason: format!("NATS rejects a request: {reason}"), is_rejected: !is_temporary }
    }
}

impl fmt::Display for StreamFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl From<String> for StreamFault {
    fn from(reason: String) -> Self {
        Self { reason, is_rejected: false }
    }
}

impl From<GetStreamError> for StreamFault {
    fn from(error: GetStreamError) -> Self {
        match error.kind() {
            GetStreamErrorKind::JetStream(answer) => Self::answered(error.to_string(), &answer),
            _ => Self::from(error.to_string()),
        }
    }
}

impl From<CreateStreamError> for StreamFault {
    fn from(error: CreateStreamError) -> Self {
        match error.kind() {
            CreateStreamErrorKind::JetStream(answer) => Self::answered(error.to_string(), &answer),
            _ => Self::from(error.to_string()),
        }
    }
}

/// A consumer from a position on, with this name or one that the client chooses. The server removes it when it gets no
/// requests.
pub(super) async fn consumer(
    stream: &stream::Stream,
    name: Option<String>,
    policy: DeliverPolicy,
) -> Result<PullConsumer, String> {
    let config = pull::Config {
        name,
        deliver_policy: policy,
        ack_policy: AckPolicy::None,
        inactive_threshold: CONSUMER_EXPIRY,
        memory_storage: true,
        ..pull::Config::default()
    };
    stream.create_consumer(config).await.map_err(|error| error.to_string())
}

pub(super) fn by_sequence(start_sequence: u64) -> DeliverPolicy {
    DeliverPolicy::ByStartSequence { start_sequence: start_sequence.max(1) }
}

/// From the first message that the server received at this time or later, in microseconds.
pub(super) fn by_time(stream: &stream::Stream, time: u64) -> DeliverPolicy {
    let created = stream.cached_info().created;
    let before = u64::try_from(created.unix_timestamp_nanos() / 1000).unwrap_or_default();
    match time.checked_sub(before) {
        Some(later) => DeliverPolicy::ByStartTime { start_time: created + Duration::from_micros(later) },
        None => DeliverPolicy::All,
    }
}

/// First and next sequence.
pub(super) fn extent(stream: &stream::Stream) -> (u64, u64) {
    let state = &stream.cached_info().state;
    (state.first_sequence.max(1), state.last_sequence + 1)
}

/// Whether the server has no stream with this name.
fn is_unknown(error: &GetStreamError) -> bool {
    matches!(error.kind(), GetStreamErrorKind::JetStream(error) if error.error_code() == ErrorCode::STREAM_NOT_FOUND)
}

fn created(stream: &stream::Stream) -> i128 {
    stream.cached_info().created.unix_timestamp_nanos()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{BufRead, BufReader, Write};
    use std::net::TcpListener;
    use std::thread;

    use tokio::sync::Notify;

    use super::*;
    use crate::reconnect::simulated;
    use crate::url::BrokerUrl;

    /// Attempts to connect again.
    const RECONNECTS: usize = 6;

    #[test]
    fn delays_of_the_connection_for_subscriptions_grow_across_logins() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("nats://{}", listener.local_addr().expect("it is bound"));
        let is_done = Arc::new(Notify::new());
        let done = Arc::clone(&is_done);
        // Each connection ends behind the login, or, every second one, before it.
        let server = thread::spawn(move || {
            for connection in 0..=RECONNECTS {
                let (mut stream, _) = listener.accept().expect("a connection");
                if connection % 2 == 1 {
                    continue;
                }
                stream.write_all(b"INFO {\"server_id\":\"x\",\"max_payload\":1024}\r\n").expect("it is open");
                let lines = BufReader::new(stream.try_clone().expect("a descriptor")).lines();
                assert!(lines.map_while(Result::ok).any(|line| line == "PING"), "a login");
                stream.write_all(b"PONG\r\n").expect("it is open");
            }
            done.notify_one();
        });
        let mut address = BrokerUrl::parse(&url, &BTreeMap::new()).expect("a URL");
        let status = Arc::new(Status::new(url, Duration::ZERO));
        let streams = JetStreams::new(NatsSettings::from_address(&mut address).expect("settings"), status);
        simulated::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let _context = streams.reader().await.expect("a login");
            is_done.notified().await;
        });
        server.join().expect("no panic");
        // The first one is for the first login. One more may have begun at the end.
        let delays = simulated::delays();
        assert!(delays.len() > RECONNECTS, "{delays:?}");
        simulated::assert_growth(&delays[1..]);
    }
}
