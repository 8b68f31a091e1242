//! The client protocol of Redis, RESP 3: one connection publishes, and receives messages between the replies.

use super::nats::write_number;
use super::options::{BrokerAddress, ClusterOptions};
use super::protocol::{BrokerEvent, Received, with_remedy};
use crate::model::brief::without_secret;

/// Largest payload: the default limit of a Redis string.
pub(super) const MAX_PAYLOAD: usize = 512 << 20;

/// Longest line: an error text.
const LINE_MAX: usize = 64 << 10;

/// Elements in the reply to `HELLO`, and more in later versions.
const ELEMENTS_MAX: usize = 256;

/// Depth of nested arrays in replies: modules within the reply to `HELLO`.
const DEPTH_MAX: u32 = 8;

/// Reads a server's output.
#[derive(Debug)]
pub(super) struct RedisClient {
    user: Option<String>,
    password: Option<String>,
    /// This connection's own channel; none if it publishes nothing.
    own_channel: Option<String>,
    state: RedisLogin,
    /// The server must be a primary: a sentinel has named it.
    needs_primary: bool,
    /// The login message has arrived.
    skips_replies: bool,
    rejects_skips: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RedisLogin {
    /// Waits for the reply to `HELLO`.
    LoggingIn,
    /// Waits for the reply to `ROLE`.
    CheckingRole,
    /// Waits for the first subscription.
    Subscribing,
    /// Waits for the end of the subscription, and perhaps a message before.
    Probing,
    Ready,
}

/// A value, or its elements.
enum RespValue<'a> {
    Text(&'a [u8], usize),
    Push(RespElements<'a>),
    Array(RespElements<'a>),
    Error(&'a [u8]),
    Other,
}

/// The elements of a push or an array, each with the offset of its text: those of a message at most, and none of a
/// longer list.
#[derive(Default)]
struct RespElements<'a> {
    elements: [(&'a [u8], usize); ELEMENTS_READ],
    count: usize,
}

/// Elements of a message of a pattern.
const ELEMENTS_READ: usize = 4;

impl<'a> RespElements<'a> {
    fn as_slice(&self) -> &[(&'a [u8], usize)] {
        self.elements.get(..self.count).unwrap_or_default()
    }
}

impl RedisClient {
    pub(super) fn new(options: &ClusterOptions, own_channel: Option<&str>) -> Self {
        Self {
            user: options.user.clone(),
            password: options.password.clone(),
            own_channel: own_channel.map(str::to_owned),
            state: RedisLogin::LoggingIn,
            needs_primary: matches!(options.address, BrokerAddress::Sentinels { .. }),
            skips_replies: false,
            rejects_skips: false,
        }
    }

    /// Returns whether the server omits replies on request, and messages for subscriptions then still arrive. Some
    /// server versions and makers omit the messages as well, or reject the request.
    pub(super) fn skips_replies(&self) -> bool {
        self.skips_replies && !self.rejects_skips
    }

    /// Writes the login, and a message from this connection to itself without a reply.
    pub(super) fn log_in(&self, out: &mut Vec<u8>) {
        let mut arguments: Vec<&[u8]> = vec![b"HELLO", b"3"];
        if let Some(password) = &self.password {
            let user = self.user.as_deref().unwrap_or("default");
            arguments.extend([b"AUTH", user.as_bytes(), password.as_bytes()]);
        }
        arguments.extend([&b"SETNAME"[..], b"sinews-cluster"]);
        command(out, &arguments);
        self.write_role_check(out);
        if let Some(channel) = self.own_channel.as_deref().map(str::as_bytes) {
            command(out, &[b"SUBSCRIBE", channel]);
            skip_reply(out);
            command(out, &[b"PUBLISH", channel, b""]);
            command(out, &[b"UNSUBSCRIBE", channel]);
        }
    }

    /// Asks a server that a sentinel has named for its role: an earlier primary becomes a replica, and may keep its
    /// connections.
    pub(super) fn write_role_check(&self, out: &mut Vec<u8>) {
        if self.needs_primary {
            command(out, &[b"ROLE"]);
        }
    }

    pub(super) fn receive(&mut self, input: &[u8]) -> Received {
        let Some((end, value)) = read_value(input, 0, 0)? else { return Ok(None) };
        let event = match value {
            // The server has no `CLIENT REPLY`, or this user may not use it.
            RespValue::Error(text) if self.state == RedisLogin::Probing && !names_unsubscribe(text) => {
                self.rejects_skips = true;
                BrokerEvent::Other
            }
            // The reply to one command.
            RespValue::Error(text) if self.state == RedisLogin::Ready => {
                BrokerEvent::Rejected(with_remedy(format!("Redis: {}", brief(text))))
            }
            RespValue::Error(text) => {
                // Versions without HELLO repeat its arguments.
                let text = without_secret(&String::from_utf8_lossy(text), self.password.as_deref());
                return Err(with_remedy(format!("Redis: {}", brief(text.as_bytes()))));
            }
            RespValue::Push(elements) if self.state != RedisLogin::Ready => {
                self.log_in_further(elements.as_slice())
            }
            RespValue::Push(elements) => match elements.as_slice() {
                [(b"message", _), _, (payload, at)] | [(b"pmessage", _), _, _, (payload, at)] => {
                    BrokerEvent::Message(*at..*at + payload.len())
                }
                [(b"subscribe" | b"psubscribe", _), ..] => BrokerEvent::Subscribed,
                _ => BrokerEvent::Other,
            },
            RespValue::Array(elements) if self.needs_primary && self.state != RedisLogin::LoggingIn => {
                if elements.as_slice().first().is_none_or(|(role, _)| *role != b"master") {
                    return Err("the server that the sentinels have named is no primary (ROLE)".to_owned());
                }
                match self.state {
                    RedisLogin::CheckingRole => self.log_in_at_primary(),
                    _ => BrokerEvent::Other,
                }
            }
            // The first reply answers HELLO.
            _ if self.state == RedisLogin::LoggingIn && self.needs_primary => {
                self.state = RedisLogin::CheckingRole;
                BrokerEvent::Other
            }
            _ if self.state == RedisLogin::LoggingIn => self.log_in_at_primary(),
            RespValue::Text(b"PONG", _) => BrokerEvent::Pong(None),
            // The ping behind a subscription.
            RespValue::Text(text, _) => match std::str::from_utf8(text).ok().and_then(|id| id.parse().ok()) {
                Some(id) => BrokerEvent::Pong(Some(id)),
                None => BrokerEvent::Other,
            },
            RespValue::Array(_) | RespValue::Other => BrokerEvent::Other,
        };
        Ok(Some((end, event)))
    }

    /// The server has accepted the login.
    fn log_in_at_primary(&mut self) -> BrokerEvent {
        if self.own_channel.is_some() {
            self.state = RedisLogin::Subscribing;
            return BrokerEvent::Other;
        }
        self.state = RedisLogin::Ready;
        BrokerEvent::Ready
    }

    fn log_in_further(&mut self, elements: &[(&[u8], usize)]) -> BrokerEvent {
        match elements.first() {
            Some((b"subscribe", _)) => self.state = RedisLogin::Probing,
            Some((b"message", _)) => self.skips_replies = true,
            Some((b"unsubscribe", _)) => {
                self.state = RedisLogin::Ready;
                return BrokerEvent::Ready;
            }
            _ => {}
        }
        BrokerEvent::Other
    }
}

/// The reply to a command that is no subscription, at RESP 2 or 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RedisReply {
    /// An array of at most four texts.
    Texts(Vec<String>),
    Error(String),
    Other,
}

/// Reads a reply; `None` if it is incomplete.
///
/// # Errors
/// The server does not speak the protocol.
pub(super) fn read_reply(input: &[u8]) -> Result<Option<RedisReply>, String> {
    let Some((_, value)) = read_value(input, 0, 0)? else { return Ok(None) };
    Ok(Some(match value {
        RespValue::Array(elements) => {
            let texts = elements.as_slice().iter();
            RedisReply::Texts(texts.map(|(text, _)| String::from_utf8_lossy(text).into_owned()).collect())
        }
        RespValue::Error(text) => RedisReply::Error(brief(text)),
        RespValue::Text(..) | RespValue::Push(_) | RespValue::Other => RedisReply::Other,
    }))
}

/// Returns whether an error is about the command that ends the login. Without it, the login would wait for its timeout.
fn names_unsubscribe(text: &[u8]) -> bool {
    text.windows(11).any(|part| part.eq_ignore_ascii_case(b"unsubscribe"))
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
            return read_elements(input, next, count, *kind, depth);
        }
        _ => return Err(unexpected(line)),
    };
    Ok(Some((next, value)))
}

fn read_elements(input: &[u8], mut at: usize, count: usize, kind: u8, depth: u32) -> ReadRespValue<'_> {
    let mut read = RespElements { count, ..RespElements::default() };
    for index in 0..count {
        let Some((next, value)) = read_value(input, at, depth + 1)? else { return Ok(None) };
        if let (RespValue::Text(text, from), Some(element)) = (value, read.elements.get_mut(index)) {
            *element = (text, from);
        }
        at = next;
    }
    let value = match kind {
        b'>' => RespValue::Push(read),
        b'*' => RespValue::Array(read),
        _ => RespValue::Other,
    };
    Ok(Some((at, value)))
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

/// Returns the beginning of a line, for errors.
fn brief(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(200).collect()
}

/// Makes the server omit the reply to the next command.
pub(super) fn skip_reply(out: &mut Vec<u8>) {
    command(out, &[b"CLIENT", b"REPLY", b"SKIP"]);
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
        RedisClient::new(&ClusterOptions::parse(url).unwrap(), Some("own"))
    }

    /// What follows the reply to `HELLO` if the server omits replies.
    const PROBED: &[&[u8]] = &[
        b">3\r\n$9\r\nsubscribe\r\n$3\r\nown\r\n:1\r\n",
        b">3\r\n$7\r\nmessage\r\n$3\r\nown\r\n$0\r\n\r\n",
        b">3\r\n$11\r\nunsubscribe\r\n$3\r\nown\r\n:0\r\n",
    ];

    /// Reads the values of a login; the last one ends it.
    fn log_in(client: &mut RedisClient, values: &[&[u8]]) {
        let (last, values) = values.split_last().unwrap();
        assert_eq!(client.receive(b"%0\r\n"), Ok(Some((4, BrokerEvent::Other))));
        for value in values {
            assert_eq!(client.receive(value), Ok(Some((value.len(), BrokerEvent::Other))));
        }
        assert_eq!(client.receive(last), Ok(Some((last.len(), BrokerEvent::Ready))));
    }

    #[test]
    fn error_of_a_server_without_hello_does_not_show_the_password() {
        let mut client = client("redis://ann:pass-word@one");
        let reply = b"-ERR unknown command `HELLO`, with args beginning with: `3` `pass-word`\r\n";
        let error = client.receive(reply).unwrap_err();
        assert!(error.contains("unknown command") && !error.contains("pass-word"), "{error}");
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
        assert!(
            login.contains("SKIP\r\n*3\r\n$7\r\nPUBLISH\r\n$3\r\nown\r\n$0\r\n\r\n*2\r\n$11\r\nUNSUBSCRIBE")
        );
        let hello = b"%2\r\n$6\r\nserver\r\n$5\r\nredis\r\n$7\r\nmodules\r\n*1\r\n%1\r\n+a\r\n:1\r\n";
        for end in 0..hello.len() {
            assert_eq!(client.receive(&hello[..end]), Ok(None), "{end}");
        }
        assert_eq!(client.receive(hello), Ok(Some((hello.len(), BrokerEvent::Other))));
        log_in(&mut client, PROBED);
        assert_eq!(client.receive(b"+PONG\r\n"), Ok(Some((7, BrokerEvent::Pong(None)))));
        assert_eq!(client.receive(b"$2\r\n17\r\n"), Ok(Some((8, BrokerEvent::Pong(Some(17))))));
        assert_eq!(client.receive(b":3\r\n"), Ok(Some((4, BrokerEvent::Other))));
    }

    #[test]
    fn messages_are_read_between_replies() {
        let mut client = client("redis://h");
        log_in(&mut client, PROBED);
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
        assert_eq!(client.receive(push), Ok(Some((push.len(), BrokerEvent::Subscribed))));
        let error = b"-NOPERM No permissions to access a channel\r\n";
        let text = "Redis: NOPERM No permissions to access a channel; grant the rights that the documentation of clusters lists";
        let rejected = BrokerEvent::Rejected(text.to_owned());
        assert_eq!(client.receive(error), Ok(Some((error.len(), rejected))));
        let push = b">5\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\na\r\n$1\r\nb\r\n$1\r\nc\r\n";
        assert_eq!(client.receive(push), Ok(Some((push.len(), BrokerEvent::Other))), "no message");
    }

    #[test]
    fn replies_are_skipped_if_the_message_of_the_login_arrives() {
        let [subscribed, message, unsubscribed] = PROBED else { unreachable!() };
        let skips = |values: &[&[u8]]| {
            let mut client = client("redis://h");
            log_in(&mut client, values);
            client.skips_replies()
        };
        assert!(skips(PROBED));
        // The message is omitted as well; the request is unknown, with the message and its reply; publishing is
        // forbidden.
        assert!(!skips(&[subscribed, unsubscribed]));
        assert!(!skips(&[subscribed, b"-ERR syntax error\r\n", message, b":1\r\n", unsubscribed]));
        assert!(!skips(&[subscribed, b"-NOPERM client\r\n", b"-NOPERM publish\r\n", unsubscribed]));
        let mut client = client("redis://h");
        assert_eq!(client.receive(b"%0\r\n"), Ok(Some((4, BrokerEvent::Other))));
        assert!(client.receive(b"-NOPERM subscribe\r\n").unwrap_err().contains("NOPERM"));
        let mut observer = RedisClient::new(&ClusterOptions::parse("redis://h").unwrap(), None);
        assert_eq!(observer.receive(b"%0\r\n"), Ok(Some((4, BrokerEvent::Ready))));
    }

    #[test]
    fn server_of_a_sentinel_must_be_and_stay_a_primary() {
        let primary = b"*3\r\n$6\r\nmaster\r\n:17\r\n*1\r\n*3\r\n$1\r\nh\r\n$1\r\n1\r\n$1\r\n9\r\n";
        let replica = b"*5\r\n$5\r\nslave\r\n$1\r\nh\r\n:1\r\n$9\r\nconnected\r\n:9\r\n";
        let (mut found, mut out) = (client("redis+sentinel://h/s"), Vec::new());
        found.log_in(&mut out);
        assert!(String::from_utf8(out).unwrap().contains("*1\r\n$4\r\nROLE\r\n*2\r\n$9\r\nSUBSCRIBE"));
        assert_eq!(found.receive(b"%0\r\n"), Ok(Some((4, BrokerEvent::Other))));
        let after_hello = RedisClient { own_channel: None, ..client("redis+sentinel://h/s") };
        assert_eq!(found.receive(&primary[..20]), Ok(None));
        assert_eq!(found.receive(primary), Ok(Some((primary.len(), BrokerEvent::Other))));
        let (last, values) = PROBED.split_last().unwrap();
        for value in values {
            assert_eq!(found.receive(value), Ok(Some((value.len(), BrokerEvent::Other))));
        }
        assert_eq!(found.receive(last), Ok(Some((last.len(), BrokerEvent::Ready))));
        assert_eq!(found.receive(primary), Ok(Some((primary.len(), BrokerEvent::Other))));
        assert!(found.receive(replica).unwrap_err().contains("no primary"));
        let mut observer = after_hello;
        observer.receive(b"%0\r\n").unwrap();
        assert!(observer.receive(replica).unwrap_err().contains("no primary"));
        observer.state = RedisLogin::CheckingRole;
        assert_eq!(observer.receive(primary), Ok(Some((primary.len(), BrokerEvent::Ready))));
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
