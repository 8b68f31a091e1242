//! Opening, staying alive and closing.

use std::time::Duration;

use serde_json::json;
use sinews_hub::{Hub, PusherApp, PusherApps, PusherFeatures, PusherLimits};
use sinews_server::Limits;

use super::client::{
    Client, KEY, QUERY, SECRET, api, app, connected, data_of, hub, hub_of, policy, request, trigger,
};
use crate::support::TestHub;

fn target(key: &str, query: &str) -> String {
    format!("/app/{key}?{query}")
}

#[test]
fn pusher_1_1_1_4_and_2_1_first_message_is_connection_established() {
    let hub = hub(|app| app);
    let mut client = Client::open(&hub, &target(KEY, &format!("{QUERY}&more=1")));
    let message = client.receive();
    assert!(message["data"].is_string(), "{message}");
    let data = data_of(&message);
    assert_eq!(
        (&message["event"], &data["activity_timeout"]),
        (&json!("pusher:connection_established"), &json!(120))
    );
    let id = data["socket_id"].as_str().unwrap();
    let (first, second) = id.split_once('.').unwrap();
    assert!(
        [first, second].iter().all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    );
    assert_ne!(Client::new(&hub).socket_id, id, "1.5");
}

#[test]
fn pusher_1_2_versions_are_rejected_with_their_codes() {
    let hub = hub(|app| app);
    for (query, code) in [("protocol=x", 4006), ("protocol=99", 4007), ("client=js", 4008)] {
        Client::open(&hub, &target(KEY, query)).expect_end(code);
    }
    Client::at(&hub, &target(KEY, "version=8.6.0"));
    let strict = hub_of([app().with_strict_protocol(true)]);
    Client::open(&strict, &target(KEY, "version=8.6.0")).expect_end(4008);
}

#[test]
fn pusher_1_3_and_1_6_unknown_apps_and_paths_are_closed_after_the_upgrade() {
    let hub = hub(|app| app);
    assert!(Client::open(&hub, &target("unknown", QUERY)).expect_end(4001).contains("key"));
    Client::open(&hub, &format!("/app/{KEY}/more?{QUERY}")).expect_end(4005);
    Client::open(&hub, &format!("/app?{QUERY}")).expect_end(4005);
    // Wrong prefixes of paths.
    for path in ["/app/", "//app", "/broadcast/app", "/a/b/app"] {
        Client::open(&hub, &format!("{path}/{KEY}?{QUERY}")).expect_end(4005);
    }
    for path in ["/other", "/apple/a", "/a/apps/3"] {
        let upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                       Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
        assert_eq!(hub.ask(path, upgrade).status(), 404, "{path}");
    }
    assert_eq!(hub.ask("/broadcast/app/key", "").status(), 404, "a plain request");
    let without_apps = hub_of([]);
    assert_eq!(without_apps.ask("/broadcast/app/key", "").status(), 404);
}

#[test]
fn pusher_1_7_malformed_messages_do_not_end_the_connection() {
    let (_hub, mut client) = connected(|app| app);
    for bad in [
        "",
        "{",
        "[]",
        "null",
        "{\"event\":1}",
        "{\"event\":\"unknown\"}",
        "{\"event\":\"pusher:subscribe\"}",
    ] {
        client.send_text(bad);
        let (_, data) = client.expect("pusher:error");
        assert!(data["code"].is_null() && data["message"].is_string(), "{data}");
    }
    client.send_binary(b"{}");
    client.expect("pusher:error");
    client.ping();
}

#[test]
fn pusher_1_8_app_with_tls_only_rejects_plain_connections() {
    let hub = hub(|app| app.with_tls_only(true));
    Client::open(&hub, &target(KEY, QUERY)).expect_end(4000);
}

