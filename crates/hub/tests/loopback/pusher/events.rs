//! Events of servers and of clients.

use serde_json::json;
use sinews_hub::PusherLimits;
use sinews_testkit::assert_fields;

use super::client::{Client, api, connected, hub, trigger};

#[test]
fn pusher_8_1_data_reaches_clients_as_it_was_published() {
    let (hub, mut client) = connected(|app| app);
    client.subscribe("a");
    let body = "{\"name\":\"e\",\"channel\":\"a\",\"data\":\"{\\\"a\\\": \\u00fc}\"}";
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", body).0, 200);
    assert_eq!(
        client.receive_text(),
        "{\"event\":\"e\",\"channel\":\"a\",\"data\":\"{\\\"a\\\": \\u00fc}\"}"
    );
}

#[test]
fn pusher_8_2_and_8_5_client_events_reach_all_other_members() {
    let hub = hub(|app| app.with_client_events(true));
    let mut clients = [(); 5].map(|()| Client::new(&hub));
    for client in &mut clients {
        client.subscribe("private-a");
    }
    clients[0].trigger("client-e", "private-a", json!({ "a": [1, "ü"] }));
    clients[0].ping();
    for client in &mut clients[1..] {
        let expected = r#"{"event":"client-e","channel":"private-a","data":{"a":[1,"ü"]}}"#;
        assert_eq!(client.receive_text(), expected);
    }
    trigger(&hub, "private-a", "end", "");
    for client in &mut clients {
        client.expect("end");
    }
}

#[test]
fn pusher_8_3_client_events_are_for_members_of_signed_channels() {
    let disabled = hub(|app| app);
    let mut client = Client::new(&disabled);
    client.subscribe("private-a");
    client.trigger("client-e", "private-a", json!(1));
    let message = client.receive();
    assert_fields(&message, json!({"event": "pusher:error", "channel": "private-a"}));
    assert_eq!(message["data"]["code"], 4301);
    let hub = hub(|app| app.with_client_events(true));
    let (mut client, mut other) = (Client::new(&hub), Client::new(&hub));
    for client in [&mut client, &mut other] {
        client.subscribe("a");
    }
    // Encrypted by a client that has the key: the data is passed on.
    for client in [&mut client, &mut other] {
        client.subscribe("private-encrypted-a");
    }
    let encrypted = json!({ "nonce": "4sVYwy4j/8dCcjyxtPCWyk19GaaViaW9", "ciphertext": "/GMESnFGlbNn" });
    client.trigger("client-e", "private-encrypted-a", encrypted.clone());
    assert_eq!(other.expect("client-e"), ("private-encrypted-a".to_owned(), encrypted));
    other.subscribe("private-b");
    for channel in ["a", "private-b", "unknown"] {
        client.trigger("client-e", channel, json!(1));
        assert_eq!(client.expect("pusher:error").1["code"], 4301, "{channel}");
    }
    client.send("client-e", json!(1));
    assert_eq!(client.expect("pusher:error").1["code"], 4301);
    trigger(&hub, "private-b", "end", "");
    other.expect("end");
}

#[test]
fn data_that_is_nested_too_deeply_is_rejected() {
    let hub = hub(|app| app.with_client_events(true));
    let (mut client, mut other) = (Client::new(&hub), Client::new(&hub));
    client.subscribe("private-a");
    other.subscribe("private-a");
    for (depth, accepts) in [(128, true), (129, false), (2_000, false)] {
        let nested = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        // Clients parse a string of JSON as well.
        for data in [nested.clone(), json!(nested).to_string()] {
            client
                .send_text(&format!("{{\"event\":\"client-e\",\"channel\":\"private-a\",\"data\":{data}}}"));
            match accepts {
                true => _ = other.receive_text(),
                false => {
                    let message = client.expect("pusher:error").1["message"].to_string();
                    assert!(message.contains("max_json_depth (128)"), "{message}");
                }
            }
        }
        let body = json!({ "name": "e", "channel": "a", "data": nested }).to_string();
        let batch = json!({ "batch": [{ "name": "e", "channel": "a", "data": nested }] }).to_string();
        for (path, body) in [("/apps/3/events", body), ("/apps/3/batch_events", batch)] {
            let status = api(&hub, "POST", path, "", &body).0;
            assert_eq!(status, if accepts { 200 } else { 400 }, "{path} {depth}");
        }
    }
    let nested = format!("{}1{}", "[".repeat(200), "]".repeat(200));
    client.request_subscription("presence-a", Some(&format!("{{\"user_id\":1,\"user_info\":{nested}}}")));
    assert_eq!(client.expect("pusher:subscription_error").1["status"], 4301);
}

