//! Hooks: requests to the application, which decides about connections, subscriptions, publications and calls.
//!
//! ```text
//!   worker: handler ── HookJob ─▶ queue ─▶ thread "hooks" (Tokio) ── HTTP(S) ─▶ application
//!              ▲                                   │
//!              └──── wakeup ◀── HookReply ◀────────┘
//! ```

mod addresses;
mod calls;
mod circuit;
mod client;
mod detail;
mod http;
mod lane;
mod messages;
mod metrics;
mod options;
pub(crate) mod requests;

pub(crate) use self::calls::{CallData, HookCall};
pub(crate) use self::client::{HookClient, HookReply, PendingReply};
pub(crate) use self::detail::HookDetail;
pub(crate) use self::http::{HookTransport, SIGNATURE, signature, tls_connector, trusted_certificates};

pub(crate) use self::messages::with_fields;
pub(crate) use self::metrics::{HookCollector, HookMetrics};
pub(crate) use self::options::HookUrl;
pub use self::options::{HookFailure, HookOptions, HookTarget};
