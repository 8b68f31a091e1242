//! UTF-8 validation (RFC 3629), for a whole text and for a text in pieces.
//!
//! The small automaton in [`Utf8Stream::step`] is the complete definition. It examines single bytes, and so
//! it determines the byte of an error. All other code reduces its use to few bytes: the bytes between the
//! code points at the boundaries of a piece go through the vector kernel, which returns valid or invalid.

use core::fmt;

/// Texts up to this length are first checked for ASCII, the common case. At 125 bytes the check takes a
/// quarter of the time of the vector kernel, whose call and tail dominate for few bytes; for long texts the
/// kernel is faster.
const SHORT_MAX: usize = 256;

/// Validates a whole text.
///
/// # Errors
///
/// [`Utf8Error`] contains the position of the first byte that cannot belong to valid UTF-8: `bytes.len()`
/// if the text ends inside a code point.
///
/// ```
/// use sinews_simd::validate_utf8;
///
/// assert!(validate_utf8("Grüße".as_bytes()).is_ok());
/// assert_eq!(validate_utf8(b"ab\xf4\x90cd").unwrap_err().valid_up_to(), 3);
/// assert_eq!(validate_utf8(b"ab\xe2\x82").unwrap_err().valid_up_to(), 4);
/// ```
#[inline]
pub fn validate_utf8(bytes: &[u8]) -> Result<(), Utf8Error> {
    if is_short_ascii(bytes) || simdutf8::basic::from_utf8(bytes).is_ok() {
        Ok(())
    } else {
        Err(locate(bytes))
    }
}

/// Converts bytes to a `str`, as [`core::str::from_utf8`] does, with the validation of [`validate_utf8`].
///
/// # Errors
///
/// As [`validate_utf8`].
///
/// ```
/// assert_eq!(sinews_simd::from_utf8(b"abc"), Ok("abc"));
/// assert_eq!(sinews_simd::from_utf8(b"ab\xff").unwrap_err().valid_up_to(), 2);
/// ```
#[inline]
pub fn from_utf8(bytes: &[u8]) -> Result<&str, Utf8Error> {
    simdutf8::basic::from_utf8(bytes).map_err(|_| locate(bytes))
}

/// The position of the error in an invalid text.
#[cold]
#[inline(never)]
fn locate(bytes: &[u8]) -> Utf8Error {
    // Without an invalid byte, the text is truncated.
    Utf8Stream::new().fail(bytes, 0).err().unwrap_or(Utf8Error { valid_up_to: bytes.len() })
}

/// Validates a text that arrives in pieces, with boundaries anywhere, even inside a code point.
///
/// It fails at the earliest possible byte: as soon as no continuation can make the bytes so far valid. `F4
/// 90` fails at the `90`, because the code point would exceed U+10FFFF for any continuation.
///
/// ```
/// use sinews_simd::Utf8Stream;
///
/// let mut text = Utf8Stream::new();
/// text.push(b"caf\xc3")?;
/// assert!(!text.is_complete());
/// text.push(b"\xa9")?;
/// text.finish()?;
///
/// text.push(b"\xed")?;
/// let error = text.push(b"\xa0\x80").unwrap_err(); // a surrogate
/// assert_eq!(error.valid_up_to(), 0);
/// # Ok::<(), sinews_simd::Utf8Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Utf8Stream {
    /// Number of missing bytes of the open code point, 0 between code points.
    open: u8,
    /// Minimum of the next byte of an open code point. The second byte has its own range for some first
    /// bytes; this rejects overlong forms, surrogates and too large code points.
    least: u8,
    /// Maximum of the next byte of an open code point.
    most: u8,
}

impl Utf8Stream {
    /// The failed state: an open code point whose next byte would have to be in an empty range.
    const FAILED: Self = Self { open: 1, least: 1, most: 0 };

    /// Creates a stream at the start of a text.
    #[inline]
    pub const fn new() -> Self {
        Self { open: 0, least: 0, most: 0 }
    }

