//! The result of `sinews bench idle`: bytes per connection, and their extrapolation.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sinews_engine::BackendChoice;

use super::fit::LinearFit;
use super::is_ring;
use super::memory::{KernelCache, MemoryReading};
use crate::args::IdleArgs;
use crate::report::units::{bytes, count};
use crate::url::shown_url;

/// Memory at one connection count.
pub(super) struct IdleStep {
    pub(super) connections: usize,
    /// Time to open the connections that the step before did not have.
    pub(super) ramp: Duration,
    /// Growth since before the first connection.
    pub(super) memory: MemoryReading,
}

/// The server's CPU time while its connections are idle.
pub(super) struct IdleCpu {
    pub(super) connections: usize,
    pub(super) busy: Duration,
    pub(super) elapsed: Duration,
}

impl IdleCpu {
    /// Processors in use with these connections.
    fn cores_at(&self, connections: usize) -> f64 {
        let cores = self.busy.as_secs_f64() / self.elapsed.as_secs_f64().max(1e-9);
        cores * connections as f64 / self.connections.max(1) as f64
    }
}

pub(super) struct IdleReport {
    urls: Vec<String>,
    backend: &'static str,
    extrapolate: usize,
    pub(super) steps: Vec<IdleStep>,
    pub(super) cpu: Option<IdleCpu>,
}

/// One column: its heading, its name in JSON, and its figure.
struct MemoryColumn {
    heading: &'static str,
    name: &'static str,
    of: fn(&MemoryReading) -> i64,
}

const COLUMNS: [MemoryColumn; 6] = [
    MemoryColumn { heading: "user", name: "user", of: |memory| memory.user },
    MemoryColumn { heading: "page tables", name: "page_tables", of: |memory| memory.page_tables },
    MemoryColumn { heading: "kernel, both ends", name: "kernel_both_ends", of: MemoryReading::kernel },
    MemoryColumn { heading: "kernel, one end", name: "kernel_one_end", of: MemoryReading::kernel_of_one_end },
    MemoryColumn {
        heading: "total, one end",
        name: "total_one_end",
        of: |memory| memory.user + memory.page_tables + memory.kernel_of_one_end(),
    },
    MemoryColumn { heading: "machine", name: "machine", of: |memory| -memory.available },
];

impl IdleReport {
    pub(super) fn new(args: &IdleArgs, backend: BackendChoice) -> Self {
        Self {
            urls: args.urls.iter().map(|url| shown_url(url).to_string()).collect(),
            backend: if is_ring(backend) { "uring" } else { "poll" },
            extrapolate: args.extrapolate.get(),
            steps: Vec::new(),
            cpu: None,
        }
    }

    /// Number of connections in the last step.
    pub(super) fn last(&self) -> usize {
        self.steps.last().map_or(0, |step| step.connections)
    }

    fn fit(&self, column: &MemoryColumn) -> LinearFit {
        let measured =
            self.steps.iter().map(|step| (step.connections as f64, (column.of)(&step.memory) as f64));
        LinearFit::through(measured)
    }

    pub(super) fn table(&self) -> String {
        let mut lines = vec![format!("{} (idle, {})", self.urls.join(", "), self.backend)];
        let row = |name: &str, cells: &dyn Fn(&MemoryColumn) -> String| {
            let cells: String = COLUMNS
                .iter()
                .map(|column| format!("{:>width$}", cells(column), width = column.heading.len().max(10) + 2))
                .collect();
            format!("  {name:<24}{cells}")
        };
        lines.push(row("bytes a connection", &|column| column.heading.to_owned()));
        for step in &self.steps {
            let each = |column: &MemoryColumn| each(&step.memory, column, step.connections);
            lines.push(row(&step.connections.to_string(), &|column| format!("{:.0}", each(column))));
        }
        if self.steps.len() > 1 {
            lines.push(row("each further", &|column| format!("{:.0}", self.fit(column).slope)));
            lines.push(row("fixed", &|column| bytes(self.fit(column).intercept)));
        }
        let name = format!("{} (extrapolated)", count(self.extrapolate as f64));
        lines.push(row(&name, &|column| bytes(self.fit(column).at(self.extrapolate))));
        if let Some(step) = self.steps.last() {
            lines.extend(caches(step).into_iter().map(|(name, KernelCache { objects, bytes })| {
                let each = |number: i64| number as f64 / step.connections as f64;
                format!("  {name:<24}{:.0} bytes in {:.2} objects a connection", each(bytes), each(objects))
            }));
        }
        for step in &self.steps {
            lines.push(format!("  {:<24}opened in {:.1} s", step.connections, step.ramp.as_secs_f64()));
        }
        if let Some(cpu) = &self.cpu {
            lines.push(format!(
                "  {:<24}{:.4} processors with {} connections, {:.3} with {}",
                "CPU while idle",
                cpu.cores_at(cpu.connections),
                cpu.connections,
                cpu.cores_at(self.extrapolate),
                count(self.extrapolate as f64),
            ));
        }
        lines.join("\n")
    }

