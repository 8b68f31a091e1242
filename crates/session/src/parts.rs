//! Splitting a session into two halves for different tasks.

use sinews_proto::{CloseCode, Connection, Time};

use crate::chain::Chain;
use crate::closed::{Cause, Closed};
use crate::outbound::Outbound;
use crate::resources::Resources;
use crate::session::Session;
use crate::stored_buffer::StoredBuffer;

impl Session {
    /// Splits the sending of data off this session ([`Connection::split_data`]), together with all queued bytes. The
    /// rest receives, keeps the deadlines, and queues its own control frames. Returns `None` if this session is a half
    /// already.
    pub fn split_data(&mut self, now: Time) -> Option<Self> {
        let connection = self.connection.split_data(now)?;
        let mut data = Self::from_parts(connection, std::mem::take(&mut self.outbound));
        data.note_outbound(false, now);
        self.note_outbound(false, now);
        Some(data)
    }

    /// Joins the half that [`split_data`](Self::split_data) returned, with the queued bytes of both halves. If the
    /// other half has a chain in flight, it becomes the send in flight of this session, which must not have one
    /// already.
    pub fn join_data(&mut self, data: &mut Self, resources: &mut Resources, now: Time) {
        let own = std::mem::replace(&mut self.outbound, std::mem::take(&mut data.outbound));
        self.outbound.append(own, resources);
        self.outbound.elsewhere = 0;
        self.connection.join_data(&mut data.connection, now);
        if let Some(closed) = data.take_closed() {
            self.record_closed(closed);
        }
        self.dropped |= data.dropped;
        self.after_tx(resources, now);
    }

    /// Reports the number of bytes queued outside this session, in the other half or in the shared transport, and
    /// whether the transport accepted bytes since the last call. Progress proves that the peer is alive.
    pub fn note_elsewhere(&mut self, waiting: usize, moved: bool, now: Time) {
        self.outbound.elsewhere = u32::try_from(waiting).unwrap_or(u32::MAX);
        self.note_outbound(moved, now);
    }

    /// Records that the Close frame of the other half is sent ([`Connection::note_other_half_closed`]). Bytes
    /// queued here are never sent.
    pub fn note_other_half_closed(&mut self, resources: &mut Resources, now: Time) {
        self.connection.note_other_half_closed(now);
        self.outbound.discard(resources);
        self.outbound.discard_deferred();
        self.note_outbound(false, now);
    }

    /// Ends the connection by the local Close without waiting for the peer's Close: [`Cause::Local`] with
    /// this code and reason. No effect on a connection that has ended.
    pub fn end_without_answer(&mut self, code: CloseCode, reason: &str, resources: &mut Resources) {
        self.end_by(Closed::new(Some(code), reason.to_owned(), Cause::Local), resources);
    }

    /// Ends this half because the other half ended the connection: a timeout, a full queue, or a Close that
    /// requires no answer.
    pub fn end_by(&mut self, closed: Closed, resources: &mut Resources) {
        if matches!(closed.cause(), Cause::Expired(_) | Cause::Local) {
            self.dropped = true;
            self.outbound.discard(resources);
        }
        self.record_closed(closed);
    }

    /// Puts a chain without sent bytes back in front of the queue.
    pub fn recall_send(&mut self, chain: Box<Chain>) {
        self.outbound.recall(chain);
    }

    /// Makes a chain, possibly partly sent, the send in flight.
    pub fn adopt_send(&mut self, chain: &Chain) {
        self.outbound.adopt(chain);
    }

