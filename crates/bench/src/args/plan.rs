//! From arguments to the plan of a run: checks options, reads files, resolves the host.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::deflate::DeflateConfig;
use sinews_proto::handshake::ClientRequest;

use super::load::{ConnectionArgs, LoadArgs};
use crate::load::{HTTP2, HTTP3};
use crate::payload::Corpus;
use crate::plan::{ExpectedBody, FanOut, FinalRequest, LoadMode, LoadPlan, PublishTarget, RequestTemplate};
use crate::target::{LoadTarget, TargetProtocol};
use crate::trust;

/// Makes the plan of a run against this URL.
///
/// # Errors
///
/// Returns an error if options conflict, a file cannot be read, or the host is unknown.
pub(crate) fn load_plan(url: &str, args: &LoadArgs) -> Result<LoadPlan, String> {
    let LoadArgs { amount, content, connection, mode } = args;
    let target = LoadTarget::new(url, connection.unix.as_deref())?;
    let fan_out = mode.mode == LoadMode::FanOut;
    let text = !content.binary && target.protocol == TargetProtocol::WebSocket || fan_out;
    check(args, &target)?;
    let corpus = match &content.file {
        Some(file) => Corpus::recorded(file, text)?,
        None => Corpus::made(&content.size, text),
    };
    let count = amount.count.map(std::num::NonZeroU64::get);
    let default_rate = (fan_out && !amount.burst).then_some(RATE_OF_PUBLISHER * mode.publishers.get() as f64);
    let rate = amount.rate.or(default_rate);
    let default_in_flight = if rate.is_some() { IN_FLIGHT_AT_RATE } else { 1 };
    Ok(LoadPlan {
        mode: mode.mode,
        kind: if text { sinews_proto::Kind::Text } else { sinews_proto::Kind::Binary },
        corpus,
        connections: amount.connections.get(),
        http2: connection.http2,
        http3: uses_http3(connection),
        webtransport: connection.webtransport,
        http3_protocol: connection.http3_protocol.clone(),
        sockets_per_connection: connection.sockets_per_connection.get(),
        threads: amount.threads.get().min(amount.connections.get()),
        in_flight: amount.in_flight.map_or(default_in_flight, |depth| depth.get() as usize),
        bursts: amount.burst,
        busy_poll: connection.busy_poll,
        duration: amount.duration,
        count,
        rate,
        warm_up: if count.is_some() { Duration::ZERO } else { amount.warm_up },
        ramp_up: amount.ramp_up,
        settle: amount.settle,
        timeout: amount.timeout,
        staged_handshakes: None,
        sources: connection.source.iter().flatten().copied().collect(),
        backend: connection.backend,
        tls: target.tls.then(|| tls(connection)).transpose()?,
        handshakes: handshakes(&target, args)?,
        publish_at: publish_at(&target, args)?,
        request: request(&target, args)?,
        fan_out: FanOut {
            publishers: mode.publishers.get(),
            stalled: mode.stalled,
            topics: mode.topics.get(),
            login: mode.login.clone(),
            subscribe: mode.subscribe.clone(),
            publish: mode.publish.clone().unwrap_or_else(|| "{payload}".to_owned()),
        },
        target,
    })
}

