//! Configured and negotiated permessage-deflate parameters.

use core::error::Error;
use core::fmt;

use crate::Role;

/// The negotiated parameters (RFC 7692 section 7.1).
///
/// Only the handshake creates a value, so its existence proves the negotiation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateParams {
    pub(crate) server_no_context_takeover: bool,
    pub(crate) client_no_context_takeover: bool,
    pub(crate) server_max_window_bits: u8,
    pub(crate) client_max_window_bits: u8,
}

impl DeflateParams {
    /// Whether the server resets its LZ77 window after each message (RFC 7692 section 7.1.1.1).
    #[must_use]
    pub const fn server_no_context_takeover(&self) -> bool {
        self.server_no_context_takeover
    }

    /// Whether the client resets its LZ77 window after each message (RFC 7692 section 7.1.1.2).
    #[must_use]
    pub const fn client_no_context_takeover(&self) -> bool {
        self.client_no_context_takeover
    }

    /// Base-2 logarithm of the largest window the server compresses with, 8 to 15
    /// (RFC 7692 section 7.1.2.1).
    #[must_use]
    pub const fn server_max_window_bits(&self) -> u8 {
        self.server_max_window_bits
    }

    /// Base-2 logarithm of the largest window the client compresses with, 8 to 15
    /// (RFC 7692 section 7.1.2.2).
    #[must_use]
    pub const fn client_max_window_bits(&self) -> u8 {
        self.client_max_window_bits
    }
}

/// The negotiated parameters, and the local compression level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeflateSetup {
    pub(crate) params: DeflateParams,
    pub(crate) level: u8,
    pub(crate) threshold: usize,
    /// A connection keeps no context between messages, at most the window of the peer.
    pub(crate) is_shared: bool,
}

impl DeflateSetup {
    pub(crate) const fn new(role: Role, params: DeflateParams, config: &DeflateConfig) -> Self {
        let no_takeover = match role {
            Role::Server => params.server_no_context_takeover,
            Role::Client => params.client_no_context_takeover,
        };
        let is_shared = matches!(config.mode, DeflateMode::Shared);
        Self { params, level: config.level, threshold: config.threshold(!no_takeover), is_shared }
    }
}

/// The owner of the compression contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeflateMode {
    /// Neither side takes its window over to the next message, so a connection borrows a context from its
    /// thread only while it processes a message, and holds none while idle.
    ///
    /// The default: memory does not grow with the number of connections, and a published message is compressed once for
    /// all connections. The price is a lower ratio on small messages, which cannot refer to earlier messages.
    ///
    /// A client that offers the extension without parameters (Firefox, Safari) may take its window over, since Safari of
    /// iOS 15 does so in any case: a connection keeps the last bytes that this client has sent compressed, at most 32 KiB,
    /// without a context.
    #[default]
    Shared,
    /// Each connection keeps its own contexts, created on first use, and windows are taken over from
    /// message to message as far as the peer agrees.
    ///
    /// Similar small messages become much smaller; each connection that has sent or received a compressed
    /// message holds the memory stated at [`DeflateConfig::with_server_max_window_bits`].
    Dedicated,
}

/// Settings for negotiating permessage-deflate and for compression.
///
/// ```
/// use sinews_proto::deflate::{DeflateConfig, DeflateMode};
///
/// let config = DeflateConfig::new()
///     .with_mode(DeflateMode::Dedicated)
///     .with_level(6)?
///     .with_server_max_window_bits(12)?;
/// assert_eq!(config.level(), 6);
/// assert!(DeflateConfig::new().with_level(10).is_err());
/// # Ok::<(), sinews_proto::deflate::InvalidDeflateConfig>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeflateConfig {
    mode: DeflateMode,
    level: u8,
    threshold: Option<usize>,
    server_no_context_takeover: bool,
    client_no_context_takeover: bool,
    server_max_window_bits: u8,
    client_max_window_bits: u8,
}

#[cfg(feature = "deflate")]
impl Default for DeflateConfig {
    fn default() -> Self {
        Self::new()
    }
}

impl DeflateConfig {
    /// The documented defaults of the setters.
    #[cfg(feature = "deflate")]
    #[must_use]
    pub const fn new() -> Self {
        Self {
            mode: DeflateMode::Shared,
            level: LEVEL_DEFAULT,
            threshold: None,
            server_no_context_takeover: false,
            client_no_context_takeover: false,
            server_max_window_bits: WINDOW_BITS_MAX,
            client_max_window_bits: WINDOW_BITS_MAX,
        }
    }

