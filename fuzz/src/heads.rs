//! Heads of HTTP/1.x, split at their line ends and examined with the simplest means.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1_smol::Sha1;

/// A head, split into its lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Head<'a> {
    pub(crate) first: [&'a [u8]; 3],
    pub(crate) lines: Vec<(&'a [u8], &'a [u8])>,
    /// Bytes up to the end of the empty line.
    pub(crate) len: usize,
}

/// Splits a head; `None` if it has no end or contains an invalid line.
pub(crate) fn split(bytes: &[u8]) -> Option<Head<'_>> {
    let start = if bytes.starts_with(b"\r\n") { 2 } else { 0 };
    let end = start + bytes[start..].windows(4).position(|four| four == b"\r\n\r\n")?;
    let mut lines = split_lines(&bytes[start..end]);
    let mut words = lines.next()?.splitn(3, |&byte| byte == b' ');
    let first = [words.next()?, words.next()?, words.next().unwrap_or_default()];
    let lines = lines.map(|line| {
        let colon = line.iter().position(|&byte| byte == b':')?;
        Some((&line[..colon], trim(&line[colon + 1..])))
    });
    Some(Head { first, lines: lines.collect::<Option<_>>()?, len: end + 4 })
}

fn split_lines(mut bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let Some(end) = bytes.windows(2).position(|two| two == b"\r\n") else {
            done = true;
            return Some(bytes);
        };
        let line = &bytes[..end];
        bytes = &bytes[end + 2..];
        Some(line)
    })
}

pub(crate) fn trim(bytes: &[u8]) -> &[u8] {
    let blank = |byte: &u8| *byte == b' ' || *byte == b'\t';
    let Some(start) = bytes.iter().position(|byte| !blank(byte)) else { return b"" };
    let end = bytes.iter().rposition(|byte| !blank(byte)).map_or(start, |last| last + 1);
    &bytes[start..end]
}

impl<'a> Head<'a> {
    pub(crate) fn all(&self, name: &str) -> Vec<&'a [u8]> {
        let same = |line: &&(&[u8], &[u8])| line.0.eq_ignore_ascii_case(name.as_bytes());
        self.lines.iter().filter(same).map(|line| line.1).collect()
    }

    pub(crate) fn only(&self, name: &str) -> Option<&'a [u8]> {
        match self.all(name)[..] {
            [value] => Some(value),
            _ => None,
        }
    }

    /// Returns the elements of a list over all lines of a name.
    pub(crate) fn elements(&self, name: &str) -> Vec<&'a [u8]> {
        let lines = self.all(name).into_iter();
        let elements = lines.flat_map(|line| line.split(|&byte| byte == b',')).map(trim);
        elements.filter(|element| !element.is_empty()).collect()
    }

    pub(crate) fn lists(&self, name: &str, word: &str) -> bool {
        self.elements(name).iter().any(|element| element.eq_ignore_ascii_case(word.as_bytes()))
    }
}

/// Returns the proof for a key (RFC 6455 section 4.2.2).
pub(crate) fn proof(key: &[u8]) -> String {
    let text = [key, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"].concat();
    STANDARD.encode(Sha1::from(text).digest().bytes())
}

/// Returns a valid answer to a key, without its empty line.
pub(crate) fn answer(key: &[u8; 16]) -> Vec<u8> {
    let proof = proof(STANDARD.encode(key).as_bytes());
    let text = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {proof}\r\n"
    );
    text.into_bytes()
}

/// Whether a value is sixteen bytes in canonical base64: 22 characters of which the last represents two bits,
/// and two padding characters.
pub(crate) fn is_key(value: &[u8]) -> bool {
    let place = |byte: &u8| match byte {
        b'A'..=b'Z' => Some(byte - b'A'),
        b'a'..=b'z' => Some(byte - b'a' + 26),
        b'0'..=b'9' => Some(byte - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    value.len() == 24
        && value.ends_with(b"==")
        && value[..22].iter().all(|byte| place(byte).is_some())
        && place(&value[21]).is_some_and(|last| last % 16 == 0)
}