fn check(args: &LoadArgs, target: &LoadTarget) -> Result<(), String> {
    let LoadArgs { amount, content, connection, mode } = args;
    let is = |protocol| target.protocol == protocol;
    let (connections, of_each) = (amount.connections.get(), connection.sockets_per_connection.get());
    let sockets = connections.checked_mul(of_each).ok_or_else(|| {
        let product = format!("--connections {connections} times --sockets-per-connection {of_each}");
        format!("{product} exceeds the maximum number of sockets ({})", usize::MAX)
    })?;
    let wrong = [
        (
            mode.mode == LoadMode::FanOut && !is(TargetProtocol::WebSocket),
            "--mode fan-out needs a ws:// or wss:// URL",
        ),
        (
            mode.mode == LoadMode::FanOut && mode.publishers.get().saturating_add(mode.stalled) >= sockets,
            "--mode fan-out needs more --connections than --publishers and --stalled: the rest subscribe",
        ),
        (mode.mode == LoadMode::FanOut && content.binary, "--mode fan-out sends text and excludes --binary"),
        (
            mode.mode == LoadMode::FanOut && content.file.is_some(),
            "--mode fan-out generates its messages and excludes --file",
        ),
        (
            mode.mode == LoadMode::FanOut && amount.count.is_some(),
            "--count is for --mode echo and storm; use --duration",
        ),
        (mode.mode != LoadMode::FanOut && mode.publish.is_some(), "--publish is for --mode fan-out"),
        (mode.mode != LoadMode::FanOut && mode.login.is_some(), "--login is for --mode fan-out"),
        (mode.mode != LoadMode::FanOut && mode.publish_url.is_some(), "--publish-url is for --mode fan-out"),
        (mode.mode != LoadMode::FanOut && mode.stalled > 0, "--stalled is for --mode fan-out"),
        (
            amount.requests_per_connection.is_some() && !is(TargetProtocol::Http),
            "--requests-per-connection is for http:// and https:// URLs",
        ),
        (
            connection.unix.is_some() && mode.publish_url.is_some(),
            "--unix is the one server of all connections and excludes --publish-url",
        ),
        (connection.deflate && !is(TargetProtocol::WebSocket), "--deflate is for ws:// and wss:// URLs"),
        (
            !connection.subprotocol.is_empty() && !is(TargetProtocol::WebSocket),
            "--subprotocol is for WebSocket",
        ),
        (!connection.header.is_empty() && is(TargetProtocol::Tcp), "--header is not for tcp:// URLs"),
        (connection.insecure && !target.tls, "--insecure is for wss:// and https:// URLs"),
        (!connection.ca.is_empty() && !target.tls, "--ca is for wss:// and https:// URLs"),
        (
            content.expect.is_some() && !is(TargetProtocol::Http),
            "--expect is for http:// URLs; other protocols always verify the echo",
        ),
        (content.method != "GET" && !is(TargetProtocol::Http), "--method is for http:// URLs"),
        (
            mode.mode != LoadMode::Echo && mode.mode != LoadMode::FanOut && amount.rate.is_some(),
            "--rate is for --mode echo and fan-out",
        ),
        (connection.unix.is_some() && !connection.source.is_empty(), "--source is not for Unix sockets"),
    ];
    match wrong.into_iter().chain(wrong_versions(args, target)).find(|(wrong, _)| *wrong) {
        Some((_, why)) => Err(why.to_owned()),
        None => Ok(()),
    }
}