#[test]
fn pusher_1_9_origins_of_an_app() {
    let hub = hub(|app| app.with_origins(["https://good.example"]));
    for (origin, code) in [("https://good.example", None), ("https://bad.example", Some(4009))] {
        let url = format!("ws://{}{}", hub.address, target(KEY, QUERY));
        let (mut socket, _) =
            sinews::blocking::connect(url).header("Origin", origin).over(hub.connect()).open().unwrap();
        let message = socket.next().unwrap().unwrap();
        let message = crate::support::parse(std::str::from_utf8(message.as_bytes()).unwrap());
        match code {
            Some(code) => assert_eq!(message["data"]["code"], code),
            None => assert_eq!(message["event"], "pusher:connection_established"),
        }
    }
}

#[test]
fn pusher_1_10_clients_of_http_fallbacks_are_told_to_connect_by_websocket() {
    let served = hub(|app| app);
    let target = |path: &str, kind: &str| format!("{path}/app/{KEY}/123/session/{kind}?{QUERY}");
    for path in ["/pusher", ""] {
        for kind in ["xhr_streaming", "xhr_polling", "xhr_send"] {
            let (status, text) = request(&served, "POST", &target(path, kind), "[\"a\"]");
            assert_eq!(status, 404, "{text}");
            assert!(text.as_str().unwrap().contains("connect by WebSocket"), "{text}");
        }
    }
    Client::new(&served).ping();
    let without_apps = TestHub::new();
    let answer = request(&without_apps, "POST", &target("/pusher", "xhr_streaming"), "");
    assert_eq!(answer, (404, json!("not found\n")));
}

/// They go to `stats.pusher.com`, or to the `statsHost` of the client.
#[test]
fn pusher_1_11_statistics_are_not_served_and_the_client_stays_connected() {
    let (hub, mut client) = connected(|app| app);
    for transport in ["xhr", "jsonp"] {
        let target = format!("/timeline/v2/{transport}/2?key={KEY}&session=1&events=%5B%5D");
        assert_eq!(request(&hub, "GET", &target, "").0, 404);
    }
    client.ping();
}