    fn from_parts(connection: Connection, outbound: Outbound) -> Self {
        Self {
            connection,
            outbound,
            rest: StoredBuffer::NONE,
            assembly: StoredBuffer::NONE,
            lent_bytes: 0,
            paused: false,
            ended: false,
            dropped: false,
            closed: None,
            is_closed: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use sinews_proto::handshake::{ServerOptions, accept};
    use sinews_proto::http::{HeadLimits, HeaderSlots, RequestHead};
    use sinews_proto::{CloseCode, Config, Expired};

    use super::*;

    fn server() -> Session {
        let request = b"GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(request, &HeadLimits::new(), &mut slots).expect("a valid head");
        let negotiated = accept(&head, &ServerOptions::new()).expect("a valid request").negotiated();
        Session::new(negotiated, Arc::new(Config::default()), Time::ZERO)
    }

    fn send(session: &mut Session, text: &str, resources: &mut Resources) {
        let _ = session.tx(resources, Time::ZERO).send_text(text).expect("open");
        session.after_tx(resources, Time::ZERO);
    }

    fn bytes(session: &mut Session, resources: &mut Resources) -> Vec<u8> {
        let mut sent = Vec::new();
        while let Some(mut chain) = session.start_send() {
            let mut slices = [std::io::IoSlice::new(&[]); 8];
            let filled = chain.slices(&mut slices);
            sent.extend(slices[..filled].iter().flat_map(|slice| slice.to_vec()));
            chain.advance(chain.len());
            session.finish_send(chain, resources, Time::ZERO);
        }
        sent
    }

    #[test]
    fn split_data_moves_queued_bytes_and_join_data_restores_their_order() {
        let (mut control, resources) = (server(), &mut Resources::new());
        send(&mut control, "a", resources);
        let mut data = control.split_data(Time::ZERO).expect("a whole session");
        assert_eq!((control.buffered(), data.buffered()), (0, 3));
        send(&mut data, "b", resources);
        let mut ping = [0x89, 0x80, 0, 0, 0, 0];
        let _ = control.pull(&mut ping, resources, Time::ZERO);
        assert_eq!(control.buffered(), 2, "a pong");
        control.join_data(&mut data, resources, Time::ZERO);
        send(&mut control, "c", resources);
        assert_eq!(bytes(&mut control, resources), b"\x81\x01a\x81\x01b\x8a\x00\x81\x01c");
    }

    #[test]
    fn finish_send_may_be_delayed_until_bytes_are_queued_behind() {
        let (mut session, resources) = (server(), &mut Resources::new());
        send(&mut session, "a", resources);
        let chain = session.start_send().expect("a message");
        assert!(session.finish_may_wait());
        send(&mut session, "b", resources);
        assert!(!session.finish_may_wait() && !session.wants_send());
        session.finish_send(chain, resources, Time::ZERO);
        assert_eq!(bytes(&mut session, resources), b"\x81\x01b");
        assert!(session.finish_may_wait());
    }

    #[test]
    fn send_in_flight_is_adopted() {
        let (mut control, resources) = (server(), &mut Resources::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole session");
        send(&mut data, "abc", resources);
        let mut chain = data.start_send().expect("a message");
        chain.advance(2);
        data.adopt_send(&chain);
        control.join_data(&mut data, resources, Time::ZERO);
        assert_eq!((control.buffered(), control.wants_send()), (3, false));
        control.finish_send(chain, resources, Time::ZERO);
        send(&mut control, "d", resources);
        assert_eq!(bytes(&mut control, resources), b"\x81\x01d");
    }

    #[test]
    fn bytes_queued_elsewhere_delay_pings_and_are_subject_to_write_timeout() {
        let (mut control, resources) = (server(), &mut Resources::new());
        let data = control.split_data(Time::ZERO).expect("a whole session");
        control.note_elsewhere(100, false, Time::ZERO);
        assert_eq!(control.deadline(), Some(Time::ZERO + Duration::from_secs(30)));
        control.note_elsewhere(50, true, Time::from_millis(20_000));
        assert_eq!(control.deadline(), Some(Time::from_millis(50_000)));
        control.note_elsewhere(0, true, Time::from_millis(21_000));
        assert_eq!(control.deadline(), Some(Time::from_millis(46_000)), "a ping after silence");
        let wait = Expired::Write;
        control.end_by(Closed::new(None, String::new(), Cause::Expired(wait)), resources);
        assert_eq!(control.transport_action(), crate::TransportAction::Drop);
        assert_eq!(control.take_closed().map(|closed| closed.cause()), Some(Cause::Expired(Expired::Write)));
        drop(data);
    }

    #[test]
    fn no_bytes_are_sent_after_close_of_other_half() {
        let (mut control, resources) = (server(), &mut Resources::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole session");
        send(&mut data, "late", resources);
        control.tx(resources, Time::ZERO).close(CloseCode::NORMAL, "").expect("open");
        control.after_tx(resources, Time::ZERO);
        data.note_other_half_closed(resources, Time::ZERO);
        assert!(!data.is_open() && !data.wants_send());
        assert_eq!(bytes(&mut control, resources), [0x88, 2, 3, 0xe8]);
    }
}
