//! HTTP to Kafka: the body of each request becomes one message, answered after the broker's acknowledgement.
//! Our server on both backends beside hyper on Tokio and on compio, all with librdkafka and the same settings
//! of it.
//!
//! The server runs on core 0, with one thread for HTTP and librdkafka's own threads; Kafka and the load run
//! on core 1.

mod churn;
mod kafka;
mod wrk;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use clap::ValueEnum;

use crate::Error;
use crate::args::IngestArgs;
use crate::bounds::Bounded;
use crate::process::{self, SERVER_CORE, Server, Usage};
use crate::programs::Program;
use crate::report::significant;

use kafka::Kafka;

/// A server to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum IngestServer {
    /// `sinews-ingest` on readiness
    Poll,
    /// The same on io_uring
    Ring,
    /// hyper on Tokio
    Hyper,
    /// hyper on compio, on io_uring
    HyperCompio,
}

impl IngestServer {
    const fn name(self) -> &'static str {
        match self {
            Self::Poll => "sinews, poll",
            Self::Ring => "sinews, ring",
            Self::Hyper => "hyper, Tokio",
            Self::HyperCompio => "hyper, compio",
        }
    }

    const fn topic(self) -> &'static str {
        match self {
            Self::Poll => "ingest-poll",
            Self::Ring => "ingest-ring",
            Self::Hyper => "ingest-tokio",
            Self::HyperCompio => "ingest-compio",
        }
    }
}

/// Runs the measurement of the arguments and prints a table for each number of connections, or one row for
/// each server under churn.
pub(crate) fn run(args: &IngestArgs) -> Result<(), Error> {
    let programs = Programs::build(args)?;
    crate::prepare_load()?;
    let kafka = Kafka::start(args.kafka.as_deref(), KAFKA_SECONDS)?;
    let mut bench = Bench { programs, args, kafka, servers: Vec::new() };
    for kind in args.servers() {
        let server = bench.start(kind).map_err(|error| format!("{}: {error}", kind.name()))?;
        bench.servers.push((kind, server));
    }
    if let Some(seconds) = args.churn {
        return bench.churn(Duration::from_secs(seconds));
    }
    if Command::new("wrk").arg("-v").output().is_err() {
        return Err("wrk is needed (apt-get install wrk)".into());
    }
    let folder = tempfile::tempdir()?;
    let script = folder.path().join("ingest.lua");
    fs::write(&script, wrk::SCRIPT)?;
    for connections in args.connections() {
        let rounds = bench.rounds(connections, &script)?;
        bench.print(connections, &rounds);
    }
    Ok(())
}

/// Returns the largest share of stolen time among the windows of a round.
fn stolen(round: &[Measured]) -> f64 {
    round.iter().map(|measured| measured.stolen).fold(0., f64::max)
}

/// One processor for the server, one for Kafka and the load.
const PROCESSORS: f64 = 2.;

/// Maximum share of stolen time in a quiet window, over both processors.
const STOLEN_MAX: f64 = 0.03;

/// Limits the repetition of disturbed rounds.
const ATTEMPTS_PER_ROUND: usize = 3;

/// Warm-up of each server before the measurement.
const WARM_UP: Duration = Duration::from_secs(5);

/// Longer than any measurement; Kafka exits by itself if this program is killed.
const KAFKA_SECONDS: u64 = 3_600;

struct Bench<'a> {
    programs: Programs,
    args: &'a IngestArgs,
    kafka: Kafka,
    servers: Vec<(IngestServer, Server)>,
}

/// Our programs and the programs of other projects.
struct Programs {
    ingest: PathBuf,
    peers: PathBuf,
}

impl Programs {
    fn build(args: &IngestArgs) -> Result<Self, Error> {
        Ok(Self {
            ingest: Program::INGEST.path(args.sinews_ingest.as_ref(), true)?,
            peers: Program::PEERS.path(args.sinews_peers.as_ref(), true)?,
        })
    }
}

