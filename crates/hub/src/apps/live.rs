//! The apps in force, which a reload replaces, and their state, which remains.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard, RwLock};
use sinews_server::{Prepared, SubscriberId};

use crate::access::namespaces::PublishRate;
use crate::apps::app::{PusherApp, PusherApps};
use crate::apps::budget::RecoveryBudget;
use crate::apps::cache::{CacheBounds, CachedEvent, EventCache};
use crate::apps::channel::{self, ChannelKind, PusherTopic, USER_CHANNEL, channel_of_topic};
use crate::apps::metrics::PusherCounters;
use crate::apps::socket_ids::SocketIds;
use crate::model::brief::brief;
use crate::model::encoding::{EventOrigin, RetainedEvent};
use crate::model::is_reserved;
use crate::model::nodes::NodePublicationId;

/// A part of the name of each cache channel.
const CACHE_PART: &[u8; 6] = b"cache-";

/// The apps in force.
#[derive(Debug)]
pub(crate) struct LiveApps {
    table: RwLock<AppTable>,
    /// Counts the tables.
    generation: AtomicU64,
    /// Whether an app's channels are topics in other protocols.
    has_topics: AtomicBool,
    socket_ids: SocketIds,
    /// The last version of an event on any cache channel: if an app is removed and added again, its channels go on.
    versions: AtomicU64,
    pub(crate) counters: PusherCounters,
    pub(crate) recoveries: RecoveryBudget,
    start: Instant,
}

#[derive(Debug, Default)]
struct AppTable {
    apps: PusherApps,
    /// The apps by their id.
    live: HashMap<String, Arc<LiveApp>>,
}

/// An app's state on this node.
#[derive(Debug, Default)]
pub(crate) struct AppState {
    connections: AtomicUsize,
    /// Rejected connections, subscriptions, messages and requests.
    rejected: AtomicU64,
    /// The next request's due time, in nanoseconds.
    requests: Mutex<u64>,
    cache: Mutex<EventCache>,
}

/// An app's load on this node.
#[derive(Debug)]
pub(crate) struct AppLoad {
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) connections: usize,
    pub(crate) rejected: u64,
}

/// An app with its state.
#[derive(Clone, Debug)]
pub(crate) struct LiveApp {
    pub(crate) options: Arc<PusherApp>,
    pub(crate) state: Arc<AppState>,
    /// The table from which it comes.
    pub(crate) generation: u64,
}

impl Default for LiveApps {
    fn default() -> Self {
        Self {
            table: RwLock::default(),
            generation: AtomicU64::new(0),
            has_topics: AtomicBool::new(false),
            socket_ids: SocketIds::default(),
            versions: AtomicU64::new(0),
            counters: PusherCounters::default(),
            recoveries: RecoveryBudget::default(),
            start: Instant::now(),
        }
    }
}

impl LiveApps {
    /// Replaces the apps. Apps with the same id retain their state.
    pub(crate) fn replace(&self, apps: &PusherApps) {
        let mut table = self.table.write();
        // Only this function changes it, under the lock.
        let generation = self.generation.load(Ordering::Acquire) + 1;
        let live = |(id, options): (&String, &Arc<PusherApp>)| {
            let state = table.live.get(id).map(|known| Arc::clone(&known.state)).unwrap_or_default();
            (id.clone(), Arc::new(LiveApp { options: Arc::clone(options), state, generation }))
        };
        let live = apps.by_id.iter().map(live).collect();
        let has_topics = !apps.by_topics.is_empty();
        *table = AppTable { apps: apps.clone(), live };
        self.has_topics.store(has_topics, Ordering::Release);
        self.generation.store(generation, Ordering::Release);
    }

