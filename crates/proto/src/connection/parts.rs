//! Splitting a connection into two halves: one sends data, the other handles all other work.

use alloc::boxed::Box;

use super::closing::{CloseSignal, ReceiveState, SendState};
use super::incoming::ReceiveStage;
use super::keepalive::Keepalive;
use super::pending::PendingControl;
use super::{CompressionState, Connection, ConnectionHalf};
use crate::Time;

impl Connection {
    /// Splits the sending of data off this connection, so that it can proceed elsewhere, independently: messages,
    /// fragments, the compressor, and a message that is being sent in fragments. The returned half sends data,
    /// application pings and a Close; it receives no bytes, and its only deadline is the write timeout. The rest
    /// receives, answers, and sends control frames. Returns `None` if this is a half already.
    ///
    /// The frames of both halves share one transport, whole and in any order, except for Close: at most one
    /// Close is sent, and no frame follows it. The owner that merges the frames selects the Close, and
    /// notifies the other half with [`note_other_half_closed`](Self::note_other_half_closed).
    pub fn split_data(&mut self, now: Time) -> Option<Self> {
        if self.part != ConnectionHalf::Whole {
            return None;
        }
        self.part = ConnectionHalf::Control;
        let deflate = self.compression.as_mut().and_then(|compression| compression.deflate.take());
        Some(Self {
            config: self.config.clone(),
            role: self.role,
            framing: self.framing,
            part: ConnectionHalf::Data,
            receiving: ReceiveState::Failed,
            sending: self.sending,
            fragments: false,
            stage: ReceiveStage::Head,
            message: None,
            compression: deflate
                .map(|deflate| Box::new(CompressionState { inflate: None, deflate: Some(deflate) })),
            open_message: self.open_message.take(),
            body: None,
            pending: PendingControl::default(),
            keepalive: Keepalive::for_sending(now),
        })
    }

    /// Joins the half that [`split_data`](Self::split_data) returned. A pending Close of either half stays
    /// pending.
    pub fn join_data(&mut self, data: &mut Self, now: Time) {
        if (self.part, data.part) != (ConnectionHalf::Control, ConnectionHalf::Data) {
            return;
        }
        self.part = ConnectionHalf::Whole;
        if let (Some(own), Some(data)) = (&mut self.compression, &mut data.compression) {
            own.deflate = data.deflate.take();
        }
        self.open_message = data.open_message.take();
        match data.sending {
            SendState::Open => {}
            SendState::Closing if self.sending == SendState::Open => {
                self.pending = core::mem::take(&mut data.pending);
                self.signal(CloseSignal::WeClose, now);
            }
            SendState::Closing => {}
            SendState::Closed => self.note_other_half_closed(now),
        }
    }

