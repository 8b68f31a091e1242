//! The rounds' results, side by side.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::actor::{ActorResult, DurablePhase};
use crate::args::DurableArgs;
use crate::report::units::{bytes, nanos};
use crate::statistics::{MedianInterval, ROUNDS_MIN, RoundRatio};
use crate::streams::{ProducerAck, StreamTransport};
use crate::tally;

/// Both phases over both transports, once.
#[derive(Clone, Debug, Default)]
pub(super) struct DurableRound {
    all: Vec<(DurablePhase, StreamTransport, PhaseResult)>,
}

#[derive(Clone, Debug)]
struct PhaseResult {
    outcome: ActorResult,
    /// The server's CPU time.
    server: Option<Duration>,
}

impl DurableRound {
    pub(super) fn add(
        &mut self,
        phase: DurablePhase,
        transport: StreamTransport,
        outcome: ActorResult,
        server: Option<Duration>,
    ) {
        self.all.push((phase, transport, PhaseResult { outcome, server }));
    }

    fn result(&self, phase: DurablePhase, transport: StreamTransport) -> Option<&PhaseResult> {
        let found = self.all.iter().find(|(one, other, _)| *one == phase && *other == transport);
        found.map(|(_, _, measured)| measured)
    }
}

/// A round's progress line.
pub(super) fn line(round: &DurableRound) -> String {
    let ratio = |phase| {
        let mean =
            |transport| round.result(phase, transport).map_or(f64::NAN, |one| one.outcome.latency.mean());
        mean(StreamTransport::WebSocket) / mean(StreamTransport::Tcp)
    };
    let [producing, consuming] = DurablePhase::BOTH.map(ratio);
    format!("WebSocket ÷ TCP: producing {producing:.2}, consuming {consuming:.2} (mean)")
}

pub(super) struct DurableReport {
    what: String,
    load: Value,
    rounds: Vec<DurableRound>,
}

/// One transport's figure in one round.
type DurableFigure = (&'static str, fn(&PhaseResult) -> Option<f64>);

/// Compared figures, in nanoseconds per batch.
const FIGURES: [DurableFigure; 5] = [
    ("mean", |one| Some(one.outcome.latency.mean())),
    ("p50", |one| Some(one.outcome.latency.value_at_quantile(0.5) as f64)),
    ("server's CPU", |one| Some(per_batch(one.server?, one))),
    ("load's CPU", |one| Some(per_batch(one.outcome.busy, one))),
    ("CPU of both", |one| Some(per_batch(one.server? + one.outcome.busy, one))),
];

fn per_batch(time: Duration, one: &PhaseResult) -> f64 {
    time.as_nanos() as f64 / one.outcome.batches.max(1) as f64
}

const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("p99.9", 0.999), ("p99.99", 0.9999)];

impl DurableReport {
    pub(super) fn new(args: &DurableArgs, batch_bytes: u32) -> Self {
        let ack = if args.ack == ProducerAck::Disk { "disk" } else { "memory" };
        let what = format!(
            "{} batches of {} records of {} bytes ({}), acknowledged from {ack}, for each of {} producers and {} consumers",
            args.batches,
            args.batch,
            args.size,
            bytes(f64::from(batch_bytes)),
            args.producers,
            args.consumers,
        );
        let load = json!({
            "record_bytes": args.size, "records_per_batch": args.batch, "batches": args.batches,
            "batch_bytes": batch_bytes, "producers": args.producers, "consumers": args.consumers, "ack": ack,
        });
        Self { what, load, rounds: Vec::new() }
    }

    pub(super) fn add(&mut self, round: DurableRound) {
        self.rounds.push(round);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rounds.is_empty()
    }

    fn measured(
        &self,
        phase: DurablePhase,
        transport: StreamTransport,
    ) -> impl Iterator<Item = &PhaseResult> {
        self.rounds.iter().filter_map(move |round| round.result(phase, transport))
    }

    /// Latencies of all batches in all rounds.
    fn latency(&self, phase: DurablePhase, transport: StreamTransport) -> Histogram<u64> {
        let mut all = tally::histogram();
        for one in self.measured(phase, transport) {
            all.add(&one.outcome.latency).expect("histograms have the same bounds");
        }
        all
    }

    /// Bytes per second.
    fn throughput(&self, phase: DurablePhase, transport: StreamTransport) -> f64 {
        let sum = |of: fn(&PhaseResult) -> f64| self.measured(phase, transport).map(of).sum::<f64>();
        sum(|one| one.outcome.bytes as f64) / sum(|one| one.outcome.elapsed.as_secs_f64())
    }

