//! Settings of a loop. The defaults suit most applications.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Settings of one loop.
///
/// ```
/// use sinews_engine::EngineConfig;
/// let config = EngineConfig::default().with_receive_buffer(32 * 1024)?.with_mailbox(1024)?;
/// assert!(EngineConfig::default().with_receive_buffer(0).is_err());
/// # Ok::<(), sinews_engine::InvalidEngineConfig>(())
/// ```
#[derive(Clone, Debug)]
pub struct EngineConfig {
    pub(crate) backend: BackendChoice,
    receive_buffer: Option<usize>,
    pub(crate) receives_per_turn: u32,
    pub(crate) accepts_per_turn: u32,
    pub(crate) accept_backoff: Duration,
    pub(crate) mailbox: usize,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "a ring's"))]
    pub(crate) ring_files: Option<u32>,
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "a ring's"))]
    pub(crate) ring_buffers: usize,
    /// Off in tests only, to simulate an older kernel.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "a ring's"))]
    pub(crate) ring_incremental: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            backend: BackendChoice::Auto,
            receive_buffer: None,
            receives_per_turn: 4,
            accepts_per_turn: 64,
            accept_backoff: Duration::from_millis(100),
            mailbox: 65_536,
            ring_files: None,
            ring_buffers: 2,
            ring_incremental: true,
        }
    }
}

impl EngineConfig {
    /// The backend. Default: [`BackendChoice::Auto`].
    #[must_use]
    pub fn with_backend(mut self, choice: BackendChoice) -> Self {
        self.backend = choice;
        self
    }

    /// Size of the loop's receive buffer in bytes, 1 to 16 MiB; with a ring, of each of its
    /// [`with_ring_buffers`](Self::with_ring_buffers). Default: 64 KiB, which stays in the second-level cache while a
    /// chunk is processed and is large enough that a receive costs little per byte. With a ring 128 KiB,
    /// since a chunk that reaches the end of a buffer is split. A larger buffer saves system calls on bulk
    /// transfers and costs cache misses.
    ///
    /// # Errors
    ///
    /// The value is out of range.
    pub fn with_receive_buffer(mut self, bytes: usize) -> Result<Self, InvalidEngineConfig> {
        self.receive_buffer = Some(check_range("receive_buffer", bytes, 1, 16 << 20)?);
        Ok(self)
    }

    /// Maximum receives on one connection in one turn, at least 1, with the readiness backend. Other
    /// connections follow. Default: 4, so that a peer that sends at full speed costs other connections 256
    /// KiB of work per turn at most.
    ///
    /// # Errors
    ///
    /// The value is 0.
    pub fn with_receives_per_turn(mut self, receives: u32) -> Result<Self, InvalidEngineConfig> {
        self.receives_per_turn = check_range("receives_per_turn", receives, 1, u32::MAX)?;
        Ok(self)
    }

    /// Maximum connections accepted from one listener in one turn, at least 1; with a ring, from all
    /// listeners together, and at most 1024. Default: 64, so that a storm of new connections delays the
    /// established connections by a few hundred microseconds per turn at most.
    ///
    /// # Errors
    ///
    /// The value is 0.
    pub fn with_accepts_per_turn(mut self, accepts: u32) -> Result<Self, InvalidEngineConfig> {
        self.accepts_per_turn = check_range("accepts_per_turn", accepts, 1, u32::MAX)?;
        Ok(self)
    }

    /// Accept pause when descriptors or memory are exhausted, unless a connection of this loop closes first. 1 ms to 60
    /// s. Default: 100 ms: short for waiting peers, and long enough to cost no measurable time during the shortage.
    ///
    /// # Errors
    ///
    /// The value is out of range.
    pub fn with_accept_backoff(mut self, pause: Duration) -> Result<Self, InvalidEngineConfig> {
        self.accept_backoff =
            check_range("accept_backoff", pause, Duration::from_millis(1), Duration::from_secs(60))?;
        Ok(self)
    }

