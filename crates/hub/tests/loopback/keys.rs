//! Keys of topics for clients without WebSocket, and durable keys.

use std::net::TcpStream;
use std::path::Path;

use serde_json::{Value, json};
use sinews_hub::auth::{Auth, AuthOptions};
use sinews_hub::{HookTarget, HostRules, Hub, HubConfig, Namespace, Namespaces, StreamOptions};
use sinews_testkit::{BodyReader, assert_fields};

use crate::support::{TestHub, parse};

const EVENTS: &str = "Accept: text/event-stream\r\n";

/// A request with a body of JSON; returns its status, its answer and its ETag.
fn request(hub: &TestHub, head: &str, lines: &str, body: &str) -> (u16, Value, Option<String>) {
    let mut answer = hub.request(head, &format!("Content-Type: application/json\r\n{lines}"), body);
    let (status, tag) = (answer.status(), answer.header("etag").map(str::to_owned));
    (status, parse(&answer.rest()), tag)
}

fn set(hub: &TestHub, key: &str, value: &str) -> Value {
    let (status, answer, _) = request(hub, &format!("PUT /topics/prices/keys/{key}"), "", value);
    assert_eq!(status, 200, "{answer}");
    answer
}

fn delete(hub: &TestHub, key: &str) -> Value {
    let (status, answer, _) = request(hub, &format!("DELETE /topics/prices/keys/{key}"), "", "");
    assert_eq!(status, 200, "{answer}");
    answer
}

fn page(hub: &TestHub) -> Value {
    let (status, answer, _) = request(hub, "GET /topics/prices/keys", "", "");
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The next event of a type, and its id.
fn event(body: &mut BodyReader<TcpStream>, kind: &str) -> (Value, Option<String>) {
    let mut event = body.event().unwrap();
    if event.kind == "welcome" {
        event = body.event().unwrap();
    }
    assert_eq!(event.kind, kind, "{event:?}");
    (parse(&event.data), Some(event.id).filter(|id| !id.is_empty()))
}

fn keys_of(list: &Value) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|entry| entry["key"].as_str().unwrap()).collect()
}

#[test]
fn keys_are_events_with_a_snapshot_first() {
    let hub = TestHub::new();
    set(&hub, "a.x", "1");
    let second = set(&hub, "b", "2");
    let mut body = hub.ask("/topics/prices/keys", EVENTS);
    assert_eq!((body.status(), body.header("content-type")), (200, Some("text/event-stream")));
    let (ack, id) = event(&mut body, "subscribed");
    assert_eq!((&ack["topic"], &ack["recovered"], id), (&json!("prices"), &json!(false), None));
    let (snapshot, id) = event(&mut body, "keys");
    assert_eq!(keys_of(&snapshot["set"]), ["a.x", "b"]);
    assert_eq!(id, Some(format!("{}-{}", second["epoch"], second["seq"])));
    let third = set(&hub, "b", "{\"n\":3}");
    let (update, id) = event(&mut body, "keys");
    assert_eq!((&update["set"][0]["data"], &update["part"]), (&json!({ "n": 3 }), &Value::Null));
    assert_eq!(id, Some(format!("{}-{}", third["epoch"], third["seq"])));
    delete(&hub, "a.x");
    assert_eq!(event(&mut body, "keys").0["deleted"], json!(["a.x"]));
    // With a filter.
    let mut body = hub.ask("/topics/prices/keys?filter=c.*&interval=1", EVENTS);
    event(&mut body, "subscribed");
    assert_eq!(event(&mut body, "keys").0["set"], Value::Null);
    set(&hub, "b", "4");
    set(&hub, "c.d", "5");
    assert_eq!(keys_of(&event(&mut body, "keys").0["set"]), ["c.d"]);
}

