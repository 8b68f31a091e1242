//! SOCKS5 (RFC 1928) with name and password (RFC 1929).

use std::net::IpAddr;

use super::exchange::{Exchange, ExchangeStep};
use super::proxy_error::{ProxyError, SocksReply};
use super::target::Credentials;

/// Requests a connection from a SOCKS5 proxy.
#[derive(Debug)]
pub(crate) struct Socks5 {
    /// The method negotiation, and later the request.
    request: Vec<u8>,
    /// The message of RFC 1929, if there are credentials.
    login: Option<Vec<u8>>,
    state: State,
    /// Processed bytes of the responses.
    consumed: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Greet,
    AwaitMethod,
    Login,
    AwaitLogin,
    Ask,
    AwaitReply,
}

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const PASSWORD: u8 = 2;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

impl Socks5 {
    /// Connects to a name, which the proxy resolves, or to an address.
    pub(crate) fn new(host: &str, port: u16, credentials: Option<&Credentials>) -> Result<Self, ProxyError> {
        let mut request = vec![VERSION, CONNECT, 0];
        match host.parse() {
            Ok(IpAddr::V4(address)) => {
                request.push(IPV4);
                request.extend(address.octets());
            }
            Ok(IpAddr::V6(address)) => {
                request.push(IPV6);
                request.extend(address.octets());
            }
            Err(_) => {
                request.push(NAME);
                push_counted(&mut request, host.as_bytes()).ok_or(ProxyError::NameTooLong)?;
            }
        }
        request.extend(port.to_be_bytes());
        let login = credentials.map(login).transpose()?;
        Ok(Self { request, login, state: State::Greet, consumed: 0 })
    }

    /// Takes this many bytes of a response, once they are received.
    fn take<'r>(&mut self, received: &'r [u8], count: usize) -> Option<&'r [u8]> {
        let bytes = received.get(self.consumed..)?.get(..count)?;
        self.consumed += count;
        Some(bytes)
    }

    /// Reads the method selection (RFC 1928 section 3).
    fn read_method(&mut self, received: &[u8]) -> Result<ExchangeStep<()>, ProxyError> {
        let Some(answer) = self.take(received, 2) else { return Ok(ExchangeStep::More) };
        self.state = match answer {
            [VERSION, NO_AUTHENTICATION] => State::Ask,
            [VERSION, PASSWORD] if self.login.is_some() => State::Login,
            [VERSION, _] => return Err(ProxyError::Authentication),
            _ => return Err(ProxyError::NotSocks5),
        };
        Ok(ExchangeStep::Write)
    }

    /// Reads the login response (RFC 1929 section 2). The version is ignored: some proxies repeat the 5.
    fn read_login(&mut self, received: &[u8]) -> Result<ExchangeStep<()>, ProxyError> {
        match self.take(received, 2) {
            None => Ok(ExchangeStep::More),
            Some([_, 0]) => {
                self.state = State::Ask;
                Ok(ExchangeStep::Write)
            }
            Some(_) => Err(ProxyError::Authentication),
        }
    }

    /// Reads the reply (RFC 1928 section 6). A rejection is complete with its code: some proxies send no more.
    fn read_reply(&mut self, received: &[u8]) -> Result<ExchangeStep<()>, ProxyError> {
        let reply = received.get(self.consumed..).unwrap_or_default();
        let len = match reply {
            [] | [VERSION] | [VERSION, 0] | [VERSION, 0, _] => return Ok(ExchangeStep::More),
            [VERSION, 0, _, IPV4, ..] => 4 + 4 + 2,
            [VERSION, 0, _, IPV6, ..] => 4 + 16 + 2,
            [VERSION, 0, _, NAME, len, ..] => 4 + 1 + usize::from(*len) + 2,
            [VERSION, 0, _, NAME] => return Ok(ExchangeStep::More),
            [VERSION, 0, ..] => return Err(ProxyError::NotSocks5),
            [VERSION, code, ..] => return Err(ProxyError::Socks(SocksReply(*code))),
            _ => return Err(ProxyError::NotSocks5),
        };
        Ok(match self.take(received, len) {
            Some(_) => ExchangeStep::Done { output: (), consumed: self.consumed },
            None => ExchangeStep::More,
        })
    }
}

impl Exchange for Socks5 {
    type Output = ();
    type Error = ProxyError;

    fn write(&mut self, out: &mut Vec<u8>) {
        self.state = match self.state {
            State::Greet => {
                out.extend_from_slice(match self.login {
                    None => &[VERSION, 1, NO_AUTHENTICATION],
                    Some(_) => &[VERSION, 2, NO_AUTHENTICATION, PASSWORD],
                });
                State::AwaitMethod
            }
            State::Login => {
                out.extend_from_slice(self.login.as_deref().unwrap_or_default());
                State::AwaitLogin
            }
            State::Ask => {
                out.extend_from_slice(&self.request);
                State::AwaitReply
            }
            waiting => waiting,
        };
    }

    fn read(&mut self, received: &[u8]) -> Result<ExchangeStep<()>, ProxyError> {
        match self.state {
            State::Greet | State::Login | State::Ask => Ok(ExchangeStep::Write),
            State::AwaitMethod => self.read_method(received),
            State::AwaitLogin => self.read_login(received),
            State::AwaitReply => self.read_reply(received),
        }
    }
}

