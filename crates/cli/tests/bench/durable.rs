//! `sinews bench durable`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::support::{Own, run};

/// A directory that is removed again.
struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("sinews-durable-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const SMALL: [&str; 13] =
    ["durable", "-n", "5", "-b", "10", "-s", "100", "-p", "2", "-c", "3", "--rounds", "2"];

/// How many batches there were, each way: two rounds with five batches for each of two producers or three consumers.
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
        // Two rounds show nothing.
        assert!(ratio[1].as_f64().unwrap() <= 1.0 && ratio[2].as_f64().unwrap() >= 1.0);
    }
}

#[test]
fn a_server_is_started_for_each_round_and_nothing_is_left_of_it() {
    let directory = Directory::new("own");
    let run = run(&[&SMALL[..], &["--json", "--directory", directory.path()]].concat());
    assert!(run.success, "{}", run.stderr);
    assert!(run.stderr.contains("round 2 of 2: WebSocket ÷ TCP"), "{}", run.stderr);
    let result: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_counts(&result);
    assert!(result["producing"]["tcp"]["server_cpu_us_per_batch"].is_number(), "{result:#}");
    assert_eq!(result["load"]["batch_bytes"], 40 + 10 * 120);
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0, "its directory is gone");
}

#[test]
fn a_server_that_runs_already_is_measured_where_it_is() {
    let directory = Directory::new("there");
    let own = Own::start(&["--streams", directory.path(), "--streams-listen", "127.0.0.1:0"]);
    let tcp = own.plain().to_string();
    let url = own.url("ws", "");
    let run = run(&[&SMALL[..], &[&url, "--tcp", &tcp, "--ack", "memory", "-q"]].concat());
    assert!(run.success && run.stderr.is_empty(), "{}", run.stderr);
    for words in ["producing", "consuming", "TCP", "WebSocket ÷ TCP", "p99.99", "acknowledged from memory"] {
        assert!(run.stdout.contains(words), "{words} in {}", run.stdout);
    }
    // Each way, round and producer has a stream of its own.
    assert_eq!(own.get("/streams").matches("\"stream\":").count(), 8);
}

#[test]
fn what_cannot_be_measured_is_told() {
    let plain = Own::start(&[]);
    let (url, address) = (plain.url("ws", ""), plain.address.to_string());
    let told = |arguments: &[&str]| {
        let run = run(&[&SMALL[..], arguments].concat());
        assert!(!run.success && run.stdout.is_empty(), "{}", run.stdout);
        run.stderr
    };
    // No stream is kept there; what answers at --tcp speaks HTTP.
    let refused = told(&[&url, "--tcp", &address]);
    assert!(refused.contains("an answer of"), "{refused}");
    assert!(told(&[&url]).contains("--tcp"), "plain TCP has an address of its own");
    let secure = told(&["wss://127.0.0.1:1", "--tcp", &address]);
    assert!(secure.contains("an answer of") || secure.contains("without TLS"), "{secure}");
    let large = run(&["durable", "--batch", "200000"]);
    assert!(!large.success && large.stderr.contains("above 8388608 bytes"), "{}", large.stderr);
    assert!(told(&["--serve=--no-such-option"]).contains("ended at once"));
}