#[test]
fn last_event_id_resumes_the_keys() {
    let hub = TestHub::new();
    set(&hub, "a", "1");
    let mut body = hub.ask("/topics/prices/keys", EVENTS);
    event(&mut body, "subscribed");
    let id = event(&mut body, "keys").1.unwrap();
    drop(body);
    set(&hub, "b", "2");
    delete(&hub, "a");
    for (path, lines) in [
        ("/topics/prices/keys".to_owned(), format!("{EVENTS}Last-Event-ID: {id}\r\n")),
        (format!("/topics/prices/keys?from={id}"), EVENTS.to_owned()),
    ] {
        let mut body = hub.ask(&path, &lines);
        assert_eq!(event(&mut body, "subscribed").0["recovered"], true);
        let (update, _) = event(&mut body, "keys");
        assert_eq!((keys_of(&update["set"]), &update["deleted"]), (vec!["b"], &json!(["a"])));
    }
    // An id of another epoch, and one that no server has given.
    for id in ["1-1", "x"] {
        let mut body = hub.ask("/topics/prices/keys", &format!("{EVENTS}Last-Event-ID: {id}\r\n"));
        assert_eq!(event(&mut body, "subscribed").0["recovered"], false);
        let (snapshot, _) = event(&mut body, "keys");
        assert_eq!((keys_of(&snapshot["set"]), &snapshot["part"]), (vec!["b"], &json!(1)));
    }
}

#[test]
fn id_of_a_snapshot_comes_with_its_last_part() {
    let hub = TestHub::new();
    let value = format!("\"{}\"", "x".repeat(20_000));
    for number in 0..5 {
        set(&hub, &format!("k{number}"), &value);
    }
    let mut body = hub.ask("/topics/prices/keys", EVENTS);
    event(&mut body, "subscribed");
    let mut parts = Vec::new();
    loop {
        let (part, id) = event(&mut body, "keys");
        let more = part["more"].as_bool().unwrap();
        assert_eq!(id.is_none(), more, "{id:?}");
        parts.push(part["part"].as_u64().unwrap());
        if !more {
            break;
        }
    }
    assert!(parts.len() > 1 && parts.iter().copied().eq(1..=parts.len() as u64), "{parts:?}");
}

#[test]
fn keys_are_lines_of_json() {
    let hub = TestHub::new();
    set(&hub, "a", "1");
    let mut body = hub.ask("/topics/prices/keys", "Accept: application/x-ndjson\r\n");
    assert_eq!((body.status(), body.header("content-type")), (200, Some("application/x-ndjson")));
    for op in ["welcome", "ack"] {
        assert_eq!(parse(&body.line().unwrap())["op"], op);
    }
    let snapshot = parse(&body.line().unwrap());
    assert_eq!((&snapshot["op"], keys_of(&snapshot["set"])), (&json!("keys"), vec!["a"]));
    set(&hub, "a", "2");
    assert_eq!(parse(&body.line().unwrap())["set"][0]["data"], 2);
}

#[test]
fn bad_requests_for_keys_get_a_reason() {
    let hub = TestHub::new();
    for (query, reason) in [("interval=x", "interval"), ("from=7", "from"), ("from=a-b", "from")] {
        let lines = format!("{EVENTS}Connection: close\r\n");
        let mut answer = hub.ask(&format!("/topics/prices/keys?{query}"), &lines);
        assert_eq!(answer.status(), 400, "{query}");
        let text = answer.rest();
        assert!(text.contains(reason), "{text}");
    }
    // Limits of the subscription end the response with an error.
    for (query, reason) in [("filter=a..b", "filter"), ("interval=90000", "interval")] {
        let mut body = hub.ask(&format!("/topics/prices/keys?{query}"), EVENTS);
        let (error, _) = event(&mut body, "error");
        assert!(error["error"].as_str().unwrap().contains(reason), "{error}");
        event(&mut body, "close");
        assert!(body.event().is_none());
    }
}

fn durable(directory: &Path) -> TestHub {
    durable_with(directory, sinews_server::KeyedConfig::default())
}

/// The same in a directory of its own.
fn started() -> (tempfile::TempDir, TestHub) {
    let directory = tempfile::tempdir().unwrap();
    let hub = durable(directory.path());
    (directory, hub)
}

fn durable_with(directory: &Path, config: sinews_server::KeyedConfig) -> TestHub {
    let options = StreamOptions::in_directory(directory).with_durable_keys(["prices".to_owned()]);
    TestHub::configured(Hub::builder().streams(options), |server| {
        server.topics(sinews_server::TopicConfig::default().with_keyed(config))
    })
}

