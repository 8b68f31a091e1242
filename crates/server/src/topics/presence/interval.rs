//! Interval of the presence updates of a topic.

use std::fmt;
use std::time::Duration;

use super::member::PRESENCE_INTERVAL;

/// Part of the interval for each watcher of the topic.
const PER_WATCHER: Duration = Duration::from_millis(1);

/// Interval between the presence updates of a topic ([`Server::presence_interval`](crate::Server::presence_interval)).
///
/// It is 1 ms for each watcher on this server, within a minimum and a maximum. So the updates of a topic take at most
/// about 1,000 deliveries a second, however many members join and leave. The first change after a quiet interval is
/// published at once.
///
/// ```
/// use std::time::Duration;
///
/// use sinews_server::PresenceInterval;
///
/// let interval = PresenceInterval::new(Duration::from_millis(100), Duration::from_secs(5));
/// assert_eq!(interval.for_watchers(3), Duration::from_millis(100));
/// assert_eq!(interval.for_watchers(2_000), Duration::from_secs(2));
/// assert_eq!(interval.for_watchers(1_000_000), Duration::from_secs(5));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresenceInterval {
    min: Duration,
    max: Duration,
}

impl PresenceInterval {
    /// Longest interval: 60 s. Longer ones are shortened.
    pub const MAX: Duration = Duration::from_secs(60);

    /// Maximum of [`default`](Self::default): 5 s.
    pub const DEFAULT_MAX: Duration = Duration::from_secs(5);

    /// Creates an interval from its minimum and its maximum. A maximum below the minimum has no effect.
    #[must_use]
    pub fn new(min: Duration, max: Duration) -> Self {
        let min = min.min(Self::MAX);
        Self { min, max: max.clamp(min, Self::MAX) }
    }

    /// Returns the interval of a topic with this number of watchers.
    #[must_use]
    pub fn for_watchers(self, watchers: usize) -> Duration {
        let watchers = u32::try_from(watchers).unwrap_or(u32::MAX);
        PER_WATCHER.saturating_mul(watchers).clamp(self.min, self.max)
    }
}

/// From [`Topics::PRESENCE_INTERVAL`](crate::Topics::PRESENCE_INTERVAL) to
/// [`DEFAULT_MAX`](PresenceInterval::DEFAULT_MAX).
impl Default for PresenceInterval {
    fn default() -> Self {
        Self::new(PRESENCE_INTERVAL, Self::DEFAULT_MAX)
    }
}

/// Returns the interval of each topic.
pub(crate) struct PresenceIntervals(IntervalFn);

type IntervalFn = Box<dyn Fn(&str) -> PresenceInterval + Send + Sync>;

impl PresenceIntervals {
    pub(crate) fn new(of: impl Fn(&str) -> PresenceInterval + Send + Sync + 'static) -> Self {
        Self(Box::new(of))
    }

    pub(super) fn for_topic(&self, topic: &str) -> PresenceInterval {
        (self.0)(topic)
    }
}

impl Default for PresenceIntervals {
    fn default() -> Self {
        Self::new(|_| PresenceInterval::default())
    }
}

impl fmt::Debug for PresenceIntervals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresenceIntervals")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interval_grows_with_watchers_between_its_limits() {
        let millis = Duration::from_millis;
        let default = PresenceInterval::default();
        assert_eq!(
            [0, 100, 101, 9_999].map(|watchers| default.for_watchers(watchers)),
            [100, 100, 101, 5_000].map(millis)
        );
        assert_eq!(default.for_watchers(usize::MAX), millis(5_000));
        let fixed = PresenceInterval::new(millis(300), millis(0));
        assert_eq!([0, 1_000].map(|watchers| fixed.for_watchers(watchers)), [millis(300); 2]);
        assert_eq!(
            PresenceInterval::new(Duration::MAX, Duration::MAX).for_watchers(1),
            PresenceInterval::MAX
        );
    }
}
