//! Metrics of the server and their readers.
//!
//! ```text
//!   shard ─▶ Counters: a load and a store each, no locked operation    ─┐
//!   loop  ─▶ the engine's Watch                                         ├─▶ Monitor ─▶ Metrics ─▶ text
//!   /proc ─▶ resident memory, CPU time, descriptors                    ─┘   any thread, on demand
//! ```

mod counters;
pub(crate) mod limit;
mod process;
mod reasons;
mod snapshot;
mod text;

pub(crate) use self::counters::{ConnMemory, ShardCounters};
pub use self::process::ProcessMetrics;
pub(crate) use self::reasons::reason_enum;
pub use self::reasons::{ConnectionEnd, Dropped, Http2Fault, MetricReason, ReasonCounts, WebSocketEnd};
pub use self::snapshot::Metrics;
