//! Clients choose their operations.

use rustc_hash::FxHashMap;
use sinews_testkit::Rng;

use super::plan::LOCKS;
use super::record::Record;
use crate::history::{Answer, Call, Condition, EpochSequence, EventKind, KeyWrite, Outcome};

/// Clients that subscribe and write.
const READERS: u16 = 6;
/// Clients that use locks.
const LOCKERS: u16 = 3;
/// Keys in a topic.
const KEYS: usize = 4;

/// An operation that a client begins.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) node: usize,
    pub(super) client: u16,
    pub(super) call: Call,
    pub(super) purpose: Purpose,
    pub(super) tries: u32,
    called: u64,
}

/// Its reason.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Plain,
    /// It has a name, and is repeated if its answer is unknown.
    Named,
    Acquire,
    Release,
}

pub(super) struct Clients {
    /// Each reader's node.
    nodes: FxHashMap<u16, usize>,
    holders: FxHashMap<u16, Holder>,
    /// Highest token that each lock's resource has seen.
    tokens: FxHashMap<(u16, u64), EpochSequence>,
    /// The last version that an answer has shown.
    versions: FxHashMap<(u16, u16), EpochSequence>,
    /// The last position that an answer has shown.
    tops: FxHashMap<u16, EpochSequence>,
    next_value: u64,
}

/// A client's lock.
#[derive(Clone, Copy, Default)]
struct Holder {
    is_busy: bool,
    key: u16,
    /// Sequence 0: none.
    token: EpochSequence,
    until: u64,
}

impl Clients {
    pub(super) fn new() -> Self {
        Self {
            nodes: FxHashMap::default(),
            holders: FxHashMap::default(),
            tokens: FxHashMap::default(),
            versions: FxHashMap::default(),
            tops: FxHashMap::default(),
            next_value: 0,
        }
    }

    pub(super) fn readers(&self) -> std::ops::Range<u16> {
        0..READERS
    }

    pub(super) fn lockers(&self) -> std::ops::Range<u16> {
        READERS..READERS + LOCKERS
    }

    pub(super) fn any(&self, rng: &mut Rng) -> u16 {
        rng.below(usize::from(READERS)) as u16
    }

    /// The client's node, which it leaves.
    pub(super) fn leave(&mut self, client: u16) -> Option<usize> {
        self.nodes.remove(&client)
    }

    /// The clients at a node, which leave it.
    pub(super) fn leave_node(&mut self, node: usize) -> Vec<u16> {
        let mut clients: Vec<u16> =
            self.readers().filter(|client| self.nodes.get(client) == Some(&node)).collect();
        clients.retain(|client| self.nodes.remove(client).is_some());
        clients
    }

    pub(super) fn arrive(&mut self, client: u16, node: usize) {
        self.nodes.insert(client, node);
    }

    /// The next operation; `None`: a client reads a copy.
    pub(super) fn choose(&mut self, rng: &mut Rng, nodes: usize) -> Option<Order> {
        let client = self.any(rng);
        let node = self.nodes.get(&client).copied().unwrap_or_else(|| rng.below(nodes));
        let once = (rng.below(4) == 0).then(|| self.value());
        let call = match rng.below(20) {
            0..8 => self.append(rng, once),
            8..16 => self.write_keys(rng, once),
            16..18 => Call::ReadKeys { topic: 2 },
            _ => return None,
        };
        let is_named = once.is_some() && !matches!(call, Call::ReadKeys { .. });
        let purpose = if is_named { Purpose::Named } else { Purpose::Plain };
        Some(Order { node, client, call, purpose, tries: 0, called: 0 })
    }

