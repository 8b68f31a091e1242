//! The closing handshake (RFC 6455 section 7): one transition function over the states of both directions.

use crate::Role;

/// State of the receiving direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiving {
    /// Frames are processed.
    Open,
    /// The peer's Close was received: later bytes are ignored.
    PeerClosed,
    /// The peer violated the protocol: later bytes are ignored.
    Failed,
}

/// State of the sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sending {
    /// Data may be sent.
    Open,
    /// A Close is pending and not yet written. No data may follow.
    Closing,
    /// The Close is written.
    Closed,
}

/// Input of the transition function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    /// The peer's Close frame was received.
    PeerCloses,
    /// The peer violated the protocol.
    PeerFails,
    /// The local side closes.
    WeClose,
    /// The local Close frame was written.
    Written,
    /// The peer closed the transport.
    Ended,
}

/// The required state of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle each")]
pub enum Transport {
    /// Continue with frames.
    Open,
    /// Send the queued bytes, then shut down the sending side. Discard received bytes, and close when the
    /// peer closes its side or at the deadline. The server ends TCP first (RFC 6455 7.1.1), and waiting for
    /// the peer's end prevents a reset from overtaking the Close frame.
    Finish,
    /// Send the queued bytes, and wait for the peer to close the transport, until the deadline.
    AwaitEnd,
}

/// Returns the next pair of states. Impossible signals (a second Close of the peer: bytes after the first
/// are not read) leave the pair unchanged.
pub(crate) const fn step(receiving: Receiving, sending: Sending, signal: Signal) -> (Receiving, Sending) {
    use Receiving as R;
    use Sending as S;
    match (receiving, sending, signal) {
        // The peer's Close is answered once, unless a local Close is already pending or written.
        (R::Open, S::Open, Signal::PeerCloses) => (R::PeerClosed, S::Closing),
        (R::Open, sending, Signal::PeerCloses) => (R::PeerClosed, sending),
        // A violation is answered by a Close with its code, unless a local Close is already pending or
        // written.
        (R::Open, S::Open, Signal::PeerFails) => (R::Failed, S::Closing),
        (R::Open, sending, Signal::PeerFails) => (R::Failed, sending),
        (R::PeerClosed | R::Failed, sending, Signal::PeerCloses | Signal::PeerFails) => (receiving, sending),
        (receiving, S::Open, Signal::WeClose) => (receiving, S::Closing),
        (receiving, S::Closing | S::Closed, Signal::WeClose) => (receiving, sending),
        (receiving, S::Closing, Signal::Written) => (receiving, S::Closed),
        (receiving, S::Open | S::Closed, Signal::Written) => (receiving, sending),
        // Without the peer's Close the end is abrupt, and no peer is left to read a local Close. After it,
        // the peer may have shut down only its own direction and still read the answer.
        (R::Open, _, Signal::Ended) => (R::Failed, S::Closed),
        (R::PeerClosed | R::Failed, sending, Signal::Ended) => (receiving, sending),
    }
}

/// The state of the transport for each pair.
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
    fn transport_ends_only_after_both_closes() {
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
