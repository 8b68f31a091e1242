//! Publication delivery state.

use std::collections::VecDeque;

use sinews_engine::ConnId;

use super::runs::Runs;
use crate::topics::{QueuedPublication, RuleId};

/// A thread's deliveries within its turns.
#[derive(Default)]
pub(super) struct DeliveryState {
    /// A publication interrupted by the budget.
    pub(super) partial: Option<PartialDelivery>,
    /// Deliveries that this turn may still make.
    pub(super) left: usize,
    /// Connections that have published in this turn.
    pub(super) publishers: Vec<ConnId>,
    /// Publishers may resume in this turn.
    pub(super) resumes: bool,
    /// This turn's runs, which are sent at its end.
    pub(super) runs: Runs,
    /// Run subscribers in the next step at the turn's end: doubled by each step.
    step: usize,
    /// Connections with paused reads, until their publications are delivered.
    pub(super) paused_publishers: VecDeque<ConnId>,
}

impl DeliveryState {
    /// Returns whether this turn has neither publishers nor deliveries from earlier turns.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.publishers.is_empty() && !self.resumes && self.partial.is_none() && self.runs.is_empty()
    }

    /// Takes the subscribers of the next step from those of all runs. Few are one step: a look at the sockets costs
    /// a fraction of a send.
    pub(super) fn take_step(&mut self) -> Vec<ConnId> {
        let first = !self.runs.is_split();
        self.step = if first { FIRST_STEP } else { self.step.saturating_mul(2) };
        let is_last = if first { self.runs.subscribers() < FIRST_STEP * 4 } else { false };
        self.runs.take_subscribers(if is_last { usize::MAX } else { self.step })
    }
}

/// Publication that is delivered to some subscribers.
pub(super) struct PartialDelivery {
    pub(super) publication: QueuedPublication,
    pub(super) rule: RuleId,
    /// Subscribers when the delivery starts.
    pub(super) subscribers: Vec<ConnId>,
    /// The next subscriber's index.
    pub(super) next: usize,
    /// The delivery has taken more than one turn.
    pub(super) split: bool,
}

/// Subscribers of the first step of a large fan-out. Their sends take as long as a publisher needs for a few messages,
/// which the others get in the same send. Steps double, so that few more sends are made.
const FIRST_STEP: usize = if cfg!(test) { 2 } else { 32 };
