//! What is wished for and what was agreed: permessage-deflate parameters as values.

use core::error::Error;
use core::fmt;

use crate::Role;

/// What both ends agreed on (RFC 7692 section 7.1).
///
/// Only the handshake makes one, so whoever holds it knows that it was negotiated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeflateParams {
    pub(crate) server_no_context_takeover: bool,
    pub(crate) client_no_context_takeover: bool,
    pub(crate) server_max_window_bits: u8,
    pub(crate) client_max_window_bits: u8,
}

impl DeflateParams {
    /// Whether the server forgets its LZ77 window after each message (RFC 7692 section 7.1.1.1).
    #[must_use]
    pub const fn server_no_context_takeover(&self) -> bool {
        self.server_no_context_takeover
    }

    /// Whether the client forgets its LZ77 window after each message (RFC 7692 section 7.1.1.2).
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

/// What was agreed, and how hard we compress within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeflateSetup {
    pub(crate) params: DeflateParams,
    pub(crate) level: u8,
    pub(crate) threshold: usize,
}

impl DeflateSetup {
    pub(crate) const fn new(role: Role, params: DeflateParams, config: &DeflateConfig) -> Self {
        let no_takeover = match role {
            Role::Server => params.server_no_context_takeover,
            Role::Client => params.client_no_context_takeover,
        };
        Self { params, level: config.level, threshold: config.threshold(!no_takeover) }
    }
}

/// Who owns the memory that compression needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeflateMode {
    /// Neither side takes its window over to the next message, so a connection borrows a context from
    /// its thread only while a message is worked on, and holds none while idle.
    ///
    /// The default: memory does not grow with connections, and a published message is compressed once
    /// for all of them. The price is ratio on small messages, which cannot refer to earlier ones.
    #[default]
    Shared,
    /// Each connection keeps its own contexts, made on first use, and windows are taken over from
    /// message to message as far as the peer agrees.
    ///
    /// Small messages that resemble each other shrink much further; each connection that has sent or
    /// received a compressed message holds the memory stated at
    /// [`DeflateConfig::with_server_max_window_bits`].
    Dedicated,
}

/// What we ask for when permessage-deflate is negotiated, and how we compress.
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
    /// The defaults that each setter documents.
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

    /// Who owns the contexts. Default: [`DeflateMode::Shared`].
    #[must_use]
    pub const fn with_mode(mut self, mode: DeflateMode) -> Self {
        self.mode = mode;
        self
    }

    /// How hard to compress, 1 (fast) to 9 (small). Default: 2.
    ///
    /// The default is where the curve bends: against it, level 6 makes JSON of 16 KiB 13 % smaller for
    /// twice the time, and level 1, which has no codes of its own, 37 % larger for two thirds of it. With
    /// takeover and messages of a few hundred bytes level 1 is worth a try: 8 % more bytes for a fifth of
    /// the time. The memory is the same for all.
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

    /// Messages of fewer bytes are sent uncompressed, which stays legal after negotiation
    /// (RFC 7692 section 6).
    ///
    /// Default: 512 if we compress without takeover, 64 if with. A fresh context costs 5 µs for the first
    /// byte, and takes half off a message of JSON only from about 512 bytes on; one with a window takes
    /// more than that off 64 bytes, in 2 µs.
    #[must_use]
    pub const fn with_threshold(mut self, bytes: usize) -> Self {
        self.threshold = Some(bytes);
        self
    }

    /// The largest window the server may compress with, as a base-2 logarithm, 9 to 15. Default: 15.
    ///
    /// The compressor's context takes 287 KiB at 15, 191 KiB at 13, 175 KiB at 12, 161 KiB at 9: 128 KiB
    /// of hash table depend on nothing. With [`DeflateMode::Shared`] that is for each
    /// thread, so the largest window costs nothing; with [`DeflateMode::Dedicated`] for each connection
    /// that has sent a compressed message, and 12 saves two fifths of it for 3 to 7 % more bytes.
    ///
    /// The deflate format allows 8, but the usual compressors cannot produce it, so neither end is ever
    /// asked for it; a peer that limits itself to 8 is understood.
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

    /// The largest window the client may compress with, as a base-2 logarithm, 9 to 15. Default: 15.
    ///
    /// The inflater's context takes 47 KiB and, for reading across final blocks, a window of what was
    /// agreed beside it, at least 4 KiB: 79 KiB at 15, 51 KiB from 12 down. Whom that is multiplied by,
    /// see [`DeflateConfig::with_server_max_window_bits`].
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

    /// Whether the server is to forget its window after each message even in
    /// [`DeflateMode::Dedicated`]. Default: no, as ratio is why that mode is chosen.
    #[must_use]
    pub const fn with_server_no_context_takeover(mut self, wish: bool) -> Self {
        self.server_no_context_takeover = wish;
        self
    }

    /// Whether the client is to forget its window after each message even in
    /// [`DeflateMode::Dedicated`]. Default: no, as ratio is why that mode is chosen.
    #[must_use]
    pub const fn with_client_no_context_takeover(mut self, wish: bool) -> Self {
        self.client_no_context_takeover = wish;
        self
    }

    /// Who owns the contexts.
    #[must_use]
    pub const fn mode(&self) -> DeflateMode {
        self.mode
    }

    /// The compression level, 1 to 9.
    #[must_use]
    pub const fn level(&self) -> u8 {
        self.level
    }

    /// Bytes below which a message is sent uncompressed, by whether our window is taken over from message
    /// to message.
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

    /// Whether the server is to forget its window after each message; always so in
    /// [`DeflateMode::Shared`].
    #[must_use]
    pub const fn server_no_context_takeover(&self) -> bool {
        matches!(self.mode, DeflateMode::Shared) || self.server_no_context_takeover
    }

    /// Whether the client is to forget its window after each message; always so in
    /// [`DeflateMode::Shared`].
    #[must_use]
    pub const fn client_no_context_takeover(&self) -> bool {
        matches!(self.mode, DeflateMode::Shared) || self.client_no_context_takeover
    }
}

/// A [`DeflateConfig`] setter was given a value out of range.
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
    fn setters_refuse_what_is_out_of_range() {
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
    fn setters_keep_what_is_in_range() -> Result<(), InvalidDeflateConfig> {
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
    fn a_fresh_window_needs_a_longer_message_to_pay() {
        let config = DeflateConfig::new();
        assert_eq!((config.threshold(true), config.threshold(false)), (64, 512));
    }

    #[test]
    fn shared_mode_takes_no_window_over() {
        let shared = DeflateConfig::new();
        assert!(shared.server_no_context_takeover() && shared.client_no_context_takeover());
        let dedicated = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
        assert!(!dedicated.server_no_context_takeover() && !dedicated.client_no_context_takeover());
        let server_only = dedicated.with_server_no_context_takeover(true);
        assert!(server_only.server_no_context_takeover() && !server_only.client_no_context_takeover());
    }
}
