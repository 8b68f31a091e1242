//! Reasons for which connections and messages end, and their counts.

use std::fmt;
use std::marker::PhantomData;

use sinews_engine as engine;
use sinews_http::h2::ErrorCode;
use sinews_session::Cause;

/// Label of a counter family.
pub trait MetricReason: Copy + fmt::Debug + 'static {
    /// All values.
    const ALL: &'static [Self];

    /// Returns the value of the label in metrics.
    fn name(self) -> &'static str;

    /// Returns the index in [`ALL`](Self::ALL).
    fn index(self) -> usize;
}

/// Counts by reason.
#[derive(Clone, PartialEq, Eq)]
pub struct ReasonCounts<R> {
    counts: Vec<u64>,
    reason: PhantomData<R>,
}

impl<R: MetricReason> ReasonCounts<R> {
    /// Returns the count of this reason.
    #[must_use]
    pub fn get(&self, reason: R) -> u64 {
        self.counts[reason.index()]
    }

    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns every reason with its count.
    pub fn iter(&self) -> impl Iterator<Item = (R, u64)> {
        R::ALL.iter().copied().zip(self.counts.iter().copied())
    }

    pub(crate) fn add(&mut self, reason: R, count: u64) {
        self.counts[reason.index()] += count;
    }
}

impl<R: MetricReason> Default for ReasonCounts<R> {
    fn default() -> Self {
        Self { counts: vec![0; R::ALL.len()], reason: PhantomData }
    }
}

impl<R: MetricReason> fmt::Debug for ReasonCounts<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(reason, count)| (reason.name(), count))).finish()
    }
}

/// Defines an enumeration of reasons with their names in metrics.
macro_rules! reason_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $reason:ident = $text:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$about])* $reason,)*
        }

        impl $crate::metrics::MetricReason for $name {
            const ALL: &'static [Self] = &[$(Self::$reason),*];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $text,)*
                }
            }

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

pub(crate) use reason_enum;

reason_enum! {
    /// How a connection ended.
    ConnectionEnd {
        /// Both sides closed it in order.
        Finished = "finished",
        /// The server closed it: a timeout, or a limit.
        Closed = "closed",
        /// The client reset it, or was unreachable.
        Reset = "reset",
        /// The server stopped.
        Stopped = "stopped",
        /// The socket failed otherwise, for example by a TCP timeout.
        Failed = "failed",
    }
}

impl From<&engine::CloseReason> for ConnectionEnd {
    fn from(closed: &engine::CloseReason) -> Self {
        match closed {
            engine::CloseReason::Finished => Self::Finished,
            engine::CloseReason::Requested => Self::Closed,
            engine::CloseReason::Reset => Self::Reset,
            engine::CloseReason::Stopped => Self::Stopped,
            _ => Self::Failed,
        }
    }
}

reason_enum! {
    /// Reason for the end of a WebSocket or of a streaming response, from [`Cause`].
    WebSocketEnd {
        /// The client sent the first Close, or ended a streaming response.
        Client = "client",
        /// The client answered the server's Close, or the server ended a streaming response.
        Server = "server",
        /// The client broke the protocol or a limit.
        Fault = "fault",
        /// A timeout expired.
        Expired = "expired",
        /// The client was slower than the overflow policy allows.
        Overflow = "overflow",
        /// The transport ended without a Close.
        Lost = "lost",
    }
}

impl From<Cause> for WebSocketEnd {
    fn from(cause: Cause) -> Self {
        match cause {
            Cause::Peer => Self::Client,
            Cause::Local => Self::Server,
            Cause::Fault(_) => Self::Fault,
            Cause::Expired(_) => Self::Expired,
            Cause::Overflow => Self::Overflow,
            // Default for new causes, until they have a name here.
            _ => Self::Lost,
        }
    }
}

reason_enum! {
    /// Error of an HTTP/2 client, by the code that the server answers with (RFC 9113 section 7).
    Http2Fault {
        /// The client violated the protocol.
        Protocol = "protocol_error",
        /// The client sent more than a window permits.
        FlowControl = "flow_control_error",
        /// SETTINGS were not acknowledged in time.
        SettingsTimeout = "settings_timeout",
        /// A ping was not answered in time.
        PingTimeout = "ping_timeout",
        /// A frame arrived on a closed stream.
        StreamClosed = "stream_closed",
        /// A frame has an invalid size.
        FrameSize = "frame_size_error",
        /// The client exceeded the maximum of concurrent streams.
        RefusedStream = "refused_stream",
        /// A header block could not be decoded.
        Compression = "compression_error",
        /// The client exceeded a limit, such as that of resets, of control frames or of a header list.
        EnhanceYourCalm = "enhance_your_calm",
        /// Another code.
        Other = "other",
    }
}

impl From<ErrorCode> for Http2Fault {
    fn from(code: ErrorCode) -> Self {
        match code {
            ErrorCode::PROTOCOL_ERROR => Self::Protocol,
            ErrorCode::FLOW_CONTROL_ERROR => Self::FlowControl,
            ErrorCode::SETTINGS_TIMEOUT => Self::SettingsTimeout,
            ErrorCode::STREAM_CLOSED => Self::StreamClosed,
            ErrorCode::FRAME_SIZE_ERROR => Self::FrameSize,
            ErrorCode::REFUSED_STREAM => Self::RefusedStream,
            ErrorCode::COMPRESSION_ERROR => Self::Compression,
            ErrorCode::ENHANCE_YOUR_CALM => Self::EnhanceYourCalm,
            _ => Self::Other,
        }
    }
}

reason_enum! {
    /// Reason why a message was not sent.
    Dropped {
        /// The outbound queue was full, and the policy drops the newest messages
        /// ([`Overflow::DropNewest`](crate::Overflow::DropNewest)).
        Newest = "newest",
        /// The outbound queue was full, and the policy drops the oldest messages
        /// ([`Overflow::DropOldest`](crate::Overflow::DropOldest)).
        Oldest = "oldest",
        /// The next value of its topic replaced it ([`SlowConsumer::Conflate`](crate::SlowConsumer::Conflate)).
        Conflated = "conflated",
        /// It expired from its topic's [`HistoryPolicy`](crate::HistoryPolicy) before delivery to a late subscriber, or
        /// to a thread whose mailbox was full.
        Expired = "forgotten",
        /// The mailbox of the subscribers' thread was full
        /// ([`EngineConfig::with_mailbox`](crate::EngineConfig::with_mailbox)); counted once for each subscriber. A
        /// [`Publisher`](crate::Publisher) gets an error instead.
        Mailbox = "mailbox",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn consistent<R: MetricReason + PartialEq>() {
        for (index, reason) in R::ALL.iter().enumerate() {
            assert_eq!(reason.index(), index);
            assert!(reason.name().bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'));
            assert_eq!(R::ALL.iter().filter(|other| other.name() == reason.name()).count(), 1);
        }
        let mut tally = ReasonCounts::default();
        for (index, reason) in R::ALL.iter().enumerate() {
            tally.add(*reason, index as u64 + 1);
        }
        assert!(tally.iter().map(|(_, count)| count).eq(1..=R::ALL.len() as u64));
        assert_eq!(tally.get(R::ALL[0]), 1);
        assert_eq!(tally.total(), (1..=R::ALL.len() as u64).sum::<u64>());
    }

    #[test]
    fn every_reason_has_an_index_and_a_unique_name() {
        consistent::<ConnectionEnd>();
        consistent::<WebSocketEnd>();
        consistent::<Dropped>();
        consistent::<Http2Fault>();
    }
}
