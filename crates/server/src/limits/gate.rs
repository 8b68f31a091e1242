//! Admission of connections and handshakes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::config::{Limits, WhenFull};
use super::rate::RateLimit;
use crate::client::TrustedProxies;
use crate::metrics::limit::Limit;
use crate::metrics::{MetricReason, ProcessMetrics, ShardCounters};

/// Limits of a server and their usage. Shared by its threads, and checked when a connection opens or closes, never
/// for a message.
#[derive(Debug)]
pub(crate) struct Gate {
    limits: Limits,
    max_memory: Option<u64>,
    /// Resident memory as last read, and when that reading expires, in milliseconds since the epoch of this gate.
    resident: AtomicU64,
    resident_until: AtomicU64,
    proxies: Arc<TrustedProxies>,
    connections: AtomicUsize,
    /// Connections by client, if limited. Addresses are chosen by clients, so their hash is keyed.
    clients: Mutex<HashMap<ClientKey, usize>>,
    handshakes: Option<RateLimit>,
    /// When the next handshake is due, in nanoseconds since the epoch.
    handshake_due: AtomicU64,
    counters: Vec<Arc<ShardCounters>>,
    epoch: Instant,
    /// When each limit may be logged again, in milliseconds since the epoch.
    quiet_until: Box<[AtomicU64]>,
}

/// Unit of the limit per client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ClientKey {
    V4(u32),
    /// The network of an IPv6 address: a client has 2^64 addresses in its network.
    V6(u64),
}

impl ClientKey {
    fn new(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6((address.to_bits() >> 64) as u64),
        }
    }
}

impl Gate {
    pub(crate) fn new(
        limits: Limits,
        proxies: Arc<TrustedProxies>,
        counters: Vec<Arc<ShardCounters>>,
    ) -> Self {
        Self {
            connections: AtomicUsize::new(0),
            clients: Mutex::default(),
            handshakes: limits.handshakes_per_second.map(|rate| RateLimit::new(rate, rate)),
            handshake_due: AtomicU64::new(0),
            proxies,
            counters,
            epoch: Instant::now(),
            quiet_until: Limit::ALL.iter().map(|_| AtomicU64::new(0)).collect(),
            max_memory: limits.memory_bytes(),
            resident: AtomicU64::new(0),
            resident_until: AtomicU64::new(0),
            limits,
        }
    }

    /// Admits a connection. On success, the caller calls [`release`](Self::release) at its end.
    pub(crate) fn admit(&self, address: IpAddr) -> Result<(), Limit> {
        if self.is_memory_full() {
            return Err(Limit::Memory);
        }
        let max = self.limits.max_connections.unwrap_or(usize::MAX);
        let more = |open| (open < max).then_some(open + 1);
        if self.connections.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_err() {
            return Err(Limit::Connections);
        }
        self.admit_client(address).inspect_err(|_| {
            self.connections.fetch_sub(1, Ordering::Relaxed);
        })
    }

    fn admit_client(&self, address: IpAddr) -> Result<(), Limit> {
        let Some(max) = self.connection_limit(address) else { return Ok(()) };
        let mut clients = self.clients.lock();
        let count = clients.entry(ClientKey::new(address)).or_default();
        if *count >= max {
            return Err(Limit::Address);
        }
        *count += 1;
        Ok(())
    }

    /// Returns the limit that [`admit`](Self::admit) would report now.
    pub(crate) fn check(&self, address: IpAddr) -> Result<(), Limit> {
        if let Some(limit) = self.is_full() {
            return Err(limit);
        }
        let Some(max) = self.connection_limit(address) else { return Ok(()) };
        let clients = self.clients.lock();
        let open = clients.get(&ClientKey::new(address)).copied().unwrap_or(0);
        if open < max { Ok(()) } else { Err(Limit::Address) }
    }

    /// Returns the connection limit of this address. Proxies forward many clients, and connections of Unix sockets
    /// have no address, so both are exempt.
    fn connection_limit(&self, address: IpAddr) -> Option<usize> {
        let is_exempt = address.is_unspecified() || self.proxies.trusts(address);
        self.limits.max_connections_per_address.filter(|_| !is_exempt)
    }