    /// Validates the next piece of the text.
    ///
    /// # Errors
    ///
    /// [`Utf8Error`] contains the position in `bytes` of the first byte that cannot belong to valid UTF-8.
    /// From then on every nonempty piece fails at its first byte, until [`finish`](Self::finish) ends the
    /// text.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Utf8Error> {
        if self.is_complete() && is_short_ascii(bytes) {
            return Ok(());
        }
        self.push_bulk(bytes)
    }

    /// Ends the text. With any result, the next [`push`](Self::push) begins a new text.
    ///
    /// # Errors
    ///
    /// The text failed before, or a code point is still open. The position is 0, since this call has no
    /// bytes.
    #[inline]
    pub fn finish(&mut self) -> Result<(), Utf8Error> {
        let complete = self.is_complete();
        *self = Self::new();
        if complete { Ok(()) } else { Err(Utf8Error { valid_up_to: 0 }) }
    }

    /// Whether the text could end here: no error occurred and no code point is open.
    #[inline]
    pub const fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// Completes the code point that earlier pieces left open, validates in bulk up to the code point that
    /// this piece leaves open, and steps through that code point.
    fn push_bulk(&mut self, bytes: &[u8]) -> Result<(), Utf8Error> {
        let closed = bytes.len().min(usize::from(self.open));
        self.walk(bytes, 0, closed)?;
        let body = &bytes[closed..];
        let cut = closed + open_tail(body);
        if simdutf8::basic::from_utf8(&bytes[closed..cut]).is_ok() {
            self.walk(bytes, cut, bytes.len())
        } else {
            self.fail(bytes, closed)
        }
    }

    /// Finds the invalid byte after `from`, where a code point begins. The standard library skips the valid
    /// bytes. It returns the start of the invalid sequence, but the first impossible byte is required, so
    /// step on from there.
    #[cold]
    #[inline(never)]
    fn fail(&mut self, bytes: &[u8], from: usize) -> Result<(), Utf8Error> {
        let valid = core::str::from_utf8(&bytes[from..]).map_or_else(|error| error.valid_up_to(), str::len);
        self.walk(bytes, from + valid, bytes.len())
    }

    /// Steps through `bytes[from..to]`.
    #[inline]
    fn walk(&mut self, bytes: &[u8], from: usize, to: usize) -> Result<(), Utf8Error> {
        for (at, &byte) in bytes[from..to].iter().enumerate() {
            *self = self.step(byte);
            if self.most < self.least {
                return Err(Utf8Error { valid_up_to: from + at });
            }
        }
        Ok(())
    }

    /// The automaton: RFC 3629 section 4, one byte at a time.
    #[inline]
    const fn step(self, byte: u8) -> Self {
        let (open, least, most) = match byte {
            _ if self.open > 0 => {
                if byte < self.least || byte > self.most {
                    return Self::FAILED;
                }
                (self.open - 1, 0x80, 0xbf)
            }
            0x00..=0x7f => (0, 0x80, 0xbf),
            0xc2..=0xdf => (1, 0x80, 0xbf),
            0xe0 => (2, 0xa0, 0xbf),
            0xed => (2, 0x80, 0x9f),
            0xe1..=0xef => (2, 0x80, 0xbf),
            0xf0 => (3, 0x90, 0xbf),
            0xf1..=0xf3 => (3, 0x80, 0xbf),
            0xf4 => (3, 0x80, 0x8f),
            _ => return Self::FAILED,
        };
        Self { open, least, most }
    }
}

/// The start of the code point that `bytes` leaves open, or the length if none is open. Examines lead bytes
/// only: the continuation is validated elsewhere, and a wrong result would cost time but not change the
/// verdict.
#[inline]
fn open_tail(bytes: &[u8]) -> usize {
    for back in 1..=bytes.len().min(3) {
        let promised = match bytes[bytes.len() - back] {
            0x80..=0xbf => continue,
            0x00..=0x7f => 1,
            0xc0..=0xdf => 2,
            0xe0..=0xef => 3,
            0xf0.. => 4,
        };
        return if promised > back { bytes.len() - back } else { bytes.len() };
    }
    bytes.len()
}

/// Whether `bytes` are few and all ASCII, the common case. Inlined into the caller. Uses words, of which
/// the last overlaps, and does not stop early: for so few bytes reading is cheaper than branching.
#[inline(always)]
fn is_short_ascii(bytes: &[u8]) -> bool {
    if bytes.len() > SHORT_MAX {
        return false;
    }
    let Some(last) = bytes.last_chunk() else {
        return bytes.iter().fold(0, |seen, byte| seen | byte) < 0x80;
    };
    let (words, _) = bytes.as_chunks();
    let seen = words.iter().fold(u64::from_ne_bytes(*last), |seen, word| seen | u64::from_ne_bytes(*word));
    seen & 0x8080_8080_8080_8080 == 0
}

/// The bytes are not UTF-8, or ended too early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utf8Error {
    valid_up_to: usize,
}

impl Utf8Error {
    /// The offset, in the slice passed to the failed call, of the first byte that cannot belong to valid
    /// UTF-8; the length of that slice if the text ended inside a code point.
    ///
    /// This is not the start of the invalid code point: in `E2 82 41` it is the position of the `41`.
    pub const fn valid_up_to(&self) -> usize {
        self.valid_up_to
    }
}

impl fmt::Display for Utf8Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invalid UTF-8 at byte {}", self.valid_up_to)
    }
}

impl core::error::Error for Utf8Error {}