    /// Locks the table: readers wait until the result is dropped.
    #[cfg(test)]
    pub(crate) fn lock_table(&self) -> impl Sized + '_ {
        self.table.write()
    }

    /// Whether there is no app.
    pub(crate) fn is_empty(&self) -> bool {
        self.read(|table| table.apps.is_empty())
    }

    fn read<R>(&self, read: impl FnOnce(&AppTable) -> R) -> R {
        read(&self.table.read())
    }

    /// The current table's number.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The app with an id.
    pub(crate) fn app(&self, id: &str) -> Option<Arc<LiveApp>> {
        self.read(|table| table.live.get(id).cloned())
    }

    /// Connections of the app with an id on this node.
    pub(crate) fn connections(&self, id: &str) -> usize {
        self.app(id).map_or(0, |app| app.connections())
    }

    /// The app with a key.
    pub(crate) fn app_of_key(&self, key: &str) -> Option<Arc<LiveApp>> {
        self.read(|table| table.live.get(table.apps.by_key.get(key)?).cloned())
    }

    /// The apps with the most connections, and the app count.
    pub(crate) fn busiest(&self, most: usize) -> (Vec<AppLoad>, usize) {
        self.read(|table| {
            let mut apps: Vec<_> =
                table.live.iter().map(|(id, app)| (Reverse(app.connections()), id, app)).collect();
            let count = apps.len();
            apps.sort_unstable_by_key(|(connections, id, _)| (*connections, *id));
            let load = |(Reverse(connections), id, app): (Reverse<usize>, &String, &Arc<LiveApp>)| {
                let rejected = app.state.rejected.load(Ordering::Relaxed);
                let name = app.options.name.as_deref().map(brief);
                AppLoad { id: id.clone(), name, connections, rejected }
            };
            (apps.into_iter().take(most).map(load).collect(), count)
        })
    }

    /// Reads the app and the channel of a topic, if the topic is a channel.
    fn read_channel<'a, R>(
        &self,
        topic: &'a str,
        read: impl FnOnce(&Arc<LiveApp>, Cow<'a, str>) -> R,
    ) -> Option<R> {
        let (app, channel) = match channel_of_topic(topic) {
            Some(PusherTopic::Channel { app, channel }) => (app, channel),
            // Its events have the user's id.
            Some(PusherTopic::User { app }) => (app, USER_CHANNEL.into()),
            None if self.has_topics.load(Ordering::Acquire) => {
                return self.read(|table| {
                    // No prefix is below another one.
                    let found = topic.match_indices('.').find_map(|(dot, _)| {
                        Some((table.apps.by_topics.get(&topic[..dot])?, &topic[dot + 1..]))
                    });
                    let (id, channel) = found?;
                    let app = table.live.get(id)?;
                    channel::check_channel(channel, app.options.limits.channel_name).ok()?;
                    Some(read(app, channel.into()))
                });
            }
            None => return None,
        };
        self.read(|table| Some(read(table.live.get(app)?, channel)))
    }

    /// Whether a topic's name is one that a cache channel can have. This does not read the app table.
    pub(crate) fn may_be_cache(&self, topic: &str) -> bool {
        let may_be_channel = is_reserved(topic) || self.has_topics.load(Ordering::Acquire);
        may_be_channel && topic.as_bytes().windows(CACHE_PART.len()).any(|part| part == CACHE_PART)
    }

    /// Returns the channel that a topic is, if it is one.
    pub(crate) fn channel<'a>(&self, topic: &'a str) -> Option<Cow<'a, str>> {
        self.read_channel(topic, |_, channel| channel)
    }

    /// Retains a cache channel's event, perhaps from another node's message. Returns its version; `None` if the event
    /// was [restored](Self::restore), or a later one from the same node.
    pub(crate) fn retain(
        &self,
        target: &EventTarget<'_>,
        message: &Prepared,
        origin: Option<NodePublicationId>,
    ) -> Option<u64> {
        let now = Instant::now();
        let known = origin.and_then(|_| target.lock_cache().get(&target.channel, now)?.origin.publication());
        if let (Some(origin), Some(known)) = (origin, known)
            && origin.is_through(known)
        {
            return None;
        }
        let version = self.next_version();
        let origin =
            origin.map_or(EventOrigin::ThisNode, |publication| EventOrigin::OtherNode(Some(publication)));
        target.insert(message, version, origin, now);
        Some(version)
    }

    /// Retains an event of this age from its origin, unless it is known or there is a later one. Returns its version if
    /// it is retained.
    pub(crate) fn restore(
        &self,
        target: &EventTarget<'_>,
        message: &Prepared,
        origin: Option<NodePublicationId>,
        age: Duration,
    ) -> Option<u64> {
        let now = Instant::now();
        let at = now.checked_sub(age)?;
        // The same event arrives at each node at another time.
        let is_later = target
            .lock_cache()
            .get(&target.channel, now)
            .is_none_or(|known| known.at < at && known.message.payload() != message.payload());
        let version = is_later.then(|| self.next_version())?;
        target.insert(message, version, EventOrigin::OtherNode(origin), at);
        target.lock_cache().get(&target.channel, now).is_some().then_some(version)
    }

    /// The topics of the cache channels whose last event this node has published, not longer ago than this: the
    /// youngest event first.
    pub(crate) fn own_events(&self, age_max: Duration) -> Vec<String> {
        let apps: Vec<Arc<LiveApp>> = self.read(|table| table.live.values().cloned().collect());
        let now = Instant::now();
        let mut events = Vec::new();
        for app in apps.iter().filter(|app| app.options.features.cache_channels) {
            let cache = app.state.cache.lock();
            events.extend(cache.own(age_max, now).map(|(channel, event)| {
                let topic = channel::topic_of(app.options.topic_space(), channel);
                (event.at, topic)
            }));
        }
        events.sort_by_key(|(at, _)| Reverse(*at));
        events.into_iter().map(|(_, topic)| topic).collect()
    }

    fn next_version(&self) -> u64 {
        self.versions.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The channel that a topic is: whether it may have subscribers, and how to encode an event for it.
    pub(crate) fn target<'a>(&self, topic: &'a str) -> Option<EventTarget<'a>> {
        self.read_channel(topic, |app, channel| EventTarget::new(Arc::clone(app), channel))
    }

    /// Whether a key of the topic's app has [sealed](PusherApp::seal) an event.
    pub(crate) fn has_sealed(&self, topic: &str, event: &[u8], seal: &str) -> bool {
        let app = self.read_channel(topic, |app, _| Arc::clone(app));
        app.is_some_and(|app| app.options.keys.iter().any(|key| key.has_sealed(topic, event, seal)))
    }

    /// A connection's id, which nobody can guess. `None` without random numbers.
    pub(crate) fn socket_id(&self, subscriber: SubscriberId) -> Option<u128> {
        self.socket_ids.seal(subscriber)
    }

    /// The connection with an id, if it is on this node. It may have closed.
    pub(crate) fn socket(&self, id: u128) -> Option<SubscriberId> {
        self.socket_ids.open(id)
    }

    /// The time in nanoseconds, for rates and deadlines.
    pub(crate) fn now(&self) -> u64 {
        nanoseconds(self.start.elapsed())
    }

    /// The instant of a [time](Self::now).
    pub(crate) fn instant(&self, time: u64) -> Instant {
        self.start + Duration::from_nanos(time)
    }
}

