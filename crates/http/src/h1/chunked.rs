//! Incremental decoder for chunked bodies (RFC 9112 section 7.1).
//!
//! Strict where leniency lets two parsers in a row disagree about the end of a request: a chunk size is plain
//! hexadecimal digits, each line ends with CR LF, and CR LF directly follows the data of a chunk. Chunk extensions
//! and trailers are ignored (sections 7.1.1 and 7.1.2), but have to match the grammar, and are bounded.

use alloc::vec::Vec;

use crate::text::is_token_byte;

/// Decoder for one chunked body.
#[derive(Debug)]
pub struct ChunkedBody {
    state: State,
    body: Vec<u8>,
    max: usize,
    /// Remaining extension and trailer bytes.
    overhead_left: usize,
}

/// Reason to reject a chunked body. The start of the next request is unknown then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each error has an answer of its own")]
pub enum ChunkError {
    /// The body does not match the grammar.
    Malformed,
    /// The body exceeds its limit.
    TooLarge,
    /// Extensions and trailers exceed [`ChunkedBody::OVERHEAD_MAX`].
    TooMuchOverhead,
}

/// A chunk size's hexadecimal digits, leading zeros included: 64 bits.
const SIZE_DIGITS_MAX: u8 = 16;

/// Expected next byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// A size digit, or its terminator.
    Size {
        size: u64,
        digits: u8,
    },
    /// Optional space before an extension.
    Blank {
        size: u64,
    },
    /// Part of an extension.
    Extension {
        size: u64,
        part: ExtensionPart,
    },
    /// The line feed of a size line.
    SizeEnd {
        size: u64,
    },
    /// Data, so many bytes.
    Data {
        left: u64,
    },
    /// The carriage return after data.
    DataReturn,
    /// The line feed after data.
    DataEnd,
    /// The first byte of a trailer line, or of the empty line that terminates the body.
    Trailer,
    /// Part of a trailer's name.
    TrailerName,
    /// Part of a trailer's value.
    TrailerValue,
    /// The line feed of a trailer line.
    TrailerEnd,
    /// The final line feed.
    End,
    Done,
}

/// An extension's parsed part: `;name`, `;name=value` or `;name="value"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExtensionPart {
    Semicolon,
    Name,
    /// The space between a name and its equals sign.
    Blank,
    Equals,
    Value,
    Quoted,
    /// A backslash within quotes.
    Escape,
    Unquoted,
}

impl ChunkedBody {
    /// Maximum extension and trailer bytes in one body. They are ignored; the limit bounds the work on them.
    pub const OVERHEAD_MAX: usize = 4 << 10;

    /// Creates a decoder for a body with at most `max` bytes.
    #[must_use]
    pub fn new(max: usize) -> Self {
        let state = State::Size { size: 0, digits: 0 };
        Self { state, body: Vec::new(), max, overhead_left: Self::OVERHEAD_MAX }
    }

    /// Decodes input and returns how many bytes belong to the body. A smaller count than the input's length means
    /// that the body has ended.
    ///
    /// # Errors
    /// [`ChunkError`], at the first invalid byte. The decoder keeps the bytes decoded before it.
    pub fn receive(&mut self, input: &[u8]) -> Result<usize, ChunkError> {
        let mut at = 0;
        while at < input.len() && !self.is_done() {
            if let State::Data { left } = self.state {
                let take = usize::try_from(left).unwrap_or(usize::MAX).min(input.len() - at);
                self.body.extend_from_slice(&input[at..at + take]);
                at += take;
                let left = left - take as u64;
                self.state = if left == 0 { State::DataReturn } else { State::Data { left } };
            } else {
                self.state = self.step(input[at])?;
                at += 1;
            }
        }
        Ok(at)
    }

