//! Redis 7 or later: a partition is a Redis stream, an offset the second half of an id.
//!
//! Ids are assigned by `XADD key 0-*`, so that they are `0-1`, `0-2` and so on: offset N is id `0-N`. A script adds the
//! records of an append, and announces them with a message on the channel of the same name ([`announcement`]). A
//! follower takes the records from the announcement if they are the next ones; otherwise it reads the stream from its
//! position. So a message that Redis drops, as it silently does for a slow subscriber, costs no record. The stream is
//! also read every second.

mod announcement;
mod append;
mod client;
mod entries;
mod error;
pub(crate) mod store;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamId, StreamRangeReply};
use redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisResult, cmd};
use sinews_stream::broker::{BatchEncoder, BrokerError, LogSink, STREAMS_MAX};
use sinews_stream::{ReadResult, StartPosition};
use tokio::sync::mpsc;

use self::announcement::{Announcement, Announcements, EntryFields, fingerprint};
use self::append::AppendScript;
use self::client::client;
use self::entries::{EntriesRequest, extent_command, unexpected_id};
use self::error::{FollowError, NO_RIGHT, QueryError, is_answer, is_missing_key, rejection};
use crate::error::BrokerConfigError;
use crate::followed;
use crate::reconnect::ReconnectDelay;
use crate::remote::{
    BrokerEngine, QUEUE_BYTES, QueuedAppend, REQUEST_TIMEOUT, RETRY_INTERVAL, RemoteBroker, WakeSignal,
    flush_all, too_many_streams,
};
use crate::shared_connection::SharedConnection;
use crate::status::Status;
use crate::url::{BrokerUrl, FAILURE_TIMEOUT};

/// Maximum appends that are sent and answered together.
const APPENDS_MAX: usize = 256;
/// Maximum entries that a follower reads at once, and the bytes after which no further entry is read.
const ENTRIES_MAX: usize = 512;
const ENTRIES_BYTES: usize = 1 << 20;
/// Keys that one command scans: Redis is busy for less than a millisecond.
const KEYS_SCANNED: usize = 1000;
/// End of the key of a stream's first partition.
const FIRST_PARTITION: &str = ":0";
/// Interval in which a stream is read, whatever is announced.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Idle time after which a connection is probed before it carries an append.
const IDLE: Duration = Duration::from_secs(1);

/// Setting names, for errors.
const SETTINGS: [&str; 6] = ["database", FAILURE_TIMEOUT, "maxlen", "partitions", "prefix", "queue.bytes"];

/// The command of a follower for announcements.
const SUBSCRIBE: &str = "SUBSCRIBE";

/// A stream that never exists.
const PROBE: &str = "sinews-probe";

struct Redis {
    client: Client,
    prefix: String,
    partitions: u32,
    /// Approximate maximum entries per stream; 0 means no limit.
    maxlen: u64,
    status: Arc<Status>,
    /// Not for appends.
    connection: SharedConnection<MultiplexedConnection>,
    /// Announcements for the followers, by channel.
    announcements: RefCell<HashMap<String, Rc<Announcements>>>,
    /// Notified when a follower needs a subscription.
    subscribe: WakeSignal,
}

pub(crate) fn connect(mut address: BrokerUrl) -> Result<RemoteBroker, BrokerConfigError> {
    address.default_port(client::PORT);
    let (partitions, maxlen) = (address.take_number("partitions", 1)?, address.take_number("maxlen", 0)?);
    let (database, bytes) =
        (address.take_number("database", 0)?, address.take_number("queue.bytes", QUEUE_BYTES)?);
    let prefix = address.take("prefix").unwrap_or_default();
    let failure_timeout = address.take_failure_timeout()?;
    address.reject_unknown_settings(&SETTINGS)?;
    let partitions = u32::try_from(partitions)
        .map_err(|_| address.setting_error("partitions", "the number is too large"))?;
    let [host] = &address.hosts[..] else {
        let reason = "Redis supports one host: a cluster has no transactions across keys".to_owned();
        return Err(BrokerConfigError::Url { scheme: address.scheme, reason });
    };
    let client = client(&address, host, database).map_err(|error| address.client_error(&error))?;
    let status = Arc::new(Status::new(address.to_string(), failure_timeout));
    let shared = status.clone();
    RemoteBroker::start("redis", &address, bytes, status, move || Redis {
        client,
        prefix,
        partitions,
        maxlen,
        status: shared,
        connection: SharedConnection::default(),
        announcements: RefCell::default(),
        subscribe: WakeSignal::default(),
    })
}

