use std::time::Duration;

use sinews_proto::deflate::DeflateConfig;
use sinews_proto::{Config, Time};
use sinews_session::TransportAction;

use crate::chunks::{Chunks, Cutter};
use crate::{App, ConnectionEnd, Machine, SessionEnd, negotiate};

/// A client and a server with a link that cuts by a seed, and a manually advanced clock.
#[derive(Debug)]
pub struct Pair<C, S> {
    /// The client's end.
    pub client: C,
    /// The server's end.
    pub server: S,
    /// The time at both ends.
    pub now: Time,
    to_server: Wire,
    to_client: Wire,
}

/// Bytes in transit in one direction.
#[derive(Debug)]
struct Wire {
    bytes: Vec<u8>,
    takes: Cutter,
    chunks: Cutter,
    /// The sender has closed its side.
    shut: bool,
    /// The receiver knows that.
    told: bool,
}

impl Pair<SessionEnd, SessionEnd> {
    /// Creates two sessions after a handshake in which both ends want this compression, if any.
    #[must_use]
    pub fn sessions(deflate: Option<DeflateConfig>, config: Config, client: App, server: App) -> Self {
        let agreed = negotiate(deflate.clone(), deflate);
        Self::new(
            SessionEnd::new(agreed.client, config.clone(), client, Time::ZERO),
            SessionEnd::new(agreed.server, config, server, Time::ZERO),
        )
    }
}

impl Pair<ConnectionEnd, ConnectionEnd> {
    /// Creates two bare connection machines; the server echoes.
    #[must_use]
    pub fn connections(deflate: Option<DeflateConfig>, config: Config) -> Self {
        let agreed = negotiate(deflate.clone(), deflate);
        Self::new(
            ConnectionEnd::new(agreed.client, config.clone(), false, Time::ZERO),
            ConnectionEnd::new(agreed.server, config, true, Time::ZERO),
        )
    }
}

impl<C: Machine, S: Machine> Pair<C, S> {
    /// Creates two machines with a link that takes and delivers all bytes at once.
    #[must_use]
    pub const fn new(client: C, server: S) -> Self {
        Self {
            client,
            server,
            now: Time::ZERO,
            to_server: Wire::new(Chunks::Whole, Chunks::Whole),
            to_client: Wire::new(Chunks::Whole, Chunks::Whole),
        }
    }

    /// Sets the partial-send and delivery sizes, in both directions.
    #[must_use]
    pub fn with_link(mut self, takes: Chunks, chunks: Chunks) -> Self {
        self.to_server = Wire::new(takes, chunks);
        self.to_client = Wire::new(takes, chunks);
        self
    }

    /// Moves bytes until no progress is possible; the clock stays.
    pub fn settle(&mut self) {
        while self.to_server.step(&mut self.client, &mut self.server, self.now)
            | self.to_client.step(&mut self.server, &mut self.client, self.now)
        {}
    }

    /// Advances the clock from deadline to deadline, by at most `time`.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        while let Some(deadline) = self.deadline().filter(|deadline| *deadline <= end) {
            self.wake(deadline);
        }
        self.now = end;
    }

    /// Advances the clock until both ends are idle: no bytes move and no timer is set. With a keepalive this
    /// happens only after an end has closed.
    ///
    /// # Panics
    /// After a thousand deadlines.
    pub fn drive(&mut self) {
        self.settle();
        for _ in 0..1000 {
            match self.deadline() {
                Some(deadline) => self.wake(deadline),
                None => return,
            }
        }
        panic!("the ends do not become idle");
    }

    fn deadline(&self) -> Option<Time> {
        let mut deadlines = [
            (self.client.transport_action(), self.client.deadline()),
            (self.server.transport_action(), self.server.deadline()),
        ];
        for (transport_action, deadline) in &mut deadlines {
            // A driver then releases the transport and the session.
            if *transport_action == TransportAction::Drop {
                *deadline = None;
            }
        }
        deadlines.into_iter().filter_map(|(_, deadline)| deadline).min()
    }

    fn wake(&mut self, deadline: Time) {
        self.now = self.now.max(deadline);
        if self.client.deadline().is_some_and(|at| at <= self.now) {
            self.client.handle_timeout(self.now);
        }
        if self.server.deadline().is_some_and(|at| at <= self.now) {
            self.server.handle_timeout(self.now);
        }
        self.settle();
    }

    /// Whether both ends have released the transport.
    pub fn is_over(&self) -> bool {
        self.client.transport_action() == TransportAction::Drop
            && self.server.transport_action() == TransportAction::Drop
    }
}