/// Result of one round of one server.
#[derive(Clone, Copy, Debug)]
struct Measured {
    per_second: f64,
    p50_ms: f64,
    p99_ms: f64,
    /// CPU time of the server's process per event, in nanoseconds: the total and its parts.
    cpu_ns: f64,
    http_ns: f64,
    reports_ns: f64,
    librdkafka_ns: f64,
    /// Share of the processors' time that the hypervisor took for other machines.
    stolen: f64,
}

impl Bench<'_> {
    fn start(&self, kind: IngestServer) -> Result<Server, Error> {
        let (program, name) = match kind {
            IngestServer::Poll => (&self.programs.ingest, "poll"),
            IngestServer::Ring => (&self.programs.ingest, "uring"),
            IngestServer::Hyper => (&self.programs.peers, "kafka-hyper"),
            IngestServer::HyperCompio => (&self.programs.peers, "kafka-hyper-compio"),
        };
        // Creates the topic before the first message.
        self.kafka.next(&self.programs.ingest, kind.topic())?;
        let arguments = [name, "--kafka", &self.kafka.address, "--topic", kind.topic()];
        let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
        Server::start(program, &arguments, SERVER_CORE)
    }

    /// Measures in rounds, every other one backward, until enough rounds are free of steal by the hypervisor.
    /// Otherwise, the rounds with the least steal count.
    fn rounds(&self, connections: usize, script: &Path) -> Result<Vec<Vec<Measured>>, Error> {
        let plan = self.args.plan.plan();
        // Kafka's just-in-time compiler takes seconds to compile its hot code.
        self.round(connections, plan.window.max(WARM_UP), script, false)?;
        let mut rounds = Vec::new();
        for number in 0..plan.rounds * ATTEMPTS_PER_ROUND {
            rounds.push(self.round(connections, plan.window, script, number % 2 == 1)?);
            if rounds.iter().filter(|round| stolen(round) <= STOLEN_MAX).count() == plan.rounds {
                break;
            }
        }
        rounds.sort_by(|a, b| stolen(a).total_cmp(&stolen(b)));
        rounds.truncate(plan.rounds);
        Ok(rounds)
    }

    /// Measures each server once.
    fn round(
        &self,
        connections: usize,
        window: Duration,
        script: &Path,
        backward: bool,
    ) -> Result<Vec<Measured>, Error> {
        let mut round = vec![None; self.servers.len()];
        for place in 0..self.servers.len() {
            let at = if backward { self.servers.len() - 1 - place } else { place };
            let (kind, server) = &self.servers[at];
            let measured = self.measure(*kind, server, connections, window, script);
            round[at] = Some(measured.map_err(|error| format!("{}: {error}", kind.name()))?);
        }
        Ok(round.into_iter().flatten().collect())
    }

    fn measure(
        &self,
        kind: IngestServer,
        server: &Server,
        connections: usize,
        window: Duration,
        script: &Path,
    ) -> Result<Measured, Error> {
        let next = || self.kafka.next(&self.programs.ingest, kind.topic());
        let events = next()?;
        let (used, parts) = (server.settled_usage()?, Parts::of(server)?);
        let (begun, taken) = (Instant::now(), process::stolen()?);
        let posted = wrk::post(server.address, connections, window, script, self.args.bytes)?;
        let (used, parts) = (server.settled_usage()?.since(used), Parts::of(server)?.since(parts));
        let taken = (process::stolen()? - taken) / (begun.elapsed().as_secs_f64() * PROCESSORS);
        let events = next()? - events;
        // wrk exits at its deadline, and does not count the requests in flight.
        if !(posted.answered..=posted.answered + connections as u64).contains(&events) {
            return Err(
                format!("{} events were acknowledged, but the topic has {events}", posted.answered).into()
            );
        }
        let each = |ns: u64| ns as f64 / events as f64;
        Ok(Measured {
            per_second: posted.answered as f64 / posted.elapsed.as_secs_f64(),
            p50_ms: posted.p50_ms,
            p99_ms: posted.p99_ms,
            cpu_ns: each(used.run_ns),
            http_ns: each(parts.http),
            reports_ns: each(parts.reports),
            librdkafka_ns: each(parts.librdkafka),
            stolen: taken,
        })
    }

    fn print(&self, connections: usize, rounds: &[Vec<Measured>]) {
        let of = |server: usize, what: fn(&Measured) -> f64| -> Vec<f64> {
            rounds.iter().map(|round| what(&round[server])).collect()
        };
        println!(
            "\n**wrk -c{connections}, bodies of {} bytes**, rounds: {}; median (bounds of 95 % confidence); at most {:.0} % of \
             the time was the hypervisor's\n",
            self.args.bytes,
            rounds.len(),
            rounds.iter().map(|round| stolen(round)).fold(0., f64::max) * 1e2
        );
        let beside = self.servers.iter().position(|(kind, _)| *kind == IngestServer::Hyper);
        println!("| {} |\n|{}", HEAD.join(" | "), "---|".repeat(HEAD.len()));
        for (this, (kind, _)) in self.servers.iter().enumerate() {
            let ratio = |what: fn(&Measured) -> f64| {
                beside.map_or_else(String::new, |other| {
                    let both = of(this, what).into_iter().zip(of(other, what));
                    Bounded::of(&both.map(|(this, other)| this / other).collect::<Vec<_>>()).to_string()
                })
            };
            let part = |what| significant(Bounded::of(&of(this, what)).median / 1e3);
            let cells = [
                kind.name().to_owned(),
                Bounded::of(&of(this, |round| round.per_second / 1e3)).to_string(),
                ratio(|round| round.per_second),
                Bounded::of(&of(this, |round| round.cpu_ns / 1e3)).to_string(),
                ratio(|round| round.cpu_ns),
                [
                    part(|round| round.http_ns),
                    part(|round| round.reports_ns),
                    part(|round| round.librdkafka_ns),
                ]
                .join(" + "),
                Bounded::of(&of(this, |round| round.p50_ms)).to_string(),
                Bounded::of(&of(this, |round| round.p99_ms)).to_string(),
            ];
            println!("| {} |", cells.join(" | "));
        }
    }

    /// Runs connection churn against each server; then compares its topic with the acknowledged messages.
    fn churn(&self, time: Duration) -> Result<(), Error> {
        let connections = self.args.connections()[0];
        println!(
            "\n**{connections} connections that come and go for {} s**, 1 to {} requests each, bodies of {} bytes\n",
            time.as_secs(),
            self.args.requests,
            self.args.bytes
        );
        let mut lost = 0;
        for (kind, server) in &self.servers {
            let next = || self.kafka.next(&self.programs.ingest, kind.topic());
            let (events, used) = (next()?, server.settled_usage()?);
            let load =
                churn::Plan { connections, time, requests: self.args.requests, bytes: self.args.bytes };
            let tally = churn::run(server.address, &load)?;
            let used = server.settled_usage()?.since(used);
            let events = next()? - events;
            lost += events.abs_diff(tally.acknowledged);
            println!("{}: {events} events in its topic, {} acknowledged", kind.name(), tally.acknowledged);
            println!("{tally}  CPU an event: {} µs\n", significant(used.run_ns as f64 / 1e3 / events as f64));
        }
        if lost > 0 {
            return Err(format!("{lost} events too few or too many").into());
        }
        Ok(())
    }
}

const HEAD: [&str; 8] = [
    "server",
    "thousand requests/s",
    "÷ Tokio",
    "CPU µs a request",
    "÷ Tokio",
    "HTTP + reports + librdkafka",
    "p50 ms",
    "p99 ms",
];

/// Nanoseconds of a server's threads, by purpose.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    http: u64,
    /// Threads that collect delivery reports.
    reports: u64,
    librdkafka: u64,
}

impl Parts {
    fn of(server: &Server) -> Result<Self, Error> {
        let mut parts = Self::default();
        for (name, used) in Usage::by_thread(server.pid())? {
            let part = match name.as_str() {
                name if name.starts_with("rdk:") => &mut parts.librdkafka,
                "kafka-reports" | "producer pollin" => &mut parts.reports,
                _ => &mut parts.http,
            };
            *part += used.run_ns;
        }
        Ok(parts)
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            http: self.http.saturating_sub(earlier.http),
            reports: self.reports.saturating_sub(earlier.reports),
            librdkafka: self.librdkafka.saturating_sub(earlier.librdkafka),
        }
    }
}