impl Redis {
    fn key(&self, stream: &str, partition: u32) -> String {
        append::key(&self.prefix, stream, partition)
    }

    async fn open(&self) -> RedisResult<MultiplexedConnection> {
        let settings = AsyncConnectionConfig::new();
        let settings = settings
            .set_connection_timeout(Some(REQUEST_TIMEOUT))
            .set_response_timeout(Some(REQUEST_TIMEOUT));
        self.client.get_multiplexed_async_connection_with_config(&settings).await
    }

    /// Runs a command on the connection for everything except appends.
    async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, QueryError> {
        let connected = self.connection.get(self.open()).await;
        let (mut connection, number) = connected.map_err(QueryError::Failed)?;
        let answer: RedisResult<T> = command.query_async(&mut connection).await;
        match answer {
            Err(error) if is_missing_key(&error) => Err(QueryError::MissingKey),
            Err(error) if error.code() == Some(NO_RIGHT) => {
                Err(QueryError::NoRight(rejection(command, &error)))
            }
            Err(error) if is_answer(&error) => Err(QueryError::Failed(rejection(command, &error))),
            // The next command reconnects.
            Err(error) => {
                self.connection.discard(number, &error.to_string()).await;
                Err(QueryError::Failed(error.to_string()))
            }
            Ok(value) => Ok(value),
        }
    }

    /// A stream's first and next offset.
    async fn extent(&self, key: &str) -> Result<(u64, u64), FollowError> {
        let ids: Result<Vec<String>, QueryError> = self.query(&extent_command(key)).await;
        match ids {
            Ok(ids) => {
                let id = ids.first().map_or("", String::as_str);
                let last = offset(id).ok_or_else(|| FollowError::Permanent(unexpected_id(id)))?;
                Ok((ids.get(1).and_then(|first| offset(first)).unwrap_or(last + 1), last + 1))
            }
            // No record was stored yet.
            Err(QueryError::MissingKey) => Ok((1, 1)),
            Err(error) => Err(error.into()),
        }
    }

    async fn entry(&self, key: &str, from: u64) -> Result<Option<StreamId>, QueryError> {
        let mut command = cmd("XRANGE");
        command.arg(key).arg(format!("0-{from}")).arg("+").arg("COUNT").arg(1);
        Ok(self.query::<StreamRangeReply>(&command).await?.ids.into_iter().next())
    }

    async fn start_offset(&self, key: &str, from: StartPosition) -> Result<u64, FollowError> {
        match from {
            StartPosition::Earliest => Ok(0),
            StartPosition::Offset(offset) => Ok(offset),
            StartPosition::Latest => Ok(self.extent(key).await?.1),
            StartPosition::Time(time) => {
                let (mut low, mut high) = self.extent(key).await?;
                while low < high {
                    let middle = low + (high - low) / 2;
                    match self.entry(key, middle).await? {
                        Some(entry) if EntryFields::from_entry(&entry).time() < time => {
                            low = offset(&entry.id).unwrap_or(middle) + 1
                        }
                        _ => high = middle,
                    }
                }
                Ok(low)
            }
        }
    }

    /// Rejects a stream that ends before the copy: it was recreated.
    async fn check_end(&self, key: &str, next: u64) -> Result<(), FollowError> {
        let (_, end) = self.extent(key).await?;
        if end < next {
            return Err(FollowError::Permanent(followed::ends_before("Redis", end, next)));
        }
        Ok(())
    }