    /// Records that the other half's Close frame is sent, or is sent before any bytes of this half: no
    /// frame may follow it.
    pub fn note_other_half_closed(&mut self, now: Time) {
        if self.sending != SendState::Closed {
            self.pending = PendingControl::default();
            self.signal(CloseSignal::WeClose, now);
            self.signal(CloseSignal::Written, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::time::Duration;

    use crate::connection::{Event, PerThread, TransportState};
    use crate::handshake::{ServerOptions, accept};
    use crate::http::{HeadLimits, HeaderSlots, RequestHead};
    use crate::{CloseCode, Config, Connection, Expired, Kind, Misuse, Time};

    fn server() -> Connection {
        let request = b"GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(request, &HeadLimits::new(), &mut slots).expect("a valid head");
        let negotiated = accept(&head, &ServerOptions::new()).expect("a valid request").negotiated();
        Connection::new(negotiated, Arc::new(Config::default()), Time::ZERO)
    }

    fn shared() -> PerThread {
        PerThread::new(|| [1, 2, 3, 4])
    }

    fn receive(connection: &mut Connection, bytes: &[u8]) -> Event {
        let mut input = Vec::from(bytes);
        connection.receive(&mut input, &mut Vec::new(), &mut shared(), Time::ZERO).expect("sound").event
    }

    const CLOSE_1000: &[u8] = &[0x88, 0x82, 0, 0, 0, 0, 0x03, 0xe8];

    #[test]
    fn halves_split_work_and_fragmented_message_continues_in_either() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        control.send_fragment(Kind::Text, b"a", false, &mut shared, &mut out).expect("open");
        let mut data = control.split_data(Time::ZERO).expect("a whole connection");
        assert!(control.split_data(Time::ZERO).is_none() && data.split_data(Time::ZERO).is_none());
        let sent = control.send_fragment(Kind::Text, b"b", true, &mut shared, &mut out);
        assert_eq!(sent, Err(Misuse::SplitOff));
        assert_eq!(control.send(Kind::Text, b"b", &mut shared, &mut out), Err(Misuse::SplitOff));
        assert_eq!(data.send(Kind::Text, b"b", &mut shared, &mut out), Err(Misuse::MessageOpen));
        data.send_fragment(Kind::Text, b"b", false, &mut shared, &mut out).expect("goes on");

        assert!(matches!(receive(&mut control, &[0x89, 0x80, 0, 0, 0, 0]), Event::Ping(_)));
        assert_eq!(receive(&mut data, CLOSE_1000), Event::NeedMore(1), "the data half receives no bytes");
        control.write_control(&mut shared, &mut out, Time::ZERO);
        control.join_data(&mut data, Time::ZERO);
        control.send_fragment(Kind::Text, b"c", true, &mut shared, &mut out).expect("joined again");
        assert_eq!(out, b"\x01\x01a\x00\x01b\x8a\x00\x80\x01c");
        assert!(control.is_open() && control.split_data(Time::ZERO).is_some());
    }

    #[test]
    fn data_half_has_only_write_timeout() {
        let mut control = server();
        let mut data = control.split_data(Time::ZERO).expect("a whole connection");
        assert_eq!(data.deadline(), None);
        data.note_outbound(10, false, Time::ZERO);
        assert_eq!(data.deadline(), Some(Time::ZERO + Duration::from_secs(30)));
        assert_eq!(data.handle_timeout(Time::from_millis(30_000)), Err(Expired::Write));
        assert_eq!(control.deadline(), Some(Time::ZERO + Duration::from_secs(25)), "a ping");
    }

    #[test]
    fn close_of_data_half_is_answered_by_peer() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole connection");
        data.close(CloseCode::NORMAL, "", Time::ZERO).expect("open");
        data.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(out, [0x88, 2, 0x03, 0xe8]);
        control.note_other_half_closed(Time::ZERO);
        assert_eq!(control.close(CloseCode::NORMAL, "", Time::ZERO), Err(Misuse::Closing));
        assert_eq!(control.deadline(), Some(Time::ZERO + Duration::from_secs(5)), "the peer's answer is due");
        assert!(matches!(receive(&mut control, CLOSE_1000), Event::Close { answers: true, .. }));
        assert!(!control.wants_control(), "one Close is enough");
        assert_eq!(control.transport(), TransportState::Finish);
        control.join_data(&mut data, Time::ZERO);
        assert_eq!(control.transport(), TransportState::Finish);
    }

    #[test]
    fn data_half_sends_no_frames_after_close_of_control_half() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole connection");
        data.close(CloseCode::GOING_AWAY, "late", Time::ZERO).expect("open");
        assert!(matches!(receive(&mut control, CLOSE_1000), Event::Close { answers: false, .. }));
        data.note_other_half_closed(Time::ZERO);
        data.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(data.send(Kind::Text, b"b", &mut shared, &mut out), Err(Misuse::Closing));
        assert!(out.is_empty() && !data.is_open());
        control.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(out, [0x88, 2, 0x03, 0xe8]);
    }

    #[test]
    fn pending_close_of_either_half_is_written_once_joined() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole connection");
        data.close(CloseCode::NORMAL, "", Time::ZERO).expect("open");
        control.join_data(&mut data, Time::ZERO);
        assert_eq!(control.close(CloseCode::NORMAL, "", Time::ZERO), Err(Misuse::Closing));
        control.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(out, [0x88, 2, 0x03, 0xe8]);
    }
}
