//! Wing and Gong's search for an order of one key's operations, with a memo of the states that it has visited.

use rustc_hash::FxHashSet;

use crate::history::{Condition, Outcome};

/// Maximum orders that one search visits: less than a second.
const ORDERS_MAX: usize = 100_000;

/// An operation on one key.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyOperation {
    pub(super) called: u64,
    /// `u64::MAX`: it may take effect until the end.
    pub(super) returned: u64,
    /// It is part of the order. Otherwise it may be left out.
    pub(super) is_required: bool,
    pub(super) kind: KeyAction,
    /// The version that it gave to the key.
    pub(super) version: Option<u64>,
    /// A removal without a condition gives a version also to a key without a value.
    pub(super) is_blind: bool,
    /// Time for which the key may live on behind its time to live.
    pub(super) late: u64,
}

/// An operation's request and answer.
#[derive(Clone, Copy, Debug)]
pub(super) enum KeyAction {
    Write {
        value: Option<u64>,
        ttl: Option<u64>,
        condition: Option<Condition>,
        /// `None`: unknown.
        outcome: Option<Outcome>,
    },
    /// Finds this version and value.
    Read(Option<(u64, u64)>),
}

impl KeyOperation {
    /// Whether its answer or effect depends on the key's state before.
    fn depends_on_state(&self) -> bool {
        match self.kind {
            KeyAction::Read(_) => true,
            KeyAction::Write { outcome: None, condition, .. } => condition.is_some(),
            KeyAction::Write { outcome: Some(Outcome::Repeated(_) | Outcome::Full), .. } => false,
            KeyAction::Write { outcome: Some(Outcome::Changed(_)), condition, value, .. } => {
                condition.is_some() || (value.is_none() && !self.is_blind)
            }
            KeyAction::Write { .. } => true,
        }
    }
}

/// A key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Register {
    /// Its value; `None`: it has none.
    pub(super) value: Option<u64>,
    /// Its version; 0: unknown.
    pub(super) version: u64,
    /// Earliest and latest time of its expiry.
    pub(super) expiry: Option<(u64, u64)>,
    /// Highest version so far.
    pub(super) highest: u64,
}

/// Searches for an order in which each required operation has its answer.
///
/// # Errors
/// There is no such order.
pub(super) fn search(operations: &[KeyOperation], start: Register) -> Result<(), Stuck> {
    let twins = (0..operations.len()).map(|index| twin(operations, index)).collect();
    let mut search = Search { operations, twins, visited: FxHashSet::default(), stuck: Stuck::default() };
    let first = search.advanced(Order { state: start, ..Order::default() });
    if search.is_done(&first) {
        return Ok(());
    }
    let mut frames = vec![search.frame(first)];
    while let Some(frame) = frames.last_mut() {
        if search.visited.len() >= ORDERS_MAX {
            return Err(Stuck { is_given_up: true, ..search.stuck });
        }
        let Some(next) = frame.next.pop() else {
            frames.pop();
            continue;
        };
        if search.is_done(&next) {
            return Ok(());
        }
        let frame = search.frame(next);
        frames.push(frame);
    }
    Err(search.stuck)
}

/// Where a search found no order.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    /// The search has reached its limit: there may be an order.
    pub(super) is_given_up: bool,
    pub(super) ordered: usize,
    pub(super) state: Register,
    pub(super) next: Vec<KeyOperation>,
}

/// A set of operations in some order, and the state behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Order {
    /// All required operations below this index are in it.
    low: usize,
    /// The further operations.
    further: Vec<usize>,
    state: Register,
    /// The last operation is optional: an operation follows that depends on the state. Otherwise the order without it
    /// is as good.
    is_unseen: bool,
}

struct Frame {
    /// Orders with one more operation, the most likely one last.
    next: Vec<Order>,
}

struct Search<'a> {
    /// By the times of their calls.
    operations: &'a [KeyOperation],
    /// The last earlier operation with the same effect, if there is one.
    twins: Vec<Option<usize>>,
    visited: FxHashSet<Order>,
    stuck: Stuck,
}

impl Search<'_> {
    /// Whether all required operations are in an order.
    fn is_done(&self, order: &Order) -> bool {
        order.low == self.operations.len()
    }

    fn frame(&mut self, order: Order) -> Frame {
        let mut frame = Frame { next: vec![] };
        if !self.visited.insert(order.clone()) {
            return frame;
        }
        let candidates = self.candidates(&order);
        // Required operations are popped first, in the order of their calls.
        for is_required in [false, true] {
            for index in candidates.iter().rev().copied() {
                let operation = &self.operations[index];
                let is_useful = !order.is_unseen || operation.depends_on_state();
                if operation.is_required == is_required && is_useful {
                    for state in step(order.state, operation) {
                        frame.next.push(self.extend(&order, index, state));
                    }
                }
            }
        }
        let ordered = order.low + order.further.len();
        if ordered >= self.stuck.ordered {
            let next = candidates.into_iter().map(|index| self.operations[index]).collect();
            self.stuck = Stuck { is_given_up: false, ordered, state: order.state, next };
        }
        frame
    }

    /// The operations that may be next: no other one has returned before their calls.
    fn candidates(&self, order: &Order) -> Vec<usize> {
        let (mut candidates, mut first_return) = (Vec::new(), u64::MAX);
        let mut lowest = u64::MAX;
        for (index, operation) in self.operations.iter().enumerate() {
            if operation.called > first_return {
                break;
            }
            let is_low = index < order.low && operation.is_required;
            if is_low || order.further.contains(&index) {
                continue;
            }
            if operation.is_required {
                first_return = first_return.min(operation.returned);
                lowest = lowest.min(operation.version.unwrap_or(u64::MAX));
            }
            candidates.push(index);
        }
        // Of operations with the same effect, the first one is enough.
        let is_used = |twin: &usize| order.further.contains(twin);
        candidates.retain(|index| self.twins[*index].as_ref().is_none_or(is_used));
        // Versions are the order of the writes.
        candidates.retain(|index| self.operations[*index].version.is_none_or(|version| version <= lowest));
        candidates
    }

    fn extend(&self, order: &Order, index: usize, state: Register) -> Order {
        let mut order = Order { state, is_unseen: !self.operations[index].is_required, ..order.clone() };
        if let Err(place) = order.further.binary_search(&index) {
            order.further.insert(place, index);
        }
        self.advanced(order)
    }

    /// Moves `low` as far as possible.
    fn advanced(&self, mut order: Order) -> Order {
        while let Some(operation) = self.operations.get(order.low) {
            match order.further.binary_search(&order.low) {
                Ok(place) if operation.is_required => {
                    order.further.remove(place);
                }
                Err(_) if operation.is_required => break,
                Ok(_) | Err(_) => {}
            }
            order.low += 1;
        }
        order
    }
}

