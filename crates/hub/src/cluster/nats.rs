//! The client protocol of NATS: lines, and payloads of a given length.

use serde::Deserialize;
use serde_json::json;

use super::nkey::NatsKey;
use super::options::ClusterOptions;
use super::protocol::{BrokerEvent, Received, with_remedy};

/// Longest line: `INFO` from a server with many addresses.
const LINE_MAX: usize = 64 << 10;

/// Largest payload that is accepted; servers have lower limits.
const PAYLOAD_MAX: usize = 64 << 20;

/// Smallest payload limit for a server: a message with one topic and its keys, or one member, is smaller.
const PAYLOAD_MIN: usize = 8 << 10;

/// Payload limit of a server that names none: the default of NATS.
const DEFAULT_PAYLOAD: usize = 1 << 20;

/// Reads a server's output.
#[derive(Debug)]
pub(super) struct NatsClient {
    user: Option<String>,
    password: Option<String>,
    key: Option<NatsKey>,
    /// The server's challenge, which the key signs.
    nonce: String,
    has_tls: bool,
    max_payload: usize,
    state: LoginState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoginState {
    /// Waits for the server's first line.
    Greeting,
    /// Waits for the answer to the login.
    LoggingIn,
    Ready,
}

#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    max_payload: Option<usize>,
    #[serde(default)]
    tls_required: bool,
    #[serde(default)]
    nonce: String,
}

impl NatsClient {
    pub(super) fn new(options: &ClusterOptions, key: Option<NatsKey>) -> Self {
        Self {
            user: options.user.clone(),
            password: options.password.clone(),
            key,
            nonce: String::new(),
            has_tls: options.has_tls,
            max_payload: DEFAULT_PAYLOAD,
            state: LoginState::Greeting,
        }
    }

    pub(super) fn max_payload(&self) -> usize {
        self.max_payload
    }

    pub(super) fn log_in(&self, out: &mut Vec<u8>) {
        let mut options = json!({
            "verbose": false, "pedantic": false, "tls_required": self.has_tls, "name": "sinews-cluster",
            "lang": "sinews", "version": env!("CARGO_PKG_VERSION"), "protocol": 1, "echo": false,
        });
        if let Some(key) = &self.key {
            options["sig"] = json!(key.sign(&self.nonce));
            match key.jwt() {
                Some(jwt) => options["jwt"] = json!(jwt),
                None => options["nkey"] = json!(key.public()),
            }
        }
        match (&self.user, &self.password) {
            _ if self.key.is_some() => {}
            (Some(token), None) => options["auth_token"] = json!(token),
            (user, Some(password)) => {
                options["user"] = json!(user);
                options["pass"] = json!(password);
            }
            (None, None) => {}
        }
        // The answer to the ping confirms the login.
        out.extend_from_slice(format!("CONNECT {options}\r\nPING\r\n").as_bytes());
    }

    pub(super) fn receive(&mut self, input: &[u8], out: &mut Vec<u8>) -> Received {
        let Some(end) = input.windows(2).take(LINE_MAX).position(|pair| pair == b"\r\n") else {
            return if input.len() > LINE_MAX { Err(line_too_long()) } else { Ok(None) };
        };
        let line = input.get(..end).unwrap_or_default();
        let next = end + 2;
        if line.starts_with(b"MSG ") {
            let length = message_length(line).ok_or_else(|| format!("NATS sent {:?}", brief(line)))?;
            let whole = next + length + 2;
            let is_complete = input.len() >= whole;
            return Ok(is_complete.then_some((whole, BrokerEvent::Message(next..next + length))));
        }
        let event = match line {
            b"PING" => BrokerEvent::Ping,
            b"PONG" if self.state == LoginState::LoggingIn => {
                self.state = LoginState::Ready;
                BrokerEvent::Ready
            }
            b"PONG" => BrokerEvent::Pong(None),
            b"+OK" => BrokerEvent::Other,
            line if line.starts_with(b"INFO ") => self.greeted(line.get(5..).unwrap_or_default(), out)?,
            // The server closes the connection itself if it does not continue.
            line if line.starts_with(b"-ERR") && self.state == LoginState::Ready => {
                BrokerEvent::Rejected(with_remedy(format!("NATS: {}", brief(line))))
            }
            line if line.starts_with(b"-ERR") => return Err(format!("NATS: {}", brief(line))),
            line => {
                return Err(format!(
                    "the server does not speak the protocol of NATS: it sent {:?}",
                    brief(line)
                ));
            }
        };
        Ok(Some((next, event)))
    }