impl Wire {
    const fn new(takes: Chunks, chunks: Chunks) -> Self {
        Self { bytes: Vec::new(), takes: takes.start(), chunks: chunks.start(), shut: false, told: false }
    }

    /// Takes and delivers once; returns whether any bytes moved.
    fn step(&mut self, from: &mut impl Machine, to: &mut impl Machine, now: Time) -> bool {
        let mut moved = false;
        if from.waiting() > 0 && !self.shut {
            let most = self.takes.next(from.waiting());
            self.bytes.extend_from_slice(&from.take(most, now));
            moved = true;
        }
        if !self.bytes.is_empty() && !to.is_paused() {
            let rest = self.bytes.split_off(self.chunks.next(self.bytes.len()));
            let mut chunk = std::mem::replace(&mut self.bytes, rest);
            to.deliver(&mut chunk, now);
            moved = true;
        }
        let done = match from.transport_action() {
            TransportAction::Open | TransportAction::AwaitEnd => false,
            TransportAction::Finish => from.waiting() == 0,
            TransportAction::Drop => true,
        };
        if done && !self.shut {
            self.shut = true;
            moved = true;
        }
        if self.shut && self.bytes.is_empty() && !self.told {
            self.told = true;
            to.deliver_end(now);
            moved = true;
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Heard;
    use sinews_proto::{CloseCode, Kind};
    use sinews_session::Cause;

    fn quiet() -> Config {
        Config::default().with_ping_interval(None).with_idle_timeout(None)
    }

    #[test]
    fn two_sessions_exchange_messages_and_close() {
        for chunks in Chunks::USUAL {
            let mut pair =
                Pair::sessions(None, quiet(), App::listener(), App::echo()).with_link(chunks, chunks);
            let _ = pair.client.act(pair.now, |tx| tx.send_text("hello").expect("open"));
            pair.settle();
            assert_eq!(pair.client.take_heard(), [Heard::Message(Kind::Text, b"hello".to_vec())]);
            pair.client.act(pair.now, |tx| tx.close(CloseCode::NORMAL, "bye").expect("open"));
            pair.drive();
            assert!(pair.is_over());
            assert_eq!(pair.client.take_heard(), [Heard::Over(Some(1000), Cause::Local)]);
            let heard = pair.server.take_heard();
            assert_eq!(heard.last(), Some(&Heard::Over(Some(1000), Cause::Peer)));
            assert_eq!(pair.now, Time::ZERO, "no timer had to expire");
        }
    }

    #[test]
    fn two_connections_exchange_messages() {
        let mut pair = Pair::connections(Some(DeflateConfig::new()), quiet());
        let message = vec![b'x'; 10_000];
        let sent = pair
            .client
            .act(pair.now, |connection, shared, out| connection.send(Kind::Binary, &message, shared, out));
        assert_eq!(sent, Ok(()));
        pair.settle();
        assert_eq!(pair.client.take_heard(), [Heard::Message(Kind::Binary, message)]);
    }

    #[test]
    fn keepalive_pings_are_answered_while_time_passes() {
        let mut pair = Pair::sessions(None, Config::default(), App::listener(), App::listener());
        pair.pass(Duration::from_secs(3600));
        assert!(!pair.is_over());
        let pongs = pair.client.heard().iter().filter(|heard| matches!(heard, Heard::Pong(_, Some(_))));
        assert!(pongs.count() > 10);
    }
}
