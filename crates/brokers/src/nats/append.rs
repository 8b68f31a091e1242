//! Appends: sent in order, and sent again on a new connection until they are acknowledged.

use std::error::Error as _;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_nats::jetstream::context::{ContextBuilder, PublishAckFuture, PublishErrorKind};
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::{self, Context, ErrorCode};
use async_nats::{Client, Event};
use futures_util::future::{Either, select};
use sinews_stream::record::Record;
use tokio::sync::mpsc;

use super::denied::{DeniedSubjects, REMEDY};
use super::message::{HEADERS_BYTES, headers, once_id};
use super::streams::JetStreams;
use crate::reconnect::ReconnectDelay;
use crate::remote::{QueuedAppend, REQUEST_TIMEOUT, WakeSignal};

/// Maximum appends sent together.
const APPENDS_MAX: usize = 256;
/// Maximum unacknowledged records.
const RECORDS_MAX: usize = 1024;
/// Delay of the client's own reconnect, so that a lost connection does not send its buffer before the records have been
/// resent on a new one.
const RECONNECT_DELAY: Duration = Duration::from_secs(30);

/// Sends the appends of one connection to a broker.
pub(super) struct NatsPublisher<'a> {
    streams: &'a JetStreams,
    /// Prefix of the ids of this connection's records; empty before the first connection.
    id: String,
    /// Records so far.
    count: u64,
    delay: ReconnectDelay,
}

/// A connection for appends, until it is lost.
struct AppendConnection {
    context: Context,
    /// Notified when the connection is lost, or a subject is denied.
    changed: Arc<WakeSignal>,
    is_lost: Arc<AtomicBool>,
    denied: Arc<DeniedSubjects>,
}

/// An append in flight.
struct NatsAppend {
    append: QueuedAppend,
    name: String,
    id: u64,
    /// The sequence of each acknowledged record.
    sequences: Vec<Option<u64>>,
    /// Time when the first unacknowledged record was sent.
    sent: Option<Instant>,
    /// The server had the record already, by its idempotency key.
    is_repeated: bool,
}

/// A rejected append.
struct RejectedAppend {
    index: usize,
    reason: String,
    /// Whether the server rejects all appends.
    rejects_all: bool,
}

impl<'a> NatsPublisher<'a> {
    pub(super) fn new(streams: &'a JetStreams) -> Self {
        Self { streams, id: String::new(), count: 0, delay: ReconnectDelay::default() }
    }

    /// Sends appends until the queue is closed.
    pub(super) async fn run(&mut self, mut queue: mpsc::Receiver<QueuedAppend>) {
        let mut connection: Option<AppendConnection> = None;
        let mut batch = Vec::new();
        while queue.recv_many(&mut batch, APPENDS_MAX).await > 0 {
            let mut flights: Vec<NatsAppend> = batch.drain(..).map(|append| self.flight(append)).collect();
            while !flights.is_empty() {
                let open =
                    match connection.take().filter(|connection| !connection.is_lost.load(Ordering::SeqCst)) {
                        Some(connection) => connection,
                        None => self.connect_with_retry().await,
                    };
                match self.send(&open, &mut flights).await {
                    Ok(()) => connection = Some(open),
                    Err(reason) => {
                        self.streams.status.mark_unreachable(&reason);
                        self.delay.wait().await;
                    }
                }
            }
        }
    }

    fn flight(&mut self, append: QueuedAppend) -> NatsAppend {
        let id = self.count;
        self.count += u64::from(append.records.count());
        NatsAppend {
            name: self.streams.settings.name(&append.stream, append.partition),
            id,
            sequences: vec![None; append.records.count() as usize],
            sent: None,
            is_repeated: false,
            append,
        }
    }

    /// Connects for appends, and retries until it succeeds.
    async fn connect_with_retry(&mut self) -> AppendConnection {
        loop {
            match self.open().await {
                Ok(connection) => return connection,
                Err(reason) => self.streams.status.mark_unreachable(&reason),
            }
            self.delay.wait().await;
        }
    }

