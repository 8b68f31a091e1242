//! Limits for streams that a client may create, so that no client uses up the server's limit.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};

use crate::model::Creator;
use crate::model::problem::{Problem, code, problem};

/// Limits for the streams that one client creates. A client is its token's subject, its app in the Pusher protocol, or
/// its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CreationLimits {
    /// Streams that the client has created and that still exist, as far as this process knows. Default: 256.
    pub per_client: u32,
    /// Streams that the client may create within a minute. Default: 256.
    pub per_minute: u32,
}

impl CreationLimits {
    /// Creates limits: streams that exist, and streams that are created within a minute.
    #[must_use]
    pub fn new(per_client: u32, per_minute: u32) -> Self {
        Self { per_client, per_minute }
    }
}

/// A small share of the server's default stream limit. The same number a minute bounds the disk load of creating and
/// deleting streams in turn.
impl Default for CreationLimits {
    fn default() -> Self {
        Self { per_client: 256, per_minute: 256 }
    }
}

/// Each client's created streams.
#[derive(Debug)]
pub(super) struct CreationQuota {
    limits: CreationLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    clients: HashMap<Creator, ClientCreations>,
    /// Each stream's creator.
    creators: HashMap<String, Creator>,
}

#[derive(Debug)]
struct ClientCreations {
    streams: u32,
    /// Creations in the current window.
    recent: u32,
    window: Instant,
}

/// The window of [`CreationLimits::per_minute`].
const WINDOW: Duration = Duration::from_secs(60);

/// Maximum clients that are counted.
const CLIENTS_MAX: usize = 65_536;

impl CreationQuota {
    pub(super) fn new(limits: CreationLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Counts a stream that a client is about to create.
    ///
    /// # Errors
    /// The client has reached a limit, which the problem names.
    pub(super) fn reserve(&self, creator: &Creator, stream: &str) -> Result<(), Problem> {
        self.reserve_at(Instant::now(), creator, stream)
    }

    fn reserve_at(&self, now: Instant, creator: &Creator, stream: &str) -> Result<(), Problem> {
        if *creator == Creator::Server {
            return Ok(());
        }
        let mut state = self.lock();
        let is_over = |created: &ClientCreations| now.saturating_duration_since(created.window) >= WINDOW;
        if !state.clients.contains_key(creator) && state.clients.len() >= CLIENTS_MAX {
            state.clients.retain(|_, created| created.streams > 0 || !is_over(created));
            if state.clients.len() >= CLIENTS_MAX {
                let message =
                    format!("stream {stream}: more than {CLIENTS_MAX} clients have created streams");
                return Err(problem(code::TOO_MANY, message));
            }
        }
        let new = ClientCreations { streams: 0, recent: 0, window: now };
        let created = state.clients.entry(creator.clone()).or_insert(new);
        if is_over(created) {
            (created.recent, created.window) = (0, now);
        }
        let CreationLimits { per_client, per_minute } = self.limits;
        let too_many = |what: &str, limit: u32, setting: &str| {
            let message =
                format!("stream {stream}: this client has created {limit} streams{what} ({setting})");
            Err(problem(code::TOO_MANY, message))
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
            state.release(&before);
        }
        Ok(())
    }

    /// Whether a stream is counted.
    pub(super) fn has(&self, stream: &str) -> bool {
        self.lock().creators.contains_key(stream)
    }

    /// Releases a stream that was deleted, or not created.
    pub(super) fn release(&self, stream: &str) {
        let mut state = self.lock();
        if let Some(creator) = state.creators.remove(stream) {
            state.release(&creator);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl State {
    fn release(&mut self, creator: &Creator) {
        if let Some(created) = self.clients.get_mut(creator) {
            created.streams = created.streams.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn client(last: u8) -> Creator {
        Creator::from_address(IpAddr::from([10, 0, 0, last]))
    }

    #[test]
    fn client_creates_no_more_streams_than_its_limits() {
        let quota = CreationQuota::new(CreationLimits { per_client: 3, per_minute: 2 });
        let started = Instant::now();
        let take = |seconds, creator: &Creator, stream: &str| {
            quota.reserve_at(started + Duration::from_secs(seconds), creator, stream)
        };
        assert_eq!((take(0, &client(1), "a"), take(1, &client(1), "b")), (Ok(()), Ok(())));
        let refused = take(59, &client(1), "c").unwrap_err();
        assert_eq!(refused.code, code::TOO_MANY);
        assert!(refused.text.contains("streams.max_created_per_minute"), "{}", refused.text);
        assert_eq!(take(59, &client(2), "x"), Ok(()), "another client");
        assert_eq!(take(60, &client(1), "c"), Ok(()));
        let refused = take(200, &client(1), "d").unwrap_err();
        assert!(refused.text.contains("streams.max_created_per_client"), "{}", refused.text);
        quota.release("b");
        assert_eq!(take(201, &client(1), "d"), Ok(()), "one was deleted");
        (0..100).for_each(|number| assert_eq!(take(202, &Creator::Server, &number.to_string()), Ok(())));
    }

    #[test]
    fn addresses_of_one_ipv6_network_are_one_client() {
        let of = |text: &str| Creator::from_address(text.parse().unwrap());
        assert_eq!(of("2001:db8::1"), of("2001:db8::ffff:1"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), client(1));
    }
}
