//! Publication rates, for connections and for users.

use std::collections::HashMap;
use std::collections::hash_map::{DefaultHasher, Entry};
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::time::Instant;

use parking_lot::Mutex;

use crate::access::namespaces::PublishRate;
use crate::model::network_of;

/// Index of the namespace that sets a rate.
pub(super) type RateScope = u16;

/// The unit that a rate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum RateKind {
    Publish,
    Subscribe,
    /// A call with a topic in a namespace that has a call rate.
    Call,
    /// Any other call, for a connection and for all the user's connections.
    OtherCall,
    UserCall,
}

/// A rate of a namespace.
pub(super) type Rate = (RateKind, RateScope);

/// Due time of the next publication, in nanoseconds on the table's clock.
type Due = u64;

impl PublishRate {
    /// Takes one publication; returns the next due time, or `None` if the publication exceeds the rate.
    pub(crate) fn take(self, due: Due, now: Due) -> Option<Due> {
        let interval = SECOND / u64::from(self.per_second);
        let tolerance = interval * u64::from(self.burst - 1);
        (due <= now.saturating_add(tolerance)).then(|| due.max(now) + interval)
    }
}

const SECOND: u64 = 1_000_000_000;

/// Rates of one connection; boxed, since most connections have none.
#[derive(Debug, Default)]
pub(crate) struct ConnectionRates(Option<Box<RatesInUse>>);

#[derive(Debug, Default)]
struct RatesInUse {
    /// Id of the table that the scopes and due times belong to.
    table: u64,
    list: Vec<(Rate, Due)>,
}

impl ConnectionRates {
    /// Takes one operation from a table's rate. At most one entry for each kind exists for each namespace.
    pub(super) fn take(&mut self, table: u64, scope: Rate, rate: PublishRate, now: Due) -> bool {
        let rates = self.0.get_or_insert_default();
        if rates.table != table {
            **rates = RatesInUse { table, list: Vec::new() };
        }
        let list = &mut rates.list;
        let at = list.iter().position(|(known, _)| *known == scope).unwrap_or_else(|| {
            list.push((scope, 0));
            list.len() - 1
        });
        let Some(next) = rate.take(list[at].1, now) else { return false };
        list[at].1 = next;
        true
    }
}

/// A user: a token's `sub`, or the address or IPv6 network of a client without one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum User {
    Subject(Box<str>),
    Address(IpAddr),
    Unknown,
}

/// A client, as limits and the application know it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ClientIdentity<'a> {
    /// The `sub` of the client's token, if it has one.
    pub(crate) subject: Option<&'a str>,
    pub(crate) address: Option<IpAddr>,
}

impl User {
    /// The user with the client's `sub`, or at its address.
    pub(super) fn new(client: ClientIdentity<'_>) -> Self {
        match (client.subject, client.address) {
            (Some(subject), _) => Self::Subject(subject.into()),
            (None, Some(address)) => Self::Address(network_of(address)),
            (None, None) => Self::Unknown,
        }
    }
}

/// Rates of users.
#[derive(Debug)]
pub(super) struct UserRates {
    start: Instant,
    shards: [Mutex<HashMap<(Rate, User), Due>>; SHARDS],
}

const SHARDS: usize = 16;

/// Maximum user rates in one shard. Beyond it, a user whose burst is nearly complete gets a new one.
const SHARD_MAX: usize = 4_096;

impl Default for UserRates {
    fn default() -> Self {
        Self { start: Instant::now(), shards: Default::default() }
    }
}

impl UserRates {
    /// The time now.
    pub(super) fn now(&self) -> Due {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(Due::MAX)
    }

    /// Takes one operation.
    pub(super) fn take(&self, scope: Rate, user: User, rate: PublishRate, now: Due) -> bool {
        let mut hasher = DefaultHasher::new();
        user.hash(&mut hasher);
        let shard = &self.shards[hasher.finish() as usize % SHARDS];
        let mut shard = shard.lock();
        if shard.len() >= SHARD_MAX && !shard.contains_key(&(scope, user.clone())) {
            make_room(&mut shard, now);
        }
        match shard.entry((scope, user)) {
            Entry::Occupied(mut entry) => match rate.take(*entry.get(), now) {
                Some(next) => {
                    entry.insert(next);
                    true
                }
                None => false,
            },
            Entry::Vacant(entry) => {
                entry.insert(rate.take(0, now).unwrap_or(now));
                true
            }
        }
    }
}

/// Removes idle users, or else the user that is idle next.
fn make_room(shard: &mut HashMap<(Rate, User), Due>, now: Due) {
    shard.retain(|_, due| *due > now);
    if shard.len() >= SHARD_MAX {
        let next = shard.iter().min_by_key(|(_, due)| **due).map(|(key, _)| key.clone());
        if let Some(key) = next {
            shard.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_permits_a_burst_and_then_its_interval() {
        let rate = PublishRate::new(10).with_burst(3);
        let mut rates = ConnectionRates::default();
        let of = |scope| (RateKind::Publish, scope);
        let mut take = |now| rates.take(7, of(1), rate, now);
        assert_eq!([0, 0, 0, 0].map(&mut take), [true, true, true, false]);
        assert_eq!([SECOND / 20, SECOND / 10, SECOND / 10].map(&mut take), [false, true, false]);
        assert!(rates.take(7, (RateKind::Call, 1), rate, 0), "each kind has its own rate");
        assert!(rates.take(7, of(2), rate, 0), "each namespace has its own rate");
        assert!(rates.take(8, of(1), rate, 0), "another table has another clock and other namespaces");
    }

    #[test]
    fn rates_of_users_are_separate_and_bounded() {
        let (rates, rate) = (UserRates::default(), PublishRate::new(1));
        let user = |number: usize| User::Subject(number.to_string().into());
        let of = |scope| (RateKind::Publish, scope);
        assert!(rates.take(of(0), user(1), rate, 5) && !rates.take(of(0), user(1), rate, 5));
        assert!(rates.take(of(0), user(2), rate, 5) && rates.take(of(1), user(1), rate, 5));
        assert!(rates.take((RateKind::Call, 0), user(1), rate, 5), "each kind has its own rate");
        let count = SHARDS * (SHARD_MAX + 200);
        for number in 0..count {
            assert!(rates.take(of(2), user(number), rate, 7));
        }
        let len = |shard: &Mutex<HashMap<_, _>>| shard.lock().len();
        assert!(rates.shards.iter().all(|shard| len(shard) <= SHARD_MAX));
        assert!(!rates.take(of(2), user(count - 1), rate, 7), "the last user is known");
    }
}
