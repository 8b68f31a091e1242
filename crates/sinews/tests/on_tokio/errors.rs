//! Errors as programs print them: with `{}`, or with all their sources.

use std::error::Error as _;
use std::io;

use sinews::client::{ConnectPhase, RedirectError, UrlError};
use sinews::{AcceptError, AtFault, ConnectError, Error, HandshakeError, Misuse, server};

/// An error of the system with its own text, as a library wraps it.
#[derive(Debug)]
struct Outer(io::Error);

impl std::fmt::Display for Outer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("outer")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// The error and its sources, joined as programs print them.
fn printed(error: &(dyn std::error::Error + 'static)) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        line = format!("{line}: {error}");
        cause = error.source();
    }
    line
}

fn reset() -> io::Error {
    io::ErrorKind::ConnectionReset.into()
}

#[track_caller]
fn assert_printed_once(error: &(dyn std::error::Error + 'static), cause: &str) {
    let line = printed(error);
    assert_eq!(line.matches(cause).count(), 1, "{line:?} has {cause:?} once");
    assert!(error.to_string().contains(cause), "{error} is complete by itself");
}

#[test]
fn sources_are_printed_once() {
    assert_printed_once(&Error::Misuse(Misuse::PingTooLong), &Misuse::PingTooLong.to_string());
    assert_printed_once(&Error::Io(reset()), "connection reset");
    let transport = ConnectError::Transport {
        phase: ConnectPhase::Handshake,
        peer: "example.com:80".into(),
        error: reset(),
    };
    assert_printed_once(&transport, "connection reset");
    let accept = AcceptError::Io(server::AcceptPhase::Head, reset());
    assert_printed_once(&accept, "connection reset");
    let url = ConnectError::Url { url: "ws:".into(), error: UrlError::Host };
    assert_printed_once(&url, &UrlError::Host.to_string());
}

#[test]
fn source_of_a_wrapped_error_stays_in_the_chain() {
    let error = Error::Io(io::Error::other(Outer(reset())));
    let line = printed(&error);
    assert_eq!(line, "transport: outer: connection reset");
    assert!(error.source().is_some_and(|cause| cause.is::<io::Error>()), "{error:?}");
}

/// An error of each kind that a call of the library returns, converted by `?`.
fn converted() -> Vec<Error> {
    fn by_question_mark<E>(error: E) -> Error
    where
        Error: From<E>,
    {
        (|| -> Result<(), Error> { Err(error)? })().expect_err("an error")
    }
    let timed_out = || AcceptError::TimedOut(server::AcceptPhase::Head);
    let url = || ConnectError::Url { url: "ws:".into(), error: UrlError::Host };
    vec![
        by_question_mark(Misuse::PingTooLong),
        by_question_mark(reset()),
        by_question_mark(url()),
        by_question_mark(timed_out()),
        by_question_mark(HandshakeError::from(url())),
        by_question_mark(HandshakeError::from(timed_out())),
        by_question_mark(sinews::Utf8Bytes::try_from(vec![0xff]).expect_err("not UTF-8")),
        by_question_mark(sinews::Config::default().with_max_frame(0).check().expect_err("zero")),
        by_question_mark(sinews::CloseCode::try_from(1005).expect_err("never on the wire")),
        by_question_mark(sinews::OriginPolicy::list(["no origin"]).expect_err("no origin")),
    ]
}

#[test]
fn each_error_converts_into_one_type_with_its_text() {
    let shown: Vec<String> = converted().iter().map(ToString::to_string).collect();
    let url = "bad URL \"ws:\": no valid host";
    let expected = [
        "ping payload over 125 bytes",
        "transport: connection reset",
        url,
        "handshake timed out: request head not received",
        url,
        "handshake timed out: request head not received",
        "invalid UTF-8 at byte 0",
        "max_frame must be at least 1",
        "close code 1005 is not one of 1000-1003, 1007-1014 and 3000-4999",
    ];
    assert_eq!(shown[..expected.len()], expected);
    let is_fatal = [false, true, true, true, true, true, false, false, false, false];
    assert_eq!(converted().iter().map(Error::is_fatal).collect::<Vec<_>>(), is_fatal);
    for error in converted() {
        let handshake = matches!(error, Error::Accept(_));
        let at_fault = match error {
            Error::Io(_) => AtFault::Transport,
            Error::Utf8(_) => AtFault::Peer,
            _ if handshake => AtFault::Peer,
            _ => AtFault::Caller,
        };
        assert_eq!(error.at_fault(), at_fault, "{error}");
        assert_eq!(error.close_code(), None);
    }
}

#[test]
fn converted_error_keeps_the_source() {
    let outer = || io::Error::other(Outer(reset()));
    let transport =
        ConnectError::Transport { phase: ConnectPhase::Handshake, peer: "a:80".into(), error: outer() };
    for error in [Error::from(transport), AcceptError::Io(server::AcceptPhase::Head, outer()).into()] {
        assert_printed_once(&error, "outer");
        assert!(printed(&error).ends_with("connection reset"), "{}", printed(&error));
    }
}

#[tokio::test]
async fn error_of_a_producer_converts_with_the_end_of_the_connection() {
    let agreed = sinews_testkit::negotiate(None, None);
    let (io, _peer) = tokio::io::duplex(64);
    let mut ws = sinews::WebSocket::from_negotiated(io, agreed.server, std::sync::Arc::default(), &[]);
    let sender = ws.sender_with_capacity(1);
    let too_long = sender.try_send(sinews::Message::Ping(vec![0; 126].into())).expect_err("too long");
    assert!(matches!(Error::from(too_long), Error::Misuse(Misuse::PingTooLong)));
    sender.try_send("first").expect("capacity");
    let full = sender.try_send("second").expect_err("no capacity");
    assert!(matches!(Error::from(full), Error::Misuse(Misuse::QueueFull)));
    ws.close_now(sinews::CloseCode::POLICY, "").await.expect("sent");
    let ended = sender.try_send("third").expect_err("closed");
    assert_eq!(Error::from(ended).close_code(), Some(sinews::CloseCode::POLICY));
}

#[test]
fn side_at_fault_of_a_connection_attempt_is_named() {
    let transport =
        ConnectError::Transport { phase: ConnectPhase::Handshake, peer: "a:80".into(), error: reset() };
    assert_eq!(transport.at_fault(), AtFault::Transport);
    let answer = ConnectError::Handshake(sinews::client::ClientError::Accept);
    assert_eq!(answer.at_fault(), AtFault::Peer);
    assert_eq!(HandshakeError::from(answer).at_fault(), AtFault::Peer);
    #[cfg(feature = "url-connect")]
    {
        use sinews::client::TlsError;
        let tls = |error| ConnectError::Tls { host: "a".into(), error }.at_fault();
        assert_eq!(tls(TlsError::Handshake(reset())), AtFault::Transport);
        assert_eq!(tls(TlsError::Handshake(io::Error::other("untrusted"))), AtFault::Peer);
        assert_eq!(tls(TlsError::Alpn("h3".into())), AtFault::Peer);
        assert_eq!(tls(TlsError::Unavailable), AtFault::Caller);
    }
}

#[cfg(feature = "url-connect")]
#[test]
fn sources_of_name_resolution_proxies_and_redirects_are_printed_once() {
    let resolve = ConnectError::Resolve { host: "example.com".into(), error: reset() };
    assert_printed_once(&resolve, "connection reset");
    let tcp = ConnectError::Tcp { address: "example.com:80".into(), error: reset() };
    assert_printed_once(&tcp, "connection reset");
    let redirect =
        ConnectError::Redirect { location: "/".into(), error: RedirectError::Location(UrlError::Host) };
    assert_printed_once(&redirect, &UrlError::Host.to_string());
    let tls =
        ConnectError::Tls { host: "example.com".into(), error: sinews::client::TlsError::Handshake(reset()) };
    assert_printed_once(&tls, "connection reset");
}

#[tokio::test]
async fn sources_of_a_rejected_message_are_printed_once() {
    let agreed = sinews_testkit::negotiate(None, None);
    let (io, _peer) = tokio::io::duplex(64);
    let mut ws = sinews::WebSocket::from_negotiated(io, agreed.server, std::sync::Arc::default(), &[]);
    let rejected = ws.sender().try_send(sinews::Message::Ping(vec![0; 126].into())).expect_err("too long");
    assert_printed_once(&rejected, &Misuse::PingTooLong.to_string());
}
