//! Checks topic stores, and the nodes that use them: records the calls and deliveries of clients during faults, and checks
//! the record afterwards.
//!
//! ```text
//!   clients ──▶ nodes ──▶ engine, with faults
//!      └───────────┴────────┴─▶ History ──▶ check ──▶ Findings
//! ```
//!
//! The checks are pure functions of a history, so that a run can be repeated from its file.

#![forbid(unsafe_code)]
#![expect(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "tests and the program build all values"
)]

mod checks;
mod driver;
mod fake;
mod history;
mod model;
#[cfg(any(feature = "nats", feature = "redis"))]
mod real;

pub use checks::{Check, Counts, Findings, Violation, check};
pub use driver::{Plan, PlannedFault, ProxyFault, run};
pub use fake::{FakeEngine, FakeStore, LinkFaults};
pub use history::{
    Answer, Call, Condition, Entry, EpochSequence, Event, EventKind, History, HistoryError, KeyState,
    KeyWrite, Loss, Outcome, Part, Run,
};
pub use model::{Jump, Model, Notice, Rules};
#[cfg(any(feature = "nats", feature = "redis"))]
pub use real::{FaultTimes, LaneError, RealEngine, Times};
