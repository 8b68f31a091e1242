//! Users: sign-in, their events, their end, watchlists.

use serde_json::json;

use super::client::{Client, KEY, api, connected, hub, request, sign};
use crate::support::TestHub;

#[test]
fn pusher_7_1_and_7_2_sign_in_returns_the_user_data() {
    let (_hub, mut client) = connected(|app| app);
    let user_data = json!({ "id": "12345", "user_info": { "name": "ü" } });
    client.sign_in(&user_data);
    let message = client.receive();
    let expected =
        json!({ "event": "pusher:signin_success", "data": { "user_data": user_data.to_string() } });
    assert_eq!(message, expected);
    client.sign_in(&user_data);
    client.expect("pusher:signin_success");
}

#[test]
fn pusher_7_3_failed_sign_in_ends_the_connection_with_4009() {
    let hub = hub(|app| app);
    for user_data in [
        json!({ "id": "" }),
        json!({ "id": true }),
        json!({ "id": null }),
        json!({}),
        json!([]),
        json!({ "id": "😀".repeat(129) }),
    ] {
        let mut client = Client::new(&hub);
        client.sign_in(&user_data);
        client.expect_end(4009);
    }
    let mut client = Client::new(&hub);
    client.send(
        "pusher:signin",
        json!({ "auth": format!("{KEY}:{}", sign("x")), "user_data": "{\"id\":\"1\"}" }),
    );
    client.expect_end(4009);
    let mut client = Client::new(&hub);
    client.send("pusher:signin", json!({}));
    client.expect_end(4009);
    let mut client = Client::new(&hub);
    client.sign_in(&json!({ "id": "1" }));
    client.expect("pusher:signin_success");
    client.sign_in(&json!({ "id": "2" }));
    client.expect_end(4009);
}

#[test]
fn pusher_7_1_ids_of_users_may_be_numbers() {
    let hub = hub(|app| app);
    let (mut client, mut watcher) = (Client::new(&hub), Client::new(&hub));
    watcher.sign_in(&json!({ "id": 2, "watchlist": [1, "3"] }));
    watcher.expect("pusher:signin_success");
    let online = |name: &str, ids: &[&str]| json!([{ "name": name, "user_ids": ids }]);
    let changes = watcher.expect("pusher_internal:watchlist_events").1;
    assert_eq!(changes["events"], online("offline", &["1", "3"]));
    client.sign_in(&json!({ "id": 1 }));
    // As it came.
    assert_eq!(client.expect("pusher:signin_success").1, json!({ "user_data": "{\"id\":1}" }));
    assert_eq!(watcher.expect("pusher_internal:watchlist_events").1["events"], online("online", &["1"]));
    client.send("pusher:subscribe", json!({ "channel": "#server-to-user-1", "auth": "" }));
    client.subscribed("#server-to-user-1");
    let body = json!({ "name": "e", "channel": "#server-to-user-1", "data": "1" }).to_string();
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", &body), (200, json!({})));
    assert_eq!(client.expect("e").1, json!(1));
    // The string is the same user.
    client.sign_in(&json!({ "id": "1" }));
    client.expect("pusher:signin_success");
    let terminated = api(&hub, "POST", "/apps/3/users/1/terminate_connections", "", "");
    assert_eq!(terminated, (200, json!({})));
    client.expect_end(4009);
}

/// pusher-js emits `pusher:signin_error` by itself where its endpoint fails: it sends nothing then.
#[test]
fn pusher_7_8_failed_sign_in_is_an_error_of_the_connection_and_names_the_reason() {
    let served = hub(|app| app);
    let mut client = Client::new(&served);
    client.subscribe("a");
    client.ping();
    let auth = format!("{KEY}:{}", sign("x"));
    client.send("pusher:signin", json!({ "auth": auth, "user_data": "{\"id\":\"1\"}" }));
    assert_eq!(client.expect_end(4009), "the signature of the user is invalid");
    let mut client = Client::new(&served);
    client.sign_in(&json!({ "id": "" }));
    let reason = "user_data is not an object with an id of 1 to 128 characters";
    assert_eq!(client.expect_end(4009), reason);
}

#[test]
fn pusher_7_4_and_7_5_events_of_a_user_reach_all_its_connections() {
    let hub = hub(|app| app);
    for id in ["a b.*@example.com", "\"", &"😀".repeat(128)] {
        user_receives_events(&hub, id);
    }
}

/// Signs a user in on two of three connections, and sends it an event.
fn user_receives_events(hub: &TestHub, id: &str) {
    let channel = format!("#server-to-user-{id}");
    let mut clients = [(); 3].map(|()| Client::new(hub));
    for client in &mut clients[..2] {
        client.sign_in(&json!({ "id": id }));
        client.expect("pusher:signin_success");
        client.send("pusher:subscribe", json!({ "channel": channel, "auth": "" }));
        client.subscribed(&channel);
    }
    for target in [channel.as_str(), "#server-to-user-"] {
        clients[2].send("pusher:subscribe", json!({ "channel": target, "auth": "" }));
        assert_eq!(clients[2].expect("pusher:subscription_error").1["status"], 401);
    }
    clients[2].subscribe("a");
    // Each receives the event on its own channel.
    let body = json!({ "name": "e", "channels": [channel, "a"], "data": "{\"a\":1}" });
    assert_eq!(api(hub, "POST", "/apps/3/events", "", &body.to_string()), (200, json!({})));
    for client in &mut clients[..2] {
        assert_eq!(client.expect("e"), (channel.clone(), json!({ "a": 1 })));
    }
    assert_eq!(clients[2].expect("e"), ("a".to_owned(), json!({ "a": 1 })));
    for id in [String::new(), "😀".repeat(129)] {
        let body = json!({ "name": "e", "channel": format!("#server-to-user-{id}"), "data": "" });
        assert_eq!(api(hub, "POST", "/apps/3/events", "", &body.to_string()).0, 400);
    }
}

