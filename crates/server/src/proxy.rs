//! The PROXY protocol: the client address that a proxy sends before the client's first byte.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Received part of a PROXY header.
#[derive(Debug)]
pub(crate) struct ProxyProtocolHeader {
    peer: SocketAddr,
    /// The listener that accepted the connection.
    pub(crate) listener: usize,
    /// Incomplete header.
    partial: Vec<u8>,
}

/// Result of handling input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ProxiedAddress {
    /// The header is incomplete.
    Incomplete,
    /// The client, and the input after the header: the rest of the chunk from an offset, or a buffer.
    Client(SocketAddr, Remainder),
    /// The header is invalid.
    Malformed,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    Chunk(usize),
    Buffered(Vec<u8>),
}

impl ProxyProtocolHeader {
    pub(crate) fn new(peer: SocketAddr, listener: usize) -> Self {
        Self { peer, listener, partial: Vec::new() }
    }

    /// Returns the address of the proxy.
    pub(crate) fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Returns whether a part of the header has arrived.
    pub(crate) fn has_begun(&self) -> bool {
        !self.partial.is_empty()
    }

    pub(crate) fn receive(&mut self, chunk: &[u8]) -> ProxiedAddress {
        if self.partial.is_empty() {
            return match parse(chunk) {
                ParsedHeader::Incomplete => {
                    self.partial.extend_from_slice(chunk);
                    ProxiedAddress::Incomplete
                }
                ParsedHeader::Malformed => ProxiedAddress::Malformed,
                ParsedHeader::Header { client, len } => {
                    ProxiedAddress::Client(client.unwrap_or(self.peer), Remainder::Chunk(len))
                }
            };
        }
        self.partial.extend_from_slice(chunk);
        match parse(&self.partial) {
            ParsedHeader::Incomplete => ProxiedAddress::Incomplete,
            ParsedHeader::Malformed => ProxiedAddress::Malformed,
            ParsedHeader::Header { client, len } => {
                let rest = self.partial.split_off(len);
                ProxiedAddress::Client(client.unwrap_or(self.peer), Remainder::Buffered(rest))
            }
        }
    }
}

/// Reason to close a connection before its PROXY header is complete.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HeaderFault {
    /// The first bytes are no header.
    Malformed,
    /// The connection ended within the header.
    Ended,
    /// No complete header has arrived within the head timeout.
    TimedOut,
}

/// Connections without a header that the log has not named yet. A listener without its proxy closes all of them, which
/// one line explains.
pub(crate) struct HeaderFaults {
    closed: AtomicU64,
    /// When the next line may be written, in milliseconds since [`epoch`](Self::epoch).
    due: AtomicU64,
    epoch: LazyLock<Instant>,
}

/// The faults of all workers of the process.
pub(crate) static HEADER_FAULTS: HeaderFaults = HeaderFaults::new();

/// Minimum time between two lines about missing headers.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

impl HeaderFaults {
    const fn new() -> Self {
        Self { closed: AtomicU64::new(0), due: AtomicU64::new(0), epoch: LazyLock::new(Instant::now) }
    }

    /// Logs why a connection is closed, unless another one was logged within the last minute.
    pub(crate) fn report(&self, fault: HeaderFault, peer: SocketAddr) {
        let Some(closed) = self.take_due(self.epoch.elapsed()) else {
            return tracing::debug!(%peer, ?fault, "closed: PROXY header expected");
        };
        let text = match fault {
            HeaderFault::Malformed => "its first bytes are no PROXY header",
            HeaderFault::Ended => "it ended within the PROXY header",
            HeaderFault::TimedOut => "it sent no complete PROXY header in time",
        };
        tracing::warn!(
            %peer,
            closed,
            "closed connections without a PROXY header; the last one: {text}. The listener expects one from a proxy \
             (proxy_protocol); this line appears at most once a minute"
        );
    }

    /// Counts a connection. Returns the number since the last line if the next line is due.
    fn take_due(&self, now: Duration) -> Option<u64> {
        self.closed.fetch_add(1, Ordering::Relaxed);
        let now = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        let due = self.due.load(Ordering::Relaxed);
        let next = now.saturating_add(LOG_INTERVAL.as_millis() as u64);
        let is_taken =
            now >= due && self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        is_taken.then(|| self.closed.swap(0, Ordering::Relaxed))
    }
}

