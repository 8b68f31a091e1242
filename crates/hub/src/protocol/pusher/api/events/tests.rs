//! Events for several streams.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use sinews_stream::{StreamConfig, Streams, StreamsConfig};

use super::*;
use crate::model::problem::code;
use crate::streams::options::CreationRules;
use crate::streams::service::StreamPatterns;

#[test]
fn events_of_a_request_are_appended_if_the_queues_have_space_for_all() {
    let directory = tempfile::tempdir().unwrap();
    let config = StreamsConfig::default().with_writers(0).with_max_pending(4_096);
    let (streams, _) = Streams::open(directory.path(), config).unwrap();
    let patterns = StreamPatterns { topics: vec![">".to_owned()].into(), ..StreamPatterns::default() };
    let rules = CreationRules::default();
    let store =
        StreamService::new(StreamConfig::default(), patterns, 1 << 20, None, rules, Default::default());
    store.install(streams.clone());
    for name in ["a", "b"] {
        streams.create(name, &StreamConfig::default()).unwrap();
    }
    let pending = |name: &str| streams.stream(name).unwrap().partition(0).unwrap().statistics().pending;
    let send = |events: &[(&str, usize)]| {
        let event = |(topic, size): &(&str, usize)| {
            let data = format!("\"{}\"", "x".repeat(*size));
            (
                topic.to_string(),
                PublishedContent::from_server("e", &data, None, None).message().clone(),
                String::new(),
            )
        };
        let events = events.iter().map(event).collect();
        let stored = pin!(store_events(Arc::clone(&store), events, Rights::for_app("3")));
        stored.poll(&mut Context::from_waker(Waker::noop()))
    };
    assert!(send(&[("a", 10), ("b", 10)]).is_pending(), "the log writes on demand");
    assert!(send(&[("b", 2_500)]).is_pending());
    assert!(send(&[("a", 10), ("b", 10)]).is_pending(), "the queue of b is more than half full");
    let before = (pending("a"), pending("b"));
    let waiters = || streams.stream("b").unwrap().partition(0).unwrap().statistics().waiters;
    for events in [&[("a", 10), ("b", 2_500)][..], &[("a", 10), ("b", 700), ("b", 700), ("b", 700)]] {
        let Poll::Ready(Err(busy)) = send(events) else { panic!("the queue of b is too short") };
        assert_eq!((busy.code, (pending("a"), pending("b"))), (code::TOO_MANY, before), "none is appended");
    }
    assert_eq!(waiters(), 0, "a rejected request waits for no space");
    assert!(send(&[("a", 10)]).is_pending(), "the queue of a is not full");
    store.close();
}