#[test]
fn pusher_2_2_pings_are_answered() {
    let (_hub, mut client) = connected(|app| app);
    for data in ["{}", "\"{}\"", "null"] {
        client.send_text(&format!("{{\"event\":\"pusher:ping\",\"data\":{data}}}"));
        assert_eq!(client.receive_text(), r#"{"event":"pusher:pong","data":"{}"}"#);
    }
    client.send_text("{\"event\":\"pusher:ping\"}");
    client.expect("pusher:pong");
    client.send("pusher:pong", json!({}));
    client.ping();
}

#[test]
fn pusher_2_3_and_2_4_server_pings_silent_clients_and_closes_them_with_4201() {
    let hub = |pong_time: Duration| {
        let mut limits = PusherLimits::default();
        limits.pong_time = pong_time;
        hub(|app| app.with_activity_timeout(Duration::from_secs(1)).with_limits(limits))
    };
    // The first client answers in time, also on a slow machine; the second one does not answer.
    let (patient, hub) = (hub(Duration::from_secs(10)), hub(Duration::from_secs(1)));
    let (mut client, mut silent) = (Client::new(&patient), Client::new(&hub));
    let ping = r#"{"event":"pusher:ping","data":"{}"}"#;
    assert_eq!(silent.receive_text(), ping);
    silent.expect_end(4201);
    assert_eq!(client.receive_text(), ping);
    client.send("pusher:pong", json!({}));
    assert_eq!(client.receive_text(), ping, "the answer was a sign of life");
}

#[test]
fn pusher_3_clients_beyond_the_limits_of_the_node_are_closed_with_4100() {
    let limited =
        |limits| TestHub::configured(Hub::builder().config(policy([app()])), |server| server.limits(limits));
    let hub = limited(Limits::default().with_max_connections(2));
    let mut open = [Client::new(&hub), Client::new(&hub)];
    let reason = Client::open(&hub, &target(KEY, QUERY)).expect_end(4100);
    assert!(reason.contains("maximum of connections"), "{reason}");
    assert_eq!(request(&hub, "GET", "/apps/3/channels", "").0, 503, "other requests");
    open.iter_mut().for_each(Client::ping);
    let hub = limited(Limits::default().with_handshakes_per_second(1));
    let mut first = Client::new(&hub);
    // Unless a second passes in between.
    while Client::open(&hub, &target(KEY, QUERY)).receive()["data"]["code"] != 4100 {}
    first.ping();
}

#[test]
fn clients_cannot_use_features_that_their_app_lacks() {
    let mut features = PusherFeatures::default();
    (features.presence_channels, features.cache_channels) = (false, false);
    (features.users, features.watchlists) = (false, false);
    let without = |features| hub(|app| app.with_features(features));
    let hub = without(features.clone());
    let mut client = Client::new(&hub);
    for (channel, kind) in
        [("presence-a", "presence"), ("presence-cache-a", "presence"), ("cache-a", "cache")]
    {
        client.request_subscription(channel, Some(r#"{"user_id":"1"}"#));
        let (_, data) = client.expect("pusher:subscription_error");
        assert_eq!((&data["type"], &data["status"]), (&json!("FeatureDisabled"), &json!(403)), "{channel}");
        assert!(data["error"].as_str().unwrap().contains(kind), "{data}");
    }
    trigger(&hub, "cache-a", "e", "1");
    let (_, cached) = api(&hub, "GET", "/apps/3/channels/cache-a", "info=cache", "");
    assert_eq!(cached["cache"], json!(null), "nothing is retained");
    client.subscribe("private-a");
    client.sign_in(&json!({ "id": "1" }));
    client.expect_end(4009);
    features.users = true;
    let hub = without(features);
    let mut client = Client::new(&hub);
    client.sign_in(&json!({ "id": "1", "watchlist": ["2"] }));
    client.expect("pusher:signin_success");
    client.ping();
}

#[test]
fn pusher_3_codes_of_apps_that_are_disabled_or_full() {
    let limits = |connections| {
        let mut limits = PusherLimits::default();
        limits.connections = connections;
        limits
    };
    let hub = hub_of([
        app().with_limits(limits(Some(1))),
        PusherApp::new("4", "disabled", "secret").with_enabled(false),
    ]);
    Client::open(&hub, &target("disabled", QUERY)).expect_end(4003);
    let first = Client::new(&hub);
    Client::open(&hub, &target(KEY, QUERY)).expect_end(4004);
    drop(first);
    // The server sees the end of the first connection at some time.
    loop {
        let mut client = Client::open(&hub, &target(KEY, QUERY));
        if client.receive()["event"] == "pusher:connection_established" {
            break;
        }
    }
}

#[test]
fn pusher_5_11_unauthorized_connections_are_closed_in_time() {
    // Long enough for the first client on a slow machine.
    let hub = hub(|app| app.with_authorization_timeout(Some(Duration::from_secs(10))));
    let mut authorized = Client::new(&hub);
    authorized.subscribe("private-a");
    let mut public = Client::new(&hub);
    public.subscribe("a");
    public.expect_end(4009);
    authorized.ping();
}

#[test]
fn reload_changes_open_connections_and_removes_apps() {
    let (hub, mut client) = connected(|app| app);
    client.subscribe("private-a");
    client.trigger("client-e", "private-a", json!(1));
    assert_eq!(client.expect("pusher:error").1["code"], 4301);
    hub.config.replace(policy([app().with_client_events(true), PusherApp::new("4", "k4", SECRET)]));
    client.trigger("client-e", "private-a", json!(1));
    client.ping();
    Client::at(&hub, &target("k4", QUERY));
    hub.config.replace(policy([app().with_enabled(false)]));
    assert_eq!(request(&hub, "GET", "/apps/4/channels", "").0, 404);
    client.send("pusher:ping", json!({}));
    client.expect_end(4003);
    assert_eq!(api(&hub, "GET", "/apps/3/channels", "", "").0, 403);
    hub.config.replace(policy([]));
    assert_eq!(request(&hub, "GET", "/apps/3/channels", "").0, 404);
}

#[test]
fn removed_key_signs_again_once_the_app_has_it_again() {
    let (hub, mut client) = connected(|app| app);
    hub.config.replace(policy([PusherApp::new("3", "another", SECRET)]));
    client.request_subscription("private-a", None);
    assert_eq!(client.receive()["event"], "pusher:subscription_error");
    hub.config.replace(policy([PusherApp::new("3", "another", SECRET).with_key(KEY, SECRET)]));
    client.subscribe("private-a");
}

#[test]
fn apps_are_replaced_without_the_rest_of_the_policy() {
    let (hub, mut client) = connected(|app| app);
    let apps = |apps: Vec<PusherApp>| PusherApps::new(apps).unwrap();
    hub.config.replace_pusher(&apps(vec![app(), PusherApp::new("4", "k4", SECRET)])).unwrap();
    client.ping();
    Client::at(&hub, &target("k4", QUERY));
    hub.config.replace_pusher(&apps(vec![PusherApp::new("4", "k4", SECRET)])).unwrap();
    client.send("pusher:ping", json!({}));
    client.expect_end(4001);
    Client::open(&hub, &target(KEY, QUERY)).expect_end(4001);
    hub.config.replace(policy([app()]));
    Client::open(&hub, &target("k4", QUERY)).expect_end(4001);
}

#[test]
fn pusher_3_graceful_stop_closes_with_4200() {
    let hub = hub(|app| app);
    let client = Client::new(&hub);
    hub.stop.stop();
    client.expect_close(4200);
}

/// Texts derived from valid messages: nothing but a failed sign-in ends a connection, and each answer is a message of the
/// protocol.
#[test]
fn pusher_1_7_messages_of_every_kind_are_answered_or_ignored() {
    const ANSWERS: [&str; 5] = [
        "pusher:error",
        "pusher:pong",
        "pusher:subscription_error",
        "pusher_internal:subscription_succeeded",
        "pusher:cache_miss",
    ];
    let (_hub, mut client) = connected(|app| app.with_client_events(true));
    let auth = client.auth("private-a");
    let seeds = [
        r#"{"event":"pusher:subscribe","data":{"channel":"cache-a","auth":"","channel_data":"{\"user_id\":1}"}}"#.to_owned(),
        format!(r#"{{"event":"pusher:subscribe","data":{{"auth":"{auth}","channel":"private-a"}}}}"#),
        r#"{"event":"pusher:unsubscribe","data":"{\"channel\":\"private-a\"}"}"#.to_owned(),
        r#"{"event":"client-e","channel":"private-a","data":{"a":[1,null,"\u00fc\ud83d\ude00"]}}"#.to_owned(),
        r#"{"event":"pusher:ping","data":{}}"#.to_owned(),
        r#"{"event":"pusher:pong","data":{}}"#.to_owned(),
    ];
    let pieces = [
        "\"", "{", "}", "[", ",", ":", "\\", "\u{0}", "\\u", "null", "1e999", "data", "channel", "event",
        "#", "é",
    ];
    let mut state = 0x5eed_u64;
    // xorshift64
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as usize % below
    };
    for round in 0..40 {
        for _ in 0..25 {
            let mut text = seeds[random(seeds.len())].clone();
            for _ in 0..random(4) {
                let mut at = random(text.len() + 1);
                while !text.is_char_boundary(at) {
                    at -= 1;
                }
                match random(3) {
                    0 => text.insert_str(at, pieces[random(pieces.len())]),
                    1 => text.truncate(at),
                    _ => drop(text.pop()),
                }
                text.push_str(if random(2) == 0 { "}" } else { "" });
            }
            client.send_text(&text);
        }
        // Known to no message above: answers before it are those of the messages.
        let name = format!("last-{round}");
        client.send_text(&json!({ "event": name }).to_string());
        loop {
            let answer = client.receive();
            assert!(ANSWERS.iter().any(|event| answer["event"] == *event), "{answer}");
            if answer["data"]["message"].as_str().is_some_and(|text| text.contains(&name)) {
                break;
            }
        }
    }
    client.ping();
}