impl LiveApp {
    /// Connections on this node.
    pub(crate) fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Acquire)
    }

    /// Counts a connection, unless the app has its maximum. Returns whether it may stay.
    pub(crate) fn add_connection(&self) -> bool {
        let count = self.state.connections.fetch_add(1, Ordering::AcqRel);
        let may_stay = self.options.limits.connections.is_none_or(|most| count < most);
        if !may_stay {
            self.remove_connection();
        }
        may_stay
    }

    /// Counts a connection's end.
    pub(crate) fn remove_connection(&self) {
        self.state.connections.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts a rejected connection, subscription, message or request.
    pub(crate) fn count_rejection(&self) {
        self.state.rejected.fetch_add(1, Ordering::Relaxed);
    }

    /// Takes one request from the app's rate.
    pub(crate) fn take_request(&self, now: impl FnOnce() -> u64) -> bool {
        let Some(per_second) = self.options.limits.requests_per_second else { return true };
        let mut due = self.state.requests.lock();
        match PublishRate::new(per_second).take(*due, now()) {
            Some(next) => {
                *due = next;
                true
            }
            None => false,
        }
    }

    /// A cache channel's last event. An app that has no cache channels since a reload has none.
    pub(crate) fn cached(&self, channel: &str) -> Option<CachedEvent> {
        if !self.options.features.cache_channels {
            return None;
        }
        let cache = self.state.cache.lock();
        cache.get(channel, Instant::now()).cloned()
    }
}