    /// Copies entries until an error occurs.
    async fn follow_from(
        &self,
        key: &str,
        next: &mut u64,
        sink: &mut LogSink,
        announcements: &Announcements,
    ) -> Result<(), FollowError> {
        self.check_end(key, sink.next()).await?;
        let known = sink.last().filter(|last| last.offset + 1 == *next);
        let last = known.map(|last| (last.offset, fingerprint(last.timestamp, &last.key, &last.value)));
        let mut copy = StreamCopy { key, next, last, sink, status: &self.status };
        loop {
            while !self.read_entries(&mut copy).await? {}
            // Also while announcements arrive: another stream with this name is found by its last known entry.
            let read_at = tokio::time::Instant::now() + POLL_INTERVAL;
            while let Ok(announcement) = tokio::time::timeout_at(read_at, announcements.next()).await {
                if !copy.take(&announcement).await? {
                    break;
                }
                if announcements.is_empty() {
                    copy.flush().await?;
                }
            }
            copy.flush().await?;
        }
    }

    /// Copies entries from the stream; returns whether these were all.
    async fn read_entries(&self, copy: &mut StreamCopy<'_>) -> Result<bool, FollowError> {
        // Reads from the last known entry on: a different entry at its offset belongs to another stream.
        let known = copy.last.map(|(offset, _)| offset);
        let request = EntriesRequest {
            from: known.unwrap_or(*copy.next),
            known,
            count_max: ENTRIES_MAX,
            bytes_max: ENTRIES_BYTES,
        };
        let (is_end, found) = self.query(&request.command(copy.key)).await?;
        let (is_end, mut entries) = entries::answer(is_end, found);
        if let (Some((known, fingerprint)), Some(first)) = (copy.last, entries.first())
            && offset(&first.id) == Some(known)
        {
            if EntryFields::from_entry(first).fingerprint() != fingerprint {
                return Err(FollowError::Permanent(followed::another_record(known)));
            }
            entries.remove(0);
        }
        if entries.is_empty() {
            // The stream may have been recreated meanwhile.
            self.check_end(copy.key, copy.sink.next()).await?;
        }
        for entry in &entries {
            let Some(offset) = offset(&entry.id) else {
                return Err(FollowError::Permanent(unexpected_id(&entry.id)));
            };
            copy.push(offset, &EntryFields::from_entry(entry)).await?;
        }
        copy.flush().await?;
        Ok(is_end)
    }

    /// Retries until it succeeds.
    async fn connect_with_retry(&self, delay: &mut ReconnectDelay) -> MultiplexedConnection {
        loop {
            match self.open().await {
                Ok(connection) => return connection,
                Err(error) => self.status.mark_unreachable(&error.to_string()),
            }
            delay.wait().await;
        }
    }

    /// Subscribes to all followers' channels, and passes the announcements on, until an error occurs.
    async fn listen(&self) -> RedisResult<()> {
        let (mut sink, mut messages) = self.client.get_async_pubsub().await?.split();
        let mut subscribed = HashMap::new();
        loop {
            let new: Vec<(String, Rc<Announcements>)> = {
                let all = self.announcements.borrow();
                let new = all.iter().filter(|(key, _)| !subscribed.contains_key(*key));
                new.map(|(key, announcements)| (key.clone(), announcements.clone())).collect()
            };
            for (key, announcements) in new {
                match sink.subscribe(&key).await {
                    // Redis rejects this channel alone, for example by its rights: the stream is read every second.
                    Err(error) if error.code().is_some() => {
                        let reason = rejection(cmd(SUBSCRIBE).arg(&key), &error);
                        self.status.record_error(&format!("{key} is read every second: {reason}"));
                    }
                    subscribed => subscribed?,
                }
                // Messages before the subscription were missed.
                announcements.push(Announcement::default());
                subscribed.insert(key, announcements);
            }
            let subscription_requested = pin!(self.subscribe.notified());
            match select(subscription_requested, messages.next()).await {
                Either::Left(_) => {}
                Either::Right((Some(message), _)) => {
                    if let Some(announcements) = subscribed.get(message.get_channel_name()) {
                        announcements.push(Announcement::read(message.get_payload_bytes()));
                    }
                }
                // Redis has closed the connection of a subscriber that was too slow, or has shut down.
                Either::Right((None, _)) => return Ok(()),
            }
        }
    }
}

/// The copy of a stream, up to the entry before `next`.
struct StreamCopy<'a> {
    key: &'a str,
    next: &'a mut u64,
    /// Offset and fingerprint of the last entry.
    last: Option<(u64, u32)>,
    sink: &'a mut LogSink,
    status: &'a Status,
}