#[test]
fn pusher_8_4_presence_events_have_the_id_of_their_sender() {
    let hub = hub(|app| app.with_client_events(true));
    let (mut client, mut other) = (Client::new(&hub), Client::new(&hub));
    client.join("presence-a", "1");
    other.join("presence-a", "2");
    client.expect("pusher_internal:member_added");
    let forged = json!({ "event": "client-e", "channel": "presence-a", "data": "x", "user_id": "3" });
    other.send_text(&forged.to_string());
    let message = client.receive();
    let expected = json!({ "event": "client-e", "channel": "presence-a", "data": "x", "user_id": "2" });
    assert_eq!(message, expected);
    client.subscribe("private-a");
    other.subscribe("private-a");
    other.send_text(&json!({ "event": "client-e", "channel": "private-a", "user_id": "3" }).to_string());
    assert_eq!(client.receive(), json!({ "event": "client-e", "channel": "private-a" }));
}

#[test]
fn pusher_4_4_4_5_and_4_9_limits_of_client_events() {
    let mut limits = PusherLimits::default();
    (limits.event_name, limits.event_data) = (20, 30);
    let (_hub, mut client) = connected(|app| app.with_client_events(true).with_limits(limits));
    client.subscribe("private-a");
    client.trigger(&format!("client-{}", "x".repeat(14)), "private-a", json!(1));
    assert!(client.expect("pusher:error").1["message"].as_str().unwrap().contains("limit of 20"));
    client.trigger("client-e", "private-a", json!("x".repeat(29)));
    assert!(client.expect("pusher:error").1["message"].as_str().unwrap().contains("limit of 30"));
    // Ten at once are permitted; of a burst, the rest is rejected.
    for _ in 0..40 {
        client.trigger("client-e", "private-a", json!(1));
    }
    let (_, data) = client.expect("pusher:error");
    assert_fields(&data, json!({"code": 4301, "message": "more than 10 client events a second"}));
}

#[test]
fn pusher_8_6_excluded_socket_does_not_receive_the_event() {
    let hub = hub(|app| app);
    let mut clients = [(); 4].map(|()| Client::new(&hub));
    for client in &mut clients {
        client.subscribe("a");
    }
    for (number, client) in clients.iter().enumerate() {
        let body = json!({
            "name": "e", "channels": ["a"], "data": number.to_string(), "socket_id": client.socket_id,
        });
        assert_eq!(api(&hub, "POST", "/apps/3/events", "", &body.to_string()).0, 200);
    }
    let unknown = json!({ "name": "end", "channels": ["a"], "data": "", "socket_id": "1.2" });
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", &unknown.to_string()).0, 200);
    for (number, client) in clients.iter_mut().enumerate() {
        for other in (0..4).filter(|other| *other != number) {
            assert_eq!(client.expect("e").1, other);
        }
        client.expect("end");
    }
}

#[test]
fn pusher_8_7_names_of_the_protocol_are_reserved() {
    let (hub, mut client) = connected(|app| app);
    client.subscribe("a");
    let body = |name: &str| json!({ "name": name, "channel": "a", "data": "" }).to_string();
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", &body("pusher_internal:member_added")).0, 400);
    assert_eq!(api(&hub, "POST", "/apps/3/events", "", &body("pusher:e")).0, 200);
    client.expect("pusher:e");
}

#[test]
fn pusher_8_8_encrypted_events_are_relayed() {
    let (hub, mut client) = connected(|app| app);
    client.subscribe("private-encrypted-a");
    let data =
        json!({ "nonce": "4sVYwy4j/8dCcjyxtPCWyk19GaaViaW9", "ciphertext": "/GMESnFGlbNn" }).to_string();
    trigger(&hub, "private-encrypted-a", "e", &data);
    assert_eq!(client.expect("e").1["ciphertext"], "/GMESnFGlbNn");
}
