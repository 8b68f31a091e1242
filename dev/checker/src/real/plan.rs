//! Faults of real engines, from a seed. Times are in microseconds.

use sinews_testkit::Rng;

use crate::driver::{NODES, Plan, PlannedFault, ProxyFault, micros};

/// Mean time between two operations.
const PACE: u64 = 5_000;
/// Maximum operations without an answer: more have too many orders for the search.
const OPEN_MAX: usize = 12;
/// Mean time between two faults.
const FAULT_PACE: u64 = 3_000_000;
/// Longest fault: a store notices silence after 4 s.
pub(super) const FAULT_MAX: u64 = 6_000_000;
/// Time at the beginning without faults.
const CALM: u64 = 1_000_000;

/// Two fifths of the seeds lose no write.
#[cfg(feature = "redis")]
pub(super) fn redis(seed: u64, active: u64, has_jump: bool) -> Plan {
    let rng = &mut Rng::new(seed ^ 0x4ed15);
    let mut plan = plan(seed, active);
    let is_lossy = rng.below(5) > 1 || !has_jump;
    add(&mut plan, rng, |rng| match rng.below(7) {
        0 => PlannedFault::Freeze { server: 0, time: micros(rng, FAULT_MAX) },
        1 => PlannedFault::Kill { server: 0, away: micros(rng, 2_000_000) },
        2 => PlannedFault::FlushScripts,
        3 => PlannedFault::KillSubscriptions,
        4 => PlannedFault::Pause(micros(rng, FAULT_MAX)),
        _ => node_fault(rng),
    });
    for _ in 0..if is_lossy { 1 + rng.below(2) } else { 0 } {
        if has_jump && rng.below(6) == 0 {
            plan.add(rng, PlannedFault::RestartEmpty);
            continue;
        }
        let lag = [1_000, 100_000, 1_500_000][rng.below(3)];
        let time = CALM + micros(rng, active - 2 * CALM);
        let away = (rng.below(2) == 0).then(|| micros(rng, 1_000_000));
        plan.faults.push((time, PlannedFault::StopReplication));
        plan.faults.push((time + lag, PlannedFault::FailOver { away }));
    }
    plan.faults.sort_by_key(|(time, _)| *time);
    plan
}

/// One server at a time is away.
#[cfg(feature = "nats")]
pub(super) fn nats(seed: u64, active: u64) -> Plan {
    let rng = &mut Rng::new(seed ^ 0x4a75);
    let mut plan = plan(seed, active);
    add(&mut plan, rng, |rng| match rng.below(6) {
        0 => PlannedFault::Freeze { server: rng.below(super::nats::SERVERS), time: micros(rng, FAULT_MAX) },
        1 => PlannedFault::Kill { server: rng.below(super::nats::SERVERS), away: micros(rng, 2_000_000) },
        2 => PlannedFault::StepDown,
        _ => node_fault(rng),
    });
    plan
}

fn plan(seed: u64, active: u64) -> Plan {
    Plan { active, pace: PACE, open_max: OPEN_MAX, ..Plan::calm(seed) }
}

fn add(plan: &mut Plan, rng: &mut Rng, fault: impl Fn(&mut Rng) -> PlannedFault) {
    let mut time = CALM;
    while time < plan.active {
        plan.faults.push((time, fault(rng)));
        time += micros(rng, 2 * FAULT_PACE);
    }
}

/// A fault of one node, or of its links.
fn node_fault(rng: &mut Rng) -> PlannedFault {
    let (node, time) = (rng.below(NODES), micros(rng, FAULT_MAX));
    let fault = match rng.below(9) {
        0 => return PlannedFault::RestartNode(node),
        1 => ProxyFault::Cut,
        2 => ProxyFault::Reset,
        3 => ProxyFault::Silent,
        4 => ProxyFault::RequestsHeld,
        5 => ProxyFault::AnswersHeld,
        6 => ProxyFault::AnswersDropped,
        7 => ProxyFault::Delay(1 + rng.below(300) as u16),
        _ => ProxyFault::Bytes,
    };
    PlannedFault::Link { node, fault, time }
}