/// Options of HTTP/2 and HTTP/3 that conflict with others.
fn wrong_versions(args: &LoadArgs, target: &LoadTarget) -> [(bool, &'static str); 9] {
    let LoadArgs { amount, connection, mode, .. } = args;
    let is = |protocol| target.protocol == protocol;
    let is_streamed = connection.http2 || uses_http3(connection);
    let is_shared = connection.sockets_per_connection.get() > 1;
    [
        (connection.http2 && is(TargetProtocol::Tcp), "--http2 is not for tcp:// URLs"),
        (
            connection.http2 && is(TargetProtocol::Http) && has_body(&args.content.method),
            "--http2 sends requests without a body and excludes --method POST, PUT and PATCH",
        ),
        (
            connection.http3 && (is(TargetProtocol::Tcp) || !target.tls),
            "--http3 is for wss:// and https:// URLs",
        ),
        (
            connection.webtransport && !(is(TargetProtocol::WebSocket) && target.tls),
            "--webtransport is for wss:// URLs",
        ),
        (
            is_shared && !is(TargetProtocol::WebSocket),
            "--sockets-per-connection is for WebSocket; --in-flight sets the requests of a connection",
        ),
        (is_shared && !is_streamed, "--sockets-per-connection needs --http2, --http3 or --webtransport"),
        (mode.stalled > 0 && is_streamed, "--stalled excludes --http2, --http3 and --webtransport"),
        (
            amount.requests_per_connection.is_some() && is_streamed,
            "--requests-per-connection excludes --http2 and --http3",
        ),
        (
            is_shared && mode.publish_url.is_some(),
            "--publish-url needs connections of its own and excludes --sockets-per-connection",
        ),
    ]
}

fn uses_http3(args: &ConnectionArgs) -> bool {
    args.http3 || args.webtransport
}

fn tls(args: &ConnectionArgs) -> Result<Arc<rustls::ClientConfig>, String> {
    let mut config = trust::client(args.insecure, &args.ca)?.with_no_client_auth();
    if args.http2 {
        config.alpn_protocols = vec![HTTP2.to_vec()];
    }
    if uses_http3(args) {
        config.alpn_protocols = vec![HTTP3.to_vec()];
    }
    Ok(Arc::new(config))
}

/// Parses `Name: value`.
fn header(line: &str) -> Result<(&str, &str), String> {
    let (name, value) =
        line.split_once(':').ok_or_else(|| format!("--header {line}: expected NAME: VALUE"))?;
    Ok((name.trim(), value.trim()))
}

fn handshakes(target: &LoadTarget, args: &LoadArgs) -> Result<Vec<ClientRequest>, String> {
    if target.protocol != TargetProtocol::WebSocket {
        return Ok(Vec::new());
    }
    let fan_out = args.mode.mode == LoadMode::FanOut;
    let topics = if fan_out { args.mode.topics.get() } else { 1 };
    let ours = fan_out && args.mode.publish.is_none() && !target.path.contains("{topic}");
    let path = if ours {
        format!("{}/topics/{{topic}}", target.path.trim_end_matches('/'))
    } else {
        target.path.clone()
    };
    let one = |topic: usize| -> Result<ClientRequest, String> {
        let path = if fan_out { path.replace("{topic}", &FanOut::topic(topic)) } else { path.clone() };
        let mut request =
            ClientRequest::new(target.host.as_str(), path).map_err(|error| error.to_string())?;
        for line in &args.connection.header {
            let (name, value) = header(line)?;
            request =
                request.with_header(name, value).map_err(|error| format!("--header {line}: {error}"))?;
        }
        for name in &args.connection.subprotocol {
            request = request.with_subprotocol(name.as_str()).map_err(|error| error.to_string())?;
        }
        let request =
            if args.connection.deflate { request.with_deflate(DeflateConfig::new()) } else { request };
        if args.connection.http2 || uses_http3(&args.connection) {
            request.clone().extended_connect().map_err(|error| format!("--header: {error}"))?;
        }
        Ok(request)
    };
    (0..topics).map(one).collect()
}

fn publish_at(target: &LoadTarget, args: &LoadArgs) -> Result<Option<PublishTarget>, String> {
    let Some(url) = &args.mode.publish_url else { return Ok(None) };
    let at = LoadTarget::new(url, None)?;
    if at.protocol != target.protocol || at.tls != target.tls {
        return Err(format!("--publish-url {url}: expected the scheme of {}", target.url));
    }
    Ok(Some(PublishTarget { handshakes: handshakes(&at, args)?, target: at }))
}

fn has_body(method: &str) -> bool {
    ["POST", "PUT", "PATCH"].iter().any(|name| method.eq_ignore_ascii_case(name))
}

fn request(target: &LoadTarget, args: &LoadArgs) -> Result<RequestTemplate, String> {
    let method = args.content.method.to_ascii_uppercase();
    let is_token = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_alphabetic());
    if !is_token || method == "CONNECT" {
        return Err(format!("--method {method}: expected a method such as GET or POST"));
    }
    let has_body = has_body(&method);
    let expect = match args.content.expect.as_deref() {
        None => ExpectedBody::Any,
        Some("echo") if has_body => ExpectedBody::Echo,
        Some("echo") => return Err("--expect echo needs --method POST, PUT or PATCH".to_owned()),
        Some(text) => match text.strip_prefix('@') {
            Some(file) => ExpectedBody::Exact(
                std::fs::read(PathBuf::from(file)).map_err(|error| format!("{file}: {error}"))?,
            ),
            None => ExpectedBody::Exact(text.as_bytes().to_vec()),
        },
    };
    let mut head = format!("{method} {} HTTP/1.1\r\nHost: {}\r\n", target.path, target.host);
    let mut headers = Vec::new();
    for line in &args.connection.header {
        let (name, value) = header(line)?;
        // `ClientRequest` validates headers, and rejects headers that frame the message.
        ClientRequest::new("a", "/")
            .and_then(|request| request.with_header(name, value))
            .map_err(|error| format!("--header {line}: {error}"))?;
        head.push_str(&format!("{name}: {value}\r\n"));
        headers.push((name.to_owned(), value.to_owned()));
    }
    let end = if has_body { "Content-Length: " } else { "\r\n" };
    let last = args.amount.requests_per_connection.map(|number| FinalRequest {
        number: number.get(),
        head: format!("{head}Connection: close\r\n{end}").into_bytes(),
    });
    head.push_str(end);
    let is_head = method == "HEAD";
    Ok(RequestTemplate { head: head.into_bytes(), last, method, headers, has_body, is_head, expect })
}

/// Default rate of a publisher.
const RATE_OF_PUBLISHER: f64 = 100.0;

const IN_FLIGHT_AT_RATE: usize = 1024;
