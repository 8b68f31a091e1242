//! Acknowledgements of appends and commits, in order.

use std::collections::VecDeque;
use std::task::{self, Poll};

use sinews_server::Context;
use sinews_stream::{Durability, Stream};

use super::replies::{Replies, ReplyContext, has_outbound_capacity};
use super::store::PendingWrite;

/// Pending appends to one partition, or commits of one stream. They complete in order, so only the first is polled.
pub(super) struct AckQueue<I> {
    pub(super) stream: Stream,
    /// `None` for commits.
    pub(super) partition: Option<u32>,
    pub(super) queue: VecDeque<PendingAck<I>>,
}

pub(super) struct PendingAck<I> {
    pub(super) id: I,
    pub(super) partition: u32,
    pub(super) durability: Durability,
    pub(super) write: PendingWrite,
}

impl<I> AckQueue<I> {
    /// Sends completed answers in order; returns their number.
    pub(super) fn send_acks(&mut self, replies: &impl Replies<Id = I>, cx: &mut Context<'_>) -> usize {
        let waker = cx.waker();
        let mut answered = 0;
        while let Some(first) = self.queue.front_mut()
            && has_outbound_capacity(cx)
        {
            let Poll::Ready(result) =
                first.write.poll(first.durability, &mut task::Context::from_waker(&waker))
            else {
                break;
            };
            let at = ReplyContext { id: &first.id, stream: self.stream.name(), partition: first.partition };
            match result {
                Ok(Some(appended)) if self.partition.is_some() => replies.appended(&at, appended, cx),
                Ok(_) => replies.committed(&at, cx),
                Err(problem) => replies.failed(&first.id, problem, cx),
            }
            self.queue.pop_front();
            answered += 1;
        }
        answered
    }
}
