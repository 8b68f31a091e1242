//! WebTransport datagrams that arrive before their session.

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use super::config::Config;
use super::connection::H3Connection;
use super::session::SessionStatus;
use super::stream::QuicStreamId;

/// Datagrams that wait for their session.
#[derive(Debug, Default)]
pub(super) struct EarlyDatagrams {
    waiting: VecDeque<(QuicStreamId, Box<[u8]>)>,
    bytes: usize,
}

impl EarlyDatagrams {
    /// Memory in bytes.
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.waiting.capacity() * size_of::<(QuicStreamId, Box<[u8]>)>() + self.bytes
    }
}

impl H3Connection {
    /// Keeps a datagram until its session is open, within the limits; others are dropped (draft-ietf-webtrans-http3 section
    /// 4.6).
    pub(super) fn keep_datagram(&mut self, session: QuicStreamId, payload: &[u8]) {
        let early = self.early.get_or_insert_default();
        let has_room = early.waiting.len() < Config::EARLY_DATAGRAMS_MAX
            && early.bytes + payload.len() <= Config::EARLY_DATAGRAM_BYTES_MAX;
        if has_room {
            early.bytes += payload.len();
            early.waiting.push_back((session, payload.into()));
        }
    }

    /// Returns a datagram that has waited for its session. Call it after events, until it returns `None`.
    pub fn next_early_datagram(&mut self) -> Option<(QuicStreamId, Box<[u8]>)> {
        let mut early = self.early.take()?;
        let mut found = None;
        let mut at = 0;
        while let Some((session, _)) = early.waiting.get(at).filter(|_| found.is_none()) {
            let status = self.session_status(*session);
            if status == SessionStatus::Pending {
                at += 1;
                continue;
            }
            let Some(removed) = early.waiting.remove(at) else { break };
            early.bytes -= removed.1.len();
            found = Some(removed).filter(|_| status == SessionStatus::Open);
        }
        if !early.waiting.is_empty() {
            self.early = Some(early);
        }
        found
    }
}
