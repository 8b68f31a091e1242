//! The head grammar (RFC 9112 sections 2 to 5), in one pass over the bytes.

use crate::error::HeadError;
use crate::limits::HeadLimits;
use crate::lines::{HeaderLine, HeaderSlots};
use crate::text::{ByteClass, skip, target_len, value_len};
use crate::version::Version;

use ParseError::{Incomplete, Invalid};

/// The reason why no head was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ParseError {
    /// The bytes end within the head.
    Incomplete,
    Invalid(HeadError),
}

const SYNTAX: ParseError = Invalid(HeadError::Syntax);

impl From<ParseError> for HeadError {
    /// A head whose end is known is not incomplete.
    fn from(error: ParseError) -> Self {
        match error {
            Incomplete => Self::Syntax,
            Invalid(error) => error,
        }
    }
}

/// Positions in a request head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestParts {
    /// Start and end.
    pub(crate) method: [usize; 2],
    /// Start and end.
    pub(crate) target: [usize; 2],
    pub(crate) version: Version,
    pub(crate) wire_len: usize,
}

/// Positions in a response head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResponseParts {
    pub(crate) status: u16,
    pub(crate) version: Version,
    pub(crate) wire_len: usize,
}

/// Parses a request head at the start of `bytes`; `slots` gets its header lines.
pub(crate) fn parse_request(
    bytes: &[u8],
    limits: &HeadLimits,
    slots: &mut HeaderSlots,
) -> Result<RequestParts, ParseError> {
    let start = first_line(bytes)?;
    let method_end = skip(bytes, start, ByteClass::Token);
    match bytes.get(method_end) {
        Some(b' ') if method_end > start => {}
        Some(_) => return Err(SYNTAX),
        None => return Err(Incomplete),
    }
    let target_start = method_end + 1;
    let target_end = target_start + target_len(&bytes[target_start..]);
    match bytes.get(target_end) {
        Some(b' ') if target_end > target_start => {}
        Some(b'#' | 0x80..) => return Err(Invalid(HeadError::Target)),
        Some(_) => return Err(SYNTAX),
        None => return Err(Incomplete),
    }
    let (version, lines_start) = match version(bytes, target_end + 1) {
        Ok((version, end)) => (version, line_end(bytes, end)?),
        Err(Invalid(_)) => return Err(Invalid(version_error(&bytes[start..]))),
        Err(Incomplete) => return Err(Incomplete),
    };
    let wire_len = header_lines(bytes, lines_start, limits, slots)?;
    let (method, target) = ([start, method_end], [target_start, target_end]);
    Ok(RequestParts { method, target, version, wire_len })
}

/// Parses a response head, as [`parse_request`] does.
pub(crate) fn parse_response(
    bytes: &[u8],
    limits: &HeadLimits,
    slots: &mut HeaderSlots,
) -> Result<ResponseParts, ParseError> {
    let (version, end) = match version(bytes, first_line(bytes)?) {
        Ok(parsed) => parsed,
        Err(Invalid(_)) => return Err(Invalid(HeadError::Version)),
        Err(Incomplete) => return Err(Incomplete),
    };
    let status = match bytes.get(end..end + 4) {
        Some([b' ', digits @ ..]) if digits.iter().all(u8::is_ascii_digit) => {
            digits.iter().fold(0, |status, digit| 10 * status + u16::from(digit - b'0'))
        }
        Some(_) => return Err(SYNTAX),
        None => return Err(Incomplete),
    };
    let reason_start = end + 4;
    let reason_end = match bytes.get(reason_start) {
        Some(b' ') => reason_start + value_len(&bytes[reason_start..]),
        _ => reason_start,
    };
    let lines_start = line_end(bytes, reason_end)?;
    let wire_len = header_lines(bytes, lines_start, limits, slots)?;
    Ok(ResponseParts { status, version, wire_len })
}

/// Skips one empty line before the first line (RFC 9112 section 2.2).
fn first_line(bytes: &[u8]) -> Result<usize, ParseError> {
    match bytes {
        [b'\r', b'\n', ..] => Ok(2),
        [b'\r'] => Err(Incomplete),
        _ => Ok(0),
    }
}

