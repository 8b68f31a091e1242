//! A connection in two parts that live in different places: one sends data, the other does all the rest.

use super::closing::{Receiving, Sending, Signal};
use super::control::Pending;
use super::receive::Stage;
use super::{Connection, Keepalive};
use crate::Time;

/// What of a connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// All of it.
    Whole,
    /// What receives, answers pings, keeps the deadlines and sends no data.
    Control,
    /// What sends data and receives nothing.
    Data,
}

impl Connection {
    /// Takes the sending of data out of this connection, so that it can go on elsewhere, without a look at this one:
    /// messages, fragments, the compressor, and a message that is being sent in fragments. The answer sends these,
    /// pings of the application and a Close; it receives nothing, and its only deadline is that of the write timeout.
    /// What is left here receives, answers, and sends control frames. `None` if this is a part already.
    ///
    /// The frames of both leave over one transport, whole and in any order, but for Close: at most one leaves, and
    /// nothing behind it. Whoever brings the frames together decides whose, and tells the other part by
    /// [`note_close_left`](Self::note_close_left).
    pub fn split_data(&mut self, now: Time) -> Option<Self> {
        if self.part != Part::Whole {
            return None;
        }
        self.part = Part::Control;
        Some(Self {
            config: self.config.clone(),
            role: self.role,
            framing: self.framing,
            part: Part::Data,
            receiving: Receiving::Failed,
            sending: self.sending,
            fragments: false,
            stage: Stage::Head,
            message: None,
            inflate: None,
            deflate: self.deflate.take(),
            open_message: self.open_message.take(),
            pending: Pending::default(),
            keepalive: Keepalive::for_sending(&self.config, now),
        })
    }

    /// Puts the part that [`split_data`](Self::split_data) has taken out of this connection back. A Close that either
    /// has decided stays decided.
    pub fn join_data(&mut self, data: &mut Self, now: Time) {
        if (self.part, data.part) != (Part::Control, Part::Data) {
            return;
        }
        self.part = Part::Whole;
        self.deflate = data.deflate.take();
        self.open_message = data.open_message.take();
        match data.sending {
            Sending::Open => {}
            Sending::Closing if self.sending == Sending::Open => {
                self.pending = core::mem::take(&mut data.pending);
                self.signal(Signal::WeClose, now);
            }
            Sending::Closing => {}
            Sending::Closed => self.note_close_left(now),
        }
    }

    /// The other part's Close frame has left, or will before anything that this part writes: nothing may follow it.
    pub fn note_close_left(&mut self, now: Time) {
        if self.sending != Sending::Closed {
            self.pending = Pending::default();
            self.signal(Signal::WeClose, now);
            self.signal(Signal::Written, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use alloc::sync::Arc;
    use alloc::vec::Vec;
    use core::time::Duration;

    use crate::connection::{Event, PerThread, Transport};
    use crate::handshake::{ServerOptions, accept};
    use crate::http::{HeadLimits, HeaderSlots, RequestHead};
    use crate::{CloseCode, Config, Connection, Expired, Kind, Misuse, Time};

    fn server() -> Connection {
        let request = b"GET / HTTP/1.1\r\nHost: example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
            Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
        let mut slots = HeaderSlots::new();
        let head = RequestHead::parse(request, &HeadLimits::new(), &mut slots).expect("a sound head");
        let negotiated = accept(&head, &ServerOptions::new()).expect("a sound request").negotiated();
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
    fn each_part_does_its_own_and_a_message_in_fragments_goes_on_in_either() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        control.send_fragment(Kind::Text, b"a", false, &mut shared, &mut out).expect("open");
        let mut data = control.split_data(Time::ZERO).expect("a whole one");
        assert!(control.split_data(Time::ZERO).is_none() && data.split_data(Time::ZERO).is_none());
        let sent = control.send_fragment(Kind::Text, b"b", true, &mut shared, &mut out);
        assert_eq!(sent, Err(Misuse::SplitOff));
        assert_eq!(control.send(Kind::Text, b"b", &mut shared, &mut out), Err(Misuse::SplitOff));
        assert_eq!(data.send(Kind::Text, b"b", &mut shared, &mut out), Err(Misuse::MessageOpen));
        data.send_fragment(Kind::Text, b"b", false, &mut shared, &mut out).expect("goes on");

        assert!(matches!(receive(&mut control, &[0x89, 0x80, 0, 0, 0, 0]), Event::Ping(_)));
        assert_eq!(receive(&mut data, CLOSE_1000), Event::NeedMore(1), "it hears nothing");
        control.write_control(&mut shared, &mut out, Time::ZERO);
        control.join_data(&mut data, Time::ZERO);
        control.send_fragment(Kind::Text, b"c", true, &mut shared, &mut out).expect("and is whole again");
        assert_eq!(out, b"\x01\x01a\x00\x01b\x8a\x00\x80\x01c");
        assert!(control.is_open() && control.split_data(Time::ZERO).is_some());
    }

    #[test]
    fn the_part_that_sends_waits_only_for_what_waits_to_leave() {
        let mut control = server();
        let mut data = control.split_data(Time::ZERO).expect("a whole one");
        assert_eq!(data.deadline(), None);
        data.note_outbound(10, false, Time::ZERO);
        assert_eq!(data.deadline(), Some(Time::ZERO + Duration::from_secs(30)));
        assert_eq!(data.handle_timeout(Time::from_millis(30_000)), Err(Expired::Write));
        assert_eq!(control.deadline(), Some(Time::ZERO + Duration::from_secs(25)), "a ping");
    }

    #[test]
    fn a_close_of_the_part_that_sends_is_answered_by_the_peer() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole one");
        data.close(CloseCode::NORMAL, "", Time::ZERO).expect("open");
        data.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(out, [0x88, 2, 0x03, 0xe8]);
        control.note_close_left(Time::ZERO);
        assert_eq!(control.close(CloseCode::NORMAL, "", Time::ZERO), Err(Misuse::Closing));
        assert_eq!(control.deadline(), Some(Time::ZERO + Duration::from_secs(5)), "the peer's answer is due");
        assert!(matches!(receive(&mut control, CLOSE_1000), Event::Close { answers: true, .. }));
        assert!(!control.wants_control(), "one Close is enough");
        assert_eq!(control.transport(), Transport::Finish);
        control.join_data(&mut data, Time::ZERO);
        assert_eq!(control.transport(), Transport::Finish);
    }

    #[test]
    fn the_part_that_sends_sends_nothing_behind_the_close_of_the_other() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole one");
        data.close(CloseCode::GOING_AWAY, "late", Time::ZERO).expect("open");
        assert!(matches!(receive(&mut control, CLOSE_1000), Event::Close { answers: false, .. }));
        data.note_close_left(Time::ZERO);
        data.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(data.send(Kind::Text, b"b", &mut shared, &mut out), Err(Misuse::Closing));
        assert!(out.is_empty() && !data.is_open());
        control.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(out, [0x88, 2, 0x03, 0xe8]);
    }

    #[test]
    fn a_close_decided_in_either_part_is_written_once_they_are_one_again() {
        let (mut control, mut shared, mut out) = (server(), shared(), Vec::new());
        let mut data = control.split_data(Time::ZERO).expect("a whole one");
        data.close(CloseCode::NORMAL, "", Time::ZERO).expect("open");
        control.join_data(&mut data, Time::ZERO);
        assert_eq!(control.close(CloseCode::NORMAL, "", Time::ZERO), Err(Misuse::Closing));
        control.write_control(&mut shared, &mut out, Time::ZERO);
        assert_eq!(out, [0x88, 2, 0x03, 0xe8]);
    }
}