    /// Returns whether the body has ended.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.state == State::Done
    }

    /// Returns the bytes decoded so far.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.body
    }

    fn step(&mut self, byte: u8) -> Result<State, ChunkError> {
        match (self.state, byte) {
            (State::Size { size, digits }, _) => self.size(size, digits, byte),
            (State::Blank { size }, b' ' | b'\t') => self.count_overhead(State::Blank { size }),
            (State::Blank { size }, b';') => Ok(State::Extension { size, part: ExtensionPart::Semicolon }),
            (State::Extension { size, part }, _) => self.parse_extension(size, part, byte),
            (State::SizeEnd { size: 0 }, b'\n') => Ok(State::Trailer),
            (State::SizeEnd { size }, b'\n') => self.data(size),
            (State::DataReturn, b'\r') => Ok(State::DataEnd),
            (State::DataEnd, b'\n') => Ok(State::Size { size: 0, digits: 0 }),
            (State::Trailer, b'\r') => Ok(State::End),
            // A line that begins with a space would fold onto the line before.
            (State::Trailer | State::TrailerName, byte) if is_token_byte(byte) => {
                self.count_overhead(State::TrailerName)
            }
            (State::TrailerName, b':') => Ok(State::TrailerValue),
            (State::TrailerValue, b'\r') => Ok(State::TrailerEnd),
            (State::TrailerValue, byte) if is_text(byte) => self.count_overhead(State::TrailerValue),
            (State::TrailerEnd, b'\n') => Ok(State::Trailer),
            (State::End, b'\n') => Ok(State::Done),
            _ => Err(ChunkError::Malformed),
        }
    }

    fn size(&mut self, size: u64, digits: u8, byte: u8) -> Result<State, ChunkError> {
        let value = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ if digits == 0 => return Err(ChunkError::Malformed),
            b'\r' => return Ok(State::SizeEnd { size }),
            b';' => return Ok(State::Extension { size, part: ExtensionPart::Semicolon }),
            // Bad whitespace, which a recipient has to parse (RFC 9110 section 5.6.3).
            b' ' | b'\t' => return self.count_overhead(State::Blank { size }),
            _ => return Err(ChunkError::Malformed),
        };
        if digits == SIZE_DIGITS_MAX {
            return Err(ChunkError::Malformed);
        }
        // Sixteen digits fill 64 bits, so the shift loses no digit.
        Ok(State::Size { size: size << 4 | u64::from(value), digits: digits + 1 })
    }

    /// Parses an extension (RFC 9112 section 7.1.1). It contains no line break, quoted or not.
    fn parse_extension(&mut self, size: u64, part: ExtensionPart, byte: u8) -> Result<State, ChunkError> {
        use ExtensionPart::{Blank, Equals, Escape, Name, Quoted, Semicolon, Unquoted, Value};
        let part = match (part, byte) {
            (Name | Value | Unquoted, b'\r') => return Ok(State::SizeEnd { size }),
            (Value | Unquoted, b' ' | b'\t') => return self.count_overhead(State::Blank { size }),
            (Semicolon | Equals, b' ' | b'\t') => part,
            (Name | Blank, b' ' | b'\t') => Blank,
            (Name | Blank | Value | Unquoted, b';') => Semicolon,
            (Name | Blank, b'=') => Equals,
            (Semicolon | Name, byte) if is_token_byte(byte) => Name,
            (Equals | Value, byte) if is_token_byte(byte) => Value,
            (Equals, b'"') => Quoted,
            (Quoted, b'"') => Unquoted,
            (Quoted, b'\\') => Escape,
            (Quoted | Escape, byte) if is_text(byte) => Quoted,
            _ => return Err(ChunkError::Malformed),
        };
        self.count_overhead(State::Extension { size, part })
    }

    /// Checks a declared size before its bytes arrive; no buffer is allocated for a declared size.
    fn data(&self, size: u64) -> Result<State, ChunkError> {
        if size > (self.max - self.body.len()) as u64 {
            return Err(ChunkError::TooLarge);
        }
        Ok(State::Data { left: size })
    }

    fn count_overhead(&mut self, next: State) -> Result<State, ChunkError> {
        self.overhead_left = self.overhead_left.checked_sub(1).ok_or(ChunkError::TooMuchOverhead)?;
        Ok(next)
    }
}

