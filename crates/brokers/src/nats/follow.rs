//! Follows streams: an ordered read of each, repeated from the end of the copy after an error.

use std::time::Duration;

use async_nats::jetstream::consumer::{DeliverPolicy, PullConsumer};
use async_nats::jetstream::stream::{self, LastRawMessageErrorKind};
use futures_util::StreamExt;
use sinews_stream::StartPosition;
use sinews_stream::broker::LogSink;

use super::denied::RequestedSubject;
use super::message::{is_record, key_of, record};
use super::pull::PullLimit;
use super::streams::{JetStreams, by_sequence, by_time, consumer, extent};
use crate::followed;
use crate::remote::{RETRY_INTERVAL, flush_all};

/// Message bytes read ahead for each partition.
const READ_AHEAD: usize = 4 << 20;
/// Expiry of a request for messages at the server.
const PULL_EXPIRY: Duration = Duration::from_secs(2);

/// Writes the stream's records into the sink indefinitely. Returns the reason if that is impossible.
pub(super) async fn follow(
    streams: &JetStreams,
    name: &str,
    from: StartPosition,
    sink: &mut LogSink,
) -> String {
    let mut from = Some(from);
    loop {
        let begin = from;
        match follow_from(streams, name, &mut from, sink).await {
            Err(reason) => return reason,
            Ok(Ok(())) => {}
            Ok(Err(reason)) => {
                streams.status.record_error(&format!("{name}: {reason}"));
                // No message has arrived yet: the start position is unchanged.
                if sink.next() == 0 {
                    from = begin;
                }
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// Reads until an error occurs. The outer error is permanent.
async fn follow_from(
    streams: &JetStreams,
    name: &str,
    from: &mut Option<StartPosition>,
    sink: &mut LogSink,
) -> Result<Result<(), String>, String> {
    let stream = match streams.followed(name).await {
        Ok(stream) => stream,
        Err(fault) => return Ok(Err(fault.to_string())),
    };
    streams.store_creation(name, &stream);
    if let Some(reason) = streams.recreated(name, &stream) {
        return Err(reason);
    }
    let end = extent(&stream).1;
    if end < sink.next() {
        return Err(followed::ends_before("NATS", end, sink.next()));
    }
    match streams.denied.request(RequestedSubject::Message(name), has_last(&stream, sink)).await.flatten() {
        Ok(true) => {}
        Ok(false) => return Err(followed::another_record(sink.next() - 1)),
        Err(reason) => return Ok(Err(reason)),
    }
    let policy = match from.take().map(|from| sink.start_position(from)) {
        Some(StartPosition::Earliest) => DeliverPolicy::All,
        Some(StartPosition::Latest) => by_sequence(end),
        Some(StartPosition::Time(time)) => by_time(&stream, time),
        Some(StartPosition::Offset(offset)) => by_sequence(offset),
        None => by_sequence(sink.next()),
    };
    let consumer = match streams
        .denied
        .request(RequestedSubject::Consumer(name), consumer(&stream, None, policy))
        .await
        .flatten()
    {
        Ok(consumer) => consumer,
        Err(reason) => return Ok(Err(reason)),
    };
    consume(streams, name, &consumer, sink).await
}

async fn consume(
    streams: &JetStreams,
    name: &str,
    consumer: &PullConsumer,
    sink: &mut LogSink,
) -> Result<Result<(), String>, String> {
    let mut last = 0;
    let mut limit = match PullLimit::new(streams, READ_AHEAD).await {
        Ok(limit) => limit,
        Err(reason) => return Ok(Err(reason)),
    };
    loop {
        let request = consumer.batch().max_messages(limit.messages()).max_bytes(limit.bytes());
        let mut messages = match request.expires(PULL_EXPIRY).messages().await {
            Ok(messages) => messages,
            Err(error) => return Ok(Err(error.to_string())),
        };
        let (mut waiting, mut failure) = (0, None);
        loop {
            // Flushes the received messages to the log when no further message is immediately available.
            let message = match tokio::time::timeout(Duration::ZERO, messages.next()).await {
                Ok(message) => message,
                Err(_) => {
                    flush_all(sink, name, &streams.status).await?;
                    match streams.denied.request(RequestedSubject::Consumer(name), messages.next()).await {
                        Ok(message) => message,
                        Err(reason) => return Ok(Err(reason)),
                    }
                }
            };
            let message = match message {
                None => break,
                Some(Ok(message)) => message,
                Some(Err(error)) => {
                    failure = Some(error.to_string());
                    break;
                }
            };
            let (sequence, consumer_sequence) = match message.info() {
                Ok(info) => (info.stream_sequence, info.consumer_sequence),
                Err(error) => return Ok(Err(error.to_string())),
            };
            // Without acknowledgements, the server does not resend messages lost with a connection.
            if consumer_sequence != last + 1 {
                return Ok(Err("messages were lost in transit; reading again".to_owned()));
            }
            last = consumer_sequence;
            if sequence < sink.next() {
                let reason = "was received twice; reading continues behind the last record";
                return Ok(Err(format!("sequence {sequence} {reason}")));
            }
            if !sink.push(&record(&message, sequence, &key_of(&message))) {
                streams.status.record_error(&format!(
                    "{name}: the record at sequence {sequence} is too large and is skipped"
                ));
            }
            if sink.is_full() {
                flush_all(sink, name, &streams.status).await?;
            }
            waiting += 1;
        }
        flush_all(sink, name, &streams.status).await?;
        if let Some(reason) = limit.is_reached(waiting > 0, failure) {
            return Ok(Err(reason));
        }
        if waiting == 0 && !limit.is_single() && !consumer_exists(consumer).await {
            return Ok(Err("the server has removed the consumer".to_owned()));
        }
    }
}

/// Whether the consumer exists: a restarted server has lost it, and does not answer requests.
async fn consumer_exists(consumer: &PullConsumer) -> bool {
    let mut consumer = consumer.clone();
    consumer.info().await.is_ok()
}

/// Whether the stream has the log's last record at its offset, as far as that can be determined.
async fn has_last(stream: &stream::Stream, sink: &LogSink) -> Result<bool, String> {
    let Some(last) = sink.last() else { return Ok(true) };
    match stream.get_raw_message(last.offset).await {
        Ok(found) => Ok(is_record(&found, &last)),
        // The message was removed.
        Err(error) if error.kind() == LastRawMessageErrorKind::NoMessageFound => Ok(true),
        Err(error) => Err(error.to_string()),
    }
}