    /// Sets the owner of the contexts. Default: [`DeflateMode::Shared`].
    #[must_use]
    pub const fn with_mode(mut self, mode: DeflateMode) -> Self {
        self.mode = mode;
        self
    }

    /// Sets the compression level, 1 (fast) to 9 (small). Default: 2.
    ///
    /// The default has the best trade-off: compared to it, level 6 makes JSON of 16 KiB 13 % smaller for
    /// twice the time, and level 1, which uses fixed codes only, 37 % larger for two thirds of the time.
    /// With takeover and messages of a few hundred bytes, level 1 may suit: 8 % more bytes for a fifth of
    /// the time. The memory is the same for all levels.
    ///
    /// # Errors
    /// [`InvalidDeflateConfig::Level`] outside 1 to 9.
    pub const fn with_level(mut self, level: u8) -> Result<Self, InvalidDeflateConfig> {
        if level < 1 || level > 9 {
            return Err(InvalidDeflateConfig::Level(level));
        }
        self.level = level;
        Ok(self)
    }

    /// Sets the threshold: shorter messages are sent uncompressed, which is legal after negotiation (RFC
    /// 7692 section 6).
    ///
    /// Default: 512 bytes without takeover, 64 with. A fresh context costs 5 µs for the first byte, and
    /// halves a JSON message only from about 512 bytes on; a context with a window saves more than that on
    /// 64 bytes, in 2 µs.
    #[must_use]
    pub const fn with_threshold(mut self, bytes: usize) -> Self {
        self.threshold = Some(bytes);
        self
    }

    /// Sets the largest window for the server's compressor, as a base-2 logarithm, 9 to 15. Default: 15.
    ///
    /// The compressor's context takes 287 KiB at 15, 191 KiB at 13, 175 KiB at 12, 161 KiB at 9: 128 KiB of
    /// hash table are constant. With [`DeflateMode::Shared`] that is per thread, so the largest window is
    /// free; with [`DeflateMode::Dedicated`] per connection that has sent a compressed message, and 12
    /// saves two fifths of it for 3 to 7 % more bytes.
    ///
    /// The deflate format permits 8, but common compressors cannot produce it, so neither end requests it;
    /// a peer that limits itself to 8 is accepted.
    ///
    /// # Errors
    /// [`InvalidDeflateConfig::WindowBits`] outside 9 to 15.
    pub const fn with_server_max_window_bits(mut self, bits: u8) -> Result<Self, InvalidDeflateConfig> {
        if bits < WINDOW_BITS_MIN || bits > WINDOW_BITS_MAX {
            return Err(InvalidDeflateConfig::WindowBits(bits));
        }
        self.server_max_window_bits = bits;
        Ok(self)
    }

    /// Sets the largest window for the client's compressor, as a base-2 logarithm, 9 to 15. Default: 15.
    ///
    /// The inflater's context takes 47 KiB and, for reading across final blocks, an additional window of the negotiated
    /// size, at least 4 KiB: 79 KiB at 15, 51 KiB from 12 down. For the context count, see
    /// [`DeflateConfig::with_server_max_window_bits`].
    ///
    /// # Errors
    /// [`InvalidDeflateConfig::WindowBits`] outside 9 to 15.
    pub const fn with_client_max_window_bits(mut self, bits: u8) -> Result<Self, InvalidDeflateConfig> {
        if bits < WINDOW_BITS_MIN || bits > WINDOW_BITS_MAX {
            return Err(InvalidDeflateConfig::WindowBits(bits));
        }
        self.client_max_window_bits = bits;
        Ok(self)
    }

    /// Whether the server must reset its window after each message even in [`DeflateMode::Dedicated`].
    /// Default: no, since that mode is chosen for its ratio.
    #[must_use]
    pub const fn with_server_no_context_takeover(mut self, wish: bool) -> Self {
        self.server_no_context_takeover = wish;
        self
    }

    /// Whether the client must reset its window after each message even in [`DeflateMode::Dedicated`].
    /// Default: no, since that mode is chosen for its ratio.
    #[must_use]
    pub const fn with_client_no_context_takeover(mut self, wish: bool) -> Self {
        self.client_no_context_takeover = wish;
        self
    }