    /// Capacity of the loop's mailbox in pieces of mail, at least 1; further mail is returned to the
    /// sender. Default: 65,536. A loop empties its mailbox every turn, so a full mailbox means that the
    /// loop is stuck or overloaded, and rejecting mail is better than unbounded growth.
    ///
    /// # Errors
    ///
    /// The value is 0.
    pub fn with_mailbox(mut self, limit: usize) -> Result<Self, InvalidEngineConfig> {
        self.mailbox = check_range("mailbox", limit, 1, usize::MAX)?;
        Ok(self)
    }

    /// Size of the loop's single receive buffer, with readiness.
    pub(crate) fn loop_buffer(&self) -> usize {
        self.receive_buffer.unwrap_or(64 << 10)
    }

    /// Size of each ring buffer.
    #[cfg(target_os = "linux")]
    pub(crate) fn ring_buffer(&self) -> usize {
        self.receive_buffer.unwrap_or(128 << 10)
    }

    /// Buffers that a ring receives into, 1 to 256, shared by all its connections. Default: 2, so 256 KiB per loop,
    /// which stay in the second-level cache and bound the bytes of one turn: a peer that sends at full speed cannot
    /// take more of a turn. Without a ring it has no effect.
    ///
    /// # Errors
    ///
    /// The value is out of range.
    pub fn with_ring_buffers(mut self, buffers: usize) -> Result<Self, InvalidEngineConfig> {
        self.ring_buffers = check_range("ring_buffers", buffers, 1, 256)?;
        Ok(self)
    }

    /// Connections in a ring's file table, 1 to 1,048,576. They are not descriptors of the process, but the descriptor
    /// limit (`ulimit -n`) bounds their number per loop. Default: that limit, at most 131,072. A slot costs the kernel
    /// 8 bytes. When the table is full, further connections wait in the backlog. Without a ring it has no effect.
    ///
    /// # Errors
    ///
    /// The value is out of range.
    pub fn with_ring_files(mut self, slots: u32) -> Result<Self, InvalidEngineConfig> {
        self.ring_files = Some(check_range("ring_files", slots, 1, 1 << 20)?);
        Ok(self)
    }
}

/// The backend of a loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendChoice {
    /// A ring where the system permits it, else readiness. The fallback logs one line per process with the
    /// cause and the remedy.
    #[default]
    Auto,
    /// Readiness: epoll, or kqueue.
    Poll,
    /// A ring: `io_uring`, Linux 6.7 or newer. Where it is refused, creating the engine fails with the
    /// cause.
    Uring,
}

/// Parses the name: `auto`, `poll` or `uring`.
impl FromStr for BackendChoice {
    type Err = UnknownBackend;

    fn from_str(name: &str) -> Result<Self, UnknownBackend> {
        match name {
            "auto" => Ok(Self::Auto),
            "poll" => Ok(Self::Poll),
            "uring" => Ok(Self::Uring),
            other => Err(UnknownBackend(other.to_owned())),
        }
    }
}

/// Error for an unknown backend name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBackend(String);

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unknown backend `{}`: expected auto, poll or uring", self.0)
    }
}

impl std::error::Error for UnknownBackend {}

/// Error for a setting out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidEngineConfig {
    setting: &'static str,
    range: String,
}

impl fmt::Display for InvalidEngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must lie within {}", self.setting, self.range)
    }
}

impl std::error::Error for InvalidEngineConfig {}

fn check_range<T: PartialOrd + fmt::Debug>(
    setting: &'static str,
    value: T,
    min: T,
    max: T,
) -> Result<T, InvalidEngineConfig> {
    if value < min || value > max {
        return Err(InvalidEngineConfig { setting, range: format!("{min:?} and {max:?}") });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_at_both_ends() {
        let config = EngineConfig::default();
        assert!(
            config.clone().with_receive_buffer(1).is_ok()
                && config.clone().with_receive_buffer(16 << 20).is_ok()
        );
        assert!(config.clone().with_receive_buffer((16 << 20) + 1).is_err());
        assert!(config.clone().with_receives_per_turn(0).is_err());
        assert!(config.clone().with_accepts_per_turn(0).is_err());
        assert!(config.clone().with_mailbox(0).is_err());
        assert!(config.clone().with_accept_backoff(Duration::from_secs(61)).is_err());
        let error = config.with_accept_backoff(Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "accept_backoff must lie within 1ms and 60s");
    }
}