#[test]
fn durable_keys_count_toward_the_share_of_their_client_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let config = sinews_server::KeyedConfig::default().with_max_client_bytes(16 << 10);
    let hub = durable_with(directory.path(), config);
    let value = json!("x".repeat(2_000)).to_string();
    let put =
        |hub: &TestHub, key: usize| request(hub, &format!("PUT /topics/prices/keys/k{key}"), "", &value).0;
    let accepted = (0..40).take_while(|key| put(&hub, *key) == 200).count();
    assert!((4..=8).contains(&accepted), "{accepted}");
    drop(hub);
    let hub = durable_with(directory.path(), config);
    assert_eq!(put(&hub, accepted), 429);
    delete(&hub, "k0");
    assert_eq!(put(&hub, accepted), 200);
}

#[test]
fn durable_keys_survive_a_restart_with_their_versions() {
    let (directory, hub) = started();
    let first = set(&hub, "a", "1");
    assert_eq!(first["seq"], 1);
    for number in 0..50 {
        set(&hub, "b", &number.to_string());
    }
    set(&hub, "c", "3");
    delete(&hub, "c");
    let (_, _, tag) = request(&hub, "GET /topics/prices/keys/b", "", "");
    let before = page(&hub);
    assert_eq!((keys_of(&before["keys"]), &before["seq"]), (vec!["a", "b"], &json!(53)));
    let mut body = hub.ask("/topics/prices/keys", EVENTS);
    event(&mut body, "subscribed");
    let id = event(&mut body, "keys").1.unwrap();
    drop(body);
    delete(&hub, "a");
    let later = page(&hub);
    drop(hub);
    let hub = durable(directory.path());
    assert_eq!(page(&hub), later);
    // A subscriber continues: it gets the removal, and no snapshot.
    let mut body = hub.ask(&format!("/topics/prices/keys?from={id}"), EVENTS);
    assert_eq!(event(&mut body, "subscribed").0["recovered"], true);
    let (update, _) = event(&mut body, "keys");
    assert_fields(&update, json!({"deleted": ["a"], "part": null}));
    // Versions hold, and sequences continue.
    let put = |lines: &str| request(&hub, "PUT /topics/prices/keys/b", lines, "\"new\"");
    assert_eq!(put("If-None-Match: *\r\n").0, 412);
    assert_eq!(put(&format!("If-Match: \"{}-1\"\r\n", first["epoch"])).0, 412);
    let (status, written, _) = put(&format!("If-Match: {}\r\n", tag.unwrap()));
    assert_eq!((status, &written["seq"]), (200, &json!(55)));
    assert_eq!(event(&mut body, "keys").0["set"][0]["data"], "new");
}

#[test]
fn durable_keys_expire_at_their_time_over_a_restart() {
    let (directory, hub) = started();
    let put = |hub: &TestHub, key: &str, ttl: u64| {
        let head = format!("PUT /topics/prices/keys/{key}?ttl={ttl}");
        assert_eq!(request(hub, &head, "", "1").0, 200);
    };
    put(&hub, "late", 3_600_000);
    put(&hub, "soon", 1);
    let position = page(&hub);
    drop(hub);
    let hub = durable(directory.path());
    // The removal is a change, here or before the restart.
    let from = format!("{}-2", position["epoch"]);
    let mut body = hub.ask(&format!("/topics/prices/keys?from={from}"), EVENTS);
    assert_eq!(event(&mut body, "subscribed").0["recovered"], true);
    assert_eq!(event(&mut body, "keys").0["deleted"], json!(["soon"]));
    let page = page(&hub);
    assert_eq!((keys_of(&page["keys"]), &page["seq"]), (vec!["late"], &json!(3)));
    let (_, _, tag) = request(&hub, "GET /topics/prices/keys/late", "", "");
    assert_eq!(tag, Some(format!("\"{}-1\"", position["epoch"])));
}

