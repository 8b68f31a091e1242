//! Cache channels' last events on this node.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use sinews_server::Prepared;

use crate::model::encoding::EventOrigin;

/// The last event of each cache channel of an app.
#[derive(Debug, Default)]
pub(crate) struct EventCache {
    /// Names are chosen by clients, so their hash is keyed.
    events: HashMap<Box<str>, CachedEvent>,
    /// The channels in event order, each with the version of an event that a later one may have replaced.
    order: VecDeque<(u64, Box<str>)>,
    /// Bytes of the messages.
    bytes: usize,
    /// Channels without an event, and when this was reported.
    misses: HashMap<Box<str>, Instant>,
}

/// A cache channel's event.
#[derive(Clone, Debug)]
pub(crate) struct CachedEvent {
    pub(crate) message: Prepared,
    /// When it was published.
    pub(crate) at: Instant,
    pub(crate) expires: Instant,
    /// Distinguishes a channel's events, and rises.
    pub(crate) version: u64,
    pub(crate) origin: EventOrigin,
}

/// A cache's limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CacheBounds {
    /// Time for which an event is retained.
    pub(crate) time: Duration,
    /// Maximum number of channels with an event.
    pub(crate) channels: usize,
    /// Maximum bytes in all messages: other protocols may publish larger events than the app's.
    pub(crate) bytes: usize,
}

impl EventCache {
    /// Retains an event with its version and its origin; the oldest events make room.
    pub(crate) fn insert(
        &mut self,
        channel: &str,
        message: Prepared,
        version: u64,
        origin: EventOrigin,
        bounds: CacheBounds,
        now: Instant,
    ) {
        let Some(expires) = now.checked_add(bounds.time) else { return };
        self.misses.remove(channel);
        self.bytes += message.payload().len();
        let event = CachedEvent { message, at: now, expires, version, origin };
        let replaced = self.events.insert(channel.into(), event);
        self.bytes -= replaced.map_or(0, |event| event.message.payload().len());
        self.order.push_back((version, channel.into()));
        while let Some((version, oldest)) = self.order.front() {
            let known = self.events.get(oldest).filter(|known| known.version == *version);
            match known {
                Some(known)
                    if known.expires > now
                        && self.events.len() <= bounds.channels
                        && self.bytes <= bounds.bytes =>
                {
                    break;
                }
                Some(known) => {
                    self.bytes -= known.message.payload().len();
                    self.events.remove(oldest);
                }
                None => {}
            }
            self.order.pop_front();
        }
        if self.order.len() > 2 * self.events.len() + STALE_MAX {
            let events = &self.events;
            self.order.retain(|(version, channel)| {
                events.get(channel).is_some_and(|known| known.version == *version)
            });
        }
    }

    /// A channel's event, unless it has expired.
    pub(crate) fn get(&self, channel: &str, now: Instant) -> Option<&CachedEvent> {
        self.events.get(channel).filter(|known| known.expires > now)
    }

    /// The channels with an event that this node has published, that is not older than this, and has not expired.
    pub(crate) fn own(&self, age_max: Duration, now: Instant) -> impl Iterator<Item = (&str, &CachedEvent)> {
        let is_own = move |event: &CachedEvent| {
            matches!(event.origin, EventOrigin::ThisNode)
                && event.expires > now
                && now.saturating_duration_since(event.at) <= age_max
        };
        let own = self.events.iter().filter(move |(_, event)| is_own(event));
        own.map(|(channel, event)| (&**channel, event))
    }

    /// Notes that a channel has no event. Returns whether to report it: once for clients that come at the same time.
    pub(crate) fn note_miss(&mut self, channel: &str, now: Instant) -> bool {
        let is_recent = |at: &Instant| now.saturating_duration_since(*at) < MISS_INTERVAL;
        if self.misses.get(channel).is_some_and(is_recent) {
            return false;
        }
        if self.misses.len() >= MISSES_MAX {
            self.misses.retain(|_, at| is_recent(at));
        }
        if self.misses.len() < MISSES_MAX {
            self.misses.insert(channel.into(), now);
        }
        true
    }
}

/// Time in which a channel without an event is reported once.
const MISS_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum number of channels without an event that are noted; further ones are reported each time.
const MISSES_MAX: usize = 1_024;

