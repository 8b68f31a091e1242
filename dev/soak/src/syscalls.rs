//! Counts the server's system calls for each message with strace.

use sinews_proto::Role;
use sinews_strace::{Calls, Strace};
use sinews_testkit::{Frame, Reply, Rng};

use crate::Fault;
use crate::client::Client;
use crate::server::{Server, Setup};
use crate::verdict::Verdict;

/// A load of repeated requests.
struct Case {
    name: &'static str,
    connections: usize,
    /// Messages on each connection before its answers are read.
    burst: usize,
    rounds: usize,
    /// Maximum calls of each message on io_uring. Submitting and waiting are one call, so one message or one
    /// burst costs one call. The server may receive from 64 connections in several turns, since it wakes for
    /// the first before the last has written: 2 to 4 on machines between idle and busy, 6 allowed.
    bar: f64,
}

const CASES: [Case; 3] = [
    Case { name: "1 connection, 1 in flight", connections: 1, burst: 1, rounds: 2000, bar: 1.05 },
    Case { name: "64 connections, 1 in flight", connections: 64, burst: 1, rounds: 500, bar: 6.0 / 64.0 },
    Case { name: "1 connection, bursts of 50", connections: 1, burst: 50, rounds: 500, bar: 1.05 / 50.0 },
];

/// Counts the calls of every case and prints a table. Without strace or its permissions, prints the reason
/// and succeeds.
pub(crate) fn run(setup: &Setup<'_>, verdict: &mut Verdict) -> Result<(), Fault> {
    println!("system calls of backend {} for each message", setup.backend);
    println!("  {:<30} {:>8} {:>8} {:>8} {:>8} {:>8}", "", "wait", "receive", "send", "other", "all");
    for case in &CASES {
        let server = Server::start(setup)?;
        let message = Rng::new(1).bytes(64);
        let mut clients = Vec::new();
        for _ in 0..case.connections {
            clients.push(Client::open(server.address(), None)?);
        }
        let mut round = || round(&mut clients, &message, case.burst);
        // The first message includes one-time calls.
        round()?;
        let calls = match Strace::attach(server.id(), &setup.log.with_extension("strace")) {
            Ok(strace) => {
                (0..case.rounds).try_for_each(|_| round())?;
                strace.detach()?
            }
            Err(why) => {
                println!("skipped: {why}");
                return Ok(());
            }
        };
        judge(case, setup.backend, &calls, verdict);
    }
    Ok(())
}

fn judge(case: &Case, backend: &str, calls: &Calls, verdict: &mut Verdict) {
    let messages = (case.connections * case.burst * case.rounds) as f64;
    let of = |names: &[&str]| calls.of(names) as f64 / messages;
    let all = calls.all() as f64 / messages;
    let (wait, receive, send) = (of(&WAITS), of(&RECEIVES), of(&SENDS));
    let other = (all - wait - receive - send).max(0.0);
    let (bar, holds) = if backend == "uring" {
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

const WAITS: [&str; 4] = ["epoll_wait", "epoll_pwait", "epoll_pwait2", "io_uring_enter"];
const RECEIVES: [&str; 4] = ["read", "readv", "recvfrom", "recvmsg"];
const SENDS: [&str; 4] = ["write", "writev", "sendto", "sendmsg"];

/// Sends a burst on all connections, and then reads the answers.
fn round(clients: &mut [Client], message: &[u8], burst: usize) -> Result<(), Fault> {
    let request = Frame::binary(message).encode(Role::Client).repeat(burst);
    clients.iter_mut().try_for_each(|client| client.send_bytes(&request))?;
    for client in clients {
        (0..burst).try_for_each(|_| client.expect(Reply::binary(message)))?;
    }
    Ok(())
}