    async fn open(&mut self) -> Result<AppendConnection, String> {
        let (changed, is_lost) = (Arc::new(WakeSignal::default()), Arc::new(AtomicBool::new(false)));
        let (wake_signal, flag) = (changed.clone(), is_lost.clone());
        let denied = Arc::new(DeniedSubjects::default());
        let noted = denied.clone();
        let is_open = Arc::new(AtomicBool::new(false));
        let opened = is_open.clone();
        let options = self.streams.settings.options().await?.event_callback(move |event| {
            match event {
                Event::Disconnected | Event::Closed => {
                    flag.store(true, Ordering::SeqCst);
                    wake_signal.notify();
                }
                Event::ServerError(error) if noted.note(&error) => wake_signal.notify(),
                _ => {}
            }
            std::future::ready(())
        });
        let delay = move |_| if opened.load(Ordering::SeqCst) { RECONNECT_DELAY } else { Duration::ZERO };
        let options =
            options.reconnect_delay_callback(delay).max_reconnects(self.streams.settings.login.servers.len());
        let client: Client =
            options.connect(&self.streams.settings.login.servers).await.map_err(|error| error.to_string())?;
        is_open.store(true, Ordering::SeqCst);
        if self.id.is_empty() {
            self.id = client.new_inbox();
        }
        let context = ContextBuilder::new().timeout(REQUEST_TIMEOUT).ack_timeout(REQUEST_TIMEOUT);
        let context = context.max_ack_inflight(RECORDS_MAX * 64).build(client);
        Ok(AppendConnection { context, changed, is_lost, denied })
    }

    /// Sends unacknowledged records; an error requires another connection.
    async fn send(&self, connection: &AppendConnection, flights: &mut Vec<NatsAppend>) -> Result<(), String> {
        while let Some(first) = flights.first() {
            if let Some(reason) = too_large(&connection.context, first) {
                flights.remove(0).append.reject(&reason);
                continue;
            }
            let name = first.name.clone();
            let stream = match self.streams.stream(&name).await {
                Ok(stream) => stream,
                Err(fault) if fault.is_rejected => {
                    let of_rejected = flights.extract_if(.., |flight| flight.name == name);
                    of_rejected.for_each(|flight| flight.append.reject(&fault.to_string()));
                    continue;
                }
                Err(fault) => return Err(fault.to_string()),
            };
            if let Some(reason) = self.streams.recreated(&name, &stream) {
                let of_recreated = flights.extract_if(.., |flight| flight.name == name);
                of_recreated.for_each(|flight| flight.append.reject_unseen(&reason));
                continue;
            }
            // The window of an existing stream may differ from the one for streams created here.
            let window = stream.cached_info().config.duplicate_window;
            if fail_expired(flights, &name, window) {
                continue;
            }
            let mut sent = Vec::new();
            if flights[0].name != name {
                continue;
            }
            for (index, flight) in flights.iter_mut().enumerate() {
                // An append that is too large or needs a new stream is handled when it is first.
                let is_another = flight.name != name;
                if sent.len() >= RECORDS_MAX || is_another || too_large(&connection.context, flight).is_some()
                {
                    break;
                }
                self.send_append(connection, index, flight, &mut sent).await?;
            }
            let acknowledgements = self.acknowledgements(connection, flights, sent).await;
            let rejected = acknowledgements?;
            for RejectedAppend { index, reason, rejects_all } in rejected.into_iter().rev() {
                let append = flights.remove(index).append;
                if rejects_all { append.fail(&reason) } else { append.reject(&reason) }
            }
            // All sent records are acknowledged.
            flights.iter_mut().for_each(|flight| flight.sent = None);
            let done = |flight: &mut NatsAppend| flight.sequences.iter().all(Option::is_some);
            for flight in flights.extract_if(.., done) {
                let first = flight.sequences.iter().flatten().min().copied().unwrap_or_default();
                if flight.is_repeated {
                    flight.append.acknowledge_repeated(first);
                } else {
                    flight.append.acknowledge(first);
                }
            }
        }
        Ok(())
    }

    /// Sends unacknowledged records up to the limit for records in flight.
    async fn send_append(
        &self,
        connection: &AppendConnection,
        index: usize,
        flight: &mut NatsAppend,
        sent: &mut Vec<(usize, usize, PublishAckFuture)>,
    ) -> Result<(), String> {
        for (number, record) in flight.append.records.iter().flatten().enumerate() {
            if flight.sequences[number].is_some() {
                continue;
            }
            if sent.len() >= RECORDS_MAX {
                break;
            }
            flight.sent.get_or_insert_with(Instant::now);
            let id = match flight.append.is_once {
                true => once_id(&record),
                false => format!("{}.{}", self.id, flight.id + number as u64),
            };
            let value = flight.append.records.bytes().slice_ref(record.value);
            let message = PublishMessage::build().payload(value).headers(headers(&record, &id));
            let answer = connection.context.send_publish(flight.name.clone(), message).await;
            sent.push((index, number, answer.map_err(|error| error.to_string())?));
        }
        Ok(())
    }

