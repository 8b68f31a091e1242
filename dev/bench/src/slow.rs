//! Effect of slow subscribers on other subscribers: the latency of a delivery beside subscribers that do not
//! read.

use std::io::{Read, Write};
use std::time::Duration;

use socket2::SockRef;

use crate::Error;
use crate::args::SlowArgs;
use crate::connect::{STALL_LIMIT, connect, shake_hands};
use crate::generator::{Generator, topic};
use crate::process::Server;
use crate::report::{median, significant};
use crate::round::Work;
use crate::target::{Programs, ServeOptions, Target};

/// The subscribers beside the measured subscribers, in equal number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Nobody,
    /// Subscribers that read their messages.
    Readers,
    /// Subscribers that read nothing, with the server's overflow policy (`--websocket-overflow`).
    Stuck(&'static str),
}

impl Others {
    const ALL: [Self; 5] = [
        Self::Nobody,
        Self::Readers,
        Self::Stuck("drop-newest"),
        Self::Stuck("drop-oldest"),
        Self::Stuck("close"),
    ];

    fn name(self) -> String {
        match self {
            Self::Nobody => "nobody".to_owned(),
            Self::Readers => "as many that read".to_owned(),
            Self::Stuck(overflow) => format!("as many that do not read, {overflow}"),
        }
    }
}

/// Runs the measurement of the arguments and prints a table for each server.
pub(crate) fn run(args: &SlowArgs) -> Result<(), Error> {
    let programs = Programs::build(&args.programs, &args.targets())?;
    crate::prepare_load()?;
    for target in programs.startable(&args.targets())? {
        println!(
            "\n**{}: {} subscribers, {} messages of {MESSAGE_BYTES} bytes a second**, rounds of {} s: {}\n\n\
             | beside them | median, µs | p99, µs | p99 ÷ beside as many that read | longest, µs | dropped | closed |\n\
             |---|---|---|---|---|---|---|",
            target.name(),
            args.subscribers,
            args.rate,
            args.seconds,
            args.rounds,
        );
        let mut all = vec![Vec::new(); Others::ALL.len()];
        for _ in 0..args.rounds {
            for (others, rounds) in Others::ALL.into_iter().zip(&mut all) {
                rounds.push(measure(args, &programs, target, others)?);
            }
        }
        let readers = all[1].clone();
        for (others, rounds) in Others::ALL.into_iter().zip(&all) {
            let of = |what: fn(&Seen) -> f64| median(rounds.iter().map(what));
            let ratio = median(rounds.iter().zip(&readers).map(|(this, other)| this.p99 / other.p99));
            println!(
                "| {} | {} | {} | {ratio:.2} | {} | {} | {} |",
                others.name(),
                significant(of(|seen| seen.median)),
                significant(of(|seen| seen.p99)),
                significant(of(|seen| seen.longest)),
                of(|seen| seen.dropped),
                of(|seen| seen.closed),
            );
        }
    }
    Ok(())
}

/// Measurement of one round; times in microseconds.
#[derive(Clone, Copy, Debug)]
struct Seen {
    median: f64,
    p99: f64,
    longest: f64,
    dropped: f64,
    closed: f64,
}

fn measure(args: &SlowArgs, programs: &Programs, target: Target, others: Others) -> Result<Seen, Error> {
    let overflow = if let Others::Stuck(overflow) = others { overflow } else { "close" };
    let server = programs.start(target, &ServeOptions { overflow, ..ServeOptions::default() })?;
    let rate = args.rate.to_string();
    let mut audience = readers(&server, args, Some(&rate))?;
    let also = (others == Others::Readers).then(|| readers(&server, args, None)).transpose()?;
    let stuck = if matches!(others, Others::Stuck(_)) { usize::from(args.subscribers) } else { 0 };
    let stuck: Vec<_> = (0..stuck).map(|number| idle(&server, number)).collect::<Result<_, _>>()?;
    server.settled_usage()?;
    audience.run(Duration::from_secs(args.seconds.into()))?;
    let metrics = metrics(&server)?;
    drop((stuck, also));
    let times = audience.latencies(&[0.5, 0.99, 1.])?;
    let at = |index: usize| times[index].as_nanos() as f64 / 1e3;
    let counted = |name: &str| metrics.lines().filter_map(|line| value(line, name)).sum();
    Ok(Seen {
        median: at(0),
        p99: at(1),
        longest: at(2),
        dropped: counted("sinews_messages_dropped_total{"),
        closed: counted("sinews_websockets_closed_total{reason=\"overflow"),
    })
}

/// Opens a subscriber that reads nothing.
fn idle(server: &Server, number: usize) -> Result<std::net::TcpStream, Error> {
    let mut stream = connect(server.address)?;
    // The server cannot limit the bytes in the kernel's buffers.
    SockRef::from(&stream).set_recv_buffer_size(STUCK_RECEIVE_BUFFER)?;
    shake_hands(&mut stream, "/topics/bench-0", number as u64)?;
    Ok(stream)
}

/// Opens a publisher and the measured subscribers, or (`rate`: `None`) a publisher that stays silent and subscribers
/// that only read.
fn readers(server: &Server, args: &SlowArgs, rate: Option<&str>) -> Result<Generator, Error> {
    let connections = (args.subscribers + 1).to_string();
    let mut load = vec!["-m", "fan-out", "-c", &connections, "-s", MESSAGE_BYTES, "--backend", "poll"];
    if let Some(rate) = rate {
        load.extend(["--busy-poll", "--rate", rate]);
    }
    Generator::open(&topic(server.address), &load)
}

pub(crate) fn metrics(server: &Server) -> Result<String, Error> {
    let mut stream = connect(server.address)?;
    stream.set_read_timeout(Some(STALL_LIMIT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Returns the value of the line of metrics that starts with `name`.
pub(crate) fn value(line: &str, name: &str) -> Option<f64> {
    line.strip_prefix(name)?.rsplit(' ').next()?.parse().ok()
}

/// Payload of a published message.
const MESSAGE_BYTES: &str = "1024";

const STUCK_RECEIVE_BUFFER: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_lines_are_parsed() {
        let line = "sinews_messages_dropped_total{reason=\"newest\"} 7";
        assert_eq!(value(line, "sinews_messages_dropped_total{"), Some(7.));
        assert_eq!(value("# HELP sinews_messages_dropped", "sinews_messages_dropped_total{"), None);
    }
}
