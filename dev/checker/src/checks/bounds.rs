//! Each operation is answered, at most a second after its deadline.

use super::facts::Facts;
use super::{Check, Findings};
use crate::history::History;

/// Time after the deadline in which an answer may still come.
const SLACK: u64 = 1_000_000;

pub(super) fn check(history: &History, facts: &Facts<'_>, found: &mut Findings) {
    let end = history.events.last().map_or(0, |event| event.time);
    for operation in &facts.operations {
        let latest = operation.called + facts.run.deadline + SLACK;
        if operation.returned.unwrap_or(end) > latest {
            let text = format!(
                "client {}, node {}: {:?}, called at {} µs, is answered at {:?} µs",
                operation.client, operation.node, operation.call, operation.called, operation.returned
            );
            found.violate(Check::Bounds, latest, text);
        }
    }
}
