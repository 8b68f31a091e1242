//! A run's result.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::plan::{LoadMode, LoadPlan};
use super::tally::LoadFigures;

#[derive(Debug)]
pub(crate) struct LoadResult {
    pub(crate) tally: LoadFigures,
    /// Measured time.
    pub(crate) elapsed: Duration,
    /// Open connections at the end.
    pub(crate) open: u64,
    pub(crate) generator: GeneratorUsage,
    pub(crate) server: Option<ServerUsage>,
    /// The server's system calls, with --trace.
    pub(crate) system_calls: Option<SystemCalls>,
    pub(crate) samples: Vec<Sample>,
    /// The run was ended early by Ctrl-C.
    pub(crate) interrupted: bool,
    /// The load generator's I/O backend.
    pub(crate) backend: &'static str,
}

/// The load generator's resource usage.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GeneratorUsage {
    /// The busiest thread's CPU time.
    pub(crate) busiest: Option<Duration>,
    pub(crate) elapsed: Duration,
}

impl GeneratorUsage {
    /// Fraction of a processor, 0 to 1.
    pub(crate) fn share(&self) -> Option<f64> {
        self.busiest.map(|busy| busy.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9))
    }
}

/// The server's resource usage: CPU time in the window, and memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerUsage {
    pub(crate) busy: Duration,
    pub(crate) threads: u64,
    pub(crate) memory: u64,
    /// Before the first connection, and with all connections open.
    pub(crate) memory_before: u64,
    pub(crate) memory_open: u64,
}

/// The server's system calls for each message, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SystemCalls {
    pub(crate) per_message: BTreeMap<String, f64>,
}

impl SystemCalls {
    pub(crate) fn all(&self) -> f64 {
        self.per_message.values().sum()
    }

    /// Parses the lines of strace's table.
    pub(crate) fn parse(summary: &str, messages: u64) -> Self {
        let line = |line: &str| {
            let (calls, name) = line.trim().split_once(' ')?;
            let calls = calls.parse::<u64>().ok().filter(|_| name.trim() != "total")?;
            Some((name.trim().to_owned(), calls as f64 / messages as f64))
        };
        Self { per_message: summary.lines().filter_map(line).collect() }
    }
}

/// A sample within the window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) rate: f64,
    pub(crate) memory: Option<u64>,
}

pub(crate) const PERCENTILES: [(&str, f64); 7] = [
    ("p50", 0.5),
    ("p75", 0.75),
    ("p90", 0.9),
    ("p95", 0.95),
    ("p99", 0.99),
    ("p99_9", 0.999),
    ("p99_99", 0.9999),
];

impl LoadResult {
    pub(crate) fn rate(&self) -> f64 {
        self.tally.messages as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Returns the server's CPU time per message, in microseconds.
    pub(crate) fn server_cpu_us(&self) -> Option<f64> {
        let server = self.server.filter(|_| self.tally.messages > 0)?;
        Some(server.busy.as_secs_f64() * 1e6 / self.tally.messages as f64)
    }

    /// Returns the CPU time of the load generator's busiest thread per message, in microseconds.
    pub(crate) fn own_cpu_us(&self, plan: &LoadPlan) -> Option<f64> {
        let busy = self.generator.busiest.filter(|_| self.tally.messages > 0)?;
        Some(busy.as_secs_f64() * 1e6 * plan.threads as f64 / self.tally.messages as f64)
    }

    /// Returns the server's memory per open connection, in bytes.
    pub(crate) fn memory_per_connection(&self) -> Option<f64> {
        let server = self.server.filter(|_| self.open > 0)?;
        let more = server.memory.max(server.memory_open) as f64 - server.memory_before as f64;
        Some(more / self.open as f64)
    }

    /// Whether a message was answered; idle connections have figures without messages.
    pub(crate) fn has_figures(&self, plan: &LoadPlan) -> bool {
        self.tally.messages > 0 || plan.mode == LoadMode::Idle
    }

    /// Warnings that qualify the figures.
    pub(crate) fn warnings(&self, plan: &LoadPlan) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.interrupted {
            warnings.push("interrupted: figures cover the time until the interrupt".to_owned());
        }
        let own = self.generator.share().unwrap_or(0.0);
        let server =
            self.server.map(|server| server.busy.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9));
        if own > BUSY && self.elapsed >= MIN_WARNING_TIME && server.is_none_or(|server| server < BUSY) {
            let more = "the load generator is the bottleneck, not the server: a load thread is busy";
            warnings.push(format!("{more} {:.0} % of the time; use more --threads", own * 100.0));
        }
        let late = self.tally.late.value_at_quantile(0.99);
        if plan.rate.is_some() && late > LATE_NS {
            let late = Duration::from_nanos(late);
            warnings.push(format!(
                "the load generator missed its schedule: 1 % of the messages left {late:.1?} late or more"
            ));
        }
        if !self.has_figures(plan) {
            warnings.push("no answer arrived during the measurement".to_owned());
        }
        warnings
    }

    /// The fields documented in docs/book/src/reference/benchmarks.md.
    pub(crate) fn to_json(&self, plan: &LoadPlan) -> Value {
        let tally = &self.tally;
        let mut result = json!({
            "url": plan.target.url,
            "mode": plan.mode.name(),
            "connections": plan.connections,
            "http2": plan.http2,
            "http3": plan.http3,
            "webtransport": plan.webtransport,
            "sockets_per_connection": plan.sockets_per_connection,
            "threads": plan.threads,
            "in_flight": plan.in_flight,
            "offered_rate": plan.rate,
            "backend": self.backend,
            "seconds": self.elapsed.as_secs_f64(),
            "interrupted": self.interrupted,
            "messages": tally.messages,
            "rate": self.rate(),
            "bytes_sent": tally.bytes_sent,
            "bytes_received": tally.bytes_received,
            "connections_open": self.open,
            "latency_us": percentiles(&tally.latency),
            "connect_us": percentiles(&tally.connect),
            "errors": tally.errors.iter().map(|(kind, count)| (kind.name().to_owned(), json!(count))).collect::<Map<_, _>>(),
            "load_busy": self.generator.share(),
            "load_cpu_us_per_message": self.own_cpu_us(plan),
            "warnings": self.warnings(plan),
        });
        if plan.rate.is_some() {
            result["late_us"] = percentiles(&tally.late);
        }
        if plan.is_fan_out() {
            result["published"] = json!(tally.published);
        }
        if let Some(server) = self.server {
            result["server"] = json!({
                "cpu_seconds": server.busy.as_secs_f64(),
                "cpu_us_per_message": self.server_cpu_us(),
                "threads": server.threads,
                "memory_bytes": server.memory,
                "memory_before_bytes": server.memory_before,
                "memory_per_connection_bytes": self.memory_per_connection(),
                "system_calls_per_message": self.system_calls.as_ref().map(SystemCalls::all),
            });
        }
        if let Some(calls) = &self.system_calls {
            result["server"]["system_calls"] = json!(calls.per_message);
        }
        result
    }

    /// Returns the `to_json` fields as CSV: a line of names and a line of values.
    pub(crate) fn to_csv(&self, plan: &LoadPlan) -> String {
        let mut fields = Vec::new();
        flatten("", &self.to_json(plan), &mut fields);
        let quoted = |text: &str| match text.contains([',', '"', '\n']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.to_owned(),
        };
        let line = |part: fn(&(String, String)) -> &str| {
            fields.iter().map(|field| quoted(part(field))).collect::<Vec<_>>().join(",")
        };
        format!("{}\n{}", line(|field| &field.0), line(|field| &field.1))
    }
}