#[test]
fn repeated_durable_write_changes_nothing() {
    let (_directory, hub) = started();
    let put = |value: &str| request(&hub, "PUT /topics/prices/keys/a", "Idempotency-Key: one\r\n", value).1;
    let first = put("1");
    set(&hub, "a", "2");
    let again = put("3");
    assert_fields(&again, json!({"seq": first["seq"], "repeated": true}));
    assert_eq!(page(&hub)["keys"][0]["data"], 2);
    // Deleting a key that does not exist appends no record.
    assert_eq!(delete(&hub, "x")["changed"], false);
    assert_eq!(page(&hub)["seq"], 2);
}

#[test]
fn stream_of_durable_keys_is_hidden_from_clients() {
    let (directory, hub) = started();
    set(&hub, "a", "1");
    let (status, list, _) = request(&hub, "GET /streams", "", "");
    assert_eq!((status, &list["streams"]), (200, &json!([])), "{list}");
    for head in ["POST /streams/*.keys.prices", "GET /streams/*.keys.prices", "DELETE /streams/*.keys.prices"]
    {
        let (status, ..) = request(&hub, head, "", "1");
        assert!((400..500).contains(&status), "{head}: {status}");
    }
    assert_eq!(page(&hub)["seq"], 1);
    // Its keys survive patterns that no longer name the topic.
    drop(hub);
    let other = StreamOptions::in_directory(directory.path()).with_durable_keys(["other".to_owned()]);
    drop(TestHub::built(Hub::builder().streams(other)));
    assert_eq!(keys_of(&page(&durable(directory.path()))["keys"]), ["a"]);
}

#[test]
fn topics_whose_keys_clients_cannot_follow_are_rejected_with_a_status() {
    let namespaces = [
        Namespace::new("hooked").with_subscribe_hook(HookTarget::Url("http://127.0.0.1:1/".to_owned())),
        Namespace::new("plain").with_keyed(false),
    ];
    let auth = Auth::new(&AuthOptions::new()).unwrap();
    let policy = HubConfig::new(auth, HostRules::default());
    let policy = policy.with_namespaces(Namespaces::new(namespaces).unwrap());
    let hub = TestHub::built(Hub::builder().config(policy));
    for format in ["text/event-stream", "application/x-ndjson", "application/json"] {
        for (topic, status) in [("hooked", 503), ("plain", 422), ("other", 200)] {
            let answer = hub.ask(&format!("/topics/{topic}/keys"), &format!("Accept: {format}\r\n"));
            assert_eq!(answer.status(), status, "{topic} as {format}");
        }
    }
}

#[test]
fn keys_are_polled_from_a_position() {
    let hub = TestHub::new();
    let value = format!("\"{}\"", "x".repeat(20_000));
    for number in 0..5 {
        set(&hub, &format!("k{number}"), &value);
    }
    let poll = |query: &str| {
        let mut body = hub.ask(&format!("/topics/prices/keys?{query}"), "");
        assert_eq!((body.status(), body.header("content-type")), (200, Some("application/json")));
        parse(&body.rest())
    };
    // Without a position, the answer is the whole snapshot, in parts.
    let first = poll("wait=50");
    let messages = first["messages"].as_array().unwrap();
    assert_fields(&messages[0], json!({"op": "ack", "recovered": false}));
    let parts = &messages[1..];
    assert!(parts.len() > 1 && parts.iter().all(|part| part["op"] == "keys"), "{} parts", parts.len());
    assert_eq!(parts.iter().flat_map(|part| keys_of(&part["set"])).count(), 5);
    let mut cursor = first["cursor"].as_str().unwrap().to_owned();
    assert!(cursor.ends_with("-5"), "{cursor}");
    // With one, it has the changes since.
    set(&hub, "a", "1");
    delete(&hub, "k0");
    let second = poll(&format!("from={cursor}"));
    let update = &second["messages"][1];
    assert_eq!(second["messages"][0]["recovered"], true);
    assert_eq!((keys_of(&update["set"]), &update["deleted"]), (vec!["a"], &json!(["k0"])));
    second["cursor"].as_str().unwrap().clone_into(&mut cursor);
    assert!(cursor.ends_with("-7"), "{cursor}");
    // Nothing new: the answer comes at the end of the time, with the same position.
    let none = poll(&format!("from={cursor}&wait=0"));
    assert_eq!((none["messages"].as_array().unwrap().len(), &none["cursor"]), (1, &json!(cursor)));
    // A change while it waits ends it.
    let mut body = hub.ask(&format!("/topics/prices/keys?from={cursor}&wait=55&filter=b.*"), "");
    body.until("\"op\":\"ack\"").unwrap();
    set(&hub, "a", "2");
    set(&hub, "b.c", "3");
    let rest = body.rest();
    assert!(rest.contains("\"b.c\"") && !rest.contains("\"key\":\"a\""), "{rest}");
    assert!(rest.ends_with("-9\"}\n"), "{rest}");
    for (query, reason) in [
        ("wait=56", "up to 55"),
        ("wait=x", "wait"),
        ("wait=1&from=x", "from"),
        ("wait=1&limit=2", "limit"),
        ("from=1-1&after=a", "after"),
    ] {
        let mut answer = hub.ask(&format!("/topics/prices/keys?{query}"), "Connection: close\r\n");
        assert_eq!(answer.status(), 400, "{query}");
        let text = answer.rest();
        assert!(text.contains(reason), "{text}");
    }
    let answer = hub.ask("/topics/prices/keys?wait=1", &format!("{EVENTS}Connection: close\r\n"));
    assert_eq!(answer.status(), 400);
}