/// Parses a version at `at`. Returns its end.
fn version(bytes: &[u8], at: usize) -> Result<(Version, usize), ParseError> {
    const NAME: &[u8] = b"HTTP/1.";
    let text = &bytes[at..bytes.len().min(at + NAME.len() + 1)];
    match text {
        b"HTTP/1.1" => Ok((Version::Http11, at + text.len())),
        b"HTTP/1.0" => Ok((Version::Http10, at + text.len())),
        _ if NAME.starts_with(text) => Err(Incomplete),
        _ => Err(SYNTAX),
    }
}

/// Expects the end of a line at `at`. Returns the start of the next line.
fn line_end(bytes: &[u8], at: usize) -> Result<usize, ParseError> {
    match &bytes[at..] {
        [b'\r', b'\n', ..] => Ok(at + 2),
        [] | [b'\r'] => Err(Incomplete),
        _ => Err(SYNTAX),
    }
}

/// Parses the header lines and the empty line after them. Returns its end.
fn header_lines(
    bytes: &[u8],
    mut at: usize,
    limits: &HeadLimits,
    slots: &mut HeaderSlots,
) -> Result<usize, ParseError> {
    slots.clear();
    loop {
        let name_start = at;
        let name_end = skip(bytes, name_start, ByteClass::Token);
        match bytes.get(name_end) {
            Some(b':') if name_end > name_start => {}
            Some(b'\r') if name_end == name_start => return line_end(bytes, at),
            Some(_) => return Err(SYNTAX),
            None => return Err(Incomplete),
        }
        if slots.len() == limits.max_headers() {
            return Err(Invalid(HeadError::TooManyHeaders));
        }
        let mut value_start = name_end + 1;
        while let Some(b' ' | b'\t') = bytes.get(value_start) {
            value_start += 1;
        }
        let mut value_end = value_start + value_len(&bytes[value_start..]);
        at = line_end(bytes, value_end)?;
        while value_end > value_start && matches!(bytes[value_end - 1], b' ' | b'\t') {
            value_end -= 1;
        }
        slots.push(HeaderLine::new(name_start..name_end, value_start..value_end).ok_or(SYNTAX)?);
    }
}