#[derive(Debug, PartialEq, Eq)]
enum ParsedHeader {
    Incomplete,
    Malformed,
    /// `client` is `None` if the proxy connects for itself, or the address is no internet address.
    Header {
        client: Option<SocketAddr>,
        len: usize,
    },
}

/// Parses either version: "The PROXY protocol", versions 1 and 2, section 2.
fn parse(input: &[u8]) -> ParsedHeader {
    let begins = |with: &[u8]| input.iter().zip(with).all(|(byte, expected)| byte == expected);
    match () {
        () if begins(SIGNATURE) => parse_binary(input),
        () if begins(V1) => parse_line(input),
        () => ParsedHeader::Malformed,
    }
}

/// Parses version 2: a signature, a command, a family, a length, addresses, and extensions, which are skipped.
fn parse_binary(input: &[u8]) -> ParsedHeader {
    let Some((head, body)) = input.split_at_checked(HEAD) else { return ParsedHeader::Incomplete };
    let (command, family) = (head[12], head[13]);
    let len = usize::from(u16::from_be_bytes([head[14], head[15]]));
    if len > BODY_MAX || command >> 4 != 2 || command & 0xF > 1 {
        return ParsedHeader::Malformed;
    }
    let Some(body) = body.get(..len) else { return ParsedHeader::Incomplete };
    let client = match (command & 0xF, family) {
        // The proxy's own connection, for instance a health check.
        (0, _) => Some(None),
        (_, TCP4) => body.first_chunk::<12>().map(|body| Some(ipv4(body))),
        (_, TCP6) => body.first_chunk::<36>().map(|body| Some(ipv6(body))),
        // An address family without internet addresses.
        _ => Some(None),
    };
    client.map_or(ParsedHeader::Malformed, |client| ParsedHeader::Header { client, len: HEAD + len })
}

fn ipv4(body: &[u8; 12]) -> SocketAddr {
    let [a, b, c, d, .., port, rt, _, _] = *body;
    SocketAddr::new(Ipv4Addr::new(a, b, c, d).into(), u16::from_be_bytes([port, rt]))
}

fn ipv6(body: &[u8; 36]) -> SocketAddr {
    let mut address = [0; 16];
    address.copy_from_slice(&body[..16]);
    SocketAddr::new(Ipv6Addr::from(address).into(), u16::from_be_bytes([body[32], body[33]]))
}

/// Parses version 1: one line of text.
fn parse_line(input: &[u8]) -> ParsedHeader {
    let line = &input[..input.len().min(LINE_MAX)];
    let Some(end) = line.windows(2).position(|two| two == b"\r\n") else {
        return if line.len() < LINE_MAX { ParsedHeader::Incomplete } else { ParsedHeader::Malformed };
    };
    let Ok(text) = std::str::from_utf8(&line[V1.len()..end]) else { return ParsedHeader::Malformed };
    let len = end + 2;
    let mut fields = text.split(' ');
    let family = fields.next();
    if family == Some("UNKNOWN") {
        return ParsedHeader::Header { client: None, len };
    }
    let mut field = || fields.next().unwrap_or_default();
    let (source, destination, port, to) = (field(), field(), field(), field());
    let addresses = (source.parse::<IpAddr>(), destination.parse::<IpAddr>());
    match (family, addresses, decimal(port), decimal(to), fields.next()) {
        (Some("TCP4"), (Ok(IpAddr::V4(source)), Ok(IpAddr::V4(_))), Some(port), Some(_), None) => {
            ParsedHeader::Header { client: Some((source, port).into()), len }
        }
        (Some("TCP6"), (Ok(IpAddr::V6(source)), Ok(IpAddr::V6(_))), Some(port), Some(_), None) => {
            ParsedHeader::Header { client: Some((source, port).into()), len }
        }
        _ => ParsedHeader::Malformed,
    }
}