    pub(crate) fn release(&self, address: IpAddr) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
        if self.connection_limit(address).is_none() {
            return;
        }
        let mut clients = self.clients.lock();
        if let Entry::Occupied(mut client) = clients.entry(ClientKey::new(address)) {
            *client.get_mut() -= 1;
            if *client.get() == 0 {
                client.remove();
            }
        }
    }

    /// Admits a valid handshake.
    pub(crate) fn handshake(&self) -> Result<(), Limit> {
        if self.is_memory_full() {
            return Err(Limit::Memory);
        }
        let Some(rate_limit) = &self.handshakes else { return Ok(()) };
        let now = u64::try_from(self.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let take = |due| rate_limit.take(due, now);
        let taken = self.handshake_due.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(|_| ()).map_err(|_| Limit::Handshakes)
    }

    /// Returns whether queues exceed the memory limit. A message counts once for each recipient, so the resident
    /// memory of the process must exceed the limit, too.
    fn is_memory_full(&self) -> bool {
        let exceeds = |max| self.resident_bytes().is_none_or(|bytes| bytes > max);
        self.is_count_exceeded() && self.max_memory.is_some_and(exceeds)
    }

    /// Returns whether the counted memory exceeds the limit, regardless of the process's memory.
    pub(crate) fn is_count_exceeded(&self) -> bool {
        let memory = || self.counters.iter().map(|counters| counters.memory_bytes()).sum::<u64>();
        self.max_memory.is_some_and(|max| memory() > max)
    }

    /// Returns the resident memory of the process, cached for a moment.
    fn resident_bytes(&self) -> Option<u64> {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = |until: u64| (until <= now).then(|| now + RESIDENT_AGE.as_millis() as u64);
        if self.resident_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            // Without a reading, the counted memory decides.
            self.resident.store(ProcessMetrics::read_resident_bytes().unwrap_or(0), Ordering::Relaxed);
        }
        Some(self.resident.load(Ordering::Relaxed)).filter(|bytes| *bytes > 0)
    }

    /// Returns whether the connection with the largest queues is to be closed.
    pub(crate) fn must_close_largest(&self) -> bool {
        self.limits.when_full == WhenFull::Close && self.is_memory_full()
    }

    /// Returns the thread with the heaviest connection, if that is heavier than `than`.
    pub(crate) fn heavier_thread(&self, than: u64) -> Option<usize> {
        let threads = self.counters.iter().map(|counters| counters.heaviest.get()).enumerate();
        threads.filter(|(_, class)| *class > than).max_by_key(|(_, class)| *class).map(|(thread, _)| thread)
    }

    /// Returns the memory limit of queues in bytes.
    pub(crate) fn max_memory(&self) -> Option<u64> {
        self.max_memory
    }

    /// Returns the limit that rejects new connections, if any.
    pub(crate) fn is_full(&self) -> Option<Limit> {
        let full = |max| self.connections.load(Ordering::Relaxed) >= max;
        if self.is_memory_full() {
            return Some(Limit::Memory);
        }
        self.limits.max_connections.is_some_and(full).then_some(Limit::Connections)
    }

    /// Logs an exceeded limit, at most once per interval.
    pub(crate) fn report(&self, limit: Limit) {
        let now = u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX);
        let quiet_until = &self.quiet_until[limit.index()];
        let due = |until: u64| (until <= now).then(|| now + QUIET.as_millis() as u64);
        if quiet_until.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok() {
            let (limit, setting) = (limit.name(), limit.setting());
            tracing::warn!(limit, setting, "limit reached; excess connections or messages are rejected");
        }
    }
}

/// Maximum age of a memory reading: little arrives in that time.
const RESIDENT_AGE: Duration = Duration::from_millis(10);

