//! Members of presence channels.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sinews_hub::PusherLimits;

use super::client::{Client, api, connected, hub};

fn member(client: &mut Client, event: &str) -> Value {
    let message = client.receive();
    assert_eq!(message["event"], format!("pusher_internal:{event}"), "{message}");
    assert!(message["data"].is_string(), "{message}");
    super::client::data_of(&message)
}

#[test]
fn pusher_5_3_5_4_and_6_5_members_know_each_other() {
    let hub = hub(|app| app);
    let (mut one, mut two) = (Client::new(&hub), Client::new(&hub));
    let first = one.join("presence-a", "1");
    assert_eq!(first["presence"], json!({ "count": 1, "ids": ["1"], "hash": { "1": { "name": "1" } } }));
    two.request_subscription("presence-a", Some(r#"{"user_id":2,"user_info":{"name":"Zwei"}}"#));
    let second = two.subscribed("presence-a");
    let hash = json!({ "1": { "name": "1" }, "2": { "name": "Zwei" } });
    assert_eq!(second["presence"], json!({ "count": 2, "ids": ["1", 2], "hash": hash }));
    assert_eq!(member(&mut one, "member_added"), json!({ "user_id": 2, "user_info": { "name": "Zwei" } }));
    // 6.1: not to the client itself.
    two.ping();
    two.send("pusher:unsubscribe", json!({ "channel": "presence-a" }));
    assert_eq!(member(&mut one, "member_removed"), json!({ "user_id": 2 }));
    two.ping();
}

#[test]
fn pusher_5_4_ids_of_members_are_sent_in_the_form_of_the_application() {
    let hub = hub(|app| app.with_client_events(true));
    let (mut watcher, mut number, mut string) = (Client::new(&hub), Client::new(&hub), Client::new(&hub));
    watcher.request_subscription("presence-a", Some(r#"{"user_id":"w"}"#));
    watcher.subscribed("presence-a");
    // The data has no `user_info`.
    number.request_subscription("presence-a", Some(r#"{"user_id":7}"#));
    let roster = number.subscribed("presence-a");
    assert_eq!(roster["presence"]["ids"], json!([7, "w"]));
    assert_eq!(roster["presence"]["hash"], json!({ "7": null, "w": null }));
    assert_eq!(member(&mut watcher, "member_added"), json!({ "user_id": 7 }));
    number.trigger("client-e", "presence-a", json!("x"));
    assert_eq!(watcher.receive()["user_id"], json!(7));
    // The number and the string of its digits are the same user.
    string.request_subscription("presence-a", Some(r#"{"user_id":"7"}"#));
    assert_eq!(string.subscribed("presence-a")["presence"]["count"], 2);
    number.end();
    string.send("pusher:unsubscribe", json!({ "channel": "presence-a" }));
    assert_eq!(member(&mut watcher, "member_removed"), json!({ "user_id": "7" }));
    string.request_subscription("presence-a", Some(r#"{"user_id":8,"user_info":null}"#));
    string.subscribed("presence-a");
    assert_eq!(member(&mut watcher, "member_added"), json!({ "user_id": 8, "user_info": null }));
    // A member that has left and returned while others read the members.
    for _ in 0..20 {
        string.send("pusher:unsubscribe", json!({ "channel": "presence-a" }));
        let (_, users) = api(&hub, "GET", "/apps/3/channels/presence-a/users", "", "");
        assert!(
            users["users"].as_array().is_some_and(|users| users.iter().all(|user| user["id"].is_string()))
        );
        string.request_subscription("presence-a", Some(r#"{"user_id":8}"#));
        string.subscribed("presence-a");
    }
    string.trigger("client-end", "presence-a", json!("x"));
    loop {
        let message = watcher.receive();
        if message["event"] == "client-end" {
            break assert_eq!(message["user_id"], 8);
        }
        let data = super::client::data_of(&message);
        match data["presence"]["ids"].as_array() {
            Some(ids) => assert!(ids.contains(&json!("w")), "{data}"),
            None => assert_eq!(data["user_id"], 8, "{message}"),
        }
    }
}

#[test]
fn pusher_6_1_and_6_2_users_count_with_their_first_and_last_connection() {
    let (hub, mut watcher) = connected(|app| app);
    watcher.join("presence-a", "w");
    let (mut one, mut same) = (Client::new(&hub), Client::new(&hub));
    one.join("presence-a", "1");
    assert_eq!(member(&mut watcher, "member_added")["user_id"], "1");
    let roster = same.join("presence-a", "1");
    assert_eq!(roster["presence"]["count"], 2, "every user once");
    same.join("presence-a", "1");
    drop(one);
    same.ping();
    let mut other = Client::new(&hub);
    other.join("presence-a", "2");
    assert_eq!(
        member(&mut watcher, "member_added")["user_id"],
        "2",
        "nothing about the user with two connections"
    );
    drop(same);
    assert_eq!(member(&mut watcher, "member_removed")["user_id"], "1");
    assert_eq!(member(&mut other, "member_removed")["user_id"], "1");
    watcher.ping();
}

/// Each member is either in the list of a client or added once, whatever the order of joins on all threads.
#[test]
fn pusher_6_1_many_members_are_added_once() {
    const COUNT: usize = 400;
    let mut limits = PusherLimits::default();
    limits.members = 1_000;
    let hub = hub(|app| app.with_limits(limits));
    let mut clients: Vec<Client> = (0..COUNT).map(|_| Client::new(&hub)).collect();
    for (number, client) in clients.iter_mut().enumerate() {
        let data = json!({ "user_id": number.to_string() }).to_string();
        client.request_subscription("presence-a", Some(&data));
    }
    let all: BTreeSet<String> = (0..COUNT).map(|number| number.to_string()).collect();
    for client in clients.iter_mut().step_by(40) {
        let mut known = BTreeSet::new();
        while known != all {
            let message = client.receive();
            let data = super::client::data_of(&message);
            match message["event"].as_str().unwrap() {
                // After too many changes at once, the list is sent again.
                "pusher_internal:subscription_succeeded" => {
                    let ids = data["presence"]["ids"].as_array().unwrap();
                    known = ids.iter().map(|id| id.as_str().unwrap().to_owned()).collect();
                }
                "pusher_internal:member_added" => {
                    assert!(
                        known.insert(data["user_id"].as_str().unwrap().to_owned()),
                        "added twice: {data}"
                    );
                }
                event => panic!("{event}"),
            }
        }
    }
    let (_, users) = api(&hub, "GET", "/apps/3/channels/presence-a/users", "", "");
    assert_eq!(users["users"].as_array().unwrap().len(), COUNT);
}

#[test]
fn pusher_6_3_users_that_have_signed_in_need_no_channel_data() {
    let hub = hub(|app| app);
    let (mut client, mut other) = (Client::new(&hub), Client::new(&hub));
    other.join("presence-a", "2");
    client.request_subscription("presence-a", None);
    client.expect("pusher:subscription_error");
    client.sign_in(&json!({ "id": "1", "user_info": { "name": "A" } }));
    client.expect("pusher:signin_success");
    let roster = client.subscribe("presence-a");
    assert_eq!(roster["presence"]["hash"]["1"], json!({ "name": "A" }));
    let expected = json!({ "user_id": "1", "user_info": { "name": "A" } });
    assert_eq!(member(&mut other, "member_added"), expected);
    let roster = client.join("presence-b", "9");
    assert_eq!(roster["presence"]["ids"], json!(["9"]), "channel_data has precedence");
    let mut numbered = Client::new(&hub);
    numbered.sign_in(&json!({ "id": 3 }));
    numbered.expect("pusher:signin_success");
    assert_eq!(numbered.subscribe("presence-a")["presence"]["ids"], json!(["1", "2", 3]));
    assert_eq!(member(&mut other, "member_added"), json!({ "user_id": 3 }));
}
