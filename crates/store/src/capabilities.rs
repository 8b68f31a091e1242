//! What a store promises.

use std::fmt;
use std::time::Duration;

/// What a store promises, as data: the start fails if a configuration needs a missing one, and the node list, the
/// readiness check and the book show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "data, which stores build")]
pub struct Capabilities {
    /// Engine name, such as `redis`.
    pub engine: &'static str,
    /// Has logs.
    pub logs: bool,
    /// Has keys.
    pub keys: bool,
    /// How it detects that acknowledged writes were lost.
    pub failover_detection: FailoverDetection,
    /// When it loses acknowledged writes.
    pub acked_loss: AckedLoss,
    /// How exact conditions are.
    pub conditions: ConditionSupport,
    /// Several writes to keys in one topic happen together or not at all.
    pub atomic_keys: bool,
    /// Limits for keys and retained bytes are exact.
    pub exact_limits: bool,
    /// Retention has a byte limit for a topic.
    pub byte_limit: bool,
    /// A key expires at most this much later than its time to live says, for writers and readers.
    pub ttl_resolution: Duration,
    /// Time for which repeated writes are recognized.
    pub once_window: Duration,
    /// [`TopicStore::follow_pattern`](crate::TopicStore::follow_pattern).
    pub patterns: bool,
    /// Maximum payload or value size in bytes.
    pub max_value: u64,
    /// [`TopicStore::take`](crate::TopicStore::take).
    pub budgets: bool,
}

/// One line for people: `redis: may lose acknowledged writes at a failover, detected exactly; …`.
impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lost = match self.acked_loss {
            AckedLoss::Never => "loses no acknowledged write",
            AckedLoss::PowerLoss => "may lose acknowledged writes when a majority loses power",
            AckedLoss::Failover => "may lose acknowledged writes at a failover",
        };
        let detected = match self.failover_detection {
            FailoverDetection::Exact => "detected exactly",
            FailoverDetection::Partial => "detected in part",
            FailoverDetection::None => "each other server starts all topics anew",
        };
        let conditions = match self.conditions {
            ConditionSupport::Exact => "exact conditions",
            ConditionSupport::SpuriousConflicts => "conditions with needless conflicts",
        };
        let ttl = self.ttl_resolution.as_millis();
        write!(f, "{}: {lost}, {detected}; {conditions}; times to live by {ttl} ms", self.engine)?;
        let missing = [
            (self.logs, "histories"),
            (self.keys, "keys"),
            (self.patterns, "patterns"),
            (self.byte_limit, "limits of bytes"),
            (self.budgets, "shared rates"),
        ];
        for (_, name) in missing.iter().filter(|(has, _)| !has) {
            write!(f, "; no {name}")?;
        }
        Ok(())
    }
}

/// How a store detects lost acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "as `Capabilities`")]
pub enum FailoverDetection {
    /// Always, and exactly for the topics and clients concerned.
    Exact,
    /// A sequence that is reused by the same topic is not noticed.
    Partial,
    /// Another server gives every topic another epoch.
    None,
}

/// When a store loses acknowledged writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "as `Capabilities`")]
pub enum AckedLoss {
    /// Never, while its disks are intact.
    Never,
    /// When a majority loses power at the same time.
    PowerLoss,
    /// At a failover, or when its only server dies.
    Failover,
}

/// How exact conditions are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "as `Capabilities`")]
pub enum ConditionSupport {
    /// A conditional write fails only if its condition does not hold.
    Exact,
    /// Simultaneous writes to one key can fail without need, as busy.
    SpuriousConflicts,
}
