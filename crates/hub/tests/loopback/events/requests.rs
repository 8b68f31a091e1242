//! Requests of all routes: query parameters, content codings, and health checks by other methods.

use super::*;

/// Sends a request with a body; returns the status and the answer.
fn send(hub: &TestHub, request: &str, lines: &str, body: &[u8]) -> (u16, String) {
    let mut answer = hub.request(request, lines, body);
    let codings = answer.header("accept-encoding").map(str::to_owned);
    assert_eq!(codings.as_deref(), (answer.status() == 415).then_some("gzip, deflate"));
    (answer.status(), answer.rest())
}

fn hub_with_all() -> (TestHub, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let streams = StreamOptions::in_directory(directory.path());
    (TestHub::built(Hub::builder().streams(streams)), directory)
}

#[test]
fn unknown_query_parameters_are_rejected_with_the_nearest_name() {
    let (hub, _directory) = hub_with_all();
    for (request, name, nearest) in [
        ("GET /topics/h.a?history=10", "history", "last"),
        ("HEAD /topics/h.a?history=10", "", ""),
        ("GET /topics/a?wiat=0", "wiat", "wait"),
        ("GET /topics/a?topic=b", "topic", "join"),
        ("GET /topics?topics=a", "topics", "topic"),
        ("POST /topics/a?ttl=5", "ttl", "token"),
        ("GET /topics/a/members?limit=5", "limit", "after"),
        ("GET /topics/a/keys?filtr=a", "filtr", "filter"),
        ("PUT /topics/a/keys/k?tll=5", "tll", "ttl"),
        ("POST /rpc/m?topics=a", "topics", "topic"),
        ("GET /streams?limits=1", "limits", "limit"),
        ("GET /streams/s?form=1", "form", "from"),
        ("POST /streams/s?acks=all", "acks", "ack"),
        ("GET /streams/s/records?max=1", "max", "partition"),
    ] {
        let (status, answer) = send(&hub, request, "", b"");
        assert_eq!(status, 400, "{request} {answer}");
        if !name.is_empty() {
            let text = format!("unknown query parameter `{name}`; did you mean `{nearest}`?");
            assert!(answer.contains(&text), "{request} {answer}");
        }
    }
    let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                   Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    for request in ["GET /ws?datagram=a", "GET /topics/a?history=1", "GET /echo?x=1"] {
        assert_eq!(hub.ask(&request[4..], upgrade).status(), 400, "{request}");
    }
    // The parameters of other programs, and those of the routes.
    for request in [
        "POST /topics/a?_=17&token=",
        "GET /topics/a/members?after=a&_nocache",
        "GET /topics/a/keys?limit=1&filter=a&after=b",
        "GET /healthz?x=1",
        "GET /metrics?x=1",
    ] {
        assert_eq!(send(&hub, request, "", b"").0, 200, "{request}");
    }
}

/// Polyfills of `EventSource` cannot send the header.
#[test]
fn event_id_may_be_a_query_parameter() {
    let hub = TestHub::new();
    let mut body = hub.events("/topics/kept.a");
    subscribed(&mut body);
    hub.publish("kept.a", "1");
    let first = body.event().unwrap();
    hub.publish("kept.a", "2");
    hub.publish("kept.a", "3");
    let mut body = hub.events(&format!("/topics/kept.a?last=1&lastEventId={}", first.id));
    subscribed(&mut body);
    assert_eq!(body.event().unwrap().data, "2");
}

/// The content `hello`.
const GZIP: &[u8] =
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xcb\x48\xcd\xc9\xc9\x07\x00\x86\xa6\x10\x36\x05\x00\x00\x00";

/// 4 MiB of zeros.
const LARGE_GZIP: &[u8] = include_bytes!("zeros.gz");

#[test]
fn bodies_are_decoded_by_their_content_coding() {
    let (hub, _directory) = hub_with_all();
    let mut subscriber = hub.websocket("/topics/a");
    for (coding, body, status) in [
        ("gzip", GZIP, 200),
        ("identity", b"hello", 200),
        ("br", b"hello", 415),
        ("gzip", b"hello", 400),
        ("gzip", LARGE_GZIP, 413),
    ] {
        let lines = format!("Content-Encoding: {coding}\r\n");
        for request in ["POST /topics/a", "PUT /topics/b/keys/k", "POST /streams/s", "POST /rpc/m"] {
            // No application answers calls.
            let expected = if status == 200 && request == "POST /rpc/m" { 404 } else { status };
            let (found, answer) = send(&hub, request, &lines, body);
            assert_eq!(found, expected, "{request} {coding} {answer}");
        }
        if status == 200 {
            assert_eq!(subscriber.next().unwrap().unwrap().as_bytes(), b"hello");
        }
    }
    assert!(send(&hub, "GET /topics/b/keys/k", "", b"").1.contains("\"hello\""));
    assert_eq!(send(&hub, "GET /streams/s", "", b"").1.matches("\"hello\"").count(), 2);
}

/// The content `{"topic":"a","data":"gzip"}`.
const PUBLICATION_GZIP: &[u8] =
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\x2a\xc9\x2f\xc8\x4c\x56\xb2\x52\x4a\x54\
      \xd2\x51\x4a\x49\x2c\x49\x04\x32\xd3\xab\x32\x0b\x94\x6a\x01\xd1\x3c\x3f\x45\x1b\x00\x00\x00";

#[test]
fn bodies_at_the_api_are_decoded_by_their_content_coding() {
    let hub = TestHub::built(Hub::builder().config(policy_for_pages()));
    let mut subscriber = hub.websocket("/topics/a");
    let key = "Authorization: Bearer api-key-of-at-least-sixteen-bytes";
    for (coding, body, status) in [
        ("gzip", PUBLICATION_GZIP, 200),
        ("identity", b"{\"topic\":\"a\",\"data\":\"gzip\"}", 200),
        ("br", b"{\"topic\":\"a\",\"data\":\"gzip\"}", 415),
        ("gzip, gzip", PUBLICATION_GZIP, 400),
        ("gzip, gzip, gzip", PUBLICATION_GZIP, 415),
        ("gzip", b"{\"topic\":\"a\",\"data\":\"gzip\"}", 400),
        ("gzip", LARGE_GZIP, 413),
    ] {
        let lines = format!("{key}\r\nContent-Encoding: {coding}\r\n");
        let (found, answer) = send(&hub, "POST /api/v1/publish", &lines, body);
        assert_eq!(found, status, "{coding} {answer}");
        if status == 200 {
            assert_eq!(subscriber.next().unwrap().unwrap().as_bytes(), b"gzip");
        }
    }
}

#[test]
fn readiness_has_the_same_status_for_each_method() {
    let hub = TestHub::new();
    for method in ["GET", "HEAD", "OPTIONS"] {
        assert_eq!(send(&hub, &format!("{method} /readyz"), "", b"").0, 200, "{method}");
    }
}

#[test]
fn metrics_have_the_type_that_the_client_accepts() {
    let hub = TestHub::new();
    for (accept, kind) in [
        ("", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        ("Accept: */*\r\n", "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (
            "Accept: application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5\r\n",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        ),
        ("Accept: text/plain;version=0.0.4, */*;q=0.1\r\n", "text/plain; version=0.0.4; charset=utf-8"),
    ] {
        assert_eq!(hub.ask("/metrics", accept).header("content-type"), Some(kind), "{accept}");
    }
}
