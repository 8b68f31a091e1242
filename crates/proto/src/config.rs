//! Limits and waits of a connection.

use core::time::Duration;

/// Limits and waits. Every buffer, counter and wait of a connection has its setting here.
///
/// One value serves many connections: it is shared by reference count.
#[derive(Clone, Debug)]
pub struct Config {
    pub(crate) max_message: u64,
    pub(crate) max_frame: u64,
    pub(crate) max_fragments: u32,
    pub(crate) max_empty_fragments: u32,
    pub(crate) ping_rate: PingRate,
    pub(crate) idle_timeout: Option<Duration>,
    pub(crate) ping_interval: Option<Duration>,
    pub(crate) pong_timeout: Duration,
    pub(crate) write_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) high_water: usize,
    pub(crate) max_outbound: usize,
    pub(crate) overflow: Overflow,
}

/// How many pings a peer may send: a bucket of `burst` pings that refills at `per_second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a pair of numbers")]
pub struct PingRate {
    /// Pings a second, in the long run.
    pub per_second: u32,
    /// Pings at once after a quiet time.
    pub burst: u32,
}

/// What happens to a message when [`Config::max_outbound`] bytes wait already: the slow-consumer policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(clippy::exhaustive_enums, reason = "a policy that a caller cannot match is none")]
pub enum Overflow {
    /// The connection ends with 1008: a consumer that lags this far is better served by a reconnect
    /// than by a gap. The default, since no message is lost unnoticed.
    #[default]
    Close,
    /// The new message is dropped; the sender is told.
    DropNewest,
    /// The oldest published messages (framed once for many connections) still waiting are dropped to make room for a new one. A message to this
    /// connection alone is never dropped once it is queued; where no room can be made, a new one is, and the
    /// sender is told.
    DropOldest,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            max_message: 16 << 20,
            max_frame: 16 << 20,
            max_fragments: 131_072,
            max_empty_fragments: 1_024,
            ping_rate: PingRate { per_second: 64, burst: 256 },
            idle_timeout: Some(Duration::from_secs(120)),
            ping_interval: Some(Duration::from_secs(25)),
            pong_timeout: Duration::from_secs(20),
            write_timeout: Duration::from_secs(30),
            close_timeout: Duration::from_secs(5),
            high_water: 64 << 10,
            max_outbound: 1 << 20,
            overflow: Overflow::Close,
        }
    }
}

/// A setting with which no connection can work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig(&'static str);

impl core::fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for InvalidConfig {}

impl Config {
    /// Whether a connection can work with these settings. Drivers ask before the first one.
    ///
    /// # Errors
    /// [`InvalidConfig`] names the setting: a wait of zero, which would be over at once, or a limit of zero where
    /// nothing could pass.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let zero = Some(Duration::ZERO);
        let faults = [
            (self.max_message == 0, "max_message must be at least 1"),
            (self.max_frame == 0, "max_frame must be at least 1"),
            (self.max_fragments == 0, "max_fragments must be at least 1"),
            (self.max_outbound == 0, "max_outbound must be at least 1"),
            (self.idle_timeout == zero, "idle_timeout must be longer than zero; None waits for ever"),
            (self.ping_interval == zero, "ping_interval must be longer than zero; None sends no ping"),
            (self.pong_timeout.is_zero(), "pong_timeout must be longer than zero"),
            (self.write_timeout.is_zero(), "write_timeout must be longer than zero"),
            (self.close_timeout.is_zero(), "close_timeout must be longer than zero"),
        ];
        match faults.into_iter().find(|(at_fault, _)| *at_fault) {
            Some((_, fault)) => Err(InvalidConfig(fault)),
            None => Ok(()),
        }
    }
}

/// Defines a setter and a getter for one setting; both carry the same text.
macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident / $with:ident: $type:ty;)*) => {
        impl Config {
            $(
                $(#[$doc])*
                #[must_use]
                pub const fn $name(&self) -> $type {
                    self.$name
                }

                #[doc = concat!("Sets [`", stringify!($name), "`](Self::", stringify!($name), ").")]
                #[must_use]
                pub const fn $with(mut self, $name: $type) -> Self {
                    self.$name = $name;
                    self
                }
            )*
        }
    };
}

settings! {
    /// Bytes in one message, after inflating. Default 16 MiB: what a peer may make us hold, and what the
    /// Autobahn suite sends. In fragment delivery it bounds a stream and costs no memory: raise it there, and
    /// [`max_fragments`](Self::max_fragments) and [`max_frame`](Self::max_frame) with it.
    max_message / with_max_message: u64;
    /// Bytes that one frame may declare. Default 16 MiB: a message in a single frame. It bounds a streamed frame
    /// too, though no memory follows from it.
    max_frame / with_max_frame: u64;
    /// Fragments in one message, at least 1. Default 131,072, as Node's `ws`; Autobahn sends 65,536. A stream in
    /// frames of 4 KiB ends there after 512 MiB.
    max_fragments / with_max_fragments: u32;
    /// Empty fragments in one message: legal, without use, and free for the sender. Default 1,024.
    max_empty_fragments / with_max_empty_fragments: u32;
    /// Pings that a peer may send. Default 64 a second, 256 at once: far above any keepalive.
    ping_rate / with_ping_rate: PingRate;
    /// How long nothing may come from the peer and no message may be sent to it. Default 120 s; `None` waits for
    /// ever. Then the connection closes with 1001. Time in which the caller does not drive the connection does not
    /// count: what the peer has sent meanwhile is read first, and if there is nothing, the wait begins anew.
    idle_timeout / with_idle_timeout: Option<Duration>;
    /// A ping leaves after so long without a byte from the peer. Default 25 s, below the 30 s at which
    /// the strictest proxies cut; `None` sends none.
    ping_interval / with_ping_interval: Option<Duration>;
    /// How long a ping may stay without a byte in answer. Default 20 s, then 1011. What the peer has sent is read
    /// before this is decided.
    pong_timeout / with_pong_timeout: Duration;
    /// How long the peer may take nothing of what waits to be sent. Default 30 s, then the connection is
    /// dropped: a Close frame would only wait behind the rest.
    write_timeout / with_write_timeout: Duration;
    /// How long the peer may take to answer our Close and to end the transport, once the Close has left.
    /// Default 5 s; before that, [`write_timeout`](Self::write_timeout) counts.
    close_timeout / with_close_timeout: Duration;
    /// Bytes waiting to be sent above which reading pauses and senders are told to slow down. Default
    /// 64 KiB: a socket's send buffer holds about as much again.
    high_water / with_high_water: usize;
    /// Bytes waiting to be sent at which further messages meet [`overflow`](Self::overflow). Compared
    /// before a message is queued, so that one message may always overshoot. Default 1 MiB.
    max_outbound / with_max_outbound: usize;
    /// What happens to a message when [`max_outbound`](Self::max_outbound) bytes wait already.
    overflow / with_overflow: Overflow;
}
