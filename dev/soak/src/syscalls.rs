//! Counts the server's system calls for each message with strace, by `sinews bench --trace`.

use serde_json::Value;

use crate::Fault;
use crate::bench::ECHO;
use crate::server::{Server, Setup};
use crate::verdict::Verdict;

/// A load of repeated messages.
struct Case {
    name: &'static str,
    options: &'static [&'static str],
    /// Messages that a connection sends together.
    burst: usize,
    /// Maximum calls of each message on io_uring. Submitting and waiting are one call, so one message or one
    /// burst costs one call. The server may receive from 64 connections in several turns, since it wakes for
    /// the first before the last has written: 2 to 4 on machines between idle and busy, 6 allowed.
    bar: f64,
}

const CASES: [Case; 3] = [
    Case { name: "1 connection, 1 in flight", options: &["-c", "1"], burst: 1, bar: 1.05 },
    Case { name: "64 connections, 1 in flight", options: &["-c", "64"], burst: 1, bar: 6.0 / 64.0 },
    Case {
        name: "1 connection, bursts of 50",
        options: &["-c", "1", "-i", "50", "--burst"],
        burst: 50,
        bar: 1.05 / 50.0,
    },
];

/// Counts the calls of every case and prints a table. Without strace or its permissions, prints the reason
/// and succeeds.
pub(crate) fn run(setup: &Setup<'_>, verdict: &mut Verdict) -> Result<(), Fault> {
    println!("system calls of backend {} for each message", setup.backend);
    println!("  {:<30} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "wait", "receive", "send", "other", "all");
    for case in &CASES {
        let server = Server::start(setup)?;
        let pid = server.id().to_string();
        // The load before the traced one excludes one-time calls.
        let fixed = ["-d", "200ms", "--warm-up", "0s", "--trace", "--pid", &pid];
        let bench = ECHO.start(setup.binary, server.address, &[case.options, &fixed].concat())?;
        let result = bench.result()?;
        let Some(calls) = result["server"]["system_calls"].as_object() else {
            println!("skipped: strace is missing or not permitted");
            return Ok(());
        };
        let of = |names: &[&str]| names.iter().filter_map(|name| calls.get(*name)?.as_f64()).sum::<f64>();
        let all = calls.values().filter_map(Value::as_f64).sum::<f64>();
        let (wait, receive, send) = (of(&WAITS), of(&RECEIVES), of(&SENDS));
        let other = (all - wait - receive - send).max(0.0);
        let (bar, holds) = if setup.backend == "uring" {
            (format!("all at most {:.3}", case.bar), all <= case.bar)
        } else {
            // Messages that arrive together are answered together, with any backend.
            let most = 1.05 / case.burst as f64;
            (format!("send at most {most:.3}"), send <= most)
        };
        let word = verdict.count(holds);
        println!(
            "  {:<30} {wait:>8.3} {receive:>8.3} {send:>8.3} {other:>8.3} {all:>8.3}  {bar:<20} {word}",
            case.name
        );
    }
    Ok(())
}

const WAITS: [&str; 4] = ["epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter"];
const RECEIVES: [&str; 4] = ["read", "readv", "recvfrom", "recvmsg"];
const SENDS: [&str; 4] = ["write", "writev", "sendto", "sendmsg"];
