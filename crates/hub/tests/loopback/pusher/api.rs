//! The HTTP API.

use std::io::{BufRead, BufReader, Read, Write};

use serde_json::{Value, json};
use sinews_hub::{Hub, PusherApp, PusherLimits};

use super::client::{
    Client, KEY, QUERY, api, app, connected, hub, hub_of, policy, request, signed_target, trigger,
};
use crate::support::TestHub;

fn post(hub: &TestHub, body: &Value) -> (u16, Value) {
    api(hub, "POST", "/apps/3/events", "", &body.to_string())
}

#[test]
fn pusher_9_1_events_answer_with_an_empty_object_or_with_attributes() {
    let (hub, mut client) = connected(|app| app.with_subscription_counts(true));
    client.join("presence-a", "1");
    let event =
        |channels: Value, info: &str| json!({ "name": "e", "data": "1", "channels": channels, "info": info });
    assert_eq!(post(&hub, &json!({ "name": "e", "data": "1", "channel": "presence-a" })), (200, json!({})));
    client.expect("e");
    let (status, answer) =
        post(&hub, &event(json!(["presence-a", "presence-b", "presence-a"]), "user_count"));
    let expected =
        json!({ "channels": { "presence-a": { "user_count": 1 }, "presence-b": { "user_count": 0 } } });
    assert_eq!((status, answer), (200, expected));
    client.expect("e");
    client.ping();
    let (_, answer) = post(&hub, &event(json!(["b"]), "subscription_count"));
    assert_eq!(answer, json!({ "channels": { "b": { "subscription_count": 0 } } }));
    for (channels, info) in
        [(json!(["a"]), "user_count"), (json!(["presence-a"]), "subscription_count"), (json!(["a"]), "x")]
    {
        assert_eq!(post(&hub, &event(channels, info)).0, 400);
    }
}