    /// Waits for acknowledgements. Rejected appends are returned in their order.
    async fn acknowledgements(
        &self,
        connection: &AppendConnection,
        flights: &mut [NatsAppend],
        sent: Vec<(usize, usize, PublishAckFuture)>,
    ) -> Result<Vec<RejectedAppend>, String> {
        let mut rejected: Vec<RejectedAppend> = Vec::new();
        let mut denied: Option<(String, String)> = None;
        for (index, number, answer) in sent {
            let mut answer = answer.into_future();
            let answer = loop {
                if connection.is_lost.load(Ordering::SeqCst) {
                    return Err("the connection was lost".to_owned());
                }
                if let Some(reason) = connection.denied.inbox() {
                    return Err(reason);
                }
                let name = &flights[index].name;
                if let Some(reason) = connection.denied.take(name) {
                    denied = Some((name.clone(), reason));
                }
                if denied.as_ref().is_some_and(|(known, _)| known == name) {
                    break None;
                }
                match select(pin!(connection.changed.notified()), answer).await {
                    Either::Left((_, pending)) => answer = pending,
                    Either::Right((answer, _)) => break Some(answer),
                }
            };
            match answer {
                None => {
                    // The append's other records would have no answer, too.
                    if rejected.last().is_none_or(|last| last.index != index) {
                        let text = denied.as_ref().map_or("", |(_, text)| text);
                        let reason = format!("NATS rejects records of this stream: {text}. {REMEDY}");
                        rejected.push(RejectedAppend { index, reason, rejects_all: false });
                    }
                }
                Some(Ok(answer)) => {
                    self.streams.status.mark_reachable();
                    flights[index].sequences[number] = Some(answer.sequence);
                    flights[index].is_repeated = flights[index].append.is_once && answer.duplicate;
                }
                Some(Err(error)) if error.kind() == PublishErrorKind::Other => {
                    // The server has rejected the record, and will again.
                    if rejected.last().is_none_or(|last| last.index != index) {
                        let source = error.source().and_then(|source| source.downcast_ref());
                        rejected.push(RejectedAppend {
                            index,
                            reason: format!("NATS rejected the record: {error}"),
                            rejects_all: source.is_some_and(rejects_all),
                        });
                    }
                }
                Some(Err(error)) => {
                    // Without a stream, or without its leader, no server answers.
                    self.streams.forget(&flights[index].name);
                    return Err(error.to_string());
                }
            }
        }
        Ok(rejected)
    }
}

/// Whether the error concerns all appends, and not only this record or stream.
fn rejects_all(error: &jetstream::Error) -> bool {
    let is_limit_of_stream =
        error.error_code() == ErrorCode::STREAM_STORE_FAILED && error.to_string().contains("maximum");
    error.code() >= 500 && !is_limit_of_stream
}

/// Fails sent appends whose ids the server may have forgotten: resending them could store them twice.
fn fail_expired(flights: &mut Vec<NatsAppend>, name: &str, duplicate_window: Duration) -> bool {
    let is_expired = |flight: &mut NatsAppend| {
        let is_open = flight.name == name && flight.sequences.iter().any(Option::is_none);
        is_open && flight.sent.is_some_and(|sent| sent.elapsed() >= duplicate_window)
    };
    let expired: Vec<NatsAppend> = flights.extract_if(.., is_expired).collect();
    let is_any = !expired.is_empty();
    for flight in expired {
        flight.append.fail("NATS has not acknowledged the records in time: they may or may not be stored");
    }
    is_any
}

