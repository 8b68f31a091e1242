//! `WS /topics/{name}` of a durable topic: messages are appended to its stream.

use std::sync::Arc;

use bytes::Bytes;
use sinews_server::{CloseCode, Context, Sent};
use sinews_stream::{Appended, ReadResult};

use crate::access::auth::{Action, Rights};
use crate::closing::close;
use crate::model::problem::{Problem, code};
use crate::model::{self, MessageContent};
use crate::streams::connection::{ConnectionStreams, RequestedAck, StreamInStore};
use crate::streams::discovery::PatternInterest;
use crate::streams::fetch::FetchedRecords;
use crate::streams::replies::{AssignedPartition, Replies, ReplyContext};
use crate::streams::request::{AckLevel, PartitionChoice};
use crate::streams::service::StreamService;

/// Appends a publisher's messages to the stream.
pub(crate) struct TopicAppender {
    store: Arc<StreamService>,
    streams: ConnectionStreams<()>,
    /// Topic, content and rights of a message whose stream is being opened. Reads are paused meanwhile.
    pending_publish: Option<(String, MessageContent, Rights)>,
    /// Set for a pattern.
    interest: Option<PatternInterest>,
}

impl TopicAppender {
    pub(crate) fn new(store: Arc<StreamService>) -> Self {
        Self { store, streams: ConnectionStreams::default(), pending_publish: None, interest: None }
    }

    /// Pauses reads until the stream can be read and written; closes the connection if opening fails.
    pub(crate) fn open(&mut self, topic: &str, cx: &mut Context<'_>) {
        let opening = match model::is_pattern(topic) {
            true => match self.store.discover(topic) {
                Ok((interest, opening)) => {
                    self.interest = Some(interest);
                    Some(opening)
                }
                Err(problem) => return NoReplies.failed(&(), problem, cx),
            },
            false => self.store.opening_of_topic(topic),
        };
        if let Some(opening) = opening {
            self.streams.defer(opening, Bytes::new(), cx);
        }
    }

    /// Appends a message. If the queue is full, reads pause until there is capacity. A failure closes the connection,
    /// because the raw protocol has no error messages.
    pub(crate) fn append(
        &mut self,
        topic: &str,
        content: &MessageContent,
        rights: &Rights,
        cx: &mut Context<'_>,
    ) {
        if let Some(opening) = self.store.opening(topic, Action::Publish, rights) {
            self.pending_publish = Some((topic.to_owned(), content.clone(), rights.clone()));
            return self.streams.defer(opening, Bytes::new(), cx);
        }
        let result =
            self.store.prepare_publication(topic, content, None, rights).and_then(|(relay, records)| {
                let to = StreamInStore { store: &self.store, stream: relay.stream().clone() };
                let ack = RequestedAck { id: (), level: AckLevel::Broker };
                self.streams.append_own(to, PartitionChoice::Number(0), records, ack, &NoReplies, cx)
            });
        if let Err(problem) = result {
            NoReplies.failed(&(), problem, cx);
        }
    }

    /// Pauses reads again if the stream needs it.
    pub(crate) fn restore_pause(&self, cx: &mut Context<'_>) {
        self.streams.update_read_pause(cx);
    }

    pub(crate) fn woken(&mut self, cx: &mut Context<'_>) {
        match self.streams.take_deferred(cx) {
            Some((_, Err(problem))) => NoReplies.failed(&(), problem, cx),
            Some((_, Ok(()))) => {
                if let Some((topic, content, rights)) = self.pending_publish.take() {
                    self.append(&topic, &content, &rights, cx);
                }
            }
            None => {}
        }
        self.streams.woken(Some(&*self.store), &NoReplies, cx);
    }
}

/// Sends no replies; a failure closes the connection.
struct NoReplies;

impl Replies for NoReplies {
    type Id = ();

    fn appended(&self, _: &ReplyContext<'_, ()>, _: Appended, _: &mut Context<'_>) {}

    fn committed(&self, _: &ReplyContext<'_, ()>, _: &mut Context<'_>) {}

    fn deleted(&self, _: &ReplyContext<'_, ()>, _: &mut Context<'_>) {}

    fn failed(&self, (): &(), problem: Problem, cx: &mut Context<'_>) {
        let code = match problem.code {
            code::STORE | code::TOO_MANY | code::GONE => CloseCode::TRY_AGAIN_LATER,
            code::TOO_LARGE => CloseCode::TOO_BIG,
            _ => CloseCode::POLICY,
        };
        close(cx, code, &problem.text);
    }

    fn records(
        &self,
        _: &ReplyContext<'_, ()>,
        _: u64,
        _: u64,
        read: &ReadResult,
        _: &mut Context<'_>,
    ) -> (Sent, u64) {
        (Sent::Queued, read.next)
    }

    fn fetched(&self, _: &ReplyContext<'_, ()>, _: &FetchedRecords, _: &mut Context<'_>) {}

    fn gap(&self, _: &ReplyContext<'_, ()>, _: u64, _: u64, _: &mut Context<'_>) -> Sent {
        Sent::Queued
    }

    fn assigned(&self, (): &(), _: &str, _: &[AssignedPartition], _: &mut Context<'_>) {}
}
