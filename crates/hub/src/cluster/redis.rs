//! The client protocol of Redis, RESP 3: one connection publishes, and receives messages between the replies.

use super::nats::write_number;
use super::options::ClusterOptions;
use super::protocol::{BrokerEvent, Received};

/// Largest payload: the default limit of a Redis string.
pub(super) const MAX_PAYLOAD: usize = 512 << 20;

/// Longest line: an error text.
const LINE_MAX: usize = 64 << 10;

/// Elements of the reply to `HELLO`, and more of later versions.
const ELEMENTS_MAX: usize = 256;

/// Depth of nested arrays in replies: modules within the reply to `HELLO`.
const DEPTH_MAX: u32 = 8;

/// Reads what a server sends.
#[derive(Debug)]
pub(super) struct RedisClient {
    user: Option<String>,
    password: Option<String>,
    is_ready: bool,
}

/// A value, or its elements.
enum RespValue<'a> {
    Text(&'a [u8], usize),
    /// The elements, each with the offset of its text.
    Push(Vec<(&'a [u8], usize)>),
    Error(&'a [u8]),
    Other,
}

impl RedisClient {
    pub(super) fn new(options: &ClusterOptions) -> Self {
        Self { user: options.user.clone(), password: options.password.clone(), is_ready: false }
    }

    pub(super) fn log_in(&self, out: &mut Vec<u8>) {
        let mut arguments: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(password) = &self.password {
            let user = self.user.as_deref().unwrap_or("default");
            arguments.extend([b"AUTH", user.as_bytes(), password.as_bytes()]);
        }
        arguments.extend([&b"SETNAME"[..], b"sinews-cluster"]);
        command(out, &arguments);
    }

    pub(super) fn receive(&mut self, input: &[u8]) -> Received {
        let Some((end, value)) = read_value(input, 0, 0)? else { return Ok(None) };
        let event = match value {
            RespValue::Error(text) => return Err(format!("Redis: {}", brief(text))),
            RespValue::Push(elements) => match elements.as_slice() {
                [(b"message", _), _, (payload, at)] | [(b"pmessage", _), _, _, (payload, at)] => {
                    BrokerEvent::Message(*at..*at + payload.len())
                }
                _ => BrokerEvent::Other,
            },
            // The first reply is that of HELLO.
            _ if !self.is_ready => {
                self.is_ready = true;
                BrokerEvent::Ready
            }
            RespValue::Text(b"PONG", _) => BrokerEvent::Pong,
            RespValue::Text(..) | RespValue::Other => BrokerEvent::Other,
        };
        Ok(Some((end, event)))
    }
}

/// A value, and the offset of its end.
type ReadRespValue<'a> = Result<Option<(usize, RespValue<'a>)>, String>;

/// Reads a value at an offset; `None` if it is incomplete.
fn read_value(input: &[u8], at: usize, depth: u32) -> ReadRespValue<'_> {
    let rest = input.get(at..).unwrap_or_default();
    let Some(end) = rest.windows(2).take(LINE_MAX).position(|pair| pair == b"\r\n") else {
        let is_too_long = rest.len() > LINE_MAX;
        return if is_too_long {
            Err(format!("a line of the server exceeds {LINE_MAX} bytes"))
        } else {
            Ok(None)
        };
    };
    let line = rest.get(..end).unwrap_or_default();
    let next = at + end + 2;
    let (kind, text) = line.split_first().ok_or_else(|| unexpected(line))?;
    let value = match kind {
        b'+' => RespValue::Text(text, at + 1),
        b'-' => RespValue::Error(text),
        b':' | b',' | b'_' | b'#' | b'(' => RespValue::Other,
        b'$' | b'!' | b'=' => {
            let Some(length) = length_of(text, MAX_PAYLOAD).ok_or_else(|| unexpected(line))? else {
                return Ok(Some((next, RespValue::Other)));
            };
            let Some(bytes) = input.get(next..next + length) else { return Ok(None) };
            if input.len() < next + length + 2 {
                return Ok(None);
            }
            let value = if *kind == b'!' { RespValue::Error(bytes) } else { RespValue::Text(bytes, next) };
            return Ok(Some((next + length + 2, value)));
        }
        b'*' | b'~' | b'>' | b'%' | b'|' if depth < DEPTH_MAX => {
            let count = length_of(text, ELEMENTS_MAX).ok_or_else(|| unexpected(line))?.unwrap_or(0);
            let count = if matches!(kind, b'%' | b'|') { count * 2 } else { count };
            return read_elements(input, (next, count), *kind == b'>', depth);
        }
        _ => return Err(unexpected(line)),
    };
    Ok(Some((next, value)))
}

fn read_elements(
    input: &[u8],
    (mut at, count): (usize, usize),
    is_push: bool,
    depth: u32,
) -> ReadRespValue<'_> {
    let mut elements = Vec::new();
    for _ in 0..count {
        let Some((next, value)) = read_value(input, at, depth + 1)? else { return Ok(None) };
        if is_push {
            elements.push(if let RespValue::Text(text, from) = value {
                (text, from)
            } else {
                (&b""[..], at)
            });
        }
        at = next;
    }
    Ok(Some((at, if is_push { RespValue::Push(elements) } else { RespValue::Other })))
}