#[test]
fn pusher_4_5_to_4_7_and_9_10_limits_of_events() {
    let mut limits = PusherLimits::default();
    limits.requests_per_second = Some(100);
    let hub = hub(|app| app.with_limits(limits));
    let event = |data: String, channels: usize| {
        let channels: Vec<String> = (0..channels).map(|number| format!("c{number}")).collect();
        json!({ "name": "e", "data": data, "channels": channels })
    };
    for (body, status) in [
        (event("x".repeat(10_240), 100), 200),
        (event("x".repeat(10_241), 1), 413),
        (event("\u{1f600}".repeat(2_560), 1), 200),
        (event(String::new(), 101), 400),
        (event(String::new(), 0), 400),
        (json!({ "name": "e", "data": "", "channels": ["private-encrypted-a", "b"] }), 400),
        (json!({ "name": "e", "data": "", "channels": ["private-encrypted-a"] }), 200),
        (json!({ "name": "e", "data": {}, "channel": "a" }), 400),
        (json!({ "name": "", "data": "", "channel": "a" }), 400),
        (json!({ "name": "x".repeat(201), "data": "", "channel": "a" }), 400),
        (json!({ "name": "e", "data": "", "channel": "a b" }), 400),
        (json!({ "name": "e", "data": "", "channel": "a", "channels": ["b"] }), 400),
        (json!({ "name": "e", "data": "", "channel": "a", "socket_id": "x" }), 400),
        (json!({ "name": "e", "channel": "a" }), 400),
        (json!([]), 400),
    ] {
        assert_eq!(post(&hub, &body).0, status, "{}", body.to_string().chars().take(80).collect::<String>());
    }
    // Half of a surrogate pair is no character, and does not exempt the data from its limit.
    let half = |size: usize| format!(r#"{{"name":"e","channel":"a","data":"\ud800{}"}}"#, "x".repeat(size));
    for (size, status) in [(10_234, 200), (10_235, 413)] {
        assert_eq!(api(&hub, "POST", "/apps/3/events", "", &half(size)).0, status);
    }
    let batch = |count: usize| {
        let events: Vec<Value> =
            (0..count).map(|_| json!({ "name": "e", "data": "", "channel": "a" })).collect();
        api(&hub, "POST", "/apps/3/batch_events", "", &json!({ "batch": events }).to_string()).0
    };
    assert_eq!((batch(10), batch(11)), (200, 400));
}

#[test]
fn pusher_4_13_and_9_9_requests_have_a_rate() {
    let mut limits = PusherLimits::default();
    limits.requests_per_second = Some(2);
    let hub = hub(|app| app.with_limits(limits));
    let statuses: Vec<u16> = (0..30).map(|_| api(&hub, "GET", "/apps/3/channels", "", "").0).collect();
    assert!(statuses[..2] == [200, 200] && statuses.contains(&429), "{statuses:?}");
}

#[test]
fn pusher_9_2_batches_are_published_in_order() {
    let (hub, mut client) = connected(|app| app);
    client.subscribe("a");
    client.join("presence-a", "1");
    let batch = |info: Option<&str>| {
        let mut events: Vec<Value> =
            (0..3).map(|number| json!({ "name": "e", "data": number.to_string(), "channel": "a" })).collect();
        events.push(json!({ "name": "e", "data": "3", "channel": "presence-a" }));
        if let Some(info) = info {
            events[3]["info"] = json!(info);
        }
        api(&hub, "POST", "/apps/3/batch_events", "", &json!({ "batch": events }).to_string())
    };
    assert_eq!(batch(None), (200, json!({})));
    assert_eq!([(); 4].map(|()| client.expect("e").1), [0, 1, 2, 3]);
    let expected = json!({ "batch": [{}, {}, {}, { "user_count": 1 }] });
    assert_eq!(batch(Some("user_count")), (200, expected));
    // A list of the fields in their order is no event.
    let list = json!({ "batch": [["lost", "", "a", null, null, null]] }).to_string();
    assert_eq!(api(&hub, "POST", "/apps/3/batch_events", "", &list).0, 400);
    let one_is_bad = json!({ "batch": [
        { "name": "lost", "data": "", "channel": "a" }, { "name": "e", "data": "", "channel": "#" },
    ] });
    assert_eq!([(); 4].map(|()| client.expect("e").1), [0, 1, 2, 3]);
    assert_eq!(api(&hub, "POST", "/apps/3/batch_events", "", &one_is_bad.to_string()).0, 400);
    client.ping();
}

#[test]
fn pusher_9_3_occupied_channels_are_listed() {
    let hub = hub(|app| app.with_subscription_counts(true));
    let (mut one, mut two) = (Client::new(&hub), Client::new(&hub));
    for channel in ["a", "private-a", "a.b"] {
        one.request_subscription(channel, None);
        one.subscribed(channel);
        one.expect("pusher_internal:subscription_count");
    }
    one.join("presence-a", "1");
    two.join("presence-a", "2");
    let list = |query: &str| api(&hub, "GET", "/apps/3/channels", query, "");
    let expected = json!({ "a": {}, "a.b": {}, "private-a": {}, "presence-a": {} });
    assert_eq!(list(""), (200, json!({ "channels": expected })));
    let expected = json!({ "channels": { "presence-a": { "user_count": 2 } } });
    assert_eq!(list("filter_by_prefix=presence-&info=user_count"), (200, expected));
    assert_eq!(list("info=user_count").0, 400);
    assert_eq!(list("filter_by_prefix=pres&info=user_count").0, 400);
    let counts = list("filter_by_prefix=a&info=subscription_count").1;
    assert_eq!(counts["channels"]["a.b"], json!({ "subscription_count": 1 }));
}

#[test]
fn pusher_9_4_and_9_6_attributes_of_a_channel() {
    let hub = hub(|app| app);
    let get =
        |channel: &str, query: &str| api(&hub, "GET", &format!("/apps/3/channels/{channel}"), query, "");
    assert_eq!(get("a", ""), (200, json!({ "occupied": false })));
    let mut client = Client::new(&hub);
    client.subscribe("a");
    client.join("presence-a", "1");
    assert_eq!(get("a", "").1, json!({ "occupied": true }));
    assert_eq!(get("presence-a", "info=user_count").1, json!({ "occupied": true, "user_count": 1 }));
    assert_eq!(get("cache-a", "info=cache").1, json!({ "occupied": false, "cache": null }));
    trigger(&hub, "cache-a", "e", "{\"a\":1}");
    let (_, answer) = get("cache-a", "info=cache");
    assert_eq!(answer["cache"]["data"], "{\"a\":1}");
    assert!((1_790..=1_800).contains(&answer["cache"]["ttl"].as_u64().unwrap()), "{answer}");
    for (channel, query) in [
        ("a", "info=user_count"),
        ("a", "info=cache"),
        ("a", "info=subscription_count"),
        ("presence-a", "info=subscription_count"),
        ("a%20b", ""),
    ] {
        assert_eq!(get(channel, query).0, 400, "{channel} {query}");
    }
}

#[test]
fn pusher_9_5_users_of_a_presence_channel() {
    let (hub, mut client) = connected(|app| app);
    client.join("presence-a", "1");
    let users = |channel: &str| api(&hub, "GET", &format!("/apps/3/channels/{channel}/users"), "", "");
    assert_eq!(users("presence-a"), (200, json!({ "users": [{ "id": "1" }] })));
    assert_eq!(users("presence-b"), (200, json!({ "users": [] })));
    assert_eq!(users("a").0, 400);
}

#[test]
fn pusher_9_8_paths_of_other_servers() {
    let disabled = PusherApp::new("4", "disabled", "secret").with_enabled(false);
    let hub = hub_of([app(), disabled]);
    let mut client = Client::new(&hub);
    client.join("presence-a", "1");
    client.request_subscription("presence-a", Some(r#"{"user_id":"1"}"#));
    client.subscribed("presence-a");
    let users = |query: &str| api(&hub, "GET", "/apps/3/channels/presence-a/users", query, "").1;
    assert_eq!(users("with_user_info=0"), json!({ "users": [{ "id": "1" }] }));
    let with_info = json!({ "users": [{ "id": "1", "user_info": { "name": "1" } }] });
    assert_eq!(users("with_user_info=1"), with_info);
    let mut other = Client::new(&hub);
    other.request_subscription("presence-b", Some(r#"{"user_id":"2"}"#));
    other.subscribed("presence-b");
    let (_, users) = api(&hub, "GET", "/apps/3/channels/presence-b/users", "with_user_info=1", "");
    assert_eq!(users, json!({ "users": [{ "id": "2" }] }), "a member without user_info");
    assert_eq!(api(&hub, "GET", "/apps/3/connections", "", ""), (200, json!({ "connections": 2 })));
    assert_eq!(request(&hub, "GET", "/apps/3/connections", "").0, 401);
    let mut user = Client::new(&hub);
    user.sign_in(&json!({ "id": "u" }));
    user.expect("pusher:signin_success");
    assert_eq!(request(&hub, "POST", "/apps/3/users/u/force_reconnect", "{}").0, 401);
    assert_eq!(api(&hub, "POST", "/apps/3/users/u/force_reconnect", "", "{}"), (200, json!({})));
    user.expect_end(4200);
    client.ping();
    for (path, status) in [("/up", 200), ("/ready", 200), ("/up/3", 200), ("/up/4", 503), ("/up/5", 404)] {
        assert_eq!(request(&hub, "GET", path, "").0, status, "{path}");
    }
    let none = hub_of([]);
    assert_eq!(["/up", "/ready"].map(|path| request(&none, "GET", path, "").0), [404, 404]);
}

/// Regression of signatures that are wrong behind the path of a proxy (laravel/reverb #356).
#[test]
fn pusher_9_15_paths_with_a_prefix_are_signed_with_and_without_it() {
    let builder = Hub::builder().config(policy([app()])).pusher_path_prefix("/broadcast/v1");
    let hub = TestHub::built(builder);
    let mut client = Client::at(&hub, &format!("/broadcast/v1/app/{KEY}?{QUERY}"));
    client.subscribe("a");
    let plain = Client::new(&hub);
    let body = json!({ "name": "e", "channel": "a", "data": "1" }).to_string();
    let (below, above) = ("/broadcast/v1/apps/3/events", "/apps/3/events");
    for (sent, signed) in [(above, above), (below, below), (below, above), (above, below)] {
        let target = signed_target("POST", signed, "", &body).replace(signed, sent);
        assert_eq!(request(&hub, "POST", &target, &body), (200, json!({})), "{sent} signed as {signed}");
        client.expect("e");
    }
    for wrong in ["/broadcast/apps/3/events", "/broadcast/v1", "/apps/4/events", "/v1/apps/3/events"] {
        let target = signed_target("POST", wrong, "", &body).replace(wrong, above);
        assert_eq!(request(&hub, "POST", &target, &body).0, 401, "signed as {wrong}");
    }
    Client::open(&hub, &format!("/broadcast/v1/app/unknown?{QUERY}")).expect_end(4001);
    Client::open(&hub, &format!("/broadcast/v1/app?{QUERY}")).expect_end(4005);
    drop(plain);
    // Paths of other routes are no conflict.
    for prefix in ["/app", "/apps", "/apps/3", "/topics", "/api/v1", "/up"] {
        let builder = Hub::builder().config(policy([app()])).pusher_path_prefix(prefix);
        Client::at(&TestHub::built(builder), &format!("{prefix}/app/{KEY}?{QUERY}")).ping();
    }
    for bad in ["", "/", "broadcast", "/broadcast/", "/a//b", "/a/../b", "/{a}", "/a b", &"/a".repeat(51)] {
        let error = Hub::builder().pusher_path_prefix(bad).check().unwrap_err().to_string();
        assert!(error.contains("must be a path such as"), "{error}");
    }
}

#[test]
fn pusher_9_9_unsigned_requests_and_unknown_apps_are_rejected() {
    let hub = hub(|app| app);
    let body = r#"{"name":"e","data":"","channel":"a"}"#;
    assert_eq!(request(&hub, "POST", "/apps/3/events", body).0, 401);
    let old =
        format!("/apps/3/events?auth_key={KEY}&auth_timestamp=1353088179&auth_version=1.0&auth_signature=0");
    let (status, text) = request(&hub, "POST", &old, body);
    assert!(status == 401 && text.as_str().unwrap().contains("auth_timestamp"), "{text}");
    assert_eq!(api(&hub, "POST", "/apps/4/events", "", body).0, 404);
}

#[test]
fn pusher_9_11_parameters_may_stand_in_the_query() {
    let (hub, mut client) = connected(|app| app);
    client.subscribe("a");
    let query = "name=e&data=hello&channel=a";
    assert_eq!(api(&hub, "POST", "/apps/3/events", query, ""), (200, json!({})));
    assert_eq!(client.expect("e").1, "hello");
}

#[test]
fn pusher_9_12_answers_have_a_length_and_requests_share_a_connection() {
    let hub = hub(|app| app);
    let body = json!({ "name": "e", "channel": "a", "data": "1" }).to_string();
    let (target, length) = (signed_target("POST", "/apps/3/events", "", &body), body.len());
    let request =
        format!("POST {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n{body}");
    let mut stream = hub.connect();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    for _ in 0..2 {
        stream.write_all(request.as_bytes()).unwrap();
        let (mut line, mut answered) = (String::new(), None);
        while reader.read_line(&mut line).unwrap() > 2 {
            if let Some(length) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
                answered = length.trim().parse().ok();
            }
            line.clear();
        }
        let mut answer = vec![0; answered.expect("a Content-Length")];
        reader.read_exact(&mut answer).unwrap();
        assert_eq!(answer, b"{}");
    }
}

/// The content of [`EVENT`].
const EVENT_GZIP: &[u8] =
    b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xab\x56\xca\x4b\xcc\x4d\x55\xb2\x52\x4a\x55\xd2\x51\
      \x4a\xce\x48\xcc\xcb\x4b\xcd\x01\xf2\x12\x81\xbc\x94\xc4\x92\x44\x20\x33\xbd\x2a\xb3\x40\xa9\
      \x16\x00\x59\x35\xcb\x90\x28\x00\x00\x00";
const EVENT: &str = "{\"name\":\"e\",\"channel\":\"a\",\"data\":\"gzip\"}";

/// 4 MiB of zeros.
const LARGE_GZIP: &[u8] = include_bytes!("../events/zeros.gz");

/// The signature is one of the decoded body.
#[test]
fn bodies_of_events_are_decoded_by_their_content_coding() {
    let (hub, mut client) = connected(|app| app);
    client.send("pusher:subscribe", json!({ "channel": "a" }));
    client.subscribed("a");
    for (coding, body, status) in [
        ("gzip", EVENT_GZIP, 200),
        ("br", EVENT.as_bytes(), 415),
        ("gzip", EVENT.as_bytes(), 400),
        ("gzip", LARGE_GZIP, 413),
    ] {
        let target = signed_target("POST", "/apps/3/events", "", EVENT);
        let lines = format!("Content-Type: application/json\r\nContent-Encoding: {coding}\r\n");
        let mut answer = hub.request(&format!("POST {target}"), &lines, body);
        assert_eq!(answer.status(), status, "{coding}: {}", answer.rest());
    }
    assert_eq!(client.expect("e").1, "gzip");
    client.ping();
}

/// They are encoded as the client takes them.
#[test]
fn long_lists_of_channels_and_users_are_complete() {
    let hub = hub(|app| app.with_subscription_counts(true));
    let names: Vec<String> =
        (0..2_000).map(|number| format!("private.{number}-{}", "n".repeat(100))).collect();
    // A connection has at most 500 channels.
    let subscribe = |names: &[String]| {
        let mut client = Client::new(&hub);
        for name in names {
            client.send("pusher:subscribe", json!({ "channel": name, "auth": "" }));
        }
        // The numbers of subscribers come between the answers.
        let answers = std::iter::from_fn(|| Some(client.receive()));
        let subscribed = answers.filter(|answer| answer["event"] == "pusher_internal:subscription_succeeded");
        assert_eq!(subscribed.take(names.len()).count(), names.len());
        client
    };
    let clients: Vec<Client> = names.chunks(400).map(subscribe).collect();
    let (status, listed) = api(&hub, "GET", "/apps/3/channels", "info=subscription_count", "");
    let channels = listed["channels"].as_object().unwrap();
    assert_eq!((status, channels.len()), (200, names.len()));
    assert!(names.iter().all(|name| channels[name] == json!({ "subscription_count": 1 })));
    let query = "filter_by_prefix=private.17-";
    assert_eq!(api(&hub, "GET", "/apps/3/channels", query, "").1, json!({ "channels": { &*names[17]: {} } }));
    drop(clients);
}
