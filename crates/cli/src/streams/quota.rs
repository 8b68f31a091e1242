//! Limits of streams that a client may create, so that no client uses up the server's limit.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::protocol::{Problem, code, problem};

/// A client that creates streams: the subject of its token, or its address. An IPv6 address counts by its first 64
/// bits, usually the network of one customer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Creator {
    Subject(Box<str>),
    Address(IpAddr),
    /// The program itself, which has no limit.
    Server,
}

impl Creator {
    pub(crate) fn of_address(address: IpAddr) -> Self {
        match address {
            IpAddr::V6(six) => match six.to_ipv4_mapped() {
                Some(four) => Self::Address(four.into()),
                None => {
                    Self::Address(std::net::Ipv6Addr::from_bits(six.to_bits() & !u128::from(u64::MAX)).into())
                }
            },
            four => Self::Address(four),
        }
    }
}

/// The limits of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CreationLimits {
    /// Streams that the client has created and that still exist, as far as this process knows.
    pub(crate) per_client: u32,
    pub(crate) per_minute: u32,
}

/// A small share of the server's default limit of streams. The same number a minute bounds the disk load of creating
/// and deleting streams in turn.
impl Default for CreationLimits {
    fn default() -> Self {
        Self { per_client: 256, per_minute: 256 }
    }
}

/// The created streams of each client.
#[derive(Debug)]
pub(super) struct Quota {
    limits: CreationLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    clients: HashMap<Creator, Created>,
    /// The creator of each stream.
    creators: HashMap<String, Creator>,
}

#[derive(Debug)]
struct Created {
    streams: u32,
    /// Creations in the current window.
    recent: u32,
    window: Instant,
}

/// The window of [`CreationLimits::per_minute`].
const WINDOW: Duration = Duration::from_secs(60);

/// Limit of clients that are counted.
const CLIENTS_MAX: usize = 65_536;

impl Quota {
    pub(super) fn new(limits: CreationLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Counts a stream that a client is about to create.
    ///
    /// # Errors
    /// The client has reached a limit, which the problem names.
    pub(super) fn take(&self, creator: &Creator, stream: &str) -> Result<(), Problem> {
        self.take_at(Instant::now(), creator, stream)
    }

    fn take_at(&self, now: Instant, creator: &Creator, stream: &str) -> Result<(), Problem> {
        if *creator == Creator::Server {
            return Ok(());
        }
        let mut state = self.lock();
        let is_over = |created: &Created| now.saturating_duration_since(created.window) >= WINDOW;
        if !state.clients.contains_key(creator) && state.clients.len() >= CLIENTS_MAX {
            state.clients.retain(|_, created| created.streams > 0 || !is_over(created));
            if state.clients.len() >= CLIENTS_MAX {
                let words = format!("stream {stream}: more than {CLIENTS_MAX} clients have created streams");
                return Err(problem(code::TOO_MANY, words));
            }
        }
        let new = Created { streams: 0, recent: 0, window: now };
        let created = state.clients.entry(creator.clone()).or_insert(new);
        if is_over(created) {
            (created.recent, created.window) = (0, now);
        }
        let CreationLimits { per_client, per_minute } = self.limits;
        let too_many = |what: &str, limit: u32, setting: &str| {
            let words = format!("stream {stream}: this client has created {limit} streams{what} ({setting})");
            Err(problem(code::TOO_MANY, words))
        };
        if created.streams >= per_client {
            return too_many("", per_client, "streams.max_created_per_client");
        }
        if created.recent >= per_minute {
            return too_many(" within a minute", per_minute, "streams.max_created_per_minute");
        }
        created.streams += 1;
        created.recent += 1;
        if let Some(before) = state.creators.insert(stream.to_owned(), creator.clone()) {
            state.give_back(&before);
        }
        Ok(())
    }

    /// Whether a stream is counted.
    pub(super) fn has(&self, stream: &str) -> bool {
        self.lock().creators.contains_key(stream)
    }

    /// Releases a stream that was deleted, or not created.
    pub(super) fn give_back(&self, stream: &str) {
        let mut state = self.lock();
        if let Some(creator) = state.creators.remove(stream) {
            state.give_back(&creator);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn give_back(&mut self, creator: &Creator) {
        if let Some(created) = self.clients.get_mut(creator) {
            created.streams = created.streams.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(last: u8) -> Creator {
        Creator::of_address(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn client_creates_no_more_streams_than_its_limits() {
        let quota = Quota::new(CreationLimits { per_client: 3, per_minute: 2 });
        let begun = Instant::now();
        let take = |seconds, creator: &Creator, stream: &str| {
            quota.take_at(begun + Duration::from_secs(seconds), creator, stream)
        };
        assert_eq!((take(0, &client(1), "a"), take(1, &client(1), "b")), (Ok(()), Ok(())));
        let refused = take(59, &client(1), "c").unwrap_err();
        assert_eq!(refused.code, code::TOO_MANY);
        assert!(refused.text.contains("streams.max_created_per_minute"), "{}", refused.text);
        assert_eq!(take(59, &client(2), "x"), Ok(()), "another client");
        assert_eq!(take(60, &client(1), "c"), Ok(()));
        let refused = take(200, &client(1), "d").unwrap_err();
        assert!(refused.text.contains("streams.max_created_per_client"), "{}", refused.text);
        quota.give_back("b");
        assert_eq!(take(201, &client(1), "d"), Ok(()), "one was deleted");
        (0..100).for_each(|number| assert_eq!(take(202, &Creator::Server, &number.to_string()), Ok(())));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let of = |text: &str| Creator::of_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), client(1));
    }
}