    fn greeted(&mut self, info: &[u8], out: &mut Vec<u8>) -> Result<BrokerEvent, String> {
        let info: Info = serde_json::from_slice(info).map_err(|error| format!("INFO of NATS: {error}"))?;
        self.max_payload = info.max_payload.unwrap_or(self.max_payload).min(PAYLOAD_MAX);
        if self.max_payload < PAYLOAD_MIN {
            return Err(format!(
                "max_payload of the NATS server is {} bytes: a cluster needs {PAYLOAD_MIN}",
                self.max_payload
            ));
        }
        if self.state != LoginState::Greeting {
            return Ok(BrokerEvent::Other);
        }
        if self.key.is_some() && info.nonce.is_empty() {
            return Err("the NATS server asks for no signature: it has no users with keys".to_owned());
        }
        self.nonce = info.nonce;
        self.state = LoginState::LoggingIn;
        if self.has_tls {
            return Ok(BrokerEvent::StartTls);
        }
        if info.tls_required {
            return Err("the server requires TLS: use nats+tls://".to_owned());
        }
        self.log_in(out);
        Ok(BrokerEvent::Other)
    }
}

/// Returns the payload length in `MSG subject id [reply] length`.
fn message_length(line: &[u8]) -> Option<usize> {
    let text = std::str::from_utf8(line.rsplit(|byte| *byte == b' ').next()?).ok()?;
    text.parse().ok().filter(|length| *length <= PAYLOAD_MAX)
}

fn line_too_long() -> String {
    format!("a line of the server exceeds {LINE_MAX} bytes")
}

/// Returns the beginning of a line, for errors.
fn brief(line: &[u8]) -> String {
    String::from_utf8_lossy(line).chars().take(200).collect()
}