/// The last optional operation before `index` whose effect no other operation can tell from its effect.
fn twin(operations: &[KeyOperation], index: usize) -> Option<usize> {
    let is_read = |value: u64| {
        let mut kinds = operations.iter().map(|operation| operation.kind);
        kinds.any(|kind| matches!(kind, KeyAction::Read(Some((_, read))) if read == value))
    };
    let class = |operation: &KeyOperation| match operation.kind {
        KeyAction::Write { value, ttl: None, condition, outcome: None }
            if operation.version.is_none() && !value.is_some_and(is_read) =>
        {
            Some((condition, value.is_some()))
        }
        _ => None,
    };
    let of_index = class(&operations[index])?;
    (0..index).rev().find(|earlier| class(&operations[*earlier]) == Some(of_index))
}

/// The states that an operation with its answer may leave: none if the answer is impossible.
fn step(state: Register, operation: &KeyOperation) -> impl Iterator<Item = Register> {
    let gone = Register { value: None, version: 0, expiry: None, highest: state.highest };
    let (may_live, may_expire) = match state.expiry.filter(|_| state.value.is_some()) {
        None => (true, false),
        Some((earliest, latest)) => (operation.called <= latest, operation.returned >= earliest),
    };
    let before = [may_live.then_some(state), may_expire.then_some(gone)];
    let operation = *operation;
    before.into_iter().flatten().filter_map(move |state| apply(state, &operation))
}

fn apply(state: Register, operation: &KeyOperation) -> Option<Register> {
    match operation.kind {
        KeyAction::Read(None) => state.value.is_none().then_some(state),
        KeyAction::Read(Some((version, value))) => {
            let state = with_version(state, version)?;
            (state.value == Some(value)).then_some(state)
        }
        KeyAction::Write { value, ttl, condition, outcome } => match outcome {
            Some(Outcome::Changed(version)) => {
                let state = if_holds(state, condition)?;
                change(state, operation, value, ttl, Some(version))
            }
            None => {
                let state = if_holds(state, condition)?;
                change(state, operation, value, ttl, operation.version)
            }
            Some(Outcome::Unchanged) => {
                let holds = matches!(condition, None | Some(Condition::IfNew));
                (state.value.is_none() && value.is_none() && holds).then_some(state)
            }
            Some(Outcome::Exists(version)) => {
                let state = with_version(state, version)?;
                matches!(condition, Some(Condition::IfNew)).then_some(state)
            }
            Some(Outcome::Missing) => {
                let needs_value = !matches!(condition, None | Some(Condition::IfNew));
                (needs_value && state.value.is_none()).then_some(state)
            }
            Some(Outcome::OtherVersion(version)) => {
                let state = with_version(state, version)?;
                matches!(condition, Some(Condition::Version(expected)) if expected != version)
                    .then_some(state)
            }
            Some(Outcome::Repeated(_) | Outcome::Full) => Some(state),
        },
    }
}

/// The key has a value of this version; an unknown version becomes known.
fn with_version(state: Register, version: u64) -> Option<Register> {
    let is_possible = state.version == version || (state.version == 0 && version > state.highest);
    (state.value.is_some() && is_possible).then_some(Register {
        version,
        highest: state.highest.max(version),
        ..state
    })
}

fn if_holds(state: Register, condition: Option<Condition>) -> Option<Register> {
    match condition {
        None => Some(state),
        Some(Condition::IfNew) => state.value.is_none().then_some(state),
        Some(Condition::IfExists) => state.value.is_some().then_some(state),
        Some(Condition::Version(version)) => with_version(state, version),
        Some(Condition::At(position)) => with_version(state, position.sequence),
    }
}

fn change(
    state: Register,
    operation: &KeyOperation,
    value: Option<u64>,
    ttl: Option<u64>,
    version: Option<u64>,
) -> Option<Register> {
    if value.is_none() && state.value.is_none() && !operation.is_blind {
        // A removal without effect has no version.
        return version.is_none().then_some(state);
    }
    if version.is_some_and(|version| version <= state.highest) {
        return None;
    }
    let expiry = ttl.filter(|_| value.is_some());
    Some(Register {
        value,
        version: if value.is_some() { version.unwrap_or(0) } else { 0 },
        expiry: expiry
            .map(|ttl| (operation.called + ttl, operation.returned.saturating_add(ttl + operation.late))),
        highest: state.highest.max(version.unwrap_or(0)),
    })
}
