//! Limits and timeouts of a connection.

use core::time::Duration;

/// Limits and timeouts. Every buffer, counter and timeout of a connection has its setting here.
///
/// One value serves many connections through an `Arc`.
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
    pub(crate) end_at_close: bool,
    pub(crate) answers: bool,
    pub(crate) pongs: bool,
    pub(crate) high_water: usize,
    pub(crate) max_outbound: usize,
    pub(crate) overflow: Overflow,
}

/// Rate limit for the pings of a peer: a bucket of `burst` pings that refills at `per_second`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs, reason = "a pair of numbers")]
pub struct PingRate {
    /// Sustained pings per second.
    pub per_second: u32,
    /// Pings at once after an idle period.
    pub burst: u32,
}

/// The slow-consumer policy: action for a message when [`Config::max_outbound`] bytes are queued already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(clippy::exhaustive_enums, reason = "a policy that a caller cannot match is none")]
pub enum Overflow {
    /// Close the connection with 1008: a consumer that lags this far is better served by a reconnect than
    /// by a gap. The default, since no message is lost silently.
    #[default]
    Close,
    /// Drop the new message and report it to the sender.
    DropNewest,
    /// Drop the oldest queued published messages (framed once for many connections) to free capacity for a
    /// new one. A message to this connection alone is never dropped once it is queued. If no capacity can
    /// be freed, a new published message is queued nevertheless, beyond the limit, and another new message
    /// is dropped and reported to the sender.
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
            end_at_close: false,
            answers: true,
            pongs: true,
            high_water: 64 << 10,
            max_outbound: 1 << 20,
            overflow: Overflow::Close,
        }
    }
}

/// Error for a setting with which no connection can work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidConfig(&'static str);

impl core::fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for InvalidConfig {}

impl Config {
    /// Validates the settings. Drivers call it before a handshake. Whoever makes a connection of a handshake of
    /// their own calls it first.
    ///
    /// # Errors
    /// [`InvalidConfig`] names the setting: a timeout of zero, which would expire at once, or a limit of
    /// zero, which would reject all input.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        let zero = Some(Duration::ZERO);
        let faults = [
            (self.max_message == 0, "max_message must be at least 1"),
            (self.max_frame == 0, "max_frame must be at least 1"),
            (self.max_fragments == 0, "max_fragments must be at least 1"),
            (self.max_outbound == 0, "max_outbound must be at least 1"),
            (self.idle_timeout == zero, "idle_timeout must be longer than zero; None disables it"),
            (self.ping_interval == zero, "ping_interval must be longer than zero; None disables it"),
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

/// Defines a setter and a getter for one setting; both have the same documentation.
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
    /// Maximum bytes of a message, after inflating. Default 16 MiB: the memory that a peer can occupy, and
    /// the largest message of the Autobahn suite. In fragment delivery it bounds a stream and costs no
    /// memory: raise it there, together with [`max_fragments`](Self::max_fragments) and
    /// [`max_frame`](Self::max_frame).
    max_message / with_max_message: u64;
    /// Maximum bytes that one frame may declare. Default 16 MiB: a message in a single frame. It also
    /// bounds a streamed frame, which costs no memory.
    max_frame / with_max_frame: u64;
    /// Maximum fragments of a message, at least 1. Default 131,072, like Node's `ws`; Autobahn sends
    /// 65,536. A stream in frames of 4 KiB ends there after 512 MiB.
    max_fragments / with_max_fragments: u32;
    /// Maximum empty fragments of a message: legal, useless, and free for the sender. Default 1,024.
    max_empty_fragments / with_max_empty_fragments: u32;
    /// Rate limit for pings of the peer. Default 64 per second, 256 at once: far above any keepalive.
    ping_rate / with_ping_rate: PingRate;
    /// Maximum time without bytes from the peer and without a message to it. Default 120 s; `None` disables
    /// the timeout. It also applies while pings are on, and pings to the peer do not extend it: set it longer
    /// than [`ping_interval`](Self::ping_interval) and [`pong_timeout`](Self::pong_timeout) together, so that
    /// pings keep a connection open. When it expires, the connection closes with 1001. Time in which the caller does not
    /// drive the connection does not count: pending input is read first, and if there is none, the timeout
    /// restarts.
    idle_timeout / with_idle_timeout: Option<Duration>;
    /// Idle time without a byte from the peer after which a ping is sent. Default 25 s, below the 30 s at
    /// which the strictest proxies close; `None` sends none.
    ping_interval / with_ping_interval: Option<Duration>;
    /// Maximum time without a byte after a ping. Default 20 s, then 1011. Pending input is read before the
    /// timeout expires.
    pong_timeout / with_pong_timeout: Duration;
    /// Maximum time in which the peer accepts none of the queued bytes. Default 30 s, then the connection
    /// is dropped: a Close frame would only wait behind the queue.
    write_timeout / with_write_timeout: Duration;
    /// Maximum time for the peer to answer the local Close and to end the transport, once the Close is
    /// sent. Default 5 s; before that, [`write_timeout`](Self::write_timeout) applies.
    close_timeout / with_close_timeout: Duration;
    /// Whether a connection of the library `sinews` ends once both Closes are exchanged, even if the peer
    /// keeps the transport open. A server then ends its sending side at once; a client ends the transport
    /// first, where RFC 6455 section 7.1.1 asks it to wait for the server, and holds the port of the connection
    /// for some minutes (TIME_WAIT). Default no: a receive loop ends with the transport, at most
    /// [`close_timeout`](Self::close_timeout) after the Close, so that no reset overtakes the Close where a
    /// peer sends behind its own. The event loop of `sinews-server` ignores the setting: no code of the
    /// application waits there.
    end_at_close / with_end_at_close: bool;
    /// Whether Closes and violations of the peer are answered by the connection. Default yes. If not, the application
    /// answers with [`Connection::close`](crate::Connection::close). Messages may be sent until then: answers to messages
    /// that arrived before. `sinews-server` asks the handler for the answer. The clients of this workspace expect the default.
    answers / with_answers: bool;

    /// Whether pings of the peer are answered by the connection. Default yes. If not, the application answers with
    /// [`Connection::send_pong`](crate::Connection::send_pong).
    pongs / with_pongs: bool;
    /// High-water mark: queued bytes above which senders get backpressure, and a server pauses reads. Default
    /// 64 KiB: a socket's send buffer holds about the same amount again.
    high_water / with_high_water: usize;
    /// Queued bytes at which [`overflow`](Self::overflow) applies to further messages. Checked before a
    /// message is queued, so one message may always exceed the limit. Default 1 MiB.
    max_outbound / with_max_outbound: usize;
    /// Action for a message when [`max_outbound`](Self::max_outbound) bytes are queued already.
    overflow / with_overflow: Overflow;
}
