//! How a loop behaves. Every value has a default that is meant to be left alone.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Settings of one loop.
///
/// ```
/// use sinews_engine::Config;
/// let config = Config::default().receive_buffer(32 * 1024)?.mailbox(1024)?;
/// assert!(Config::default().receive_buffer(0).is_err());
/// # Ok::<(), sinews_engine::InvalidConfig>(())
/// ```
#[derive(Clone, Debug)]
pub struct Config {
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
    /// Off in tests only, to be as on an older kernel.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "a ring's"))]
    pub(crate) ring_incremental: bool,
}

impl Default for Config {
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

impl Config {
    /// Which backend serves. Default: [`BackendChoice::Auto`].
    #[must_use]
    pub fn backend(mut self, choice: BackendChoice) -> Self {
        self.backend = choice;
        self
    }

    /// Bytes of the loop's one receive buffer, 1 to 16 MiB; with a ring, of each of its
    /// [`ring_buffers`](Self::ring_buffers). Default: 64 KiB, which stays in the second-level cache while a
    /// chunk is worked on and is large enough that a receive costs little per byte; with a ring 128 KiB,
    /// since there a chunk that reaches the end of a buffer is cut. A larger one saves system calls on bulk
    /// transfers and pays for them with cache misses.
    ///
    /// # Errors
    ///
    /// Outside of the range.
    pub fn receive_buffer(mut self, bytes: usize) -> Result<Self, InvalidConfig> {
        self.receive_buffer = Some(within("receive_buffer", bytes, 1, 16 << 20)?);
        Ok(self)
    }

    /// Receives on one connection in one turn, at least 1, with the readiness backend; then the others have theirs. Default: 4, so that
    /// a peer that sends as fast as it can costs the others 256 KiB of work per turn at most.
    ///
    /// # Errors
    ///
    /// 0.
    pub fn receives_per_turn(mut self, receives: u32) -> Result<Self, InvalidConfig> {
        self.receives_per_turn = within("receives_per_turn", receives, 1, u32::MAX)?;
        Ok(self)
    }

    /// Connections accepted from one listener in one turn, at least 1; with a ring, from all listeners
    /// together, and at most 1024. Default: 64, so that a storm of new
    /// connections delays the established ones by some hundred microseconds per turn at most.
    ///
    /// # Errors
    ///
    /// 0.
    pub fn accepts_per_turn(mut self, accepts: u32) -> Result<Self, InvalidConfig> {
        self.accepts_per_turn = within("accepts_per_turn", accepts, 1, u32::MAX)?;
        Ok(self)
    }

    /// How long accepting pauses when descriptors or memory have run out, unless a connection of this loop
    /// closes first. 1 ms to 60 s. Default: 100 ms: short enough for waiting peers, long enough to cost
    /// nothing while the shortage lasts.
    ///
    /// # Errors
    ///
    /// Outside of the range.
    pub fn accept_backoff(mut self, pause: Duration) -> Result<Self, InvalidConfig> {
        self.accept_backoff =
            within("accept_backoff", pause, Duration::from_millis(1), Duration::from_secs(60))?;
        Ok(self)
    }

    /// Pieces of mail that may wait in the loop's box, at least 1; further ones are returned to the sender.
    /// Default: 65,536. A loop empties its box every turn, so a box that full means a loop that is stuck or
    /// overrun, and refusing is better than growing without end.
    ///
    /// # Errors
    ///
    /// 0.
    pub fn mailbox(mut self, limit: usize) -> Result<Self, InvalidConfig> {
        self.mailbox = within("mailbox", limit, 1, usize::MAX)?;
        Ok(self)
    }

    /// Of the loop's one receive buffer, with readiness.
    pub(crate) fn loop_buffer(&self) -> usize {
        self.receive_buffer.unwrap_or(64 << 10)
    }

    /// Of each buffer of a ring.
    #[cfg(target_os = "linux")]
    pub(crate) fn ring_buffer(&self) -> usize {
        self.receive_buffer.unwrap_or(128 << 10)
    }

    /// Buffers that a ring receives into, 1 to 256, shared by all its connections. Default: 2, so 256 KiB a
    /// loop, which stay in the second-level cache and bound what one turn can bring: a peer that sends as
    /// fast as it can takes no more of a turn than that. Without a ring it has no effect.
    ///
    /// # Errors
    ///
    /// Outside of the range.
    pub fn ring_buffers(mut self, buffers: usize) -> Result<Self, InvalidConfig> {
        self.ring_buffers = within("ring_buffers", buffers, 1, 256)?;
        Ok(self)
    }

    /// Connections that a ring has places for, 1 to 1,048,576. They are no descriptors of the process, but
    /// the descriptor limit (`ulimit -n`) bounds their number for each loop. Default: that limit, but no
    /// more than 131,072; a place costs the kernel 8 bytes. When all are taken, further connections wait in
    /// the backlog. Without a ring it has no effect.
    ///
    /// # Errors
    ///
    /// Outside of the range.
    pub fn ring_files(mut self, places: u32) -> Result<Self, InvalidConfig> {
        self.ring_files = Some(within("ring_files", places, 1, 1 << 20)?);
        Ok(self)
    }
}

/// Which backend a loop runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BackendChoice {
    /// A ring where the system permits it, else readiness; then one line of the log, for each process, says
    /// why and what to do.
    #[default]
    Auto,
    /// Readiness: epoll, or kqueue.
    Poll,
    /// A ring: `io_uring`, Linux 6.7 or newer. Where it is refused, making the engine fails and says why.
    Uring,
}

/// By its name: `auto`, `poll` or `uring`.
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

/// No [`BackendChoice`] has this name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownBackend(String);

impl fmt::Display for UnknownBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no backend `{}`: it is auto, poll or uring", self.0)
    }
}

impl std::error::Error for UnknownBackend {}

/// A setting outside of its range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    setting: &'static str,
    range: String,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} must lie within {}", self.setting, self.range)
    }
}

impl std::error::Error for InvalidConfig {}

fn within<T: PartialOrd + fmt::Debug>(
    setting: &'static str,
    value: T,
    least: T,
    most: T,
) -> Result<T, InvalidConfig> {
    if value < least || value > most {
        return Err(InvalidConfig { setting, range: format!("{least:?} and {most:?}") });
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_checked_at_both_ends() {
        let config = Config::default();
        assert!(config.clone().receive_buffer(1).is_ok() && config.clone().receive_buffer(16 << 20).is_ok());
        assert!(config.clone().receive_buffer((16 << 20) + 1).is_err());
        assert!(config.clone().receives_per_turn(0).is_err());
        assert!(config.clone().accepts_per_turn(0).is_err());
        assert!(config.clone().mailbox(0).is_err());
        assert!(config.clone().accept_backoff(Duration::from_secs(61)).is_err());
        let error = config.accept_backoff(Duration::ZERO).unwrap_err();
        assert_eq!(error.to_string(), "accept_backoff must lie within 1ms and 60s");
    }
}