/// Minimum interval of log lines for one limit.
const QUIET: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::super::memory;
    use super::*;
    use crate::metrics::ConnMemory;

    fn gate(limits: Limits) -> Gate {
        let proxies = TrustedProxies::x_forwarded_for(["10.0.0.0/8".parse().unwrap()]);
        Gate::new(limits, Arc::new(proxies), vec![Arc::default(), Arc::default()])
    }

    #[test]
    fn client_is_an_ipv4_address_or_an_ipv6_network() {
        let gate = gate(Limits::default().with_max_connections_per_address(2));
        for (first, second, other) in [
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("192.0.2.3", "::ffff:192.0.2.3", "::ffff:192.0.2.4"),
            ("2001:db8::1", "2001:db8::ffff:2", "2001:db8:0:1::1"),
        ] {
            let [first, second, other]: [IpAddr; 3] =
                [first, second, other].map(|text| text.parse().unwrap());
            assert_eq!((gate.admit(first), gate.admit(second)), (Ok(()), Ok(())));
            assert_eq!((gate.admit(first), gate.admit(other)), (Err(Limit::Address), Ok(())));
            gate.release(second);
            assert_eq!((gate.admit(first), gate.admit(second)), (Ok(()), Err(Limit::Address)));
            for address in [first, first, other] {
                gate.release(address);
            }
        }
        assert!(gate.clients.lock().is_empty(), "closed connections leave no entry");
        assert_eq!(gate.connections.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn proxies_and_unix_sockets_are_exempt_from_the_limit_per_address() {
        let gate = gate(Limits::default().with_max_connections_per_address(1));
        for address in ["10.1.2.3", "0.0.0.0"].map(|text| text.parse().unwrap()) {
            assert_eq!((gate.admit(address), gate.admit(address)), (Ok(()), Ok(())));
            gate.release(address);
        }
        assert!(gate.clients.lock().is_empty());
    }

    #[test]
    fn rejected_connections_do_not_count() {
        let gate = gate(Limits::default().with_max_connections(2).with_max_connections_per_address(1));
        let [one, two, three] = [1, 2, 3].map(|last| IpAddr::from([192, 0, 2, last]));
        assert_eq!((gate.admit(one), gate.admit(one)), (Ok(()), Err(Limit::Address)));
        assert_eq!(gate.is_full(), None);
        assert_eq!((gate.admit(two), gate.admit(three)), (Ok(()), Err(Limit::Connections)));
        assert_eq!(gate.is_full(), Some(Limit::Connections));
        gate.release(one);
        assert_eq!((gate.admit(three), gate.is_full()), (Ok(()), Some(Limit::Connections)));
    }

    #[test]
    fn memory_counts_all_threads() {
        let gate = gate(Limits::default().with_max_memory(100).with_when_full(WhenFull::Close));
        gate.counters[0].replace_memory(ConnMemory::default(), ConnMemory::new(60, 0));
        assert_eq!((gate.is_full(), gate.handshake()), (None, Ok(())));
        gate.counters[1].replace_memory(ConnMemory::default(), ConnMemory::new(10, 50));
        assert_eq!((gate.is_full(), gate.handshake()), (Some(Limit::Memory), Err(Limit::Memory)));
        assert_eq!(gate.admit([127, 0, 0, 1].into()), Err(Limit::Memory));
        assert!(gate.must_close_largest());
        gate.counters[1].heaviest.set(5);
        assert_eq!((gate.heavier_thread(4), gate.heavier_thread(5)), (Some(1), None));
        gate.counters[1].replace_memory(ConnMemory::new(10, 50), ConnMemory::default());
        assert!(!gate.must_close_largest());
    }

    /// As with one large message for many slow subscribers.
    #[test]
    fn memory_is_not_full_while_the_process_holds_less() {
        let gate = gate(Limits::default().with_max_memory(1 << 45));
        gate.counters[0].replace_memory(ConnMemory::default(), ConnMemory::new(usize::MAX, 0));
        for _ in 0..1 << 14 {
            gate.counters[1].replace_memory(ConnMemory::default(), ConnMemory::new(usize::MAX, 0));
        }
        assert!(!gate.is_memory_full() && !gate.must_close_largest());
    }

    #[test]
    fn default_memory_limit_is_half_of_the_available_memory() {
        let (bytes, _) = memory::available().unwrap();
        assert_eq!(gate(Limits::default()).max_memory(), Some(bytes / 2));
        assert_eq!(gate(Limits::default().with_memory_share(10)).max_memory(), Some(bytes / 10));
        assert_eq!(gate(Limits::default().with_max_memory(5)).max_memory(), Some(5));
        assert_eq!(gate(Limits::default().without_max_memory()).max_memory(), None);
    }

    #[test]
    fn handshakes_are_limited_per_second() {
        let gate = gate(Limits::default().with_handshakes_per_second(1));
        assert_eq!((gate.handshake(), gate.handshake()), (Ok(()), Err(Limit::Handshakes)));
    }
}