/// The reason why the server would never accept the append, if so.
fn too_large(context: &Context, flight: &NatsAppend) -> Option<String> {
    let most = context.client().server_info().max_payload;
    // Base64 makes a key a third longer in a header. An idempotency key is in the id, too.
    let keys = if flight.append.is_once { 2 } else { 1 };
    let size = |record: Record<'_>| record.value.len() + keys * (record.key.len() * 4 / 3) + HEADERS_BYTES;
    let is_large = flight.append.records.iter().flatten().any(|record| size(record) > most);
    is_large.then(|| format!("a record exceeds the maximum of {most} bytes of NATS (max_payload)"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::io::{self, BufRead, BufReader, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use sinews_stream::Durability;
    use sinews_stream::record::{RecordBuilder, ValueKind};

    use super::super::settings::NatsSettings;
    use super::*;
    use crate::reconnect::simulated;
    use crate::status::Status;
    use crate::url::BrokerUrl;

    /// Records behind which the server closes the connection.
    const LOST_RECORDS: usize = 3;
    const INFO: &str = r#"{"server_id":"x","version":"2.10.0","max_payload":1048576,"headers":true}"#;
    const STREAM: &str = r#"{"config":{"name":"s-0","subjects":["s-0"],"retention":"limits","max_consumers":-1,
        "max_msgs":-1,"max_bytes":-1,"discard":"old","max_age":0,"max_msgs_per_subject":-1,"storage":"file",
        "num_replicas":1,"duplicate_window":120000000000},"created":"2024-01-01T00:00:00Z","state":{"messages":0,
        "bytes":0,"first_seq":1,"first_ts":"2024-01-01T00:00:00Z","last_seq":0,
        "last_ts":"2024-01-01T00:00:00Z","consumer_count":0}}"#;

    /// Serves a connection until the client or the server closes it.
    fn serve(stream: TcpStream, records: &AtomicUsize) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        write!(reader.get_mut(), "INFO {INFO}\r\n")?;
        let mut subscription = String::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line)? == 0 {
                return Ok(());
            }
            let words: Vec<&str> = line.trim_end().split(' ').collect();
            let answer = match words[..] {
                ["PING"] => {
                    reader.get_mut().write_all(b"PONG\r\n")?;
                    continue;
                }
                ["SUB", .., id] => {
                    id.clone_into(&mut subscription);
                    continue;
                }
                ["HPUB", ..] if records.fetch_add(1, Ordering::SeqCst) < LOST_RECORDS => return Ok(()),
                ["HPUB", ..] => r#"{"stream":"s-0","seq":7}"#,
                ["PUB", ..] => STREAM,
                _ => continue,
            };
            let size: usize = words.last().and_then(|size| size.parse().ok()).expect("a size");
            reader.read_exact(&mut vec![0; size + 2])?;
            let (inbox, length) = (words[2], answer.len());
            write!(reader.get_mut(), "MSG {inbox} {subscription} {length}\r\n{answer}\r\n")?;
        }
    }

    #[test]
    fn delays_of_appends_grow_across_logins() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let url = format!("nats://{}", listener.local_addr().expect("it is bound"));
        // One connection for each record, and one that is closed before the login between two of them; one for the
        // stream.
        let server = thread::spawn(move || {
            let records = Arc::new(AtomicUsize::new(0));
            for connection in 0..=2 * LOST_RECORDS + 1 {
                let (stream, _) = listener.accept().expect("a connection");
                if connection < 2 || connection % 2 == 1 {
                    let records = Arc::clone(&records);
                    thread::spawn(move || drop(serve(stream, &records)));
                }
            }
        });
        let mut address = BrokerUrl::parse(&url, &BTreeMap::new()).expect("a URL");
        let status = Arc::new(Status::new(url, Duration::ZERO));
        let streams =
            JetStreams::new(NatsSettings::from_address(&mut address).expect("settings"), Arc::clone(&status));
        let mut records = RecordBuilder::new();
        records.push(0, b"", b"a", ValueKind::Bytes).expect("small");
        let (append, mut pending) = QueuedAppend::without_queue(records.finish().expect("a record"), status);
        let (queue, receiver) = mpsc::channel(1);
        assert!(queue.try_send(append).is_ok(), "room");
        drop(queue);
        simulated::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(NatsPublisher::new(&streams).run(receiver));
        assert_eq!(pending.block(Durability::Broker).expect("an acknowledgement").first, 7);
        // The first one is for the stream's connection.
        let delays = simulated::delays();
        assert_eq!(delays.len(), 1 + 2 * LOST_RECORDS, "{delays:?}");
        simulated::assert_growth(&delays[1..]);
        server.join().expect("no panic");
    }
}
