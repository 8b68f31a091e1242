//! Waiting for a topic's relay.

use std::task::Waker;

use sinews_stream::{StreamConfig, Streams, StreamsConfig};

use super::super::block_on::block_on;
use super::super::options::CreationRules;
use super::*;
use crate::access::auth::Rights;
use crate::model::MessageContent;
use crate::streams::service::StreamPatterns;
use crate::streams::topic_append::append_to_topic;

/// Deletes a stream, and perhaps creates it again, while a client waits for its relay.
fn delete_while_waiting(is_recreated: bool) {
    let directory = tempfile::tempdir().unwrap();
    let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
    let patterns = StreamPatterns { topics: vec!["t".to_owned()].into(), ..StreamPatterns::default() };
    let rules = CreationRules::default();
    let store =
        StreamService::new(StreamConfig::default(), patterns, 1 << 20, None, rules, Default::default());
    store.install(streams);
    let publish = || {
        let content = MessageContent::Text("x".into());
        block_on(append_to_topic(&store, "t", content, None, Rights::all())).unwrap()
    };
    // The relay is not started, and stays behind the log.
    let published = publish();
    let position = Position { epoch: published.epoch, sequence: published.sequence };
    let start = Some(ReplayFrom::After(position));
    let mut waiting = Box::pin(ready(Arc::clone(&store), "t".to_owned(), start));
    let mut poll = || waiting.as_mut().poll(&mut task::Context::from_waker(Waker::noop()));
    assert!(poll().is_pending(), "the relay has not reached the position");
    store.delete_now("t").unwrap();
    if is_recreated {
        publish();
    }
    assert!(matches!(poll(), Poll::Ready(Ok(()))), "recreated: {is_recreated}");
    store.close();
}

#[test]
fn wait_for_the_relay_of_a_deleted_stream_ends() {
    delete_while_waiting(false);
    delete_while_waiting(true);
}