pub(super) fn encode_publication(out: &mut Vec<u8>, subject: &str, payload: &[u8]) {
    out.extend_from_slice(b"PUB ");
    out.extend_from_slice(subject.as_bytes());
    out.push(b' ');
    write_number(out, payload.len() as u64);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(payload);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn subscribe(out: &mut Vec<u8>, subject: &str, id: u64) {
    out.extend_from_slice(b"SUB ");
    out.extend_from_slice(subject.as_bytes());
    out.push(b' ');
    write_number(out, id);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn unsubscribe(out: &mut Vec<u8>, id: u64) {
    out.extend_from_slice(b"UNSUB ");
    write_number(out, id);
    out.extend_from_slice(b"\r\n");
}

pub(super) fn pong(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PONG\r\n");
}

pub(super) fn ping(out: &mut Vec<u8>) {
    out.extend_from_slice(b"PING\r\n");
}

/// Writes a decimal number.
pub(super) fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let start = out.len();
    loop {
        // A digit.
        out.push(b'0' + u8::try_from(number % 10).unwrap_or(0));
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out[start..].reverse();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::nkey::tests::{PUBLIC, SEED, credentials};

    fn client(url: &str) -> NatsClient {
        NatsClient::new(&ClusterOptions::parse(url).unwrap(), None)
    }

    #[test]
    fn login_waits_for_the_greeting_and_is_confirmed() {
        let (mut client, mut out) = (client("nats://ann:p@h"), Vec::new());
        let info = b"INFO {\"max_payload\":9000,\"x\":1}\r\n";
        for end in 0..info.len() {
            assert_eq!(client.receive(&info[..end], &mut out), Ok(None));
        }
        assert_eq!(client.receive(info, &mut out), Ok(Some((info.len(), BrokerEvent::Other))));
        let login = String::from_utf8(std::mem::take(&mut out)).unwrap();
        assert!(login.starts_with("CONNECT {") && login.ends_with("}\r\nPING\r\n"), "{login}");
        assert!(login.contains("\"user\":\"ann\"") && login.contains("\"echo\":false"), "{login}");
        assert_eq!(client.max_payload(), 9_000);
        assert_eq!(client.receive(b"PING\r\n", &mut out), Ok(Some((6, BrokerEvent::Ping))));
        let error = b"-ERR 'Authorization Violation'\r\n";
        assert!(client.receive(error, &mut out).is_err(), "the login is rejected");
        assert_eq!(client.receive(b"PONG\r\n", &mut out), Ok(Some((6, BrokerEvent::Ready))));
        let rejected = BrokerEvent::Rejected("NATS: -ERR 'Authorization Violation'".to_owned());
        assert_eq!(
            client.receive(error, &mut out),
            Ok(Some((error.len(), rejected))),
            "a command is rejected"
        );
        assert_eq!(client.receive(b"PONG\r\n", &mut out), Ok(Some((6, BrokerEvent::Pong(None)))));
    }

    #[test]
    fn key_signs_the_challenge_of_the_server() {
        let options = ClusterOptions::parse("nats://h").unwrap();
        let login = |text: &str, info: &[u8]| {
            let mut client = NatsClient::new(&options, Some(NatsKey::parse(text).unwrap()));
            let mut out = Vec::new();
            let received = client.receive(info, &mut out);
            assert!(!format!("{client:?}").contains(SEED) && !format!("{client:?}").contains("eyJ"));
            received.map(|_| String::from_utf8(out).unwrap())
        };
        let info = b"INFO {\"nonce\":\"abc\"}\r\n";
        let text = login(SEED, info).unwrap();
        assert!(text.contains(&format!("\"nkey\":\"{PUBLIC}\"")) && text.contains("\"sig\":\""), "{text}");
        let text = login(&credentials("eyJ.a-_b.c"), info).unwrap();
        assert!(text.contains("\"jwt\":\"eyJ.a-_b.c\"") && !text.contains("nkey"), "{text}");
        assert!(!text.contains(SEED));
        assert!(login(SEED, b"INFO {}\r\n").unwrap_err().contains("no signature"));
    }

    #[test]
    fn server_with_a_small_payload_limit_is_rejected() {
        for (limit, accepts) in [(PAYLOAD_MIN - 1, false), (PAYLOAD_MIN, true)] {
            let info = format!("INFO {{\"max_payload\":{limit}}}\r\n");
            let result = client("nats://h").receive(info.as_bytes(), &mut Vec::new());
            assert_eq!(result.is_ok(), accepts, "{result:?}");
            let names_setting = |reason: &String| reason.contains("max_payload") && reason.contains("8191");
            assert!(result.as_ref().err().is_none_or(names_setting), "{result:?}");
        }
    }

    #[test]
    fn messages_are_read_by_their_length() {
        let (mut client, mut out) = (client("nats://h"), Vec::new());
        let message = b"MSG p.t.a 7 5\r\na\r\nbc\r\nMSG p.t.a 7 reply 0\r\n\r\n";
        assert_eq!(client.receive(&message[..20], &mut out), Ok(None));
        assert_eq!(client.receive(message, &mut out), Ok(Some((22, BrokerEvent::Message(15..20)))));
        assert_eq!(client.receive(&message[22..], &mut out), Ok(Some((23, BrokerEvent::Message(21..21)))));
    }

    #[test]
    fn errors_and_other_servers_are_named() {
        let fails = |url: &str, input: &[u8]| client(url).receive(input, &mut Vec::new()).unwrap_err();
        assert!(fails("nats://h", b"-ERR 'Authorization Violation'\r\n").contains("Authorization"));
        assert!(fails("nats://h", b"HTTP/1.1 400 Bad Request\r\n").contains("HTTP/1.1 400"));
        assert!(fails("nats://h", b"INFO {\"tls_required\":true}\r\n").contains("nats+tls://"));
        assert!(fails("nats://h", b"MSG a 1 99999999999\r\n").contains("99999999999"));
        assert!(fails("nats://h", &vec![b'a'; LINE_MAX + 2]).contains("exceeds"));
        let mut tls = client("nats+tls://h");
        assert_eq!(tls.receive(b"INFO {}\r\n", &mut Vec::new()), Ok(Some((9, BrokerEvent::StartTls))));
    }

    #[test]
    fn commands_are_written() {
        let mut out = Vec::new();
        subscribe(&mut out, "p.t.a", 10);
        encode_publication(&mut out, "p.t.a", b"xyz");
        unsubscribe(&mut out, 10);
        assert_eq!(out, b"SUB p.t.a 10\r\nPUB p.t.a 3\r\nxyz\r\nUNSUB 10\r\n");
    }
}