impl StreamCopy<'_> {
    async fn push(&mut self, offset: u64, fields: &EntryFields<'_>) -> Result<(), FollowError> {
        *self.next = offset + 1;
        if !self.sink.push(&fields.record(offset)) {
            let key = self.key;
            self.status
                .record_error(&format!("{key}: the record at offset {offset} is too large and is skipped"));
        }
        self.last = Some((offset, fields.fingerprint()));
        if self.sink.is_full() {
            self.flush().await?;
        }
        Ok(())
    }

    /// Copies announced entries, if they follow the last one; returns whether they do.
    async fn take(&mut self, announcement: &Announcement) -> Result<bool, FollowError> {
        let Some((first, entries)) = announcement.entries().filter(|(first, _)| first == self.next) else {
            return Ok(false);
        };
        // Other programs may publish to the channel.
        let Some(end) = first.checked_add(entries.len() as u64) else { return Ok(false) };
        for (offset, fields) in (first..end).zip(&entries) {
            self.push(offset, fields).await?;
        }
        Ok(true)
    }

    async fn flush(&mut self) -> Result<(), FollowError> {
        flush_all(self.sink, self.key, self.status).await.map_err(FollowError::Permanent)
    }
}

impl BrokerEngine for Redis {
    const RECORDS_MAX: u32 = append::RECORDS_MAX;

    async fn publish(&self, mut queue: mpsc::Receiver<QueuedAppend>) {
        let mut known: Option<(MultiplexedConnection, Instant)> = None;
        let (mut script, mut received) = (AppendScript::new(&self.prefix, self.maxlen), Vec::new());
        let mut delay = ReconnectDelay::default();
        while queue.recv_many(&mut received, APPENDS_MAX).await > 0 {
            for batch in append::batches(received.drain(..)) {
                let mut connection = match known.take() {
                    Some((connection, used)) if used.elapsed() < IDLE => connection,
                    Some((connection, _)) if is_alive(connection.clone()).await => connection,
                    _ => {
                        let mut connection = self.connect_with_retry(&mut delay).await;
                        script.load(&mut connection).await;
                        connection
                    }
                };
                match script.append(&batch, &mut connection).await {
                    Ok(answers) => {
                        append::answer(batch, answers);
                        known = Some((connection, Instant::now()));
                    }
                    // Retrying could store the records twice.
                    Err(error) => {
                        self.status.mark_unreachable(&error.to_string());
                        let reason =
                            format!("no answer from Redis ({error}): the records may or may not be stored");
                        batch.into_iter().for_each(|append| append.fail(&reason));
                        delay.wait().await;
                    }
                }
            }
        }
    }

