//! Received events: as callbacks, or one by one.

use sinews_proto::{Kind, PayloadLocation};

use crate::payload::{Fragment, Payload};
use crate::tx::Tx;

/// The application's callbacks for received messages. The views are borrowed for the call.
pub trait Events {
    /// A whole message.
    fn message(&mut self, payload: Payload<'_>, tx: &mut Tx<'_>);

    /// A piece of a message, after [`Session::deliver_fragments`](crate::Session::deliver_fragments).
    fn fragment(&mut self, fragment: Fragment<'_>, tx: &mut Tx<'_>) {
        let _ = (fragment, tx);
    }

    /// A ping. The session answers it.
    fn ping(&mut self, payload: &[u8], tx: &mut Tx<'_>) {
        let _ = (payload, tx);
    }

    /// A pong. `answers` is the round-trip time of the newest keepalive ping, if this pong answers it.
    fn pong(&mut self, payload: &[u8], answers: Option<std::time::Duration>, tx: &mut Tx<'_>) {
        let _ = (payload, answers, tx);
    }

    /// Called after each event. `true` leaves the rest of the input until [`Session::resume`](crate::Session::resume), as if the
    /// outbound queue had passed [`Config::high_water`](sinews_proto::Config::high_water). A driver that returns `true` must know when to
    /// resume.
    fn pauses(&self) -> bool {
        false
    }
}

/// The result of one [`Session::pull`](crate::Session::pull).
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct PullResult {
    /// Consumed input bytes.
    pub consumed: usize,
    /// The event that they encode.
    pub event: Option<ReceivedEvent>,
}

/// A received event, for an owner that pulls.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "an owner must handle each")]
pub enum ReceivedEvent {
    /// A whole message.
    Message {
        /// Text (which is valid UTF-8) or binary.
        kind: Kind,
        /// The payload: a range of the input, or the whole [`Session::assembled`](crate::Session::assembled).
        at: PayloadLocation,
    },
    /// A piece of a message, after [`Session::deliver_fragments`](crate::Session::deliver_fragments); see [`Event::Fragment`](sinews_proto::Event::Fragment).
    Fragment {
        /// Text or binary.
        kind: Kind,
        /// The piece's bytes.
        at: PayloadLocation,
        /// Whether the message begins here.
        first: bool,
        /// Whether the message ends here.
        last: bool,
    },
    /// A ping, with the range of its payload in the input. The session answers it.
    Ping(std::ops::Range<usize>),
    /// A pong.
    Pong {
        /// The payload.
        at: std::ops::Range<usize>,
        /// The round-trip time of the newest keepalive ping, if this pong answers it.
        answers: Option<std::time::Duration>,
    },
    /// The peer's Close. [`Session::take_closed`](crate::Session::take_closed) returns it.
    Close,
}

impl ReceivedEvent {
    /// Shifts the ranges by `offset`, for an input with `offset` more bytes in front.
    #[must_use]
    #[inline]
    pub fn shifted(mut self, offset: usize) -> Self {
        match &mut self {
            Self::Message { at: PayloadLocation::Input(at), .. }
            | Self::Fragment { at: PayloadLocation::Input(at), .. }
            | Self::Ping(at)
            | Self::Pong { at, .. } => *at = at.start + offset..at.end + offset,
            Self::Message { .. } | Self::Fragment { .. } | Self::Close => {}
        }
        self
    }

    pub(crate) const fn is_in_assembly(&self) -> bool {
        matches!(
            self,
            Self::Message { at: PayloadLocation::Assembly, .. }
                | Self::Fragment { at: PayloadLocation::Assembly, .. }
        )
    }
}

/// Whether the driver continues to receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
#[allow(clippy::exhaustive_enums, reason = "a driver must handle both")]
pub enum Flow {
    /// Pass the next received bytes.
    Continue,
    /// The outbound queue has passed [`Config::high_water`](sinews_proto::Config::high_water). Pass nothing until [`Session::wants_resume`](crate::Session::wants_resume)
    /// returns `true`. That includes the peer's end of the transport, which follows the retained input.
    Pause,
}
