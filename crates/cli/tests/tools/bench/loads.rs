//! Every load mode, against correct servers.

use std::io::{Read, Write};

use super::support::{Files, Served, http, json, run, server, sound};
use crate::directory::Directory;

fn number(value: &serde_json::Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is a number"))
}

#[test]
fn count_of_echoes_is_sent_and_verified() {
    let own = Served::start(&[]);
    for more in [
        &["--binary"][..],
        &["--text", "-i", "8"],
        &["--deflate", "--size", "64:5,4k-8k:5"],
        &["-t", "2", "--ramp-up", "20ms"],
    ] {
        let url = own.url("ws", "/echo");
        let result = sound(&[&[&url[..], "-c", "4", "-n", "200"][..], more].concat());
        assert_eq!((&result["messages"], &result["connections_open"]), (&200.into(), &4.into()), "{more:?}");
        assert_eq!(result["latency_us"]["count"], 200);
        assert!(number(&result["bytes_received"]) > 0.0 && result["bytes_received"] == result["bytes_sent"]);
    }
}

#[test]
fn duration_run_measures_server_usage() {
    let (own, url) = Served::with_url(&[], "ws", "/echo");
    let result = sound(&[&url, "-c", "2", "-d", "1s", "--warm-up", "50ms", "--pid", &own.pid()]);
    assert!(number(&result["messages"]) > 0.0 && number(&result["seconds"]) == 1.0);
    if cfg!(target_os = "linux") {
        assert!(number(&result["server"]["cpu_us_per_message"]) > 0.0, "{result:#}");
        assert!(number(&result["server"]["memory_bytes"]) > 1e5 && number(&result["load_busy"]) > 0.0);
    }
}

#[test]
fn message_file_is_sent_line_by_line() {
    let own = Served::start(&[]);
    let (url, directory) = (own.url("ws", "/echo"), Directory::new());
    let path = &directory.write("lines", "{\"a\":1}\n\nsecond\r\nthird, ünd länger\n");
    let result = sound(&[&url, "-c", "1", "-n", "3", "--file", path]);
    assert_eq!(result["bytes_sent"], 7 + 6 + "third, ünd länger".len());
}

#[test]
fn bytes_are_echoed_over_plain_tcp() {
    let echo = server(|mut stream| {
        let mut chunk = [0; 1000];
        while let Ok(count @ 1..) = stream.read(&mut chunk) {
            // In two parts, so that each answer is incomplete at first.
            if stream
                .write_all(&chunk[..count / 2])
                .and_then(|()| stream.write_all(&chunk[count / 2..count]))
                .is_err()
            {
                return;
            }
        }
    });
    let url = format!("tcp://{echo}");
    let result = sound(&[&url, "-c", "3", "-n", "60", "-i", "4", "--size", "1-3000"]);
    assert_eq!(result["messages"], 60);
}