/// A duration in nanoseconds, at most some centuries.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// A channel to which an event is published.
pub(crate) struct EventTarget<'a> {
    app: Arc<LiveApp>,
    pub(crate) channel: Cow<'a, str>,
    pub(crate) is_cache: bool,
}

impl<'a> EventTarget<'a> {
    /// An app's channel, whose name was checked.
    fn new(app: Arc<LiveApp>, channel: Cow<'a, str>) -> Self {
        let is_cache = ChannelKind::from_name(&channel).is_cache && app.options.features.cache_channels;
        Self { app, channel, is_cache }
    }

    fn insert(&self, message: &Prepared, version: u64, origin: EventOrigin, at: Instant) {
        self.lock_cache().insert(&self.channel, message.clone(), version, origin, self.bounds(), at);
    }

    /// A cache channel's retained event.
    pub(crate) fn retained(&self) -> Option<RetainedEvent> {
        let now = Instant::now();
        let known = self.is_cache.then(|| self.lock_cache().get(&self.channel, now).cloned()).flatten()?;
        let age = now.saturating_duration_since(known.at);
        Some(RetainedEvent { message: known.message, origin: known.origin, age })
    }

    /// Notes that the cache channel has no event. Returns whether to report it.
    pub(crate) fn note_miss(&self) -> bool {
        self.lock_cache().note_miss(&self.channel, Instant::now())
    }

