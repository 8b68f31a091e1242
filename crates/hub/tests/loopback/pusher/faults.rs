//! Regressions of faults of other servers, each with the number of its issue. The table in dev/conformance/PUSHER.md has
//! the tests of further faults.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use sinews_hub::{Hub, PusherApp};
use sinews_testkit::until_equal;

use super::client::{
    Client, KEY, QUERY, SECRET, api, app, connected, hub, hub_of, metric, policy, request, signed_target,
    trigger,
};
use crate::cluster::options;
use crate::support::TestHub;
use crate::support::fake_broker::{FakeBroker, WireProtocol};

/// Waits until a metric has a value.
pub(crate) fn wait_for(hub: &TestHub, name: &str, value: f64) {
    until_equal(name, value, || metric(hub, name));
}

/// The server's memory grows, and its processor stays busy after load (laravel/reverb #116, #145, #148 and #331).
#[test]
fn pusher_12_nothing_remains_of_clients_that_have_gone() {
    let hub = hub(|app| app.with_client_events(true).with_subscription_counts(true));
    for round in 0..3 {
        let mut clients: Vec<Client> = (0..40).map(|_| Client::new(&hub)).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.sign_in(&json!({ "id": format!("u{number}"), "watchlist": ["u0"] }));
            for channel in ["a", "private-b", "cache-c"] {
                client.request_subscription(channel, None);
                client.request_subscription(&format!("{channel}-{round}-{number}"), None);
            }
            let member = json!({ "user_id": number.to_string() }).to_string();
            client.request_subscription("presence-d", Some(&member));
            client.trigger("client-e", "private-b", json!(number));
        }
        trigger(&hub, "a", "e", "1");
        // Half of the clients disappear without a Close.
        for (number, client) in clients.into_iter().enumerate() {
            if number % 2 == 0 {
                client.end();
            }
        }
        for (name, value) in [
            ("sinews_pusher_connections", 0.0),
            ("sinews_presence_members", 0.0),
            ("sinews_queued_bytes", 0.0),
        ] {
            wait_for(&hub, name, value);
        }
        super::cluster::until(&hub, "/apps/3/channels", &json!({ "channels": {} }));
    }
    let turns =
        || [0, 1].map(|thread| metric(&hub, &format!("sinews_loop_turns_total{{thread=\"{thread}\"}}")));
    let before = turns();
    // Elapsed time under test: a loop that is not idle makes thousands of turns.
    thread::sleep(Duration::from_millis(300));
    let made: f64 = turns().iter().zip(before).map(|(after, before)| after - before).sum();
    assert!(made < 1_000.0, "{made} turns of event loops without clients");
}

/// Two installations at one broker hear each other (laravel/reverb #305): prefixes separate those with the same app.
#[test]
fn pusher_12_clusters_with_a_prefix_do_not_hear_each_other() {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        let node = |prefix: &str| {
            let options = options(&format!("{}?prefix={prefix}", broker.url()));
            let app = app().with_client_events(true);
            TestHub::built(Hub::builder().config(policy([app])).cluster(options))
        };
        let nodes = ["one", "one", "two", "two"].map(node);
        let mut clients = nodes.each_ref().map(Client::new);
        for (client, user) in clients.iter_mut().zip(["1", "2", "3", "4"]) {
            client.subscribe("private-a");
            client.sign_in(&json!({ "id": "u" }));
            client.expect("pusher:signin_success");
            client.join(&format!("presence-{user}"), user);
        }
        for prefix in ["one", "two"] {
            broker.wait_for(&format!("{prefix}.t.=24pusher.3.c.private-a"), 2);
        }
        // Over both nodes of a cluster, and no further.
        for node in &nodes {
            super::cluster::until(node, "/apps/3/connections", &json!({ "connections": 2 }));
        }
        trigger(&nodes[0], "private-a", "e", "1");
        clients[2].trigger("client-e", "private-a", json!(2));
        assert_eq!(clients[0].expect("e").1, 1);
        assert_eq!(clients[1].expect("e").1, 1);
        assert_eq!(clients[3].expect("client-e").1, 2, "the event of the other cluster was not received");
        let terminate = "/apps/3/users/u/terminate_connections";
        assert_eq!(api(&nodes[0], "POST", terminate, "", "{}").0, 200);
        let [one, two, mut three, mut four] = clients;
        one.expect_end(4009);
        two.expect_end(4009);
        three.ping();
        four.ping();
    }
}

/// An app hears another one, on a node and through a broker (laravel/reverb #305).
#[test]
fn pusher_12_apps_do_not_hear_each_other() {
    for kind in [WireProtocol::Nats, WireProtocol::Redis] {
        let broker = FakeBroker::start(kind);
        let nodes = [(); 2].map(|()| {
            let apps = [app(), PusherApp::new("4", "other", SECRET)].map(|app| app.with_client_events(true));
            let options = options(&broker.url());
            TestHub::built(Hub::builder().config(policy(apps)).cluster(options))
        });
        let mut own = [&nodes[0], &nodes[1]].map(Client::new);
        let mut others = [&nodes[0], &nodes[1]].map(|node| Client::at(node, &format!("/app/other?{QUERY}")));
        for client in &mut own {
            client.subscribe("private-a");
        }
        for client in &mut others {
            let auth = client.auth("private-a").replace(KEY, "other");
            client.send("pusher:subscribe", json!({ "channel": "private-a", "auth": auth }));
            client.subscribed("private-a");
        }
        broker.wait_for("sinews.t.=24pusher.3.c.private-a", 2);
        broker.wait_for("sinews.t.=24pusher.4.c.private-a", 2);
        trigger(&nodes[0], "private-a", "e", "3");
        for client in &mut own {
            assert_eq!(client.expect("e").1, 3);
        }
        others[0].trigger("client-e", "private-a", json!(4));
        assert_eq!(others[1].expect("client-e").1, 4, "events of the app 3 have been received");
        own[0].join("presence-b", "1");
        let member = r#"{"user_id":"2"}"#;
        let auth = others[0].auth(&format!("presence-b:{member}")).replace(KEY, "other");
        let data = json!({ "channel": "presence-b", "auth": auth, "channel_data": member });
        others[0].send("pusher:subscribe", data);
        assert_eq!(others[0].subscribed("presence-b")["presence"]["ids"], json!(["2"]));
        // 9.8, over both nodes.
        for node in &nodes {
            // A node that does not know the other one yet counts its own.
            super::cluster::until(node, "/apps/3/connections", &json!({ "connections": 2 }));
        }
        trigger(&nodes[1], "private-a", "last", "3");
        for client in &mut own {
            client.expect("last");
        }
        for client in &mut others {
            client.ping();
        }
    }
}

