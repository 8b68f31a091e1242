//! Frames for several published messages, encoded once and sent past many connections' queues.

use bytes::Bytes;
use sinews_proto::Time;

use super::Session;
use crate::chain::Chain;
use crate::resources::Resources;

impl Session {
    /// Whether the driver may send `len` bytes of uncompressed frames
    /// ([`Prepared::append_frame`](crate::Prepared::append_frame)) at once, without this session's queue: the
    /// connection is open and uncompressed, nothing is queued or in flight, and the bytes are within the queue's
    /// limits. If so, they count as sent now. If the transport takes only part of them,
    /// [`resume_run`](Self::resume_run) takes over the rest.
    #[must_use]
    #[inline]
    pub fn take_run(&mut self, len: usize, now: Time) -> bool {
        let config = self.connection.config();
        let takes = !self.dropped
            && self.outbound.is_clear()
            && len <= config.high_water().min(config.max_outbound())
            && self.connection.prepared_class(usize::MAX).is_none()
            && self.connection.send_prepared(false).is_ok();
        if takes {
            self.connection.note_sent(now);
        }
        takes
    }

    /// Makes the rest of a run the send in flight. Return the chain with [`finish_send`](Self::finish_send). Its bytes
    /// do not count towards [`Config::max_outbound`](sinews_proto::Config::max_outbound).
    #[must_use]
    pub fn resume_run(&mut self, rest: Bytes, resources: &mut Resources, now: Time) -> Box<Chain> {
        let mut chain = resources.pool.take_chain();
        chain.push_bytes(rest);
        self.adopt_send(&chain);
        self.outbound.set_exempt(chain.len());
        self.note_outbound(false, now);
        chain
    }
}