#[test]
fn requests_are_pipelined_and_bodies_compared() {
    let (_own, url) = Served::with_url(&[], "http", "/healthz");
    let result = sound(&[&url, "-c", "2", "-n", "100", "-i", "8", "-H", "X-Test: 1"]);
    assert_eq!(result["messages"], 100);
    for (answer, body) in [
        (&b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"[..], "hello"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\nA: b\r\n\r\n", "hello"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", ""),
        (b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", ""),
    ] {
        let url = format!("http://{}/", http(answer));
        assert_eq!(sound(&[&url, "-c", "2", "-n", "20", "--expect", body])["messages"], 20);
        for depth in ["1", "3"] {
            let (result, run) = json(&[&url, "-c", "1", "-n", "3", "-i", depth, "--expect", "other"]);
            assert!(!run.success);
            assert_eq!(result["errors"], serde_json::json!({ "wrong_bytes": 3 }), "each request is sent once");
        }
    }
}

#[test]
fn connection_closed_after_its_answer_is_replaced() {
    let once = server(|mut stream| {
        let _ = super::support::head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
    });
    let url = format!("http://{once}/");
    assert_eq!(sound(&[&url, "-c", "2", "-n", "30", "--expect", "ok"])["messages"], 30);
    // Requests sent after the last answered request are sent again.
    let half = server(|mut stream| {
        let _ = super::support::head(&mut stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok");
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // Unread data would turn the close into a reset.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let url = format!("http://{half}/");
    assert_eq!(
        sound(&[&url, "-c", "2", "-i", "2", "-d", "300ms", "--warm-up", "0s", "--expect", "ok"])["errors"],
        serde_json::json!({})
    );
}

#[test]
fn connection_ends_after_its_number_of_requests() {
    let (_own, url) = Served::with_url(&[], "http", "/healthz");
    for depth in ["1", "3", "8"] {
        let load = ["-c", "2", "-n", "40", "--requests-per-connection", "5", "-i", depth];
        let result = sound(&[&[&url[..]][..], &load].concat());
        let connections = number(&result["connect_us"]["count"]);
        // The last two may have been replaced already.
        assert!(result["messages"] == 40 && (8.0..=10.0).contains(&connections), "{depth}: {result:#}");
    }
}

#[test]
fn memory_is_read_after_the_settling_time() {
    let own = Served::start(&[]);
    let (url, pid) = (own.url("ws", "/echo"), own.pid());
    let begun = std::time::Instant::now();
    let result = sound(&[&url, "-c", "3", "-n", "30", "--settle", "300ms", "--pid", &pid]);
    assert!(begun.elapsed() >= std::time::Duration::from_millis(300));
    assert_eq!((&result["messages"], &result["connections_open"]), (&30.into(), &3.into()));
}

#[test]
fn bursts_wait_for_the_deliveries_of_all_threads() {
    let (_own, url) = Served::with_url(&[], "ws", "/topics/{topic}?self=false");
    let load =
        ["-m", "fan-out", "-c", "9", "-t", "2", "--burst", "-i", "4", "-d", "300ms", "--warm-up", "0s"];
    let result = sound(&[&[&url[..]][..], &load].concat());
    let published = number(&result["published"]);
    assert!(published > 4.0, "more than one burst: {result:#}");
    assert_eq!(number(&result["latency_us"]["count"]), 8.0 * published, "{result:#}");
}

#[test]
fn stalled_subscribers_do_not_read_and_do_not_count() {
    let (own, url) = Served::with_url(&["--websocket-overflow", "close"], "ws", "");
    // More than the buffers of the kernel and the queue of the server hold.
    let load = ["-m", "fan-out", "-c", "5", "--stalled", "2", "-s", "30k", "--rate", "150", "-d", "2s"];
    let result = sound(&[&[&url[..]][..], &load].concat());
    assert_eq!(number(&result["latency_us"]["count"]), 2.0 * number(&result["published"]), "{result:#}");
    let metrics = own.get("/metrics");
    assert!(metrics.contains("sinews_websockets_closed_total{reason=\"overflow\"} 2"), "{metrics}");
}

#[test]
fn publications_reach_every_subscriber() {
    let (_own, url) = Served::with_url(&[], "ws", "");
    let fan_out =
        ["-m", "fan-out", "-c", "9", "--publishers", "2", "--topics", "2", "--rate", "100", "-d", "400ms"];
    let result = sound(&[&[&url[..]][..], &fan_out].concat());
    let (published, delivered) = (number(&result["published"]), number(&result["latency_us"]["count"]));
    // Two topics with four and three subscribers, published to in rotation.
    assert!(published > 0.0 && (delivered - 3.5 * published).abs() <= 0.5 * published, "{result:#}");
}

#[test]
fn templates_describe_other_protocols() {
    let (_own, url) = Served::with_url(&[], "ws", "/ws");
    let result = sound(&[
        &url,
        "-m",
        "fan-out",
        "-c",
        "4",
        "--rate",
        "50",
        "-d",
        "300ms",
        "--subprotocol",
        "sinews.v1",
        "--subscribe",
        r#"{"op":"subscribe","topic":"{topic}"}"#,
        "--publish",
        r#"{"op":"publish","topic":"{topic}","data":"{payload}"}"#,
    ]);
    assert_eq!(number(&result["latency_us"]["count"]), 3.0 * number(&result["published"]), "{result:#}");
    assert!(number(&result["published"]) > 0.0);
}

#[test]
fn storm_opens_and_closes_connections() {
    let (_own, url) = Served::with_url(&[], "ws", "/echo");
    let result = sound(&[&url, "-m", "storm", "-c", "4", "-d", "1s", "--warm-up", "0s"]);
    assert!(number(&result["messages"]) > 4.0, "{result:#}");
    // Connections opened before the window are neither counted nor deducted from the count.
    assert_eq!(sound(&[&url, "-m", "storm", "-c", "4", "-n", "50"])["messages"], 50);
}

#[test]
fn idle_connections_use_several_source_addresses() {
    let (own, url) = Served::with_url(&[], "ws", "/echo");
    let from = if cfg!(target_os = "linux") { "127.0.0.1-3" } else { "127.0.0.1" };
    let result =
        sound(&[&url, "-m", "idle", "-c", "30", "-d", "200ms", "--source", from, "--pid", &own.pid()]);
    assert_eq!(result["connections_open"], 30);
    assert!(result["server"]["memory_per_connection_bytes"].is_number());
}

#[test]
fn unix_socket_is_measured() {
    let directory = Directory::new();
    let path = &directory.path("socket");
    let _own = Served::start(&["--listen", &format!("unix:{path}")]);
    assert_eq!(sound(&["ws://localhost/echo", "--unix", path, "-c", "2", "-n", "20"])["messages"], 20);
}

#[test]
fn tls_needs_a_trusted_certificate_or_insecure() {
    let own = Files::new().serve(&[]);
    for (scheme, path) in [("wss", "/echo"), ("https", "/healthz")] {
        let url = format!("{scheme}://localhost:{}{path}", own.address.port());
        let result = sound(&[&url, "--insecure", "-c", "2", "-n", "40", "-i", "4"]);
        assert_eq!(result["messages"], 40);
        let refused = run(&[&url, "-c", "1", "-n", "1", "--timeout", "2s", "-q"]);
        assert!(!refused.success);
    }
}

#[test]
fn conflicting_options_are_rejected_with_a_reason() {
    for (arguments, word) in [
        (&["ftp://a"][..], "expected ws://"),
        (&["http://127.0.0.1:1", "--deflate"], "--deflate"),
        (&["ws://127.0.0.1:1", "--expect", "x"], "--expect"),
        (&["http://127.0.0.1:1", "-m", "fan-out"], "fan-out needs"),
        (&["ws://127.0.0.1:1", "-m", "fan-out", "-c", "1"], "more --connections"),
        (&["ws://127.0.0.1:1", "-m", "fan-out", "-c", "3", "--stalled", "2"], "--publishers and --stalled"),
        (&["ws://127.0.0.1:1", "--stalled", "2"], "--stalled is for --mode fan-out"),
        (&["ws://127.0.0.1:1", "--requests-per-connection", "2"], "--requests-per-connection is for http://"),
        (&["ws://127.0.0.1:1", "-H", "Host: a"], "--header"),
        (&["ws://127.0.0.1:1", "--insecure"], "--insecure"),
        (&["ws://127.0.0.1:1", "--pid", "4294967294"], "no such process"),
        (&["ws://127.0.0.1:1", "--file", "/nowhere"], "/nowhere"),
        (&["ws://127.0.0.1:1", "--size", "65m"], "expected a size"),
    ] {
        let run = run(arguments);
        assert!(!run.success && run.stderr.contains(word), "{arguments:?}: {}", run.stderr);
    }
}
