use std::sync::mpsc::sync_channel;
use std::thread;

use sinews_server::{BoundServer, Router, Server};

use super::*;
use crate::apps::app::{PusherApp, PusherApps};
use crate::apps::live::LiveApps;
use crate::cluster::commands::REQUEST_TIMEOUT;
use crate::cluster::message::NodeId;
use crate::cluster::nodes::Heartbeat;
use crate::cluster::options::ClusterOptions;
use crate::cluster::times::NODE_TIMEOUT;
use crate::connections::ConnectionCounts;
use crate::hub::encodings;
use crate::model::MessageContent;
use crate::model::nodes::OtherNodes as _;
use crate::model::publication::Publication;

const TOPIC: &str = "kept.cache-a";

/// A node that is connected, and its app.
fn connected_node() -> (Arc<Cluster>, Arc<LiveApps>, HubTopics) {
    let options = ClusterOptions::parse("nats://127.0.0.1:1").unwrap();
    let cluster = Cluster::new(options, &[], None).unwrap();
    cluster.connected(1 << 20, Instant::now(), Vec::new());
    let apps = Arc::new(LiveApps::default());
    apps.replace(&PusherApps::new([PusherApp::new("1", "key", "secret").with_topics("kept")]).unwrap());
    let hub = HubTopics::default().with_encodings(encodings(&apps));
    (Arc::new(cluster), apps, hub)
}

/// The messages that wait for the broker.
fn sent(cluster: &Cluster) -> String {
    let mut bytes = Vec::new();
    cluster.outbox.take(&mut bytes, 0);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn server() -> BoundServer {
    Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap()
}

/// A node joins.
fn join(cluster: &Cluster, id: u128) -> NodeId {
    let node = NodeId { id, start: 0 };
    assert!(cluster.lock_nodes().receive(node, 1, Instant::now()));
    let heartbeat = cluster.heartbeat(ConnectionCounts::default(), 0);
    cluster.note_heartbeat(node, Heartbeat { name: id.to_string(), ..heartbeat }, Instant::now());
    node
}

/// The lost node's name is in all results for some minutes.
#[test]
fn event_is_requested_again_only_if_a_node_may_still_answer() {
    let (cluster, _, hub) = connected_node();
    let (server, mut pending) = (server(), PendingWork::new(&cluster.outbox));
    let mut exchange = || exchange_events(&mut pending, &cluster, &hub, &server.publisher());
    let is_requested = |topic| cluster.request_event(topic, None, Duration::from_secs(3_600));
    let lost = join(&cluster, 1);
    assert_eq!(cluster.expire_nodes(Instant::now() + 2 * NODE_TIMEOUT, true), [lost]);
    let live = join(&cluster, 2);
    assert!(is_requested("kept.cache-a") && is_requested("kept.cache-b"));
    exchange();
    cluster.lock_requests().complete(1, live, Value::Null);
    cluster.lock_requests().expire(Instant::now() + REQUEST_TIMEOUT);
    exchange();
    assert!(!is_requested("kept.cache-a"), "all nodes have answered");
    assert!(is_requested("kept.cache-b"));
}

#[test]
fn missed_events_are_sent_again_once_when_all_nodes_have_returned() {
    let (cluster, apps, hub) = connected_node();
    apps.retain(&apps.target(TOPIC).unwrap(), &Prepared::text("m"), None);
    let (mut missed, first, step) = (MissedEvents::default(), Instant::now(), Duration::from_millis(1));
    let is_sent = || sent(&cluster).contains("retain_event");
    missed.send_again(&cluster, &hub, first + RETURN_TIME);
    assert!(!is_sent(), "there was no outage");
    let begin = cluster.lock_status().since;
    missed.connected(&cluster, &hub, first);
    assert!(is_sent());
    assert_eq!(missed.again, Some((first + RETURN_TIME, begin)));
    // Another outage, before all nodes have returned from the first one.
    let second = first + RETURN_TIME - step;
    cluster.confirmed(first);
    cluster.disconnected("test", second);
    cluster.connected(1 << 20, second, Vec::new());
    missed.connected(&cluster, &hub, second);
    let due = second + RETURN_TIME;
    assert!(is_sent());
    assert_eq!(missed.again, Some((due, begin)));
    missed.send_again(&cluster, &hub, due - step);
    assert!(!is_sent());
    missed.send_again(&cluster, &hub, due);
    assert!(is_sent());
    missed.send_again(&cluster, &hub, due + RETURN_TIME);
    assert!(!is_sent());
    // The outage after that is a new one.
    cluster.confirmed(second);
    cluster.disconnected("test", due);
    missed.connected(&cluster, &hub, due);
    assert_eq!(missed.again, Some((due + RETURN_TIME, due)));
}

/// Before the event itself, the other nodes would deliver the event twice.
#[test]
fn missed_event_follows_its_publication() {
    let (cluster, apps, hub) = connected_node();
    let target = apps.target(TOPIC).unwrap();
    for number in 100..200 {
        sent(&cluster);
        let event = format!("event-{number}");
        let publication = hub.lock_last_event(TOPIC);
        apps.retain(&target, &Prepared::text(event.clone()), None);
        let (started, has_started) = sync_channel(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                started.send(()).unwrap();
                send_events_since(Instant::now(), &cluster, &hub, Instant::now());
            });
            has_started.recv().unwrap();
            thread::yield_now();
            assert_eq!(cluster.outbox.waiting(), 0, "a publication is under way");
            let content = MessageContent::Event(event.clone().into());
            cluster.publish(&Publication::new(TOPIC, &(&content).into()), true);
            drop(publication);
        });
        let sent = sent(&cluster);
        let found: Vec<usize> = sent.match_indices(&event).map(|(at, _)| at).collect();
        let resent = sent.find("retain_event").expect("it is sent again");
        assert!(matches!(found[..], [first, second] if first < resent && resent < second), "{sent}");
    }
}

#[test]
fn each_topic_is_requested_once_after_a_login() {
    let (requests, login) = (CachedEventRequests::default(), Instant::now());
    assert!(requests.add("a", login) && !requests.add("a", login) && requests.add("b", login));
    assert_eq!(requests.take(), ["a", "b"]);
    assert!(!requests.add("a", login) && requests.take().is_empty());
    requests.forget("a");
    assert!(requests.add("a", login) && requests.take() == ["a"]);
    assert!(requests.add("a", login + Duration::from_secs(1)));
    let added = (0..2 * WAITING_MAX).filter(|number| requests.add(&number.to_string(), login));
    assert_eq!(added.count(), WAITING_MAX - 1, "further ones are not requested now");
}
