//! UTF-8 validation (RFC 3629), for a text at once and for a text in pieces.
//!
//! The small automaton in [`Utf8Stream::step`] is the whole definition. It looks at single bytes, and so it says
//! at which byte a text went wrong. Everything else is there to need it for few bytes only: what lies between the
//! code points cut by the edges of a piece goes through the vector kernel, which answers yes or no.

use core::fmt;

/// Texts up to this length are first asked whether they are ASCII, as most are. At 125 bytes that takes a quarter of
/// what the vector kernel takes, whose call and tail cost more than so few bytes; long texts it reads faster.
const SHORT_MAX: usize = 256;

/// Validates one whole text.
///
/// # Errors
///
/// [`Utf8Error`] says where the first byte lies that can no longer belong to valid UTF-8. That is `bytes.len()` if
/// the text ends inside a code point.
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

/// The place at which a text fails that is known to be wrong.
#[cold]
#[inline(never)]
fn locate(bytes: &[u8]) -> Utf8Error {
    // If no byte is wrong, then what is wrong is that there are no more.
    Utf8Stream::new().fail(bytes, 0).err().unwrap_or(Utf8Error { valid_up_to: bytes.len() })
}

/// Validates a text that arrives in pieces, cut anywhere, even inside a code point.
///
/// It fails at the earliest byte at which failing is right: as soon as no continuation could make the bytes so
/// far valid. `F4 90` fails at the `90`, because the code point would lie above U+10FFFF whatever follows.
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
    /// How many bytes the open code point still needs, 0 between code points.
    open: u8,
    /// While a code point is open, the least its next byte may be. The second byte has its own range for some
    /// first bytes; this is how overlong forms, surrogates and too large code points are refused.
    least: u8,
    /// While a code point is open, the most its next byte may be.
    most: u8,
}

impl Utf8Stream {
    /// No byte is right any more: an open code point whose next byte would have to be in an empty range.
    const FAILED: Self = Self { open: 1, least: 1, most: 0 };

    /// A stream at the start of a text.
    #[inline]
    pub const fn new() -> Self {
        Self { open: 0, least: 0, most: 0 }
    }

    /// Validates the next piece of the text.
    ///
    /// # Errors
    ///
    /// [`Utf8Error`] says where in `bytes` the first byte lies that can no longer belong to valid UTF-8. From then
    /// on every piece that is not empty fails at its first byte, until [`finish`](Self::finish) ends the text.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<(), Utf8Error> {
        if self.is_complete() && is_short_ascii(bytes) {
            return Ok(());
        }
        self.push_bulk(bytes)
    }

    /// Ends the text. Whatever the answer, the next [`push`](Self::push) begins a new one.
    ///
    /// # Errors
    ///
    /// The text failed before, or a code point is still open. The place is 0, since this call brought no bytes.
    #[inline]
    pub fn finish(&mut self) -> Result<(), Utf8Error> {
        let complete = self.is_complete();
        *self = Self::new();
        if complete { Ok(()) } else { Err(Utf8Error { valid_up_to: 0 }) }
    }

    /// Whether the text could end here: nothing failed and no code point is open.
    #[inline]
    pub const fn is_complete(&self) -> bool {
        self.open == 0
    }

    /// Closes the code point that earlier pieces left open, validates in bulk up to the code point this piece
    /// leaves open, and steps through that one.
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

    /// Finds the wrong byte behind `from`, where a code point begins. The standard library skips what is right.
    /// It names the start of the wrong sequence and we the first byte that cannot be, so step on from there.
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

/// Where the code point begins that `bytes` leaves open, or their length if none is. Looks at lead bytes only:
/// what they promise is validated elsewhere, and a wrong answer here would cost time but not change the verdict.
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

/// Whether `bytes` are few and all ASCII, which most messages are. Inlined into the caller. Goes by words, of which
/// the last overlaps, and does not stop early: so few bytes are cheaper to read than to decide about.
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
    /// The offset, in the slice given to the call that failed, of the first byte that can no longer belong to
    /// valid UTF-8; the length of that slice if the text ended inside a code point.
    ///
    /// This is not where the wrong code point begins: in `E2 82 41` it is the place of the `41`.
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
