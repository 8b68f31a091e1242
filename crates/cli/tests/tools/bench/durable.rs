//! `sinews bench durable`.

use std::fs;

use serde_json::Value;

use super::support::{Served, run};

const SMALL: [&str; 13] =
    ["durable", "-n", "5", "-b", "10", "-s", "100", "-p", "2", "-c", "3", "--rounds", "2"];

/// Batches per transport: two rounds, five batches for each of two producers or three consumers.
fn assert_counts(result: &Value) {
    for (phase, count) in [("producing", 20), ("consuming", 30)] {
        for way in ["tcp", "websocket"] {
            let figures = &result[phase][way];
            assert_eq!(figures["latency_us"]["count"], count, "{phase} {way}: {result:#}");
            assert!(figures["bytes_per_second"].as_f64().unwrap() > 0.0);
            let (p50, max) = (&figures["latency_us"]["p50"], &figures["latency_us"]["max"]);
            assert!(p50.as_f64().unwrap() <= max.as_f64().unwrap());
        }
        let ratio = result[phase]["websocket_to_tcp"]["mean"].as_array().unwrap();
        assert!(ratio[0].as_f64().unwrap() > 0.0, "{result:#}");
        assert!(ratio[1].is_null() && ratio[2].is_null(), "two rounds have no interval: {result:#}");
    }
}

#[test]
fn each_round_starts_a_server_and_removes_its_directory() {
    let directory = tempfile::tempdir().unwrap();
    let run = run(&[&SMALL[..], &["--json", "--directory", directory.path().to_str().unwrap()]].concat());
    assert!(run.success, "{}", run.stderr);
    assert!(run.stderr.contains("round 2 of 2: WebSocket ÷ TCP"), "{}", run.stderr);
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_counts(&result);
    assert!(result["producing"]["tcp"]["server_cpu_us_per_batch"].is_number(), "{result:#}");
    assert_eq!(result["load"]["batch_bytes"], 40 + 10 * 120);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "the directory is removed");
}

#[test]
fn running_server_is_measured_at_its_url() {
    let directory = tempfile::tempdir().unwrap();
    let own =
        Served::start(&["--streams", directory.path().to_str().unwrap(), "--streams-listen", "127.0.0.1:0"]);
    let tcp = own.plain().to_string();
    let url = own.url("ws", "");
    let run = run(&[&SMALL[..], &[&url, "--tcp", &tcp, "--ack", "memory", "-q"]].concat());
    assert!(run.success && run.stderr.is_empty(), "{}", run.stderr);
    for message in [
        "producing",
        "consuming",
        "TCP",
        "WebSocket ÷ TCP",
        "p99.99",
        "acknowledged from memory",
        "the range of 2 rounds: 8 can decide",
    ] {
        assert!(run.stdout.contains(message), "{message} in {}", run.stdout);
    }
    // Each transport, round and producer has its own stream.
    assert_eq!(own.get("/streams").matches("\"stream\":").count(), 8);
}

#[test]
fn unmeasurable_targets_are_reported() {
    let plain = Served::start(&[]);
    let (url, address) = (plain.url("ws", ""), plain.address.to_string());
    let told = |arguments: &[&str]| {
        let run = run(&[&SMALL[..], arguments].concat());
        assert!(!run.success && run.stdout.is_empty(), "{}", run.stdout);
        run.stderr
    };
    // The server has no streams; its HTTP listener answers at the --tcp address.
    let refused = told(&[&url, "--tcp", &address]);
    assert!(refused.contains("an answer of"), "{refused}");
    assert!(told(&[&url]).contains("--tcp"), "a URL needs --tcp");
    let secure = told(&["wss://127.0.0.1:1", "--tcp", &address]);
    assert!(secure.contains("an answer of") || secure.contains("without TLS"), "{secure}");
    let large = run(&["durable", "--batch", "200000"]);
    assert!(!large.success && large.stderr.contains("exceeds 8388608 bytes"), "{}", large.stderr);
    assert!(told(&["--serve=--no-such-option"]).contains("exited during startup"));
}