/// Distinguishes a request line with another version (505) from an invalid line (400).
fn version_error(line: &[u8]) -> HeadError {
    let line = line.split(|&byte| byte == b'\r').next().unwrap_or(line);
    let mut words = line.split(|&byte| byte == b' ');
    let (Some([_, ..]), Some([_, ..]), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return HeadError::Syntax;
    };
    match version {
        [b'H', b'T', b'T', b'P', b'/', major, b'.', minor]
            if major.is_ascii_digit() && minor.is_ascii_digit() =>
        {
            HeadError::Version
        }
        _ => HeadError::Syntax,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const SEEDS: [&str; 6] = [
        "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        "\r\nPOST /a?b=c%20d HTTP/1.0\r\nX-Long-Name:value of some words\r\nY:\t \r\n\r\nbody",
        "OPTIONS * HTTP/1.1\r\nhost:a:80\r\nx: \u{fc}\u{7f}\r\nfolded: a\r\n b\r\n\r\n",
        "PATCH http://a/b HTTP/1.1\r\nHost: a\r\nCookie: 0123456789abcdef\t0123456789abcdef=; x\r\n\r\n",
        "M-SEARCH /\"<>{}|\\^` HTTP/1.1\r\na:b\r\n!#$%&'*+-.^_`|~9Az: 1\r\n\r\n",
        "GET /#x HTTP/1.2\r\nHost : a\r\n\r\n",
    ];

    /// Heads that differ from the seeds in up to three bytes.
    pub(crate) fn mutated(number: u64) -> Vec<u8> {
        let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random >> 20) as usize % below
        };
        let mut head = SEEDS[next(SEEDS.len())].as_bytes().to_vec();
        for _ in 0..next(4) {
            if head.is_empty() {
                break;
            }
            let at = next(head.len());
            match next(4) {
                0 => drop(head.remove(at)),
                1 => head.insert(at, b"\r\n :\t\0\x7f\x80\xffA1/"[next(12)]),
                2 => head[at] = next(256) as u8,
                _ => head.truncate(at.max(1)),
            }
        }
        head
    }

    /// Name and value.
    type Line = (Vec<u8>, Vec<u8>);

    /// Request line, header lines, and the head's length.
    type Parsed = (Vec<u8>, Vec<Line>, usize);

    /// Parses with httparse. Rejects heads that only httparse accepts: with more empty lines, bare line feeds, or other
    /// bytes in the target.
    fn reference(head: &[u8]) -> Option<Parsed> {
        let mut lines = [httparse::EMPTY_HEADER; 8];
        let mut request = httparse::Request::new(&mut lines);
        let Ok(httparse::Status::Complete(len)) = request.parse(head) else { return None };
        let is_lenient = head.starts_with(b"\r\n\r\n")
            || head[..len]
                .iter()
                .enumerate()
                .any(|(at, &byte)| byte == b'\n' && (at == 0 || head[at - 1] != b'\r'));
        let (method, target) = (request.method?, request.path?);
        if is_lenient || !crate::text::is_target(target.as_bytes()) {
            return None;
        }
        let line = format!("{method} {target} {}", request.version?).into_bytes();
        let lines = request.headers.iter().map(|line| (line.name.into(), line.value.into())).collect();
        Some((line, lines, len))
    }

    #[test]
    fn parser_agrees_with_httparse() {
        let (mut accepted, limits) = (0, HeadLimits::new().with_max_headers(8));
        for number in 0..50_000 {
            let head = mutated(number);
            let mut slots = HeaderSlots::new();
            let parsed = parse_request(&head, &limits, &mut slots).ok().map(|parts| {
                let part = |[start, end]: [usize; 2]| head[start..end].to_vec();
                let minor = if parts.version == Version::Http10 { b'0' } else { b'1' };
                let line = [&part(parts.method)[..], b" ", &part(parts.target), b" ", &[minor]].concat();
                let lines =
                    slots.lines().iter().map(|line| (line.name(&head).into(), line.value(&head).into()));
                (line, lines.collect::<Vec<Line>>(), parts.wire_len)
            });
            accepted += usize::from(parsed.is_some());
            assert_eq!(parsed, reference(&head), "{:?}", String::from_utf8_lossy(&head));
        }
        assert!((10_000..45_000).contains(&accepted), "{accepted} of 50000 are valid");
    }

    #[test]
    fn every_prefix_of_a_valid_head_is_incomplete() {
        for seed in [SEEDS[0], SEEDS[1], SEEDS[3]] {
            let head = seed.split_inclusive("\r\n\r\n").next().map_or(&b""[..], str::as_bytes);
            for len in 0..head.len() {
                let parsed = parse_request(&head[..len], &HeadLimits::new(), &mut HeaderSlots::new());
                assert!(matches!(parsed, Err(Incomplete)), "{:?}", &seed[..len]);
            }
        }
        let head = b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n";
        for len in 0..head.len() {
            let parsed = parse_response(&head[..len], &HeadLimits::new(), &mut HeaderSlots::new());
            assert!(matches!(parsed, Err(Incomplete)), "{len}");
        }
    }

    #[test]
    fn lines_beyond_the_slots_on_the_stack_are_kept_in_order() {
        for count in [31, 32, 33, 100] {
            let lines: String = (0..count).map(|line| format!("x{line}: {line}\r\n")).collect();
            let head = format!("GET / HTTP/1.1\r\n{lines}\r\n");
            let mut slots = HeaderSlots::new();
            for _ in 0..2 {
                parse_request(head.as_bytes(), &HeadLimits::new(), &mut slots).unwrap();
                let values: Vec<_> = slots.lines().iter().map(|line| line.value(head.as_bytes())).collect();
                let expected: Vec<_> = (0..count).map(|line| line.to_string().into_bytes()).collect();
                assert_eq!(values, expected);
            }
        }
    }
}
