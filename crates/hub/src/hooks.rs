//! Hooks: requests to the application, which decides about connections, subscriptions, publications and calls.
//!
//! ```text
//!   worker: handler ── HookJob ─▶ queue ─▶ background task (Tokio) ── HTTP(S) ─▶ application
//!              ▲                                   │
//!              └──── wakeup ◀── HookReply ◀────────┘
//! ```

pub(crate) mod calls;
mod circuit;
mod client;
pub(crate) mod detail;
pub(crate) mod messages;
mod metrics;
mod queues;

pub(crate) use self::calls::{CallData, HookCall};
pub(crate) use self::client::{HookClient, HookReply, PendingReply};
pub(crate) use self::detail::HookDetail;
pub(crate) use self::messages::with_fields;
pub(crate) use self::metrics::{HookCollector, HookMetrics};

/// The error if the application does not answer.
pub(crate) const UNANSWERED: &str = "the application did not answer; retry later";
