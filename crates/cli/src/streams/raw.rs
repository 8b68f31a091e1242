//! `WS /topics/{name}` of a durable topic: messages are appended to its stream.

use std::sync::Arc;

use bytes::Bytes;
use sinews_server::{CloseCode, Context, Sent};
use sinews_stream::{Appended, Read};

use super::desk::{Assigned, Place};
use super::{Ack, Desk, Fetched, Store, Voice, Which};
use crate::auth::{Rights, Want};
use crate::hub::Content;
use crate::protocol::{Problem, code};
use crate::routes::close;

/// Appends a publisher's messages to the stream.
pub(crate) struct ToStream {
    store: Arc<Store>,
    desk: Desk<()>,
    /// Topic, content and rights of a message whose stream is being opened. Reads are paused meanwhile.
    waiting: Option<(String, Content, Rights)>,
}

impl ToStream {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, desk: Desk::default(), waiting: None }
    }

    /// Pauses reads until the stream can be read and written; closes the connection if opening fails.
    pub(crate) fn open(&mut self, topic: &str, cx: &mut Context<'_>) {
        if let Some(opening) = self.store.opening_of_topic(topic) {
            self.desk.park(opening, Bytes::new(), cx);
        }
    }

    /// Appends a message. If the queue is full, reads pause until there is capacity. A failure closes the connection,
    /// because the raw protocol has no error messages.
    pub(crate) fn publish(&mut self, topic: &str, content: &Content, rights: &Rights, cx: &mut Context<'_>) {
        if let Some(opening) = self.store.opening(topic, Want::Publish(topic), rights) {
            self.waiting = Some((topic.to_owned(), content.clone(), rights.clone()));
            return self.desk.park(opening, Bytes::new(), cx);
        }
        let result = self.store.to_publish_to_topic(topic, content, rights).and_then(|(line, records)| {
            let to = (&*self.store, line.stream().clone());
            self.desk.publish(to, Which::This(0), records, ((), Ack::Broker), &Silent, cx)
        });
        if let Err(problem) = result {
            Silent.failed(&(), problem, cx);
        }
    }

    pub(crate) fn woken(&mut self, cx: &mut Context<'_>) {
        match self.desk.unpark(cx) {
            Some((_, Err(problem))) => Silent.failed(&(), problem, cx),
            Some((_, Ok(()))) => {
                if let Some((topic, content, rights)) = self.waiting.take() {
                    self.publish(&topic, &content, &rights, cx);
                }
            }
            None => {}
        }
        self.desk.woken(Some(&*self.store), &Silent, cx);
    }
}

/// Sends no replies; a failure closes the connection.
struct Silent;

impl Voice for Silent {
    type Id = ();

    fn published(&self, _: &Place<'_, ()>, _: Appended, _: &mut Context<'_>) {}

    fn committed(&self, _: &Place<'_, ()>, _: &mut Context<'_>) {}

    fn deleted(&self, _: &Place<'_, ()>, _: &mut Context<'_>) {}

    fn failed(&self, (): &(), problem: Problem, cx: &mut Context<'_>) {
        let code = match problem.code {
            code::STORE | code::TOO_MANY | code::NOT_KEPT => CloseCode::TRY_AGAIN_LATER,
            code::TOO_LARGE => CloseCode::TOO_BIG,
            _ => CloseCode::POLICY,
        };
        close(cx, code, &problem.text);
    }

    fn records(&self, _: &Place<'_, ()>, _: u64, _: u64, read: &Read, _: &mut Context<'_>) -> (Sent, u64) {
        (Sent::Queued, read.next)
    }

    fn fetched(&self, _: &Place<'_, ()>, _: &Fetched, _: &mut Context<'_>) {}

    fn gap(&self, _: &Place<'_, ()>, _: u64, _: u64, _: &mut Context<'_>) -> Sent {
        Sent::Queued
    }

    fn assigned(&self, (): &(), _: &str, _: &[Assigned], _: &mut Context<'_>) {}
}
