//! Subscriptions: kinds of channels, signatures, limits.

use std::time::Instant;

use serde_json::json;
use sinews_hub::PusherLimits;
use sinews_testkit::assert_fields;

use super::client::{Client, KEY, QUERY, api, connected, data_of, hub, sign_with, trigger};

#[test]
fn pusher_5_1_5_2_and_5_9_subscription_succeeds_before_its_events() {
    let (hub, mut client) = connected(|app| app);
    client.send("pusher:subscribe", json!({ "channel": "a", "auth": "" }));
    let expected = r#"{"event":"pusher_internal:subscription_succeeded","channel":"a","data":"{}"}"#;
    assert_eq!(client.receive_text(), expected);
    trigger(&hub, "a", "e", "1");
    assert_eq!(client.receive_text(), r#"{"event":"e","channel":"a","data":"1"}"#);
    client.send("pusher:subscribe", json!({ "channel": "b" }));
    client.subscribed("b");
}

#[test]
fn pusher_5_5_5_12_and_5_14_private_channels_need_a_signature() {
    let (hub, mut client) = connected(|app| app);
    let other = Client::new(&hub);
    for channel in ["private-a", "private-encrypted-a", "private-cache-a", "presence-a"] {
        for auth in [
            String::new(),
            "x".to_owned(),
            client.auth("private-b"),
            other.auth(channel),
            client.auth(channel).replace(KEY, "other"),
            format!("{KEY}:{}", sign_with("wrong", &format!("{}:{channel}", client.socket_id))),
        ] {
            client.send("pusher:subscribe", json!({ "channel": channel, "auth": auth }));
            let message = client.receive();
            assert_eq!(message["event"], "pusher:subscription_error", "{message}");
            let data = &message["data"];
            assert_eq!((&message["channel"], &data["status"]), (&json!(channel), &json!(401)), "{message}");
            assert_eq!(data["type"], "AuthError");
        }
    }
    // The servers of pusher-js's own tests sign channel_data of private channels.
    let data = json!({ "channel": "private-d", "auth": client.auth("private-d:{}"), "channel_data": "{}" });
    client.send("pusher:subscribe", data);
    client.subscribed("private-d");
    let data = json!({ "channel": "private-e", "auth": client.auth("private-e:{}"), "channel_data": "[]" });
    client.send("pusher:subscribe", data);
    client.expect("pusher:subscription_error");
    for channel in ["private-a", "private-encrypted-a", "private-encrypted-cache-a"] {
        client.request_subscription(channel, None);
        client.subscribed(channel);
        if channel.contains("-cache-") {
            client.expect("pusher:cache_miss");
        }
    }
    client.ping();
}

#[test]
fn pusher_5_13_presence_signs_the_bytes_of_channel_data() {
    let (_hub, mut client) = connected(|app| app);
    let (signed, sent) = (r#"{"user_id":"1"}"#, r#"{"user_id": "1"}"#);
    let auth = client.auth(&format!("presence-a:{signed}"));
    let subscribe = |channel_data: &str, auth: &str| json!({ "channel": "presence-a", "auth": auth, "channel_data": channel_data });
    client.send("pusher:subscribe", subscribe(sent, &auth));
    assert_eq!(client.expect("pusher:subscription_error").1["status"], 401);
    client.send("pusher:subscribe", subscribe(signed, &auth));
    client.subscribed("presence-a");
    for bad in ["[]", "{}", "x", r#"{"user_id":""}"#, r#"{"user_id":null}"#] {
        let auth = client.auth(&format!("presence-b:{bad}"));
        let data = json!({ "channel": "presence-b", "auth": auth, "channel_data": bad });
        client.send("pusher:subscribe", data);
        assert_eq!(client.expect("pusher:subscription_error").1["type"], "AuthError", "{bad}");
    }
}

#[test]
fn rotated_keys_are_valid_for_connections_that_use_them() {
    let hub = hub(|app| app.with_key("second", "other"));
    let mut client = Client::at(&hub, &format!("/app/second?{QUERY}"));
    let sign = |secret| sign_with(secret, &format!("{}:private-a", client.socket_id));
    let (own, first) = (format!("second:{}", sign("other")), client.auth("private-a"));
    client.send("pusher:subscribe", json!({ "channel": "private-a", "auth": first }));
    client.expect("pusher:subscription_error");
    client.send("pusher:subscribe", json!({ "channel": "private-a", "auth": own }));
    client.subscribed("private-a");
}

#[test]
fn pusher_4_1_and_4_2_names_of_channels_are_checked() {
    let (hub, mut client) = connected(|app| app);
    for bad in ["", "a b", "ü", "#a", "#server-to-user-1", "a*", ">", &"a".repeat(165)] {
        client.send("pusher:subscribe", json!({ "channel": bad }));
        let error = client.expect("pusher:subscription_error").1;
        let expected = match bad {
            bad if bad.starts_with("#server") => ("AuthError", 401),
            bad if bad.len() > 164 => ("LimitReached", 4009),
            _ => ("InvalidChannel", 4009),
        };
        assert_eq!((&error["type"], &error["status"]), (&json!(expected.0), &json!(expected.1)), "{bad}");
    }
    for good in ["*".replace('*', "="), "..".to_owned(), "a.".to_owned(), "a".repeat(164)] {
        client.send("pusher:subscribe", json!({ "channel": good }));
        client.subscribed(&good);
        trigger(&hub, &good, "e", "x");
        assert_eq!(client.expect("e").0, good);
    }
}

#[test]
fn pusher_4_8_and_5_5_limits_of_channels_and_members() {
    let mut limits = PusherLimits::default();
    (limits.channels, limits.members) = (2, 2);
    let hub = hub(|app| app.with_limits(limits));
    let mut clients = [(); 4].map(|()| Client::new(&hub));
    clients[0].subscribe("a");
    clients[0].join("presence-a", "1");
    clients[0].send("pusher:subscribe", json!({ "channel": "b" }));
    assert_eq!(clients[0].expect("pusher:subscription_error").1["type"], "LimitReached");
    clients[1].join("presence-a", "2");
    clients[2].request_subscription("presence-a", Some(r#"{"user_id":"3"}"#));
    let (_, data) = clients[2].expect("pusher:subscription_error");
    assert_fields(&data, json!({"type": "LimitReached", "status": 4100}));
    clients[3].join("presence-a", "2");
    let large = json!({ "user_id": "1", "user_info": "x".repeat(1_100) }).to_string();
    clients[2].request_subscription("presence-b", Some(&large));
    assert_eq!(clients[2].expect("pusher:subscription_error").1["status"], 4301);
    let long = json!({ "user_id": "😀".repeat(129) }).to_string();
    clients[2].request_subscription("presence-b", Some(&long));
    assert_eq!(clients[2].expect("pusher:subscription_error").1["status"], 401);
    let longest = "😀".repeat(128);
    assert_eq!(clients[2].join("presence-b", &longest)["presence"]["ids"], json!([longest]));
    clients[2].subscribe("a");
}

#[test]
fn pusher_5_6_and_5_7_repeated_subscriptions_and_unknown_unsubscriptions() {
    let (hub, mut client) = connected(|app| app);
    client.subscribe("a");
    client.subscribe("a");
    client.send("pusher:unsubscribe", json!({ "channel": "unknown" }));
    client.send("pusher:unsubscribe", json!({ "channel": "a" }));
    client.ping();
    trigger(&hub, "a", "lost", "");
    assert_eq!(api(&hub, "GET", "/apps/3/channels/a", "", "").1, json!({ "occupied": false }));
    client.subscribe("a");
    trigger(&hub, "a", "e", "");
    client.expect("e");
}

#[test]
fn pusher_4_10_5_9_and_5_10_cache_channels_send_their_last_event() {
    let hub = hub(|app| app.with_client_events(true));
    for channel in ["cache-a", "private-cache-a", "private-encrypted-cache-a"] {
        let mut first = Client::new(&hub);
        first.subscribe(channel);
        let miss = first.receive();
        assert_eq!(miss, json!({ "event": "pusher:cache_miss", "channel": channel }));
        trigger(&hub, channel, "e", "1");
        trigger(&hub, channel, "e", "2");
        if channel != "cache-a" {
            Client::new(&hub);
            first.trigger("client-e", channel, json!(3));
        }
        assert_eq!([first.expect("e").1, first.expect("e").1], [1, 2]);
        first.ping();
        let mut second = Client::new(&hub);
        second.subscribe(channel);
        assert_eq!(second.expect("e"), (channel.to_owned(), json!(2)));
        // It has the event.
        second.subscribe(channel);
        second.ping();
    }
    let mut member = Client::new(&hub);
    member.join("presence-cache-a", "1");
    member.expect("pusher:cache_miss");
    trigger(&hub, "presence-cache-a", "e", "1");
    member.expect("e");
    let mut other = Client::new(&hub);
    other.join("presence-cache-a", "2");
    assert_eq!(other.expect("e").1, 1);
    // Events without a subscriber are retained, too.
    trigger(&hub, "cache-b", "e", "1");
    member.subscribe_later("cache-b");
}

impl Client {
    fn subscribe_later(&mut self, channel: &str) {
        // The other member has joined meanwhile.
        self.expect("pusher_internal:member_added");
        self.subscribe(channel);
        self.expect("e");
    }
}

#[test]
fn pusher_8_9_number_of_subscribers_is_sent_on_request_of_the_app() {
    let hub = hub(|app| app.with_subscription_counts(true));
    let count = |client: &mut Client| {
        let message = client.receive();
        assert_eq!(message["event"], "pusher_internal:subscription_count", "{message}");
        assert!(message["data"].is_string());
        data_of(&message)["subscription_count"].as_u64().unwrap()
    };
    let mut first = Client::new(&hub);
    first.subscribe("a");
    assert_eq!(count(&mut first), 1);
    let mut second = Client::new(&hub);
    second.subscribe("a");
    assert_eq!([count(&mut first), count(&mut second)], [2, 2]);
    drop(second);
    assert_eq!(count(&mut first), 1);
    first.join("presence-a", "1");
    first.ping();
    // Many changes at once are few messages: the first one, and one each tenth of a second.
    let begin = Instant::now();
    let mut others = [(); 30].map(|()| Client::new(&hub));
    others.iter_mut().for_each(|other| other.send("pusher:subscribe", json!({ "channel": "a" })));
    let mut messages = 1;
    while count(&mut first) < 31 {
        messages += 1;
    }
    let tenths = begin.elapsed().as_millis() / 100;
    assert!(messages <= tenths + 2, "{messages} messages in {tenths} tenths of a second");
}