    fn lock_cache(&self) -> MutexGuard<'_, EventCache> {
        self.app.state.cache.lock()
    }

    fn bounds(&self) -> CacheBounds {
        let limits = &self.app.options.limits;
        CacheBounds {
            time: limits.cache_time,
            channels: limits.cached_channels,
            bytes: limits.cached_channels.saturating_mul(limits.event_data),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apps::app::PusherFeatures;

    #[test]
    fn own_events_are_those_that_this_node_has_published() {
        let live = LiveApps::default();
        let app = PusherApp::new("1", "k", "s").with_topics("chat");
        live.replace(&PusherApps::new([app]).unwrap());
        let restore = |topic: &str, origin, age| {
            let message = Prepared::text(topic);
            live.restore(&live.target(topic).unwrap(), &message, origin, Duration::from_secs(age)).unwrap()
        };
        for channel in ["chat.cache-a", "chat.cache-b", "chat.cache-c"] {
            live.retain(&live.target(channel).unwrap(), &Prepared::text("own"), None);
            let retained = Instant::now();
            while retained.elapsed().is_zero() {}
        }
        let is_own = |channel| {
            let event = live.target(channel).unwrap().retained().unwrap();
            matches!(event.origin, EventOrigin::ThisNode)
        };
        let origin = NodePublicationId { node: 1, start: 1, number: 1, index: 0 };
        live.retain(&live.target("chat.cache-c").unwrap(), &Prepared::text("of another node"), Some(origin));
        // With and without the message in which another node has published the event.
        restore("chat.cache-d", Some(origin), 1);
        restore("chat.cache-e", None, 1);
        assert_eq!(
            live.own_events(Duration::from_secs(100)),
            ["chat.cache-b", "chat.cache-a"],
            "the youngest first"
        );
        let all = ["chat.cache-a", "chat.cache-b", "chat.cache-c", "chat.cache-d", "chat.cache-e"];
        assert_eq!(all.map(is_own), [true, true, false, false, false]);
    }

    #[test]
    fn retained_events_are_unreadable_while_the_app_has_no_cache_channels() {
        let live = LiveApps::default();
        let apps = |cache_channels| {
            let features = PusherFeatures { cache_channels, ..PusherFeatures::default() };
            let app = PusherApp::new("1", "k", "s").with_topics("chat").with_features(features);
            PusherApps::new([app]).unwrap()
        };
        live.replace(&apps(true));
        live.retain(&live.target("chat.cache-a").unwrap(), &Prepared::text("m"), None);
        for (cache_channels, is_readable) in [(false, false), (true, true)] {
            live.replace(&apps(cache_channels));
            assert_eq!(live.app("1").unwrap().cached("cache-a").is_some(), is_readable);
            assert_eq!(live.target("chat.cache-a").unwrap().retained().is_some(), is_readable);
        }
    }

    #[test]
    fn apps_are_replaced_and_keep_their_state() {
        let live = LiveApps::default();
        let limits = |connections| crate::PusherLimits {
            connections: Some(connections),
            requests_per_second: Some(2),
            ..Default::default()
        };
        let apps = |connections| {
            let one = PusherApp::new("1", "k1", "s").with_limits(limits(connections));
            PusherApps::new([one, PusherApp::new("2", "k2", "s").with_topics("chat")]).unwrap()
        };
        live.replace(&apps(1));
        let first = live.app_of_key("k1").unwrap();
        assert!(first.add_connection() && !first.add_connection());
        live.replace(&apps(2));
        assert_ne!(live.generation(), first.generation);
        let second = live.app("1").unwrap();
        assert!(second.add_connection() && !second.add_connection(), "the first connection counts");
        assert_eq!([0, 0, 0].map(|now| second.take_request(|| now)), [true, true, false]);
        let channel = |topic| live.target(topic).map(|target| (target.channel, target.is_cache));
        assert_eq!(channel("chat.cache-a"), Some(("cache-a".into(), true)));
        assert_eq!(channel("$pusher.1.c.a%b"), Some(("a.b".into(), false)));
        assert_eq!((channel("chats.a"), channel("chat"), channel("$pusher.3.c.a")), (None, None, None));
        let (target, second) = (live.target("chat.cache-a").unwrap(), Duration::from_secs(1));
        let known = || target.retained().map(|event| event.message.payload().to_vec());
        let retain = |target: &EventTarget<'_>, text: &'static str, number: Option<u64>| {
            let origin = number.map(|number| NodePublicationId { node: 7, start: 1, number, index: 1 });
            live.retain(target, &Prepared::text(text), origin)
        };
        assert_eq!(retain(&target, "known", None), Some(1));
        let from = NodePublicationId { node: 7, start: 1, number: 5, index: 1 };
        let restore = |text: &'static str, age| live.restore(&target, &Prepared::text(text), Some(from), age);
        assert_eq!(restore("earlier", second), None, "there is a later event");
        assert_eq!(restore("known", Duration::ZERO), None, "it is known");
        assert_eq!(known().as_deref(), Some(&b"known"[..]));
        assert_eq!(restore("later", Duration::ZERO), Some(2));
        assert_eq!(known().as_deref(), Some(&b"later"[..]));
        assert_eq!(restore("expired", 3_600 * second), None, "it has expired");
        assert_eq!(retain(&target, "later", Some(5)), None, "the message itself arrives later");
        assert_eq!(retain(&target, "before", Some(4)), None, "so does an earlier one");
        assert_eq!(known().as_deref(), Some(&b"later"[..]));
        assert_eq!(retain(&target, "later", Some(6)), Some(3), "the node has published it again");
        let next = NodePublicationId { number: 6, index: 2, ..from };
        assert_eq!(live.retain(&target, &Prepared::text("of the same message"), Some(next)), Some(4));
        let other = NodePublicationId { node: 8, ..from };
        assert_eq!(live.retain(&target, &Prepared::text("of another node"), Some(other)), Some(5));
        live.replace(&PusherApps::default());
        live.replace(&apps(1));
        let target = live.target("chat.cache-a").unwrap();
        assert!(target.retained().is_none() && retain(&target, "again", None) > Some(5));
        live.replace(&PusherApps::default());
        assert!(live.app("1").is_none() && channel("chat.a").is_none() && live.is_empty());
    }
}
