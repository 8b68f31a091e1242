//! The closing handshake (RFC 6455 section 7): one transition function over the states of both directions.

use crate::Role;

/// State of the receiving direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReceiveState {
    /// Frames are processed.
    Open,
    /// The peer's Close was received: later bytes are ignored.
    PeerClosed,
    /// The peer violated the protocol: later bytes are ignored.
    Failed,
}

/// State of the sending direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendState {
    /// Data may be sent.
    Open,
    /// A Close is pending and not yet written. No data may follow.
    Closing,
    /// The Close is written.
    Closed,
}

/// Input of the transition function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseSignal {
    /// The peer's Close frame was received.
    PeerCloses,
    /// The peer violated the protocol.
    PeerFails,
    /// As `PeerCloses`, and the application answers.
    PeerClosesUnanswered,
    /// As `PeerFails`, and the application answers.
    PeerFailsUnanswered,
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
pub enum TransportState {
    /// Continue with frames.
    Open,
    /// Send the queued bytes, then shut down the sending side. Discard received bytes, and close when the
    /// peer closes its side or at the deadline. The server ends TCP first (RFC 6455 7.1.1), and waiting for
    /// the peer's end prevents a reset from overtaking the Close frame.
    Finish,
    /// Send the queued bytes, and wait for the peer to close the transport, until the deadline.
    AwaitEnd,
}

/// Returns the next pair of states. Impossible signals (a second Close from the peer: bytes after the first are not
/// read) leave the pair unchanged.
pub(crate) const fn step(
    receiving: ReceiveState,
    sending: SendState,
    signal: CloseSignal,
) -> (ReceiveState, SendState) {
    use ReceiveState as R;
    use SendState as S;
    match (receiving, sending, signal) {
        // The peer's Close is answered once, unless a local Close is already pending or written.
        (R::Open, S::Open, CloseSignal::PeerCloses) => (R::PeerClosed, S::Closing),
        (R::Open, sending, CloseSignal::PeerCloses) => (R::PeerClosed, sending),
        // A violation is answered by a Close with its code, unless a local Close is already pending or
        // written.
        (R::Open, S::Open, CloseSignal::PeerFails) => (R::Failed, S::Closing),
        (R::Open, sending, CloseSignal::PeerFails) => (R::Failed, sending),
        (R::Open, sending, CloseSignal::PeerClosesUnanswered) => (R::PeerClosed, sending),
        (R::Open, sending, CloseSignal::PeerFailsUnanswered) => (R::Failed, sending),
        (
            R::PeerClosed | R::Failed,
            sending,
            CloseSignal::PeerCloses
            | CloseSignal::PeerFails
            | CloseSignal::PeerClosesUnanswered
            | CloseSignal::PeerFailsUnanswered,
        ) => (receiving, sending),
        (receiving, S::Open, CloseSignal::WeClose) => (receiving, S::Closing),
        (receiving, S::Closing | S::Closed, CloseSignal::WeClose) => (receiving, sending),
        (receiving, S::Closing, CloseSignal::Written) => (receiving, S::Closed),
        (receiving, S::Open | S::Closed, CloseSignal::Written) => (receiving, sending),
        // Without the peer's Close the end is abrupt, and no peer is left to read a local Close. After it,
        // the peer may have shut down only its own direction and still read the answer.
        (R::Open, _, CloseSignal::Ended) => (R::Failed, S::Closed),
        (R::PeerClosed | R::Failed, sending, CloseSignal::Ended) => (receiving, sending),
    }
}

/// The state of the transport for each pair.
pub(crate) const fn transport(receiving: ReceiveState, sending: SendState, role: Role) -> TransportState {
    match (receiving, sending, role) {
        (ReceiveState::Open, _, _) | (_, SendState::Open | SendState::Closing, _) => TransportState::Open,
        (ReceiveState::Failed, SendState::Closed, _) => TransportState::Finish,
        (ReceiveState::PeerClosed, SendState::Closed, Role::Server) => TransportState::Finish,
        (ReceiveState::PeerClosed, SendState::Closed, Role::Client) => TransportState::AwaitEnd,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Role::{Client, Server};

    const RECEIVING: [ReceiveState; 3] = [ReceiveState::Open, ReceiveState::PeerClosed, ReceiveState::Failed];
    const SENDING: [SendState; 3] = [SendState::Open, SendState::Closing, SendState::Closed];
    const SIGNALS: [CloseSignal; 5] = [
        CloseSignal::PeerCloses,
        CloseSignal::PeerFails,
        CloseSignal::WeClose,
        CloseSignal::Written,
        CloseSignal::Ended,
    ];

    #[test]
    fn unanswered_signals_leave_the_sending_direction_open() {
        for sending in SENDING {
            let closes = step(ReceiveState::Open, sending, CloseSignal::PeerClosesUnanswered);
            assert_eq!(closes, (ReceiveState::PeerClosed, sending));
            let fails = step(ReceiveState::Open, sending, CloseSignal::PeerFailsUnanswered);
            assert_eq!(fails, (ReceiveState::Failed, sending));
            for receiving in [ReceiveState::PeerClosed, ReceiveState::Failed] {
                for signal in [CloseSignal::PeerClosesUnanswered, CloseSignal::PeerFailsUnanswered] {
                    assert_eq!(step(receiving, sending, signal), (receiving, sending));
                }
            }
        }
    }

    /// Every cell, written by hand: rows are pairs, columns the five signals.
    #[test]
    fn every_cell_of_the_closing_handshake() {
        use ReceiveState::{Failed as F, Open as O, PeerClosed as P};
        use SendState::{Closed as D, Closing as C, Open as S};
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
                        (ReceiveState::Failed, SendState::Closed) => TransportState::Finish,
                        (ReceiveState::PeerClosed, SendState::Closed) if role == Server => {
                            TransportState::Finish
                        }
                        (ReceiveState::PeerClosed, SendState::Closed) => TransportState::AwaitEnd,
                        _ => TransportState::Open,
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
                    assert!(receiving == ReceiveState::Open || r == receiving);
                    assert!(s as u8 >= sending as u8);
                }
            }
        }
    }
}
