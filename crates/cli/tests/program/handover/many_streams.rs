//! A handover while many streams are in use.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{Service, request, until};

const STREAMS: usize = 300;

/// Longest time between two accepted appends. A handover of this many streams takes some 100 ms.
const PAUSE_MAX: Duration = Duration::from_secs(25);

/// Appends a record. `None` if the server rejects it with a retry.
fn append(address: SocketAddr, stream: usize) -> Option<u64> {
    let answer = request(address, &format!("POST /streams/s{stream} HTTP/1.1"), "x");
    if answer.starts_with("HTTP/1.1 503 ") {
        assert!(answer.contains("Retry-After: 1"), "{answer}");
        return None;
    }
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    serde_json::from_str::<Value>(body).unwrap()["offset"].as_u64()
}

/// Appends to each stream in turn until it is stopped. Returns the longest time between two accepted appends.
fn append_to_all(address: SocketAddr, rounds: &AtomicU64, end: &AtomicBool) -> Duration {
    let (mut pause, mut accepted) = (Duration::ZERO, Instant::now());
    for round in 0.. {
        for stream in 0..STREAMS {
            let offset = loop {
                if let Some(offset) = append(address, stream) {
                    break offset;
                }
            };
            assert_eq!(offset, round, "stream {stream}");
            pause = pause.max(accepted.elapsed());
            accepted = Instant::now();
            if end.load(Ordering::Relaxed) {
                return pause;
            }
        }
        rounds.store(round + 1, Ordering::Relaxed);
    }
    unreachable!("the loop returns when it is stopped");
}

#[test]
fn appends_to_many_streams_go_on_after_a_brief_pause() {
    let mut service = Service::start_with("many-streams", "threads = 2", |command, directory| {
        command.arg("--streams").arg(directory.file("streams"));
        for limit in ["--streams-max-created-per-client", "--streams-max-created-per-minute"] {
            command.args([limit, "1000"]);
        }
    });
    let address = service.address;
    let (rounds, end) = (AtomicU64::new(0), AtomicBool::new(false));
    let pause = std::thread::scope(|scope| {
        let appending = scope.spawn(|| append_to_all(address, &rounds, &end));
        let wait_for_round = |round| {
            until("a round", || rounds.load(Ordering::Relaxed) >= round || appending.is_finished());
        };
        // All streams are in use by then.
        wait_for_round(2);
        service.restart();
        let before = rounds.load(Ordering::Relaxed);
        service.old_one_ends();
        wait_for_round(before + 2);
        end.store(true, Ordering::Relaxed);
        appending.join().expect("each append has the next offset")
    });
    assert!(pause < PAUSE_MAX, "no append was accepted for {pause:?}");
}