    async fn follow(&self, stream: &str, partition: u32, from: StartPosition, sink: &mut LogSink) -> String {
        let (key, announcements) = (self.key(stream, partition), Rc::new(Announcements::default()));
        self.announcements.borrow_mut().insert(key.clone(), announcements.clone());
        self.subscribe.notify();
        let mut next = None;
        loop {
            let result = match next {
                None => {
                    let start = self.start_offset(&key, sink.start_position(from)).await;
                    start.map(|offset| next = Some(offset))
                }
                Some(ref mut next) => self.follow_from(&key, next, sink, &announcements).await,
            };
            match result {
                Ok(()) => {}
                Err(FollowError::Permanent(reason)) => return reason,
                Err(FollowError::Transient(error)) => {
                    self.status.record_error(&format!("{key}: {error}"));
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }

    async fn fetch(
        &self,
        stream: &str,
        partition: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<ReadResult, BrokerError> {
        let key = self.key(stream, partition);
        let (earliest, end) = self.extent(&key).await.map_err(BrokerError::failed)?;
        if from < earliest {
            return Err(BrokerError::Gone { earliest });
        }
        let mut batches = BatchEncoder::new(from);
        while batches.next() < end && batches.len() < max_bytes {
            let request = EntriesRequest {
                from: batches.next(),
                known: None,
                count_max: ENTRIES_MAX,
                bytes_max: max_bytes - batches.len(),
            };
            let answer = self.query(&request.command(&key)).await;
            let (is_end, found) = answer.map_err(BrokerError::failed)?;
            let (is_end, entries) = entries::answer(is_end, found);
            for entry in &entries {
                let offset =
                    offset(&entry.id).ok_or_else(|| BrokerError::failed(unexpected_id(&entry.id)))?;
                batches.push(&EntryFields::from_entry(entry).record(offset));
            }
            if is_end {
                break;
            }
        }
        Ok(batches.finish())
    }

    async fn offset_range(&self, stream: &str, partition: u32) -> Result<(u64, u64), BrokerError> {
        self.extent(&self.key(stream, partition)).await.map_err(BrokerError::failed)
    }

    /// Redis has only single streams; the configuration sets how many form one stream here.
    async fn partitions(&self, _: &str) -> Result<u32, BrokerError> {
        Ok(self.partitions)
    }

    async fn streams(&self) -> Result<Vec<String>, BrokerError> {
        let (mut streams, mut cursor) = (BTreeSet::new(), 0);
        loop {
            let mut command = cmd("SCAN");
            command.arg(cursor).arg("MATCH").arg(first_partitions(&self.prefix));
            command.arg("COUNT").arg(KEYS_SCANNED).arg("TYPE").arg("stream");
            let found: (u64, Vec<String>) = self.query(&command).await.map_err(BrokerError::failed)?;
            // A key may be returned several times.
            streams.extend(found.1.iter().filter_map(|key| {
                Some(key.strip_prefix(&*self.prefix)?.strip_suffix(FIRST_PARTITION)?.to_owned())
            }));
            if streams.len() > STREAMS_MAX {
                return Err(too_many_streams());
            }
            cursor = found.0;
            if cursor == 0 {
                return Ok(streams.into_iter().collect());
            }
        }
    }

    async fn commit(
        &self,
        stream: &str,
        partition: u32,
        group: &str,
        offset: u64,
    ) -> Result<(), BrokerError> {
        let key = format!("{}:groups", self.key(stream, partition));
        self.query::<()>(cmd("HSET").arg(key).arg(group).arg(offset)).await.map_err(BrokerError::failed)
    }

    async fn committed(&self, stream: &str, partition: u32, group: &str) -> Result<Option<u64>, BrokerError> {
        let key = format!("{}:groups", self.key(stream, partition));
        self.query(cmd("HGET").arg(key).arg(group)).await.map_err(BrokerError::failed)
    }

    async fn probe(&self) -> Result<(), String> {
        match self.query::<()>(&cmd("PING")).await {
            // Without the right to ping, Redis answers nevertheless.
            Err(QueryError::NoRight(reason)) => {
                self.status.record_error(&reason);
                Ok(())
            }
            answer => answer.map_err(|error| error.to_string()),
        }
    }

    /// Redis rejects a write command before it checks whether the stream exists.
    async fn probe_append(&self) -> Option<Result<(), String>> {
        let mut command = cmd("XADD");
        command
            .arg(format!("{}{PROBE}", self.prefix))
            .arg("NOMKSTREAM")
            .arg("*")
            .arg(announcement::VALUE)
            .arg("");
        let answer = self.query::<Option<String>>(&command).await;
        Some(answer.map(|_| ()).map_err(|error| error.to_string()))
    }

    async fn run(&self) {
        let mut delay = ReconnectDelay::default();
        loop {
            if let Err(error) = self.listen().await {
                self.status.record_error(&error.to_string());
            }
            delay.wait().await;
        }
    }
}

/// The pattern of Redis for the keys of first partitions.
fn first_partitions(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 3);
    for character in prefix.chars() {
        if "*?[]\\^".contains(character) {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern + "*" + FIRST_PARTITION
}

/// Whether a connection still has answers: a rejection is one.
async fn is_alive(mut connection: MultiplexedConnection) -> bool {
    cmd("PING").query_async::<()>(&mut connection).await.map_or_else(|error| is_answer(&error), |()| true)
}

/// The offset of an id of this bridge, at which a further record may follow.
fn offset(id: &str) -> Option<u64> {
    id.strip_prefix("0-")?.parse().ok().filter(|offset| *offset < u64::MAX)
}

#[cfg(test)]
mod tests;
