//! How long nodes need to notice faults, and to write again.

use std::collections::BTreeMap;
use std::fmt;

use crate::driver::NODES;
use crate::history::{Answer, EventKind, History};

/// Times of several runs, by kinds of faults.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Times(pub BTreeMap<String, FaultTimes>);

/// Times behind faults of one kind, in microseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultTimes {
    /// Faults.
    pub count: u64,
    /// From the fault to the node's notice that the engine is away, at each node that noticed it.
    pub detected: Vec<u64>,
    /// From the fault to the acknowledgement of the first write that a client began behind that notice.
    pub written: Vec<u64>,
}

/// A node that has noticed a fault.
struct Noticed {
    kind: String,
    fault: u64,
    time: u64,
}

impl Times {
    /// Adds the times of a run.
    pub fn add(&mut self, history: &History) {
        let mut last: Option<(String, u64)> = None;
        let mut noticed: BTreeMap<usize, Noticed> = BTreeMap::new();
        let mut calls = BTreeMap::new();
        for event in &history.events {
            match &event.kind {
                EventKind::Fault { text, .. } => {
                    let kind = kind(text);
                    self.0.entry(kind.clone()).or_default().count += 1;
                    last = Some((kind, event.time));
                }
                EventKind::Health { node, is_up: false } => {
                    let Some((kind, fault)) = last.clone() else { continue };
                    self.0.entry(kind.clone()).or_default().detected.push(event.time - fault);
                    noticed.insert(usize::from(*node) % NODES, Noticed { kind, fault, time: event.time });
                }
                EventKind::Call { id, node, .. } => {
                    calls.insert(*id, (usize::from(*node) % NODES, event.time));
                }
                EventKind::Return { id, answer: Answer::Appended { .. } | Answer::Written { .. } } => {
                    let Some((node, called)) = calls.remove(id) else { continue };
                    if noticed.get(&node).is_some_and(|noticed| noticed.time <= called)
                        && let Some(Noticed { kind, fault, .. }) = noticed.remove(&node)
                    {
                        self.0.entry(kind).or_default().written.push(event.time - fault);
                    }
                }
                _ => {}
            }
        }
    }
}

/// `Link { node: 1, fault: Cut, … }` is `Link Cut`.
fn kind(text: &str) -> String {
    let name = |text: &str| text.split([' ', '(', ',']).next().unwrap_or_default().to_owned();
    match text.split_once("fault: ") {
        Some((_, fault)) => format!("Link {}", name(fault)),
        None => name(text),
    }
}

impl fmt::Display for Times {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (kind, times) in &self.0 {
            writeln!(
                f,
                "{kind}: {} times; away {}; writes again {}",
                times.count,
                median_max(&times.detected),
                median_max(&times.written)
            )?;
        }
        Ok(())
    }
}

fn median_max(times: &[u64]) -> String {
    let mut times = times.to_vec();
    times.sort_unstable();
    let seconds = |time: u64| time as f64 / 1e6;
    match (times.get(times.len() / 2), times.last()) {
        (Some(median), Some(max)) => {
            format!("at {} nodes after {:.2} s (max {:.2})", times.len(), seconds(*median), seconds(*max))
        }
        _ => "at 0 nodes".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Call, EpochSequence};

    #[test]
    fn times_begin_with_the_last_fault_and_end_with_a_later_write() {
        let mut history = History::default();
        let call = |id, node| {
            let call = Call::Append { topic: 0, value: u64::from(id), once: None, if_top: None };
            EventKind::Call { id, node, client: 0, call }
        };
        let returned = |id| {
            let position = EpochSequence { epoch: 1, sequence: u64::from(id) };
            EventKind::Return { id, answer: Answer::Appended { position, prev: 0, repeated: false } }
        };
        let fault = |text: &str| EventKind::Fault { text: text.into(), loses: None };
        let events = [
            (10, fault("Link { node: 1, fault: Cut, time: 5 }")),
            (11, call(1, 1)),
            (15, EventKind::Health { node: 1, is_up: false }),
            // The node had sent it before.
            (16, returned(1)),
            (20, call(2, 0)),
            (21, returned(2)),
            (30, EventKind::Health { node: 1, is_up: true }),
            // The node has started anew.
            (31, call(3, 4)),
            (40, returned(3)),
            (50, fault("Pause(3)")),
        ];
        events.into_iter().for_each(|(time, kind)| history.push(time, kind));
        let mut times = Times::default();
        times.add(&history);
        let cut = FaultTimes { count: 1, detected: vec![5], written: vec![30] };
        let pause = FaultTimes { count: 1, ..FaultTimes::default() };
        assert_eq!(times.0, BTreeMap::from([("Link Cut".to_owned(), cut), ("Pause".to_owned(), pause)]));
    }
}
