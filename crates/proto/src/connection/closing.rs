//! The closing handshake (RFC 6455 section 7): one function over the pair of both directions.

use crate::Role;

/// What we may still receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// Frames are read.
    Open,
    /// The peer's Close came: nothing behind it counts.
    PeerClosed,
    /// The peer broke the protocol: nothing behind that counts.
    Failed,
}

/// What we may still send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Data may be sent.
    Open,
    /// Our Close is decided and not yet written. No data may follow.
    Closing,
    /// Our Close is written.
    Closed,
}

/// What moves the pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The peer's Close frame.
    PeerCloses,
    /// The peer broke the protocol.
    PeerFails,
    /// Our side wants to close.
    WeClose,
    /// Our Close frame was written out.
    Written,
    /// The peer ended the transport.
    Ended,
}

/// What becomes of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum Transport {
    /// Frames go on.
    Open,
    /// Send what is queued, then end the sending side; discard what still comes, and close when the peer
    /// ends its side or the deadline comes. The server ends TCP first (RFC 6455 7.1.1), and waiting for
    /// the peer's end keeps a reset from overtaking our Close frame.
    Finish,
    /// Send what is queued, and wait for the peer to end the transport, until the deadline.
    AwaitEnd,
}

/// The next pair. Impossible signals (a second Close of the peer: nothing is read behind the first)
/// leave the pair as it is.
pub(crate) const fn step(receiving: Receiving, sending: Sending, signal: Signal) -> (Receiving, Sending) {
    use Receiving as R;
    use Sending as S;
    match (receiving, sending, signal) {
        // The peer's Close is answered once, unless ours is already decided or gone.
        (R::Open, S::Open, Signal::PeerCloses) => (R::PeerClosed, S::Closing),
        (R::Open, sending, Signal::PeerCloses) => (R::PeerClosed, sending),
        // A fault is answered by a Close with its code, unless ours is already decided or gone.
        (R::Open, S::Open, Signal::PeerFails) => (R::Failed, S::Closing),
        (R::Open, sending, Signal::PeerFails) => (R::Failed, sending),
        (R::PeerClosed | R::Failed, sending, Signal::PeerCloses | Signal::PeerFails) => (receiving, sending),
        (receiving, S::Open, Signal::WeClose) => (receiving, S::Closing),
        (receiving, S::Closing | S::Closed, Signal::WeClose) => (receiving, sending),
        (receiving, S::Closing, Signal::Written) => (receiving, S::Closed),
        (receiving, S::Open | S::Closed, Signal::Written) => (receiving, sending),
        // Without the peer's Close the end is abrupt, and nobody is there to read ours. Behind it, the
        // peer may only have ended its own direction and still read the answer.
        (R::Open, _, Signal::Ended) => (R::Failed, S::Closed),
        (R::PeerClosed | R::Failed, sending, Signal::Ended) => (receiving, sending),
    }
}

/// What the transport does in each pair.
pub(crate) const fn transport(receiving: Receiving, sending: Sending, role: Role) -> Transport {
    match (receiving, sending, role) {
        (Receiving::Open, _, _) | (_, Sending::Open | Sending::Closing, _) => Transport::Open,
        (Receiving::Failed, Sending::Closed, _) => Transport::Finish,
        (Receiving::PeerClosed, Sending::Closed, Role::Server) => Transport::Finish,
        (Receiving::PeerClosed, Sending::Closed, Role::Client) => Transport::AwaitEnd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role::{Client, Server};

    const RECEIVING: [Receiving; 3] = [Receiving::Open, Receiving::PeerClosed, Receiving::Failed];
    const SENDING: [Sending; 3] = [Sending::Open, Sending::Closing, Sending::Closed];
    const SIGNALS: [Signal; 5] =
        [Signal::PeerCloses, Signal::PeerFails, Signal::WeClose, Signal::Written, Signal::Ended];

    /// Every cell, written by hand: rows are pairs, columns the five signals.
    #[test]
    fn every_cell_of_the_closing_handshake() {
        use Receiving::{Failed as F, Open as O, PeerClosed as P};
        use Sending::{Closed as D, Closing as C, Open as S};
        let table = [
            ((O, S), [(P, C), (F, C), (O, C), (O, S), (F, D)]),
            ((O, C), [(P, C), (F, C), (O, C), (O, D), (F, D)]),
            ((O, D), [(P, D), (F, D), (O, D), (O, D), (F, D)]),
            ((P, S), [(P, S), (P, S), (P, C), (P, S), (P, S)]),
            ((P, C), [(P, C), (P, C), (P, C), (P, D), (P, C)]),
            ((P, D), [(P, D), (P, D), (P, D), (P, D), (P, D)]),
            ((F, S), [(F, S), (F, S), (F, C), (F, S), (F, S)]),
            ((F, C), [(F, C), (F, C), (F, C), (F, D), (F, C)]),
            ((F, D), [(F, D), (F, D), (F, D), (F, D), (F, D)]),
        ];
        assert_eq!(table.len(), RECEIVING.len() * SENDING.len());
        for ((receiving, sending), expected) in table {
            for (signal, next) in SIGNALS.into_iter().zip(expected) {
                assert_eq!(step(receiving, sending, signal), next, "{receiving:?} {sending:?} {signal:?}");
            }
        }
    }

    #[test]
    fn the_transport_ends_only_when_both_closes_are_settled() {
        for receiving in RECEIVING {
            for sending in SENDING {
                for role in [Server, Client] {
                    let expected = match (receiving, sending) {
                        (Receiving::Failed, Sending::Closed) => Transport::Finish,
                        (Receiving::PeerClosed, Sending::Closed) if role == Server => Transport::Finish,
                        (Receiving::PeerClosed, Sending::Closed) => Transport::AwaitEnd,
                        _ => Transport::Open,
                    };
                    assert_eq!(transport(receiving, sending, role), expected);
                }
            }
        }
    }

    #[test]
    fn no_signal_reopens_a_direction() {
        for receiving in RECEIVING {
            for sending in SENDING {
                for signal in SIGNALS {
                    let (r, s) = step(receiving, sending, signal);
                    assert!(receiving == Receiving::Open || r == receiving);
                    assert!(s as u8 >= sending as u8);
                }
            }
        }
    }
}