/// A client with the right to write one key in each of many topics.
#[test]
fn client_fills_its_share_of_the_memory_and_not_that_of_others() {
    const SECRET: &str = "a secret of at least thirty-two bytes for HS256";
    let token = |user: &str| {
        let end = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() + 600;
        let claims = json!({ "sub": user, "exp": end, "keys": ["rooms.*/{sub}"] });
        let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
        jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
    };
    let options = AuthOptions::new().with_keys(sinews_hub::auth::TokenKeys::Secret(SECRET.to_owned()));
    let access = HubConfig::new(Auth::new(&options).unwrap(), HostRules::default());
    let keyed =
        sinews_server::KeyedConfig::default().with_max_total_bytes(1 << 20).with_max_client_bytes(256 << 10);
    let hub = TestHub::configured(Hub::builder().config(access), |server| {
        server.topics(sinews_server::TopicConfig::default().with_keyed(keyed))
    });
    let put = |user: &str, room: usize, value: &str| {
        let lines = format!("Authorization: Bearer {}\r\n", token(user));
        request(&hub, &format!("PUT /topics/rooms.{room}/keys/{user}"), &lines, value)
    };
    let value = json!("x".repeat(30_000)).to_string();
    let accepted = (0..40).take_while(|room| put("eve", *room, &value).0 == 200).count();
    assert!((5..=8).contains(&accepted), "{accepted}");
    let (status, answer, _) = put("eve", 40, &value);
    assert_eq!(status, 429, "{answer}");
    let error = answer["error"].as_str().unwrap();
    assert!(error.contains("limits.max_keyed_memory_per_client, 262144 bytes"), "{error}");
    // At /ws, too.
    let mut socket = hub.websocket(&format!("/ws?token={}", token("eve")));
    let mut write = |room: usize, op: &str| {
        let data = if op == "set" { format!(",\"data\":{value}") } else { String::new() };
        let message =
            format!("{{\"op\":\"{op}\",\"id\":1,\"topic\":\"rooms.{room}\",\"key\":\"eve\"{data}}}");
        socket.send_text(&message).unwrap();
        socket.flush().unwrap();
        loop {
            let message = socket.next().unwrap().unwrap();
            let message = parse(std::str::from_utf8(message.as_bytes()).unwrap());
            if message["id"] == 1 {
                return message["code"].as_u64().unwrap_or(200);
            }
        }
    };
    assert_eq!(write(41, "set"), 429);
    // Others write, and eve does after a deletion.
    assert_eq!(put("anna", 0, &value).0, 200);
    assert_eq!((write(0, "delete"), write(41, "set")), (200, 200));
    // The program has no share.
    for room in 0..10 {
        let written = hub
            .publisher
            .write_key(&format!("program.{room}"), &sinews_server::KeyWrite::set("k", vec![b'1'; 30_000]));
        assert!(written.is_ok(), "{written:?}");
    }
}
