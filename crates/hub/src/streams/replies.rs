//! Stream replies and events, which each protocol encodes.

use sinews_server::{Context, Sent};
use sinews_stream::{Appended, ReadResult};

use super::fetch::FetchedRecords;
use super::topic_history::TopicPage;
use crate::model::problem::Problem;

/// Encodes replies and events for one protocol.
pub(crate) trait Replies {
    /// A client's request id.
    type Id;

    /// Whether the client receives an answer to a publication that succeeds.
    fn acknowledges(&self, _id: &Self::Id) -> bool {
        true
    }
    fn appended(&self, at: &ReplyContext<'_, Self::Id>, appended: Appended, cx: &mut Context<'_>);
    /// Records of a publication without acknowledgement were accepted.
    fn accepted(&self, _at: &ReplyContext<'_, Self::Id>, _count: u32, _cx: &mut Context<'_>) {}
    fn committed(&self, at: &ReplyContext<'_, Self::Id>, cx: &mut Context<'_>);
    /// The client's request to delete a stream is done.
    fn deleted(&self, at: &ReplyContext<'_, Self::Id>, cx: &mut Context<'_>);
    fn failed(&self, id: &Self::Id, problem: Problem, cx: &mut Context<'_>);
    /// Records from an offset on; earlier records of the first batch do not count. `end` is the end of the readable
    /// records. Returns the next offset too; it is before the end of the batches if they contain damage.
    fn records(
        &self,
        at: &ReplyContext<'_, Self::Id>,
        from: u64,
        end: u64,
        read: &ReadResult,
        cx: &mut Context<'_>,
    ) -> (Sent, u64);
    /// The result of a fetch.
    fn fetched(&self, at: &ReplyContext<'_, Self::Id>, fetched: &FetchedRecords, cx: &mut Context<'_>);
    /// A part of a durable topic's history, for protocols that ask for it.
    fn history(&self, _at: &ReplyContext<'_, Self::Id>, _page: &TopicPage<String>, _cx: &mut Context<'_>) {}
    /// Records that do not exist any more, and the next offset.
    fn gap(&self, at: &ReplyContext<'_, Self::Id>, from: u64, to: u64, cx: &mut Context<'_>) -> Sent;
    /// The partitions that are assigned to a group member, with their start offsets.
    fn assigned(&self, id: &Self::Id, stream: &str, assigned: &[AssignedPartition], cx: &mut Context<'_>);
}

/// An assigned partition, and the offset where reading starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AssignedPartition {
    pub(crate) partition: u32,
    pub(crate) offset: u64,
    /// The group's committed offset may be lost, or reading cannot start there. The member receives this once.
    pub(crate) is_reset: bool,
}

/// The request of a reply: its id, stream and partition.
pub(crate) struct ReplyContext<'a, I> {
    pub(crate) id: &'a I,
    pub(crate) stream: &'a str,
    pub(crate) partition: u32,
}

/// Returns whether an answer stays below the outbound queue's limit; if not, `ConnectionStreams::drained` follows.
pub(crate) fn has_outbound_capacity(cx: &Context<'_>) -> bool {
    cx.buffered() <= cx.config().high_water()
}