/// Entries of replaced events that are retained besides one for each channel.
const STALE_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pusher_4_10_events_expire_and_are_bounded() {
        let (mut cache, begin, time) = (EventCache::default(), Instant::now(), Duration::from_secs(10));
        let mut version = 0;
        let mut insert = |cache: &mut EventCache, channel: &str, bounds: CacheBounds, at: Instant| {
            version += 1;
            cache.insert(channel, Prepared::text("m"), version, EventOrigin::ThisNode, bounds, at);
        };
        let within = |channels| CacheBounds { time, channels, bytes: 100 };
        for number in 0..1_000 {
            insert(&mut cache, "a", within(2), begin + Duration::from_millis(number));
        }
        assert!(cache.order.len() <= 2 + STALE_MAX, "{}", cache.order.len());
        let now = begin + Duration::from_secs(1);
        assert!(cache.get("a", now).is_some() && cache.get("b", now).is_none());
        insert(&mut cache, "b", within(2), now);
        insert(&mut cache, "a", within(2), now);
        insert(&mut cache, "c", within(2), now);
        assert!(cache.get("b", now).is_none(), "the oldest event makes room");
        assert!(cache.get("a", now).is_some() && cache.get("c", now).is_some());
        assert!(cache.get("a", now + time).is_none());
        insert(&mut cache, "d", within(2), now + time);
        assert_eq!(cache.events.len(), 1, "expired events free their memory");
        insert(&mut cache, "e", within(0), now);
        assert!(cache.get("e", now).is_none());
    }

    #[test]
    fn own_events_have_an_age_limit() {
        let (mut cache, begin, second) = (EventCache::default(), Instant::now(), Duration::from_secs(1));
        let bounds = CacheBounds { time: 30 * second, channels: 9, bytes: 100 };
        let origins = [EventOrigin::ThisNode, EventOrigin::ThisNode, EventOrigin::OtherNode(None)];
        for ((channel, origin), seconds) in ["a", "b", "c"].into_iter().zip(origins).zip([0, 10, 10]) {
            cache.insert(channel, Prepared::text("m"), 1, origin, bounds, begin + seconds * second);
        }
        let own = |age_max: u32, now: u32| {
            let mut own: Vec<_> = cache
                .own(age_max * second, begin + now * second)
                .map(|(channel, _)| channel.to_owned())
                .collect();
            own.sort();
            own.concat()
        };
        assert_eq!([own(20, 20), own(19, 20), own(9, 20)], ["ab", "b", ""]);
        assert_eq!(own(100, 31), "b", "the other one has expired");
    }

    #[test]
    fn large_events_make_room_for_each_other() {
        let (mut cache, now) = (EventCache::default(), Instant::now());
        let bounds = CacheBounds { time: Duration::from_secs(10), channels: 9, bytes: 10 };
        let mut version = 0;
        let mut insert = |channel: &str, len| {
            version += 1;
            cache.insert(
                channel,
                Prepared::text("m".repeat(len)),
                version,
                EventOrigin::ThisNode,
                bounds,
                now,
            );
            let known = ["a", "b", "c"].into_iter().filter(|channel| cache.get(channel, now).is_some());
            (known.collect::<String>(), cache.bytes)
        };
        for (channel, len, expected) in [
            ("a", 4, ("a", 4)),
            ("b", 6, ("ab", 10)),
            ("a", 3, ("ab", 9)),
            ("c", 4, ("ac", 7)),
            ("b", 11, ("", 0)),
            ("c", 10, ("c", 10)),
        ] {
            assert_eq!(insert(channel, len), (expected.0.to_owned(), expected.1), "{channel} {len}");
        }
    }

    #[test]
    fn pusher_10_5_clients_at_the_same_time_miss_an_event_once() {
        let (mut cache, begin) = (EventCache::default(), Instant::now());
        assert!(cache.note_miss("a", begin) && !cache.note_miss("a", begin) && cache.note_miss("b", begin));
        assert!(cache.note_miss("a", begin + MISS_INTERVAL));
        let bounds = CacheBounds { time: Duration::from_millis(1), channels: 2, bytes: 100 };
        cache.insert("a", Prepared::text("m"), 1, EventOrigin::ThisNode, bounds, begin);
        assert!(cache.note_miss("a", begin + MISS_INTERVAL), "there was an event in between");
        for number in 0..2 * MISSES_MAX {
            assert!(cache.note_miss(&number.to_string(), begin + MISS_INTERVAL));
        }
        assert_eq!(cache.misses.len(), MISSES_MAX);
        assert!(cache.note_miss("c", begin + 2 * MISS_INTERVAL) && cache.misses.len() == 1);
    }
}