/// A length up to a limit; `Some(None)` for none (-1).
fn length_of(text: &[u8], limit: usize) -> Option<Option<usize>> {
    let number: i64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    if number == -1 {
        return Some(None);
    }
    usize::try_from(number).ok().filter(|length| *length <= limit).map(Some)
}

fn unexpected(line: &[u8]) -> String {
    format!("the server does not speak the protocol of Redis: it sent {:?}", brief(line))
}

/// The beginning of a line, for errors.
fn brief(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(200).collect()
}

/// Writes a command.
pub(super) fn command(out: &mut Vec<u8>, arguments: &[&[u8]]) {
    out.push(b'*');
    write_number(out, arguments.len() as u64);
    out.extend_from_slice(b"\r\n");
    for argument in arguments {
        out.push(b'$');
        write_number(out, argument.len() as u64);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(argument);
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> RedisClient {
        RedisClient::new(&ClusterOptions::parse(url).unwrap())
    }

    #[test]
    fn login_has_the_password_and_is_confirmed_by_a_map() {
        let (mut client, mut out) = (client("redis://:geheim@h"), Vec::new());
        client.log_in(&mut out);
        let login = String::from_utf8(out).unwrap();
        assert!(
            login.starts_with("*7\r\n$5\r\nHELLO\r\n$1\r\n3\r\n$4\r\nAUTH\r\n$7\r\ndefault\r\n"),
            "{login}"
        );
        let hello = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nmodules\r\n*1\r\n%1\r\n+a\r\n:1\r\n";
        for end in 0..hello.len() {
            assert_eq!(client.receive(&hello[..end]), Ok(None), "{end}");
        }
        assert_eq!(client.receive(hello), Ok(Some((hello.len(), BrokerEvent::Ready))));
        assert_eq!(client.receive(b"+PONG\r\n"), Ok(Some((7, BrokerEvent::Pong))));
        assert_eq!(client.receive(b":3\r\n"), Ok(Some((4, BrokerEvent::Other))));
    }

    #[test]
    fn messages_are_read_between_replies() {
        let mut client = client("redis://h");
        client.is_ready = true;
        let push = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$4\r\na\r\nb\r\n";
        for end in 0..push.len() {
            assert_eq!(client.receive(&push[..end]), Ok(None), "{end}");
        }
        let at = push.len() - 6;
        assert_eq!(client.receive(push), Ok(Some((push.len(), BrokerEvent::Message(at..at + 4)))));
        let push = b">4\r\n$8\r\npmessage\r\n$1\r\n*\r\n$1\r\nc\r\n$0\r\n\r\n";
        let at = push.len() - 2;
        assert_eq!(client.receive(push), Ok(Some((push.len(), BrokerEvent::Message(at..at)))));
        let push = b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
        assert_eq!(client.receive(push), Ok(Some((push.len(), BrokerEvent::Other))));
    }

    #[test]
    fn errors_and_other_servers_are_named() {
        let fails = |input: &[u8]| client("redis://h").receive(input).unwrap_err();
        assert!(fails(b"-NOAUTH HELLO must be called\r\n").contains("NOAUTH"));
        assert!(fails(b"HTTP/1.1 400 Bad Request\r\n").contains("HTTP/1.1 400"));
        assert!(fails(b"$9999999999\r\n").contains("9999999999"));
        assert!(fails(b"\r\n").contains("does not speak"));
        assert!(fails(&b"*1\r\n".repeat(20)).contains("does not speak"), "depth is bounded");
        assert!(fails(&vec![b'+'; LINE_MAX + 2]).contains("exceeds"));
    }
}
