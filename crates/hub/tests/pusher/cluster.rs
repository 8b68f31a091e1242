//! Apps of several nodes, over a broker in this process.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_hub::{ClusterOptions, Hub};

use crate::broker::{FakeBroker, WireProtocol};
use crate::client::{Client, api, app, policy};
use crate::support::{TIMEOUT, TestHub};

fn node(broker: &FakeBroker) -> TestHub {
    let options = ClusterOptions::parse(&broker.url()).unwrap();
    TestHub::built(Hub::builder().access(policy([app().with_client_events(true)])).cluster(options))
}

fn for_both(test: impl Fn(&FakeBroker, [TestHub; 2])) {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        test(&broker, [node(&broker), node(&broker)]);
    }
}

/// Polls a node until an answer of its HTTP API is this one.
pub(crate) fn until(node: &TestHub, path: &str, expected: &Value) {
    let begin = Instant::now();
    loop {
        let (_, answer) = api(node, "GET", path, "", "");
        if answer == *expected {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "{answer}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

fn users(ids: &[&str]) -> Value {
    json!({ "users": ids.iter().map(|id| json!({ "id": id })).collect::<Vec<_>>() })
}

fn expect_member(client: &mut Client, event: &str, id: &str) {
    let (_, data) = client.expect(&format!("pusher_internal:{event}"));
    assert_eq!(data["user_id"], id);
}

#[test]
fn pusher_6_4_members_are_those_of_the_cluster() {
    for_both(|_, nodes| {
        let path = "/apps/3/channels/presence-a/users";
        let (mut one, mut two) = (Client::new(&nodes[0]), Client::new(&nodes[1]));
        one.join("presence-a", "1");
        until(&nodes[1], path, &users(&["1"]));
        let roster = two.join("presence-a", "2");
        assert_eq!(roster["presence"]["ids"], json!(["1", "2"]));
        expect_member(&mut one, "member_added", "2");
        // The same user at another node: neither its join nor the end of its first connection is reported.
        let mut same = Client::new(&nodes[1]);
        same.join("presence-a", "1");
        // Changes of a node arrive in their order, so the first node knows of both.
        let mut four = Client::new(&nodes[1]);
        four.join("presence-a", "4");
        until(&nodes[0], path, &users(&["1", "2", "4"]));
        let mut three = Client::new(&nodes[0]);
        drop(one);
        three.join("presence-a", "3");
        expect_member(&mut two, "member_added", "4");
        expect_member(&mut two, "member_added", "3");
        until(&nodes[1], path, &users(&["1", "2", "3", "4"]));
        drop(same);
        expect_member(&mut two, "member_removed", "1");
        expect_member(&mut three, "member_removed", "1");
        // A node that stops takes its members along.
        let [first, second] = nodes;
        drop(second);
        // In any order: the node ends its connections on two threads.
        let mut removed =
            [(); 2].map(|()| three.expect("pusher_internal:member_removed").1["user_id"].clone());
        removed.sort_by_key(Value::to_string);
        assert_eq!(removed, ["2", "4"]);
        until(&first, path, &users(&["3"]));
    });
}

#[test]
fn pusher_8_6_7_6_and_9_1_events_and_terminations_reach_all_nodes() {
    for_both(|broker, nodes| {
        let (mut one, mut two, mut three) =
            (Client::new(&nodes[0]), Client::new(&nodes[1]), Client::new(&nodes[1]));
        for client in [&mut one, &mut two, &mut three] {
            client.subscribe("private-a");
        }
        broker.wait_for("sinews.t.=24pusher.3.c.private-a", 2);
        let body = json!({
            "name": "e", "channel": "private-a", "data": "1", "socket_id": two.socket_id,
        });
        assert_eq!(api(&nodes[0], "POST", "/apps/3/events", "", &body.to_string()), (200, json!({})));
        one.expect("e");
        three.expect("e");
        three.trigger("client-e", "private-a", json!([1]));
        assert_eq!(one.expect("client-e").1, json!([1]));
        assert_eq!(two.expect("client-e").1, json!([1]), "the excluded client has received no other event");
        two.sign_in(&json!({ "id": "u" }));
        two.expect("pusher:signin_success");
        assert_eq!(api(&nodes[0], "POST", "/apps/3/users/u/terminate_connections", "", "{}").0, 200);
        two.expect_end(4009);
        three.ping();
    });
}