    /// The owner of the contexts.
    #[must_use]
    pub const fn mode(&self) -> DeflateMode {
        self.mode
    }

    /// The compression level, 1 to 9.
    #[must_use]
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// The threshold in bytes below which a message is sent uncompressed; it depends on whether the local
    /// window is taken over from message to message.
    #[must_use]
    pub const fn threshold(&self, takeover: bool) -> usize {
        match self.threshold {
            Some(bytes) => bytes,
            None if takeover => THRESHOLD_WITH_TAKEOVER,
            None => THRESHOLD_WITHOUT_TAKEOVER,
        }
    }

    /// Base-2 logarithm of the largest window the server may compress with.
    #[must_use]
    pub const fn server_max_window_bits(&self) -> u8 {
        self.server_max_window_bits
    }

    /// Base-2 logarithm of the largest window the client may compress with.
    #[must_use]
    pub const fn client_max_window_bits(&self) -> u8 {
        self.client_max_window_bits
    }

    /// Whether the server must reset its window after each message; always so in [`DeflateMode::Shared`].
    #[must_use]
    pub const fn server_no_context_takeover(&self) -> bool {
        matches!(self.mode, DeflateMode::Shared) || self.server_no_context_takeover
    }

    /// Whether the client must reset its window after each message; always so in [`DeflateMode::Shared`].
    #[must_use]
    pub const fn client_no_context_takeover(&self) -> bool {
        matches!(self.mode, DeflateMode::Shared) || self.client_no_context_takeover
    }
}

/// Error for a [`DeflateConfig`] value out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InvalidDeflateConfig {
    /// The level is not within 1 to 9.
    Level(u8),
    /// The window bits are not within 9 to 15.
    WindowBits(u8),
}

impl fmt::Display for InvalidDeflateConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Level(level) => write!(f, "compression level {level} is not within 1 to 9"),
            Self::WindowBits(bits) => write!(f, "window bits {bits} are not within 9 to 15"),
        }
    }
}

impl Error for InvalidDeflateConfig {}

/// The smallest window a zlib-like compressor produces as a raw stream.
pub(crate) const WINDOW_BITS_MIN: u8 = 9;
/// The largest window of the deflate format (RFC 1951 section 2).
pub(crate) const WINDOW_BITS_MAX: u8 = 15;
#[cfg(feature = "deflate")]
const LEVEL_DEFAULT: u8 = 2;
const THRESHOLD_WITH_TAKEOVER: usize = 64;
const THRESHOLD_WITHOUT_TAKEOVER: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setters_reject_values_out_of_range() {
        for level in [0, 10, u8::MAX] {
            assert_eq!(DeflateConfig::new().with_level(level), Err(InvalidDeflateConfig::Level(level)));
        }
        for bits in [0, 8, 16] {
            let invalid = Err(InvalidDeflateConfig::WindowBits(bits));
            assert_eq!(DeflateConfig::new().with_server_max_window_bits(bits), invalid);
            assert_eq!(DeflateConfig::new().with_client_max_window_bits(bits), invalid);
        }
    }

    #[test]
    fn setters_store_values_in_range() -> Result<(), InvalidDeflateConfig> {
        let config = DeflateConfig::new()
            .with_level(9)?
            .with_server_max_window_bits(9)?
            .with_client_max_window_bits(14)?
            .with_threshold(77);
        assert_eq!(config.level(), 9);
        assert_eq!(config.server_max_window_bits(), 9);
        assert_eq!(config.client_max_window_bits(), 14);
        assert_eq!((config.threshold(true), config.threshold(false)), (77, 77));
        Ok(())
    }

    #[test]
    fn threshold_is_higher_without_takeover() {
        let config = DeflateConfig::new();
        assert_eq!((config.threshold(true), config.threshold(false)), (64, 512));
    }

    #[test]
    fn shared_mode_disables_takeover() {
        let shared = DeflateConfig::new();
        assert!(shared.server_no_context_takeover() && shared.client_no_context_takeover());
        let dedicated = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
        assert!(!dedicated.server_no_context_takeover() && !dedicated.client_no_context_takeover());
        let server_only = dedicated.with_server_no_context_takeover(true);
        assert!(server_only.server_no_context_takeover() && !server_only.client_no_context_takeover());
    }
}
