//! NATS with JetStream: a partition is a JetStream stream with one subject of the same name; an offset is a sequence.
//!
//! Sequences begin at 1. Every record has an id, so that a record resent after a lost connection is not stored twice.
//! Appends are sent in order, and unacknowledged appends are resent on a new connection before later ones: the client's
//! own behavior, to continue with its buffer, would reverse the order.
//!
//! Core NATS stores no messages, so it has no offsets from which to continue.

mod append;
mod denied;
mod follow;
mod login;
mod message;
mod pull;
mod settings;
pub(crate) mod store;
mod streams;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::PullConsumer;
use async_nats::jetstream::stream::{self, LastRawMessageErrorKind};
use futures_util::StreamExt;
use sinews_stream::broker::{BatchEncoder, BrokerError, LogSink, STREAMS_MAX};
use sinews_stream::{ReadResult, StartPosition};
use tokio::sync::mpsc;

use crate::error::BrokerConfigError;
use crate::remote::{BrokerEngine, QUEUE_BYTES, QueuedAppend, RemoteBroker, too_many_streams};
use crate::status::Status;
use crate::url::BrokerUrl;
use append::NatsPublisher;
use denied::RequestedSubject;
use message::{key_of, record};
use pull::PullLimit;
use settings::{NatsSettings, SETTINGS};
use streams::{JetStreams, by_sequence, consumer, extent};

const PORT: u16 = 4222;
/// A consumer may see a message slightly after the server has acknowledged it.
const VISIBILITY_DELAY: Duration = Duration::from_millis(250);

/// Timeout of reading old messages: less than that of the request, so that the consumer is deleted.
const READ_TIMEOUT: Duration = Duration::from_secs(4);

/// Subject that answers whether JetStream is available.
const ACCOUNT: &str = "$JS.API.INFO";
/// Subject of the list of streams.
const NAMES: &str = "$JS.API.STREAM.NAMES";
/// Maximum reported characters of an error text.
const ERROR_CHARS: usize = 300;

struct Nats {
    streams: JetStreams,
}

pub(crate) fn connect(mut address: BrokerUrl) -> Result<RemoteBroker, BrokerConfigError> {
    address.default_port(PORT);
    let bytes = address.take_number("queue.bytes", QUEUE_BYTES)?;
    let settings = NatsSettings::from_address(&mut address)?;
    let failure_timeout = address.take_failure_timeout()?;
    address.reject_unknown_settings(&SETTINGS)?;
    let status = Arc::new(Status::new(address.to_string(), failure_timeout));
    let shared = status.clone();
    RemoteBroker::start("nats", &address, bytes, status, move || Nats {
        streams: JetStreams::new(settings, shared),
    })
}

/// The name of a fetch's consumer. Dropping it deletes the consumer at the server, also if the fetch took too long or was
/// dropped while the consumer was being created: the server would count it against the account's limit for a while.
struct FetchConsumer {
    stream: stream::Stream,
    name: String,
}

impl FetchConsumer {
    async fn new(streams: &JetStreams, stream: stream::Stream) -> Result<Self, String> {
        let inbox = streams.reader().await?.client().new_inbox();
        let unique = inbox.rsplit('.').next().unwrap_or_default();
        Ok(Self { stream, name: format!("sinews-{unique}") })
    }
}

impl Drop for FetchConsumer {
    fn drop(&mut self) {
        let (stream, name) = (self.stream.clone(), std::mem::take(&mut self.name));
        // The answer does not wait.
        tokio::task::spawn_local(async move {
            if let Err(error) = stream.delete_consumer(&name).await {
                tracing::debug!("consumer {name} is left to its expiry: {error}");
            }
        });
    }
}

/// Reads messages up to the end offset or until the batches have enough bytes.
async fn read_old(
    consumer: &PullConsumer,
    mut limit: PullLimit,
    end: u64,
    max_bytes: usize,
    batches: &mut BatchEncoder,
) -> Result<(), BrokerError> {
    let (from, mut waits) = (batches.next(), false);
    while batches.next() < end && batches.len() < max_bytes {
        let (count, bytes) = (limit.messages(), limit.bytes());
        let messages = if waits {
            consumer.batch().max_messages(count).max_bytes(bytes).expires(VISIBILITY_DELAY).messages().await
        } else {
            consumer.fetch().max_messages(count).max_bytes(bytes).messages().await
        };
        let mut messages = messages.map_err(BrokerError::failed)?;
        let (before, mut failure) = (batches.next(), None);
        while batches.next() < end
            && batches.len() < max_bytes
            && let Some(message) = messages.next().await
        {
            match message {
                Ok(message) => {
                    let sequence = message.info().map_err(BrokerError::failed)?.stream_sequence;
                    batches.push(&record(&message, sequence, &key_of(&message)));
                }
                Err(error) => failure = Some(error.to_string()),
            }
        }
        if let Some(reason) = limit.is_reached(batches.next() > before, failure) {
            return Err(BrokerError::failed(reason));
        }
        if batches.next() == before && !limit.is_single() {
            if waits {
                break;
            }
            waits = true;
        }
    }
    if batches.next() == from {
        // The stream has records there, so an empty result would be wrong.
        return Err(BrokerError::failed(format!(
            "no messages received from offset {from} on, although the stream ends at {end}"
        )));
    }
    Ok(())
}