    /// The next use of a lock.
    pub(super) fn use_lock(
        &mut self,
        client: u16,
        rng: &mut Rng,
        nodes: usize,
        record: &mut Record,
    ) -> Option<Order> {
        let now = record.now;
        let holder = self.holders.entry(client).or_default();
        if holder.is_busy {
            return None;
        }
        if holder.token.sequence > 0 && rng.below(3) > 0 {
            // Some use it behind its end: the resource rejects them if there is another holder.
            let (key, token) = (holder.key, holder.token);
            let highest = self.tokens.entry((key, token.epoch)).or_default();
            let accepted = token >= *highest;
            *highest = token.max(*highest);
            record.push(EventKind::Resource { client, key, token, accepted });
            return None;
        }
        let (key, token, is_over) = (rng.below(2) as u16, holder.token, holder.until <= now);
        holder.token = EpochSequence::default();
        let value = self.value();
        let (write, purpose) = if token.sequence > 0 && !is_over {
            let key = self.holders.get(&client).map_or(key, |holder| holder.key);
            let condition = Some(Condition::Version(token.sequence));
            (KeyWrite { key, value: None, ttl: None, condition, once: None }, Purpose::Release)
        } else {
            let ttl = Some(200_000 + rng.next_u64() % 1_500_000);
            let condition = Some(Condition::IfNew);
            (KeyWrite { key, value: Some(value), ttl, condition, once: None }, Purpose::Acquire)
        };
        self.holders.entry(client).or_default().is_busy = true;
        let call = Call::WriteKeys { topic: LOCKS, writes: vec![write] };
        Some(Order { node: rng.below(nodes), client, call, purpose, tries: 0, called: now })
    }

    /// Takes an operation's answer.
    pub(super) fn learn(&mut self, order: &Order, answer: &Answer, now: u64) {
        if let (Call::Append { topic, .. }, Answer::Appended { position, .. }) = (&order.call, answer) {
            self.tops.insert(*topic, *position);
        }
        if let (Call::WriteKeys { topic, writes }, Answer::Written { position, outcomes, .. }) =
            (&order.call, answer)
        {
            for (write, outcome) in writes.iter().zip(outcomes) {
                let (Outcome::Changed(version) | Outcome::Exists(version) | Outcome::OtherVersion(version)) =
                    *outcome
                else {
                    continue;
                };
                let version = EpochSequence { sequence: version, ..*position };
                self.versions.insert((*topic, write.key), version);
            }
        }
        if matches!(order.purpose, Purpose::Acquire | Purpose::Release) {
            let holder = self.holders.entry(order.client).or_default();
            holder.is_busy = false;
            let Call::WriteKeys { writes, .. } = &order.call else { return };
            if let (Purpose::Acquire, Answer::Written { position, outcomes, .. }) = (order.purpose, answer)
                && let [Outcome::Changed(token)] = outcomes[..]
            {
                let token = EpochSequence { sequence: token, ..*position };
                let until = order.called + writes[0].ttl.unwrap_or(0);
                *holder = Holder { is_busy: false, key: writes[0].key, token, until: until.max(now) };
            }
        }
    }

    fn append(&mut self, rng: &mut Rng, once: Option<u64>) -> Call {
        let topic = rng.below(2) as u16;
        let if_top = self.tops.get(&topic).copied().filter(|_| rng.below(6) == 0);
        Call::Append { topic, value: self.value(), once, if_top }
    }

    fn write_keys(&mut self, rng: &mut Rng, once: Option<u64>) -> Call {
        let count = if rng.below(5) == 0 { 1 + rng.below(3) } else { 1 };
        let first = rng.below(KEYS);
        let writes = (0..count).map(|index| self.write_key(((first + index) % KEYS) as u16, rng, once));
        Call::WriteKeys { topic: 2, writes: writes.collect() }
    }

    fn write_key(&mut self, key: u16, rng: &mut Rng, once: Option<u64>) -> KeyWrite {
        let version = self.versions.get(&(2, key)).copied();
        let condition = match rng.below(8) {
            0 | 1 => Some(Condition::IfNew),
            2 => Some(Condition::IfExists),
            3 => version.map(|version| Condition::Version(version.sequence)),
            4 => version.map(Condition::At),
            _ => None,
        };
        let value = (rng.below(4) > 0).then(|| self.value());
        let ttl = (rng.below(4) == 0).then(|| 1_000 + rng.next_u64() % 2_000_000).filter(|_| value.is_some());
        KeyWrite { key, value, ttl, condition, once }
    }

    fn value(&mut self) -> u64 {
        self.next_value += 1;
        self.next_value
    }
}