/// Errors whose `data` is a string (laravel/reverb: Server.php), and rejected subscriptions without an event of their channel
/// (laravel/reverb: EventHandler.php).
#[test]
fn pusher_12_errors_are_objects_and_name_their_channel() {
    let (hub, mut client) = connected(|app| app.with_client_events(true));
    client.send_text("{");
    let error = client.receive();
    assert!(error["event"] == "pusher:error" && error["data"].is_object(), "{error}");
    client.send("pusher:subscribe", json!({ "channel": "private-a", "auth": "" }));
    let error = client.receive();
    assert_eq!(error["event"], "pusher:subscription_error");
    assert!(error["channel"] == "private-a" && error["data"].is_object(), "{error}");
    client.trigger("client-e", "private-a", json!(1));
    let error = client.receive();
    assert!(error["channel"] == "private-a" && error["data"]["code"] == 4301, "{error}");
    let mut rejected = Client::open(&hub, "/app/unknown?protocol=7");
    let error = rejected.receive();
    assert!(error["data"].is_object() && error["data"]["code"] == 4001, "{error}");
}

/// Members that are missing in their own list, first joins that are not reported, and members that stay after the end of
/// their connection (sockudo 4.3.0 and pull request 75, soketi #608 and #735).
#[test]
fn pusher_12_members_are_complete_from_the_first_join_to_the_last_disconnect() {
    let (hub, mut watcher) = connected(|app| app);
    watcher.join("presence-a", "w");
    for round in 0..5 {
        let id = round.to_string();
        let mut client = Client::new(&hub);
        let members = client.join("presence-a", &id)["presence"].clone();
        assert_eq!(members["count"], 2, "{members}");
        assert!(members["hash"].get(&id).is_some() && members["hash"].get("w").is_some(), "{members}");
        assert_eq!(watcher.expect("pusher_internal:member_added").1["user_id"], id);
        // Without a Close and without an unsubscription.
        drop(client);
        assert_eq!(watcher.expect("pusher_internal:member_removed").1["user_id"], id);
    }
    let (_, users) = api(&hub, "GET", "/apps/3/channels/presence-a/users", "", "");
    assert_eq!(users, json!({ "users": [{ "id": "w" }] }));
}

/// A captured request without its body, with another one, or at another path (pylon: src/auth/rest.rs).
#[test]
fn pusher_9_18_captured_requests_are_valid_for_their_own_body_and_path() {
    let hub = hub_of([app(), PusherApp::new("4", "other", "other")]);
    let body = json!({ "name": "e", "channel": "a", "data": "1" }).to_string();
    let target = signed_target("POST", "/apps/3/events", "", &body);
    assert_eq!(request(&hub, "POST", &target, &body).0, 200);
    let query = "name=forged&channel=a&data=1";
    for (method, target, body) in [
        ("POST", target.clone(), ""),
        ("POST", format!("{target}&{query}"), ""),
        ("POST", target.clone(), r#"{"name":"forged","channel":"a","data":"1"}"#),
        ("POST", target.replace("/apps/3/events", "/apps/3/batch_events"), &*body),
        ("POST", target.replace("/apps/3/", "/apps/4/"), &*body),
        ("POST", format!("{target}&AUTH_KEY=other"), &*body),
        ("GET", target.replace("/events", "/channels"), ""),
    ] {
        let (status, answer) = request(&hub, method, &target, body);
        assert_eq!((status, answer.is_string()), (401, true), "{method} {target}: {answer}");
    }
}

/// Numbers that are missing in lists (sockudo 4.3.1), and answers that libraries do not expect (soketi: `{"ok":true}`).
#[test]
fn pusher_12_lists_have_numbers_and_answers_are_those_of_the_hosted_service() {
    let (hub, mut client) = connected(|app| app.with_subscription_counts(true));
    client.subscribe("a");
    let list = |query: &str| api(&hub, "GET", "/apps/3/channels", query, "").1["channels"].clone();
    assert_eq!(list("info=subscription_count"), json!({ "a": { "subscription_count": 1 } }));
    assert_eq!(list(""), json!({ "a": {} }));
    let post = |path: &str, body: Value| api(&hub, "POST", path, "", &body.to_string());
    let event = json!({ "name": "e", "channel": "a", "data": "1" });
    assert_eq!(post("/apps/3/events", event.clone()), (200, json!({})));
    assert_eq!(post("/apps/3/batch_events", json!({ "batch": [event] })), (200, json!({})));
    assert_eq!(post("/apps/3/users/u/terminate_connections", json!({})), (200, json!({})));
}