impl BrokerEngine for Nats {
    async fn publish(&self, queue: mpsc::Receiver<QueuedAppend>) {
        NatsPublisher::new(&self.streams).run(queue).await;
    }

    async fn follow(&self, stream: &str, partition: u32, from: StartPosition, sink: &mut LogSink) -> String {
        let name = self.streams.settings.name(stream, partition);
        follow::follow(&self.streams, &name, from, sink).await
    }

    async fn fetch(
        &self,
        stream: &str,
        partition: u32,
        from: u64,
        max_bytes: usize,
    ) -> Result<ReadResult, BrokerError> {
        let name = self.streams.settings.name(stream, partition);
        let stream = self.streams.stream(&name).await.map_err(BrokerError::failed)?;
        let (earliest, end) = extent(&stream);
        if from < earliest {
            return Err(BrokerError::Gone { earliest });
        }
        let mut batches = BatchEncoder::new(from);
        if from >= end {
            return Ok(batches.finish());
        }
        let limit = PullLimit::new(&self.streams, max_bytes).await.map_err(BrokerError::failed)?;
        let created = FetchConsumer::new(&self.streams, stream).await.map_err(BrokerError::failed)?;
        let unique = Some(created.name.clone());
        let denied = &self.streams.denied;
        let consumer = denied
            .request(RequestedSubject::Consumer(&name), consumer(&created.stream, unique, by_sequence(from)))
            .await;
        let consumer = consumer.flatten().map_err(BrokerError::failed)?;
        let reading = read_old(&consumer, limit, end, max_bytes, &mut batches);
        let reading =
            denied.request(RequestedSubject::Consumer(&name), tokio::time::timeout(READ_TIMEOUT, reading));
        let outcome = reading.await.map_err(BrokerError::failed)?;
        drop(created);
        match outcome {
            Ok(read) => read.map(|()| batches.finish()),
            Err(_) if batches.is_empty() => {
                Err(BrokerError::failed(format!("NATS did not send offset {from} in time")))
            }
            Err(_) => Ok(batches.finish()),
        }
    }

    async fn offset_range(&self, stream: &str, partition: u32) -> Result<(u64, u64), BrokerError> {
        let name = self.streams.settings.name(stream, partition);
        self.streams.stream(&name).await.map(|stream| extent(&stream)).map_err(BrokerError::failed)
    }

    /// The configuration sets how many JetStream streams form one stream here.
    async fn partitions(&self, _: &str) -> Result<u32, BrokerError> {
        Ok(self.streams.settings.partitions)
    }

    async fn streams(&self) -> Result<Vec<String>, BrokerError> {
        let context = self.streams.reader().await.map_err(BrokerError::failed)?;
        let (mut streams, mut names) = (Vec::new(), context.stream_names());
        while let Some(name) = self
            .streams
            .denied
            .request(RequestedSubject::Exact(NAMES), names.next())
            .await
            .map_err(BrokerError::failed)?
        {
            streams.extend(self.streams.settings.stream_of(&name.map_err(BrokerError::failed)?));
            if streams.len() > STREAMS_MAX {
                return Err(too_many_streams());
            }
        }
        Ok(streams)
    }

    async fn commit(
        &self,
        stream: &str,
        partition: u32,
        group: &str,
        offset: u64,
    ) -> Result<(), BrokerError> {
        let (_, groups) = self.streams.groups().await.map_err(BrokerError::failed)?;
        let subject = self.streams.group(&groups, stream, partition, group);
        let context = self.streams.reader().await.map_err(BrokerError::failed)?;
        let stored =
            async { context.publish(subject.clone(), offset.to_string().into()).await?.await.map(|_| ()) };
        let stored = self
            .streams
            .denied
            .request(RequestedSubject::Exact(&subject), stored)
            .await
            .map_err(BrokerError::failed)?;
        stored.map_err(BrokerError::failed)
    }

    async fn committed(&self, stream: &str, partition: u32, group: &str) -> Result<Option<u64>, BrokerError> {
        let (committed, groups) = self.streams.groups().await.map_err(BrokerError::failed)?;
        let subject = self.streams.group(&groups, stream, partition, group);
        let read = committed.get_last_raw_message_by_subject(&subject);
        match self
            .streams
            .denied
            .request(RequestedSubject::Message(&groups), read)
            .await
            .map_err(BrokerError::failed)?
        {
            Ok(message) => Ok(std::str::from_utf8(&message.payload).ok().and_then(|text| text.parse().ok())),
            Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(None),
            Err(error) => Err(BrokerError::failed(error)),
        }
    }

    async fn probe(&self) -> Result<(), String> {
        // Not the client's own request: it rejects the answer of servers before 2.10, which lacks some fields.
        let client = self.streams.reader().await?.client();
        let answer = client.request(ACCOUNT, Vec::new().into());
        let answer = match self.streams.denied.request(RequestedSubject::Exact(ACCOUNT), answer).await {
            Ok(answer) => answer.map_err(|error| error.to_string())?,
            // Without the right to this request, the server answers nevertheless.
            Err(reason) => {
                self.streams.status.record_error(&reason);
                return Ok(());
            }
        };
        let text = String::from_utf8_lossy(&answer.payload);
        if text.contains(r#""error":{"#) { Err(text.chars().take(ERROR_CHARS).collect()) } else { Ok(()) }
    }
}