/// Parses digits only: `parse` would accept a sign.
fn decimal(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
const HEAD: usize = 16;
const TCP4: u8 = 0x11;
const TCP6: u8 = 0x21;

/// Limit of addresses and extensions in bytes: much more than any proxy sends, even with a client's certificate.
const BODY_MAX: usize = 16 << 10;

const V1: &[u8] = b"PROXY ";

/// Maximum length of a line, its end included (section 2.1).
const LINE_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use super::*;

    fn binary(command: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let len = (body.len() as u16).to_be_bytes();
        [&SIGNATURE[..], &[command, family], &len, body].concat()
    }

    fn client(text: &str) -> Option<SocketAddr> {
        Some(text.parse().unwrap())
    }

    fn headers() -> Vec<(Vec<u8>, Option<SocketAddr>)> {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 0x12, 0x34, 0, 80];
        let mut v6 = [0u8; 36];
        v6[..4].copy_from_slice(&[0x20, 1, 0xD, 0xB8]);
        (v6[15], v6[32], v6[33]) = (7, 0x12, 0x34);
        vec![
            (binary(0x21, TCP4, &v4), client("192.0.2.1:4660")),
            (binary(0x21, TCP4, &[&v4[..], b"\x04\0\x02ab"].concat()), client("192.0.2.1:4660")),
            (binary(0x21, TCP6, &v6), client("[2001:db8::7]:4660")),
            (binary(0x20, TCP4, &v4), None),
            (binary(0x20, 0, &[]), None),
            (binary(0x21, 0x31, &[0; 216]), None),
            (b"PROXY TCP4 192.0.2.1 198.51.100.1 4660 80\r\n".to_vec(), client("192.0.2.1:4660")),
            (b"PROXY TCP6 2001:db8::7 2001:db8::1 4660 443\r\n".to_vec(), client("[2001:db8::7]:4660")),
            (b"PROXY UNKNOWN\r\n".to_vec(), None),
            (b"PROXY UNKNOWN whatever it says\r\n".to_vec(), None),
        ]
    }

    #[test]
    fn header_parses_alike_however_it_is_split() {
        let peer = "127.0.0.1:9".parse().unwrap();
        for (header, client) in headers() {
            let wire = [&header[..], b"GET /"].concat();
            let expected = client.unwrap_or(peer);
            let whole = ProxyProtocolHeader::new(peer, 0).receive(&wire);
            assert_eq!(whole, ProxiedAddress::Client(expected, Remainder::Chunk(header.len())));
            for cut in 1..header.len() {
                let mut proxy_header = ProxyProtocolHeader::new(peer, 0);
                assert_eq!(
                    proxy_header.receive(&wire[..cut]),
                    ProxiedAddress::Incomplete,
                    "{cut} of {header:?}"
                );
                let kept = Remainder::Buffered(b"GET /".to_vec());
                assert_eq!(proxy_header.receive(&wire[cut..]), ProxiedAddress::Client(expected, kept));
            }
        }
    }

    #[test]
    fn missing_headers_are_logged_once_a_minute() {
        let faults = HeaderFaults::new();
        let taken = [0, 1, 59_999, 60_000, 60_001, 600_000];
        let taken = taken.map(|millis| faults.take_due(Duration::from_millis(millis)));
        assert_eq!(taken, [Some(1), None, None, Some(3), None, Some(2)]);
    }

    #[test]
    fn invalid_header_is_rejected_at_the_first_invalid_byte() {
        let long = format!("PROXY UNKNOWN {}", "x".repeat(LINE_MAX));
        for wrong in [
            &b"G"[..],
            b"PROXX",
            b"\r\n\r\r",
            long.as_bytes(),
            b"PROXY TCP4 192.0.2.1 198.51.100.1 4660\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 4660 80 1\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 +4660 80\r\n",
            b"PROXY TCP4 192.0.2.1 198.51.100.1 4660 99999\r\n",
            b"PROXY TCP4 2001:db8::7 198.51.100.1 4660 80\r\n",
            b"PROXY TCP6 192.0.2.1 198.51.100.1 4660 80\r\n",
            b"PROXY TCP4  192.0.2.1 198.51.100.1 4660 80\r\n",
            b"PROXY UDP4 192.0.2.1 198.51.100.1 4660 80\r\n",
            b"PROXY \xFF\r\n",
        ] {
            assert_eq!(parse(wrong), ParsedHeader::Malformed, "{}", String::from_utf8_lossy(wrong));
        }
        // Version 1 in the binary form, an unknown command, too short for the addresses, too long.
        for (command, family, len) in [(0x11, TCP4, 12), (0x22, TCP4, 12), (0x21, TCP4, 11), (0x21, TCP6, 35)]
        {
            assert_eq!(parse(&binary(command, family, &vec![0; len])), ParsedHeader::Malformed);
        }
        assert_eq!(parse(&binary(0x21, TCP4, &[0; BODY_MAX + 1])[..HEAD]), ParsedHeader::Malformed);
        assert_eq!(parse(b""), ParsedHeader::Incomplete);
    }
}