#[test]
fn pusher_4_8_ids_of_users_have_128_characters_of_any_size() {
    let hub = hub(|app| app);
    // Also two ids with the same first 127 characters.
    let (id, other) = ("😀".repeat(128), format!("{}😁", "😀".repeat(127)));
    let mut watcher = Client::new(&hub);
    watcher.sign_in(&json!({ "id": "w", "watchlist": [id, other] }));
    watcher.expect("pusher:signin_success");
    let mut change = |name: &str, ids: &[&String]| {
        let (_, data) = watcher.expect("pusher_internal:watchlist_events");
        assert_eq!(data["events"], json!([{ "name": name, "user_ids": ids }]));
    };
    change("offline", &[&id, &other]);
    let clients = [&id, &other].map(|id| {
        let mut client = Client::new(&hub);
        client.sign_in(&json!({ "id": id }));
        client.expect("pusher:signin_success");
        change("online", &[id]);
        client
    });
    let path: String = id.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let path = format!("/apps/3/users/{path}/terminate_connections");
    assert_eq!(api(&hub, "POST", &path, "", "{}"), (200, json!({})));
    let [client, mut stays] = clients;
    client.expect_end(4009);
    change("offline", &[&id]);
    stays.ping();
}

#[test]
fn pusher_7_6_and_9_7_connections_of_a_user_are_terminated() {
    let hub = hub(|app| app);
    let mut clients = [(); 3].map(|()| Client::new(&hub));
    for (client, id) in clients.iter_mut().zip(["1", "1", "2"]) {
        client.sign_in(&json!({ "id": id }));
        client.expect("pusher:signin_success");
    }
    let [one, same, mut other] = clients;
    // The same user, as a member of a channel only.
    let mut member = Client::new(&hub);
    member.join("presence-a", "1");
    // 6: the library for Python leaves the app out.
    assert_eq!(api(&hub, "POST", "/users/1/terminate_connections", "", "{}"), (200, json!({})));
    one.expect_end(4009);
    same.expect_end(4009);
    member.ping();
    other.ping();
    assert_eq!(api(&hub, "POST", "/apps/3/users/2/terminate_connections", "", "{}"), (200, json!({})));
    other.expect_end(4009);
    assert_eq!(api(&hub, "POST", "/apps/3/users/3/terminate_connections", "", "{}").0, 200);
    assert_eq!(request(&hub, "POST", "/users/1/terminate_connections?auth_key=unknown", "").0, 404);
}

#[test]
fn pusher_7_7_and_4_11_watchlists_report_users_that_come_and_go() {
    let hub = hub(|app| app);
    let (mut client, mut online) = (Client::new(&hub), Client::new(&hub));
    online.sign_in(&json!({ "id": "1" }));
    online.expect("pusher:signin_success");
    let mut watchlist = vec!["1".to_owned(), "2".to_owned()];
    watchlist.extend((0..99).map(|number| format!("x{number}")));
    client.sign_in(&json!({ "id": "w", "watchlist": watchlist }));
    client.expect("pusher:signin_success");
    assert_eq!(client.expect("pusher:error").1["code"], 4302);
    let (_, data) = client.expect("pusher_internal:watchlist_events");
    assert_eq!(data["events"][0], json!({ "name": "online", "user_ids": ["1"] }));
    assert_eq!(data["events"][1]["user_ids"].as_array().unwrap().len(), 99);
    let change = |client: &mut Client, name: &str, id: &str| {
        let (_, data) = client.expect("pusher_internal:watchlist_events");
        assert_eq!(data["events"], json!([{ "name": name, "user_ids": [id] }]));
    };
    let (mut second, mut same) = (Client::new(&hub), Client::new(&hub));
    second.sign_in(&json!({ "id": "2" }));
    change(&mut client, "online", "2");
    same.sign_in(&json!({ "id": "1" }));
    same.expect("pusher:signin_success");
    drop(online);
    same.ping();
    drop(second);
    change(&mut client, "offline", "2");
    drop(same);
    change(&mut client, "offline", "1");
}

/// A watcher that learns the state between two updates receives the change back to the state before: the first online user
/// leaves, is watched, and returns.
#[test]
fn pusher_7_7_watchers_learn_of_users_that_leave_and_return_in_between() {
    let (hub, mut first) = connected(|app| app);
    first.sign_in(&json!({ "id": "first", "watchlist": ["u"] }));
    first.expect("pusher:signin_success");
    first.expect("pusher_internal:watchlist_events");
    let online = || {
        let mut client = Client::new(&hub);
        client.sign_in(&json!({ "id": "u" }));
        client.expect("pusher:signin_success");
        client
    };
    let before = online();
    first.expect("pusher_internal:watchlist_events");
    // Within the interval of updates, unless the machine is busy: then, each change is an update of its own.
    before.end();
    let mut watcher = Client::new(&hub);
    watcher.sign_in(&json!({ "id": "w", "watchlist": ["u"] }));
    watcher.expect("pusher:signin_success");
    let _after = online();
    let mut state = String::new();
    while state != "online" {
        let (_, data) = watcher.expect("pusher_internal:watchlist_events");
        state = data["events"][0]["name"].as_str().unwrap().to_owned();
    }
}