    /// A figure's values by round; `None` if unknown.
    fn values(
        &self,
        phase: DurablePhase,
        transport: StreamTransport,
        figure: &DurableFigure,
    ) -> Option<Vec<f64>> {
        self.measured(phase, transport).map(figure.1).collect()
    }

    fn ratio(&self, phase: DurablePhase, figure: &DurableFigure) -> Option<RoundRatio> {
        let [tcp, websocket] = StreamTransport::BOTH.map(|transport| self.values(phase, transport, figure));
        Some(RoundRatio::new(&websocket?, &tcp?))
    }

    pub(super) fn table(&self) -> String {
        let rounds = self.rounds.len();
        let mut lines = vec![format!("{}; {rounds} rounds", self.what)];
        for phase in DurablePhase::BOTH {
            lines.push(format!(
                "\n{:<12}{:>9}{}{:>9}{:>11}{:>14}{:>12}",
                phase.name(),
                "mean",
                QUANTILES.map(|(name, _)| format!("{name:>9}")).concat(),
                "max",
                "rate",
                "server's CPU",
                "load's CPU"
            ));
            lines.extend(StreamTransport::BOTH.map(|transport| self.row(phase, transport)));
            let ratios = FIGURES.iter().filter_map(|figure| {
                let MedianInterval { median, low, high } = self.ratio(phase, figure)?.interval;
                Some(format!("  {:<14} WebSocket ÷ TCP {median:.2} ({low:.2} to {high:.2})", figure.0))
            });
            lines.extend(ratios);
        }
        let ranges = match rounds {
            ..ROUNDS_MIN => {
                format!(
                    "the range of {rounds} rounds: {ROUNDS_MIN} can decide whether a ratio differs from 1"
                )
            }
            _ => "99 % confidence".to_owned(),
        };
        lines.push(format!("\nCPU is for each batch; ratios are medians of the rounds', with {ranges}."));
        lines.join("\n")
    }

    fn row(&self, phase: DurablePhase, transport: StreamTransport) -> String {
        let latency = self.latency(phase, transport);
        let quantiles =
            QUANTILES.map(|(_, at)| format!("{:>9}", nanos(latency.value_at_quantile(at) as f64)));
        let mean = |figure: &DurableFigure| {
            let values = self.values(phase, transport, figure);
            values.map_or_else(
                || "-".to_owned(),
                |values| nanos(values.iter().sum::<f64>() / values.len() as f64),
            )
        };
        format!(
            "  {:<10}{:>9}{}{:>9}{:>11}{:>14}{:>12}",
            if transport == StreamTransport::Tcp { "TCP" } else { "WebSocket" },
            nanos(latency.mean()),
            quantiles.concat(),
            nanos(latency.max() as f64),
            format!("{}/s", bytes(self.throughput(phase, transport))),
            mean(&FIGURES[2]),
            mean(&FIGURES[3]),
        )
    }

    pub(super) fn to_json(&self) -> Value {
        let mut all = json!({ "load": self.load, "rounds": self.rounds.len() });
        for phase in DurablePhase::BOTH {
            for transport in StreamTransport::BOTH {
                all[phase.name()][transport.name()] = self.figures(phase, transport);
            }
            for figure in &FIGURES {
                let Some(ratio) = self.ratio(phase, figure) else { continue };
                let MedianInterval { median, low, high } = ratio.interval;
                let bounds = ratio.differs().map(|_| (low, high)).unzip();
                all[phase.name()]["websocket_to_tcp"][key(figure)] = json!([median, bounds.0, bounds.1]);
            }
        }
        all
    }

    fn figures(&self, phase: DurablePhase, transport: StreamTransport) -> Value {
        let latency = self.latency(phase, transport);
        let micros = |nanos: f64| nanos / 1000.0;
        let mut latency_us = json!({
            "count": latency.len(), "min": micros(latency.min() as f64), "mean": micros(latency.mean()),
            "max": micros(latency.max() as f64),
        });
        for (name, at) in QUANTILES {
            latency_us[name.replace('.', "_")] = json!(micros(latency.value_at_quantile(at) as f64));
        }
        let cpu = |figure: &DurableFigure| {
            let values = self.values(phase, transport, figure)?;
            Some(micros(values.iter().sum::<f64>() / values.len() as f64))
        };
        json!({
            "latency_us": latency_us,
            "bytes_per_second": self.throughput(phase, transport),
            "server_cpu_us_per_batch": cpu(&FIGURES[2]),
            "load_cpu_us_per_batch": cpu(&FIGURES[3]),
        })
    }
}

fn key(figure: &DurableFigure) -> String {
    figure.0.replace("'s CPU", "_cpu").replace("CPU of both", "cpu_of_both")
}
