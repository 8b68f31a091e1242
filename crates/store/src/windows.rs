//! Small facts with a time to live: first answers, and rate budgets.

use std::time::Duration;

use bytes::Bytes;

/// Stores a value under a name, unless it has one.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "a request, whose fields the store needs all")]
pub struct OnceRequest {
    /// Name, unique in the cluster.
    pub name: Box<str>,
    /// The first value.
    pub value: Bytes,
    /// Time for which the store remembers it.
    pub window: Duration,
}

/// Answer to [`OnceRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the two cases")]
pub enum FirstValue {
    /// The name had no value, and has this one now.
    First,
    /// The name has this value.
    Value(Bytes),
}

/// Takes permits from a budget that all nodes share.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "as `OnceRequest`")]
pub struct TakeRequest {
    /// Budget name, unique in the cluster.
    pub name: Box<str>,
    /// Wanted permits, at least 1.
    pub permits: u32,
    /// Permits per second.
    pub rate: f64,
    /// Maximum permits that wait for a taker, at least 1.
    pub burst: u32,
}