fn login(credentials: &Credentials) -> Result<Vec<u8>, ProxyError> {
    let mut login = vec![1];
    push_counted(&mut login, &credentials.user).ok_or(ProxyError::Credentials)?;
    match credentials.password.as_slice() {
        // RFC 1929 requires a password of at least one byte; a token as the user name has no password.
        [] => login.push(0),
        password => push_counted(&mut login, password).ok_or(ProxyError::Credentials)?,
    }
    Ok(login)
}

/// Appends the length as one byte, and the bytes; `None` if the length is 0 or over 255.
fn push_counted(out: &mut Vec<u8>, bytes: &[u8]) -> Option<()> {
    out.push(u8::try_from(bytes.len()).ok().filter(|&len| len > 0)?);
    out.extend_from_slice(bytes);
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::exchange::tests::run;

    fn credentials() -> Credentials {
        Credentials { user: b"me".to_vec(), password: b"pw".to_vec() }
    }

    /// The bytes sent to a proxy with these responses, in chunks of every size, and the result.
    fn exchange(host: &str, login: bool, answers: &[u8]) -> (Vec<u8>, Result<usize, Option<String>>) {
        let mut found = None;
        for piece in 1..=answers.len() {
            let credentials = login.then(credentials);
            let machine = Socks5::new(host, 443, credentials.as_ref()).expect("sound");
            let (out, outcome, consumed) = run(machine, answers, piece);
            let end = match outcome {
                Some(Ok(())) => Ok(consumed),
                Some(Err(error)) => Err(Some(error.to_string())),
                None => Err(None),
            };
            let run = (out, end);
            assert_eq!(found.get_or_insert_with(|| run.clone()), &run, "in pieces of {piece}");
        }
        found.expect("one piece at least")
    }

    #[test]
    fn connect_requests_encode_names_and_addresses() {
        let accepted = [5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        let requested = |host| exchange(host, false, &accepted);
        let (out, end) = requested("a.example");
        assert_eq!(out, b"\x05\x01\x00\x05\x01\x00\x03\x09a.example\x01\xbb");
        assert_eq!(end, Ok(12));
        assert_eq!(requested("1.2.3.4").0, b"\x05\x01\x00\x05\x01\x00\x01\x01\x02\x03\x04\x01\xbb");
        assert_eq!(requested("::1").0[..7], [5, 1, 0, 5, 1, 0, 4]);
    }

    #[test]
    fn bytes_behind_the_reply_are_not_consumed() {
        let ipv6 = [&[5, 0, 5, 0, 0, 4][..], &[0; 18], b"rest"].concat();
        assert_eq!(exchange("a", false, &ipv6).1, Ok(24));
        let name = [&[5, 0, 5, 0, 0, 3, 2][..], b"ab", &[0, 0], b"rest"].concat();
        assert_eq!(exchange("a", false, &name).1, Ok(11));
        assert_eq!(exchange("a", false, &name[..10]).1, Err(None), "one byte is missing");
    }

    #[test]
    fn password_is_sent_only_on_request() {
        let (out, end) = exchange("a", true, &[5, 2, 1, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out, b"\x05\x02\x00\x02\x01\x02me\x02pw\x05\x01\x00\x03\x01a\x01\xbb");
        assert_eq!(end, Ok(14));
        let (out, end) = exchange("a", true, &[5, 0, 5, 0, 0, 1, 0, 0, 0, 0, 0, 0]);
        assert!(!out.windows(2).any(|part| part == b"pw"), "it was not asked for");
        assert_eq!(end, Ok(12));
    }

    #[test]
    fn reply_codes_are_named_in_errors() {
        let error =
            |login, answers: &[u8]| exchange("a", login, answers).1.expect_err("refused").expect("an error");
        assert!(error(false, &[5, 0xff]).contains("name and password"));
        assert!(error(false, &[5, 2]).contains("name and password"));
        assert!(error(true, &[5, 2, 1, 1]).contains("name and password"));
        assert!(error(false, &[5, 0, 5, 5]).contains("connection refused (SOCKS reply 5)"));
        assert!(error(false, &[5, 0, 5, 2, 0, 1]).contains("not allowed by the rules of the proxy"));
        assert!(error(false, b"HTTP/1.1 400").contains("not SOCKS5"));
        assert!(error(false, &[5, 0, 5, 0, 0, 9]).contains("not SOCKS5"));
    }

    #[test]
    fn names_and_passwords_over_255_bytes_are_rejected() {
        assert!(matches!(Socks5::new(&"a".repeat(256), 1, None), Err(ProxyError::NameTooLong)));
        assert!(Socks5::new(&"a".repeat(255), 1, None).is_ok());
        let long = Credentials { password: vec![b'a'; 256], ..credentials() };
        assert!(matches!(Socks5::new("a", 1, Some(&long)), Err(ProxyError::Credentials)));
        let token = Credentials { password: Vec::new(), ..credentials() };
        let (out, _, _) = run(Socks5::new("a", 1, Some(&token)).expect("sound"), &[5, 2], 1);
        assert_eq!(out[4..], *b"\x01\x02me\x00");
    }
}
