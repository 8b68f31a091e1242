//! Notifications about names and patterns with subscribers, for a program that forwards publications to other servers.

use std::fmt;
use std::sync::{Arc, OnceLock};

/// Observes the topics and patterns that have subscribers: [`Publisher::observe_subscriptions`].
///
/// [`Publisher::observe_subscriptions`]: crate::Publisher::observe_subscriptions
///
/// The methods are called while the list of topics is locked, so they must be short, and must not publish or subscribe.
/// Calls for one name are in order.
pub trait SubscriptionObserver: Send + Sync {
    /// A topic or pattern has a first subscriber. May be repeated.
    fn subscribed(&self, name: &Arc<str>);

    /// A topic or pattern has no subscriber left on any thread. May be repeated.
    fn unsubscribed(&self, name: &Arc<str>);
}

/// The observer, if there is one.
#[derive(Default)]
pub(super) struct ObserverSlot(OnceLock<Arc<dyn SubscriptionObserver>>);

impl ObserverSlot {
    pub(super) fn subscribed(&self, name: &Arc<str>) {
        if let Some(observer) = self.0.get() {
            observer.subscribed(name);
        }
    }

    pub(super) fn unsubscribed(&self, name: &Arc<str>) {
        if let Some(observer) = self.0.get() {
            observer.unsubscribed(name);
        }
    }
}

impl fmt::Debug for ObserverSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ObserverSlot")
    }
}

impl ObserverSlot {
    /// Sets the observer; returns whether it is the first.
    pub(super) fn set(&self, observer: Arc<dyn SubscriptionObserver>) -> bool {
        self.0.set(observer).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;

    use super::*;
    use crate::topics::{Directory, HistoryPolicy, TopicRule, TopicRules};

    #[derive(Default)]
    struct Recorded(Mutex<Vec<String>>);

    impl SubscriptionObserver for Recorded {
        fn subscribed(&self, name: &Arc<str>) {
            self.0.lock().push(format!("+{name}"));
        }

        fn unsubscribed(&self, name: &Arc<str>) {
            self.0.lock().push(format!("-{name}"));
        }
    }

    #[test]
    fn first_and_last_subscribers_of_names_and_patterns_are_observed() {
        let rule = TopicRule::new("kept").with_history(HistoryPolicy::new(1));
        let directory = Directory::new(2, TopicRules::new(vec![rule]));
        let recorded = Arc::new(Recorded::default());
        assert!(directory.observer.set(recorded.clone()));
        for name in ["a", "b.*", "kept"] {
            let entries = [0, 1].map(|thread| directory.subscribe(name, thread).unwrap());
            for (thread, entry) in entries.iter().enumerate() {
                entry.set_subscribers(thread, 0);
                directory.release(entry);
            }
        }
        let expected = ["+a", "+a", "-a", "+b.*", "-b.*", "+kept", "+kept", "-kept"];
        assert_eq!(*recorded.0.lock(), expected, "also of a topic that is retained");
    }
}