/// Returns whether the byte is allowed in an extension or in a field value: no control byte but the tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || !byte.is_ascii_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OVERHEAD_MAX: usize = ChunkedBody::OVERHEAD_MAX;

    const MAX: usize = 64;

    /// Decodes pieces; returns the body and how many bytes it took.
    fn decode(pieces: &[&[u8]], max: usize) -> Result<Option<(Vec<u8>, usize)>, ChunkError> {
        let mut body = ChunkedBody::new(max);
        let mut used = 0;
        for piece in pieces {
            let taken = body.receive(piece)?;
            used += taken;
            if body.is_done() {
                return Ok(Some((body.body, used)));
            }
            assert_eq!(taken, piece.len(), "a body that goes on takes everything");
        }
        Ok(None)
    }

    fn whole(input: &[u8]) -> Result<Option<(Vec<u8>, usize)>, ChunkError> {
        decode(&[input], MAX)
    }

    const SAMPLES: [(&[u8], &[u8]); 8] = [
        (b"0\r\n\r\n", b""),
        (b"5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (b"5\r\nhello\r\nB;name=value\r\n wide world\r\n000\r\n\r\n", b"hello wide world"),
        (b"a;x=\"a;b\"\r\n0123456789\r\n0;last\r\n\r\n", b"0123456789"),
        (b"2 \t;x\r\n\r\n\r\n0\r\n\r\n", b"\r\n"),
        (b"1 ; a \t= \"\\\"\xff;\" ;b;c = d\r\nx\r\n0\r\n\r\n", b"x"),
        (b"1\r\nx\r\n0\r\nExpires: never\r\nX-Sum:\r\n\r\n", b"x"),
        (b"000000000000000F\r\nfifteen bytes..\r\n0\r\n\r\n", b"fifteen bytes.."),
    ];

    #[test]
    fn bodies_decode_alike_however_they_are_split() {
        for (wire, expected) in SAMPLES {
            let wanted = Ok(Some((expected.to_vec(), wire.len())));
            let next = [wire, b"GET / HTTP/1.1\r\n"].concat();
            assert_eq!(whole(&next), wanted, "later bytes are not consumed");
            for first in 0..=wire.len() {
                for second in first..=wire.len() {
                    let pieces = [&next[..first], &next[first..second], &next[second..]];
                    assert_eq!(decode(&pieces, MAX), wanted, "cut at {first} and {second}");
                }
            }
            let bytes: Vec<&[u8]> = wire.chunks(1).collect();
            assert_eq!(decode(&bytes, MAX), wanted);
        }
    }

    #[test]
    fn every_prefix_needs_more_input() {
        for (wire, _) in SAMPLES {
            for len in 0..wire.len() {
                assert_eq!(whole(&wire[..len]), Ok(None), "{:?}", &wire[..len]);
            }
        }
    }

    #[test]
    fn ambiguous_framing_is_rejected() {
        for wrong in [
            &b"\r\n"[..],
            b";x\r\n",
            b" 5\r\nhello\r\n",
            b"+5\r\nhello\r\n",
            b"-1\r\n",
            b"0x5\r\nhello\r\n",
            b"5_\r\nhello\r\n",
            b"g\r\n",
            b"5\nhello\r\n",
            b"5\r\rhello",
            b"5 \r\nhello\r\n",
            b"5 5\r\nhello\r\n",
            b"5;x\nhello\r\n",
            b"5;x\0\r\nhello\r\n",
            b"5;\r\nhello\r\n",
            b"5;=x\r\nhello\r\n",
            b"5;x=\r\nhello\r\n",
            b"5;x \r\nhello\r\n",
            b"5;x=y \r\nhello\r\n",
            b"5;x y\r\nhello\r\n",
            b"5;x=\"y\r\nhello\r\n",
            b"5;x=\"y\\\r\nhello\r\n",
            b"5;x=\"y\"z\r\nhello\r\n",
            b"5;x=y\"z\"\r\nhello\r\n",
            b"5\r\nhello0\r\n\r\n",
            b"5\r\nhello\n0\r\n\r\n",
            b"5\r\nhello\rx",
            b"00000000000000005\r\nhello\r\n",
            b"10000000000000000\r\n",
            b"0\r\n\n",
            b"0\r\n\rx",
            b"0\r\n folded\r\n\r\n",
            b"0\r\n: no name\r\n\r\n",
            b"0\r\nno colon\r\n\r\n",
            b"0\r\nA: b\n\r\n",
            b"0\r\nA: b\0\r\n\r\n",
            b"0\r\nA: b\rc",
        ] {
            assert_eq!(whole(wrong), Err(ChunkError::Malformed), "{:?}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn size_limit_applies_before_the_bytes_arrive() {
        assert!(matches!(decode(&[b"5\r\nhello\r\n0\r\n\r\n"], 5), Ok(Some(_))));
        assert_eq!(decode(&[b"6\r\n"], 5), Err(ChunkError::TooLarge));
        assert_eq!(decode(&[b"3\r\nabc\r\n3\r\n"], 5), Err(ChunkError::TooLarge));
        assert_eq!(decode(&[b"ffffffffffffffff\r\n"], 5), Err(ChunkError::TooLarge));
        assert_eq!(decode(&[b"ffffffffffffffff\r\n"], usize::MAX - 1), Err(ChunkError::TooLarge));
        let mut body = ChunkedBody::new(usize::MAX);
        assert_eq!(body.receive(b"7fffffffffffffff\r\nabc"), Ok(21));
        assert!(body.body.capacity() < 64, "memory follows received bytes, not the declared size");
    }

    #[test]
    fn extensions_and_trailers_are_bounded_over_the_whole_body() {
        let extension = "x".repeat(OVERHEAD_MAX);
        assert!(matches!(whole(format!("0;{extension}\r\n\r\n").as_bytes()), Ok(Some(_))));
        let too_much = Err(ChunkError::TooMuchOverhead);
        assert_eq!(whole(format!("0;{extension}x").as_bytes()), too_much);
        assert_eq!(whole(format!("1;{}\r\na\r\n0;xx", &extension[1..]).as_bytes()), too_much);
        assert_eq!(whole(format!("0;{extension}\r\nA").as_bytes()), too_much);
        assert_eq!(whole(format!("0\r\nA:{extension}").as_bytes()), too_much);
        assert_eq!(whole(format!("0{}", " ".repeat(OVERHEAD_MAX + 1)).as_bytes()), too_much);
    }
}
