//! Errors as programs print them: with `{}`, or with all their sources.
#![cfg(feature = "tokio")]

use std::error::Error as _;
use std::io;

use sinews::client::{ConnectPhase, RedirectError, UrlError};
use sinews::{AcceptError, ConnectError, Error, Misuse, server};

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