fn flatten(prefix: &str, value: &Value, out: &mut Vec<(String, String)>) {
    match value {
        // System call names vary between servers; their sum is a fixed column.
        Value::Object(_) if prefix == "server.system_calls" => {}
        // Error names vary between runs; their sum is a fixed column.
        Value::Object(map) if prefix == "errors" => {
            let sum: u64 = map.values().filter_map(Value::as_u64).sum();
            out.push(("errors".to_owned(), sum.to_string()));
        }
        Value::Object(map) => {
            for (name, value) in map {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&name, value, out);
            }
        }
        Value::Array(all) => {
            let texts = all.iter().map(|one| one.as_str().unwrap_or_default());
            out.push((prefix.to_owned(), texts.collect::<Vec<_>>().join("; ")));
        }
        // The columns are the same with and without latencies.
        Value::Null if ["latency_us", "connect_us", "late_us"].contains(&prefix) => {
            let names = PERCENTILES.iter().map(|(name, _)| *name).chain(["count", "max", "mean", "min"]);
            let none: Map<_, _> = names.map(|name| (name.to_owned(), Value::Null)).collect();
            flatten(prefix, &Value::Object(none), out);
        }
        Value::Null => out.push((prefix.to_owned(), String::new())),
        Value::String(text) => out.push((prefix.to_owned(), text.clone())),
        other => out.push((prefix.to_owned(), other.to_string())),
    }
}

fn percentiles(histogram: &hdrhistogram::Histogram<u64>) -> Value {
    if histogram.is_empty() {
        return Value::Null;
    }
    let us = |nanos: u64| json!(nanos as f64 / 1e3);
    let mut all = Map::new();
    all.insert("count".to_owned(), json!(histogram.len()));
    all.insert("min".to_owned(), us(histogram.min()));
    all.insert("mean".to_owned(), json!(histogram.mean() / 1e3));
    for (name, quantile) in PERCENTILES {
        all.insert(name.to_owned(), us(histogram.value_at_quantile(quantile)));
    }
    all.insert("max".to_owned(), us(histogram.max()));
    Value::Object(all)
}

/// A thread above this fraction of a processor is saturated.
const BUSY: f64 = 0.9;

/// Shorter measurements do not show a thread's utilization: CPU accounting uses the clock tick.
const MIN_WARNING_TIME: Duration = Duration::from_millis(100);

/// A schedule that lags more than this is missed: a millisecond.
const LATE_NS: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strace_table_is_parsed() {
        let table = "calls syscall\n----- -----\n   12 epoll_wait\n    7 read\n----- -----\n   19 total\n";
        let calls = SystemCalls::parse(table, 2);
        assert_eq!(calls.per_message, [("epoll_wait".to_owned(), 6.0), ("read".to_owned(), 3.5)].into());
        assert_eq!(calls.all(), 9.5);
        assert_eq!(SystemCalls::parse("", 2), SystemCalls::default());
    }
}