    pub(super) fn to_json(&self) -> Value {
        let columns = |of: &dyn Fn(&MemoryColumn) -> Value| -> Value {
            COLUMNS.iter().map(|column| (column.name.to_owned(), of(column))).collect::<Map<_, _>>().into()
        };
        let step = |step: &IdleStep| {
            let cache = |(name, cache): (&str, KernelCache)| json!({ "name": name, "objects": cache.objects, "bytes": cache.bytes });
            json!({
                "connections": step.connections,
                "ramp_seconds": step.ramp.as_secs_f64(),
                "bytes": columns(&|column| (column.of)(&step.memory).into()),
                "bytes_per_connection": columns(&|column| each(&step.memory, column, step.connections).into()),
                "slab": step.memory.slab,
                "socket_buffers": step.memory.socket_buffers,
                "other_kernel": step.memory.other_kernel,
                "caches": caches(step).into_iter().map(cache).collect::<Vec<_>>(),
            })
        };
        let fit = |column: &MemoryColumn| {
            let fit = self.fit(column);
            json!({ "slope": fit.slope, "intercept": fit.intercept, "extrapolated": fit.at(self.extrapolate) })
        };
        let cpu = self.cpu.as_ref().map(|cpu| {
            json!({
                "connections": cpu.connections,
                "busy_seconds": cpu.busy.as_secs_f64(),
                "seconds": cpu.elapsed.as_secs_f64(),
                "extrapolated_cores": cpu.cores_at(self.extrapolate),
            })
        });
        json!({
            "urls": self.urls,
            "backend": self.backend,
            "steps": self.steps.iter().map(step).collect::<Vec<_>>(),
            "extrapolated_connections": self.extrapolate,
            "fit": columns(&fit),
            "idle_cpu": cpu,
        })
    }
}

/// Describes a step in one line.
pub(super) fn line(step: &IdleStep) -> String {
    let figure = |column: &MemoryColumn| {
        format!("{} {:.0}", column.heading, each(&step.memory, column, step.connections))
    };
    let figures: Vec<String> = COLUMNS.iter().map(figure).collect();
    format!("{} connections, bytes each: {}", step.connections, figures.join("; "))
}

fn each(memory: &MemoryReading, column: &MemoryColumn, connections: usize) -> f64 {
    (column.of)(memory) as f64 / connections.max(1) as f64
}

/// The kernel's caches that have grown most.
fn caches(step: &IdleStep) -> Vec<(&str, KernelCache)> {
    let grown = step.memory.caches.iter().map(|(name, cache)| (&**name, *cache));
    let mut caches: Vec<_> =
        grown.filter(|(_, cache)| cache.bytes / step.connections.max(1) as i64 >= SHOWN_MIN).collect();
    caches.sort_by_key(|(_, cache)| -cache.bytes);
    caches.truncate(CACHES_SHOWN);
    caches
}

/// Bytes per connection from which a cache is shown.
const SHOWN_MIN: i64 = 8;

const CACHES_SHOWN: usize = 12;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_bytes_per_connection_and_extrapolation() {
        let step = |connections: usize, user: i64| IdleStep {
            connections,
            ramp: Duration::from_secs(2),
            memory: MemoryReading { user, slab: 6_000 * connections as i64, ..MemoryReading::default() },
        };
        let report = IdleReport {
            urls: vec!["ws://a/".to_owned()],
            backend: "uring",
            extrapolate: 1_000,
            steps: vec![step(10, 5_000), step(20, 9_000)],
            cpu: Some(IdleCpu {
                connections: 20,
                busy: Duration::from_millis(10),
                elapsed: Duration::from_secs(1),
            }),
        };
        let json = report.to_json();
        assert_eq!(json["steps"][1]["bytes_per_connection"]["user"], 450.0);
        assert_eq!(json["steps"][1]["bytes_per_connection"]["kernel_one_end"], 3_000.0);
        assert_eq!(
            json["fit"]["user"],
            json!({ "slope": 400.0, "intercept": 1_000.0, "extrapolated": 401_000.0 })
        );
        assert_eq!(json["idle_cpu"]["extrapolated_cores"], 0.5);
        let table = report.table();
        assert!(table.contains("1.00k (extrapolated)") && table.contains("0.500 with 1.00k"), "{table}");
    }
}
