//! Options of topics by pattern.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_testkit::{Frame, Reply, assert_fields};

use crate::auth::{status, token};
use crate::config::Directory;
use crate::hooks::{AppAnswer, Application, serve, serve_in};
use crate::protocol::{Client, connected};
use crate::support::{Running, until};

fn publish(client: &mut Client, topic: &str, data: &str) -> Value {
    client.request(json!({"op": "publish", "id": 1, "topic": topic, "data": data}))
}

fn subscribe(client: &mut Client, topic: &str) -> Value {
    client.request(json!({"op": "subscribe", "id": 1, "topic": topic}))
}

#[test]
fn access_of_the_most_specific_namespace_applies() {
    let secret = crate::auth::keys("secret");
    let server = serve(&format!(
        "[auth]\nsecret_file = {secret:?}\n\
         [namespace.\">\"]\npublish = \"authenticated\"\n\
         [namespace.\"open.>\"]\npublish = \"anonymous\"\nsubscribe = \"anonymous\"\n\
         [namespace.\"open.alerts\"]\npublish = \"nobody\"\n\
         [namespace.\"open.secret\"]\nsubscribe = \"nobody\"\n"
    ));
    let mut anonymous = Client::connect(&server);
    let line = format!("Authorization: Bearer {}\r\n", token(&secret, &["--subscribe", "own"]));
    let mut known = Client::with(&server, "/ws", &line);
    for (topic, of_anonymous, of_known) in [
        ("open.a", json!("ack"), json!("ack")),
        ("open.alerts", json!(403), json!(403)),
        ("own", json!(401), json!("ack")),
    ] {
        let result =
            |reply: Value| if reply["op"] == "error" { reply["code"].clone() } else { reply["op"].clone() };
        assert_eq!(result(publish(&mut anonymous, topic, "a")), of_anonymous, "{topic}");
        assert_eq!(result(publish(&mut known, topic, "a")), of_known, "{topic}");
        let post = server.request(&format!("POST /topics/{topic} HTTP/1.1"), "a");
        let expected = if of_anonymous == "ack" { "200".to_owned() } else { of_anonymous.to_string() };
        assert_eq!(status(&post), expected);
    }
    let error = publish(&mut known, "open.alerts", "a")["error"].clone();
    assert_eq!(error, "clients may not publish to open.alerts");
    for (topic, code) in [
        ("open.a", None),
        ("own", Some(401)),
        ("open.secret", Some(403)),
        ("open.*", Some(403)),
        (">", Some(403)),
    ] {
        assert_eq!(subscribe(&mut anonymous, topic)["code"], json!(code), "{topic}");
    }
    assert_eq!(subscribe(&mut known, "own")["op"], "ack");
    let mut raw = server.websocket("/topics/open.a");
    raw.send(&Frame::text("raw"));
    assert_eq!(raw.next(), Some(Reply::text("raw")));
    assert_eq!(status(&server.try_websocket("/topics/open.secret", "").err().unwrap()), "403");
    assert_eq!(status(&server.get("/topics/open.secret?last=1")), "403");
}

#[test]
fn denied_writes_of_keys_are_named() {
    let secret = crate::auth::keys("secret");
    let server = serve(&format!(
        "[auth]\nsecret_file = {secret:?}\n[namespace.closed]\nwrite_keys = \"nobody\"\n\
         [namespace.known]\nwrite_keys = \"authenticated\"\n"
    ));
    let mut client = Client::connect(&server);
    let mut set = |topic: &str| {
        let answer = client.request(json!({"op": "set", "id": 1, "topic": topic, "key": "k", "data": 1}));
        (answer["code"].clone(), answer["error"].clone(), answer["needs"].clone())
    };
    let closed = (json!(403), json!("clients may not write keys of closed"), json!({}));
    assert_eq!(set("closed"), closed);
    for topic in ["known", "other"] {
        let name = format!("{topic}/k");
        let expected =
            (json!(401), json!(format!("a token is needed to write {name}")), json!({"keys": [name]}));
        assert_eq!(set(topic), expected);
    }
}

#[test]
fn sizes_and_rates_are_limited() {
    let server = serve(
        "[namespace.\"a.>\"]\nmax_message = 8\n\
     [namespace.\"b.>\"]\npublishes_per_second = 1\npublish_burst = 3\n\
     [namespace.\"c.>\"]\nuser_publishes_per_second = 1\nuser_publish_burst = 2\n",
    );
    let mut client = Client::connect(&server);
    assert_eq!(publish(&mut client, "a.x", "123456")["op"], "ack");
    let large = publish(&mut client, "a.x", "1234567");
    assert_fields(&large, json!({"code": 413, "error": "message of 9 bytes exceeds max_message (8) of a.x"}));
    assert_eq!(status(&server.request("POST /topics/a.x HTTP/1.1", "123456789")), "413");
    let set = json!({"op": "set", "id": 1, "topic": "a.x", "key": "k", "data": "1234567890"});
    assert_eq!(client.request(set)["code"], 413);

    // The topics of a namespace share the rate of a connection.
    let accepted = |clients: &mut [&mut Client], topics: [&str; 2]| {
        let results = (0..1_000).map(|at| {
            let client = &mut clients[at % clients.len()];
            publish(client, topics[at % 2], "a")
        });
        results.take_while(|result| result["code"] != 429).count()
    };
    let count = accepted(&mut [&mut client], ["b.x", "b.y"]);
    assert!((3..1_000).contains(&count), "{count}");
    let mut other = Client::connect(&server);
    assert_eq!(publish(&mut other, "b.x", "a")["op"], "ack", "each connection has its own");

    // The connections of a user share the rate.
    let count = accepted(&mut [&mut client, &mut other], ["c.x", "c.y"]);
    assert!((2..1_000).contains(&count), "{count}");
    let mut error = Value::Null;
    while error.is_null() {
        error = publish(&mut client, "c.x", "a")["error"].clone();
    }
    assert_eq!(error, "publications to c.x exceed user_publishes_per_second (1)");
    while status(&server.request("POST /topics/c.x HTTP/1.1", "a")) != "429" {}
}

#[test]
fn appends_do_not_evade_the_limits_of_a_durable_topic() {
    let server = serve(
        "[streams]\ndirectory = \"$DIR/streams\"\ndurable_topics = \"log.>\"\n\
         [namespace.\"log.a\"]\nmax_message = 8\n[namespace.\"other\"]\nmax_message = 8\n",
    );
    let mut client = Client::connect(&server);
    let mut append = |stream: &str| {
        client.request(json!({"op": "append", "id": 2, "stream": stream, "data": "1234567890"}))
    };
    let rejected = append("log.a");
    assert_eq!(
        (&rejected["code"], &rejected["error"]),
        (
            &json!(403),
            &json!(
                "a namespace limits publications to log.a: use the op `publish` at /ws or POST /topics/log.a"
            )
        )
    );
    assert_eq!(append("log.b")["op"], "ack", "this topic has no limits");
    assert_eq!(append("other")["op"], "ack", "this stream is not that of a topic");
    assert_eq!(status(&server.request("POST /streams/log.a HTTP/1.1", "a")), "403");
    assert_eq!(publish(&mut client, "log.a", "123456")["op"], "ack");
    assert_eq!(publish(&mut client, "log.a", "1234567")["code"], 413);
}

#[test]
fn histories_keys_presence_and_durability_follow_the_namespace() {
    let server = serve(
        "history = \"kept.flag.>=3\"\n[streams]\ndirectory = \"$DIR/streams\"\ndurable_topics = \"log.>\"\n\
         [namespace.\"kept.>\"]\nhistory = 2\nkeyed = false\n[namespace.\"kept.not\"]\nhistory = \"off\"\n\
         [namespace.\"log.live.>\"]\ndurable = false\npresence = false\n\
         [namespace.\"log2.>\"]\ndurable = true\n",
    );
    let mut client = Client::connect(&server);
    let messages = |client: &mut Client, topic: &str| {
        for data in ["1", "2", "3", "4"] {
            publish(client, topic, data);
        }
        let history = client.request(json!({"op": "history", "id": 2, "topic": topic, "last": 9}));
        history["messages"].as_array().map_or_else(|| history["code"].clone(), |list| json!(list.len()))
    };
    for (topic, kept) in
        [("kept.a", 2), ("kept.flag.a", 3), ("kept.not", 410), ("other", 410), ("log.live.a", 410)]
    {
        assert_eq!(messages(&mut client, topic), kept, "{topic}");
    }
    for topic in ["log.a", "log2.a"] {
        assert_eq!(messages(&mut client, topic), 4, "{topic}");
    }
    let set = |topic: &str| json!({"op": "set", "id": 1, "topic": topic, "key": "k", "data": 1});
    assert_eq!(client.request(set("kept.a"))["error"], "topic kept.a has no keys for clients");
    assert_eq!(client.request(set("other"))["op"], "ack");
    assert_eq!(status(&server.get("/topics/kept.a/keys")), "422");
    let join = |topic: &str| json!({"op": "join", "id": 1, "topic": topic, "member": {"id": "anna"}});
    assert_eq!(client.request(join("log.live.a"))["error"], "topic log.live.a has no presence for clients");
    assert_eq!(client.request(join("log.a"))["op"], "ack");
}

#[test]
fn reload_changes_the_options_of_all_connections() {
    let (server, mut old) = connected(serve("[namespace.a]\npublish = \"nobody\"\n"));
    assert_eq!(publish(&mut old, "a", "x")["code"], 403);
    server.directory.write("sinews.toml", "[namespace.a]\npublish = \"anonymous\"\nmax_message = 3\n");
    server.signal("HUP");
    let mut result = publish(&mut Client::connect(&server), "a", "x");
    while result["code"] == 403 {
        result = publish(&mut Client::connect(&server), "a", "x");
    }
    assert_eq!(result["op"], "ack");
    assert_eq!(publish(&mut old, "a", "x")["op"], "ack", "an open connection follows");
    assert_eq!(publish(&mut old, "a", "xyz")["code"], 413);
}

#[test]
fn subscriptions_and_calls_are_limited() {
    let app = Application::start(|_| AppAnswer::Json(json!({})));
    let file = format!(
        "[hooks]\nrpc = {:?}\n[namespace.\"a.>\"]\nsubscribes_per_second = 1\nsubscribe_burst = 3\n\
         calls_per_second = 1\ncall_burst = 2\n",
        app.url("/")
    );
    let (server, mut client) = connected(serve(&file));
    // The rate refills while the test runs, so it counts what is accepted before the first rejection.
    let accepted = |client: &mut Client, requests: &[Value], text: &str| {
        let count = (0..1_000).map(|at| {
            client.send_message(&requests[at % requests.len()]);
            // A subscription to keys is followed by a snapshot.
            loop {
                let answer = client.receive_message();
                if !answer["id"].is_null() {
                    break answer;
                }
            }
        });
        let mut count = count.take_while(|answer| {
            let is_rejected = answer["code"] == 429;
            assert!(!is_rejected || answer["error"].as_str().unwrap().ends_with(text), "{answer}");
            !is_rejected
        });
        count.by_ref().count()
    };
    // By name, by pattern and to keys.
    let subscriptions = [
        json!({"op": "subscribe", "id": 1, "topic": "a.x"}),
        json!({"op": "subscribe", "id": 1, "topic": ">"}),
        json!({"op": "subscribe", "id": 1, "topic": "a.x", "keys": true}),
        json!({"op": "subscribe", "id": 1, "topic": "*.y"}),
    ];
    let text = " exceed subscribes_per_second (1)";
    let count = accepted(&mut client, &subscriptions, text);
    assert!((3..1_000).contains(&count), "{count}");
    for request in &subscriptions {
        let count = accepted(&mut client, std::slice::from_ref(request), text);
        assert!(count < 1_000, "each form counts: {request}");
    }
    let other = json!({"op": "subscribe", "id": 1, "topic": "b"});
    assert_eq!(accepted(&mut client, &[other], text), 1_000, "another namespace");
    assert_eq!(subscribe(&mut Client::connect(&server), "a.y")["op"], "ack", "another connection");

    let call = |topic: &str| json!({"op": "rpc", "id": 1, "method": "m", "topic": topic, "data": 1});
    let count = accepted(&mut client, &[call("a.x")], "calls of a.x exceed calls_per_second (1)");
    assert!((2..1_000).contains(&count), "{count}");
    assert_eq!(app.requests.try_iter().count(), count, "a rejected call is not passed on");
    assert_eq!(client.request(call("b"))["op"], "rpc");
}

/// Messages to a client that does not read: far more than the kernel's buffers and the queue of a subscriber take.
const FLOOD: u64 = 400;

/// A publication of 80 KiB: there are few, because the subscriber must read within 30 seconds.
fn numbered(topic: &str, number: u64, fill: &str) -> Frame {
    Frame::text(format!("{{\"op\":\"publish\",\"topic\":\"{topic}\",\"data\":[{number},\"{fill}\"]}}"))
}

/// Publishes numbered messages to topics in turn, while the subscriber does not read; then reads until this is
/// complete. Returns the numbers by topic, and the messages that the server reports as dropped.
fn flood(
    server: &Running,
    subscriber: &mut Client,
    topics: &[&str],
    is_complete: impl Fn(&BTreeMap<String, Vec<u64>>, u64) -> bool,
) -> (BTreeMap<String, Vec<u64>>, u64) {
    let mut publisher = Client::connect(server);
    let fill = "x".repeat(80 << 10);
    for number in 0..FLOOD {
        publisher.0.send(&numbered(topics[number as usize % topics.len()], number, &fill));
    }
    assert_eq!(publisher.request(json!({"op": "ping", "id": 1}))["op"], "pong");
    let (mut numbers, mut dropped) = (BTreeMap::<String, Vec<u64>>::new(), 0);
    while !is_complete(&numbers, dropped) {
        let message = subscriber.receive_message();
        if message["op"] == "dropped" {
            dropped += message["messages"].as_u64().unwrap();
        } else {
            let topic = message["topic"].as_str().unwrap().to_owned();
            numbers.entry(topic).or_default().push(message["data"][0].as_u64().unwrap());
        }
    }
    (numbers, dropped)
}

#[test]
fn slow_consumer_policy_follows_the_namespace() {
    let server = serve(
        "[namespace.\"newest.>\"]\nslow_consumer = \"drop-newest\"\n\
     [namespace.\"oldest.>\"]\nslow_consumer = \"drop-oldest\"\n\
     [namespace.\"last.>\"]\nslow_consumer = \"conflate\"\n\
     [namespace.\"close.>\"]\nslow_consumer = \"close\"\n",
    );
    let subscriber = |pattern: &str| {
        let mut client = Client::connect(&server);
        client.0.fix_receive_buffer();
        assert_eq!(subscribe(&mut client, pattern)["op"], "ack");
        client
    };
    let is_ascending = |numbers: &[u64]| numbers.windows(2).all(|pair| pair[0] < pair[1]);

    // Each message arrives or is reported.
    let is_all = |numbers: &BTreeMap<String, Vec<u64>>, dropped: u64| {
        numbers.values().map(Vec::len).sum::<usize>() as u64 + dropped == FLOOD
    };
    let (numbers, dropped) = flood(&server, &mut subscriber("newest.*"), &["newest.a"], is_all);
    let newest = &numbers["newest.a"];
    assert!(dropped > 0 && is_ascending(newest), "{dropped} dropped");
    // While the kernel's send buffer grows, messages after the first dropped one find space.
    assert_eq!(newest.first(), Some(&0), "the first messages stay");
    assert!(newest.last() < Some(&(FLOOD - 1)), "the last messages are dropped");

    let (numbers, dropped) = flood(&server, &mut subscriber("oldest.*"), &["oldest.a"], is_all);
    let oldest = &numbers["oldest.a"];
    assert!(dropped > 0 && is_ascending(oldest), "{dropped} dropped");
    assert_eq!(oldest.last(), Some(&(FLOOD - 1)), "the last messages stay");

    let last = [("last.a", FLOOD - 2), ("last.b", FLOOD - 1)];
    let (numbers, _) = flood(&server, &mut subscriber("last.*"), &["last.a", "last.b"], |numbers, _| {
        last.iter().all(|(topic, last)| numbers.get(*topic).is_some_and(|all| all.last() == Some(last)))
    });
    for received in numbers.values() {
        assert!(
            (received.len() as u64) < FLOOD / 4,
            "{} messages arrive, the others are conflated",
            received.len()
        );
        assert!(is_ascending(received));
    }

    let mut closed = subscriber("close.*");
    let mut publisher = Client::connect(&server);
    let fill = "x".repeat(80 << 10);
    for number in 0..FLOOD {
        publisher.0.send(&numbered("close.a", number, &fill));
    }
    assert_eq!(publisher.request(json!({"op": "ping", "id": 1}))["op"], "pong");
    let code = loop {
        match closed.0.next() {
            Some(Reply::Message(..)) => {}
            other => break other.and_then(|reply| reply.close_code()),
        }
    };
    assert_eq!(code, Some(1008));
}

#[test]
fn messages_beyond_the_history_age_are_not_retained() {
    let server = serve(
        "[namespace.\"short.>\"]\nhistory = 5\nhistory_age = \"300ms\"\n[namespace.\"long.>\"]\nhistory = 5\n",
    );
    let mut client = Client::connect(&server);
    let begin = Instant::now();
    for topic in ["short.a", "long.a"] {
        assert_eq!(publish(&mut client, topic, "x")["op"], "ack");
    }
    let retained = |client: &mut Client, topic: &str| {
        let history = client.request(json!({"op": "history", "id": 2, "topic": topic, "last": 9}));
        history["messages"].as_array().unwrap().len()
    };
    until("nothing is retained", || retained(&mut client, "short.a") == 0);
    assert!(begin.elapsed() >= Duration::from_millis(300), "{:?}", begin.elapsed());
    assert_eq!(retained(&mut client, "long.a"), 1);
}

#[test]
fn updates_of_presence_keep_the_interval_of_the_namespace() {
    const INTERVAL: Duration = Duration::from_millis(1_500);
    let server = serve("[namespace.\"slow.>\"]\npresence_interval = \"1500ms\"\n");
    // On a busy machine, the joins may take longer than the interval: then once more.
    for number in 0.. {
        let topic = format!("slow.{number}");
        let mut watcher = Client::connect(&server);
        let subscribe = json!({"op": "subscribe", "id": 1, "topic": topic, "presence": true});
        assert_eq!(watcher.request(subscribe)["op"], "ack");
        let mut member = Client::connect(&server);
        let mut join = |id: &str| {
            let join = json!({"op": "join", "id": 1, "topic": topic, "member": {"id": id}});
            assert_eq!(member.request(join)["op"], "ack");
        };
        let begin = Instant::now();
        join("first");
        let update = watcher.receive_message();
        assert_eq!(update["joined"], json!([{"id": "first"}]));
        join("second");
        join("third");
        if begin.elapsed() >= INTERVAL {
            continue;
        }
        let update = watcher.receive_message();
        assert_fields(&update, json!({"joined": [{"id": "third"}], "left": ["first"]}));
        assert!(begin.elapsed() >= INTERVAL, "{:?}", begin.elapsed());
        break;
    }
}

#[test]
fn updates_of_keys_keep_the_interval_of_the_namespace() {
    const INTERVAL: Duration = Duration::from_millis(1_500);
    let (server, mut writer) = connected(serve("[namespace.\"slow.>\"]\nkey_interval = \"1500ms\"\n"));
    let mut set = |topic: &str, number: u64| {
        let set = json!({"op": "set", "id": 1, "topic": topic, "key": "k", "data": number});
        assert_eq!(writer.request(set)["op"], "ack");
    };
    set("slow.a", 0);
    let mut reader = Client::connect(&server);
    let subscribe = json!({"op": "subscribe", "id": 1, "topic": "slow.a", "keys": true});
    assert_eq!(reader.request(subscribe)["op"], "ack");
    assert_eq!(reader.receive_message()["set"][0]["data"], 0);
    let mut stream = server.connect();
    let head = "GET /topics/slow.a/keys HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    stream.write_all(head.as_bytes()).unwrap();
    let mut events = BufReader::new(stream).lines().map_while(Result::ok);
    let mut value_of_events = || {
        let is_update = |line: &String| line.starts_with("data: ") && line.contains("\"set\"");
        let line = events.find(is_update).expect("an update");
        serde_json::from_str::<Value>(&line["data: ".len()..]).unwrap()["set"][0]["data"].as_u64().unwrap()
    };
    assert_eq!(value_of_events(), 0);
    let begin = Instant::now();
    for number in 1..=50 {
        set("slow.a", number);
    }
    let written = begin.elapsed();
    let mut updates = [0; 2];
    loop {
        updates[0] += 1;
        if reader.receive_message()["set"][0]["data"] == 50 {
            break;
        }
    }
    loop {
        updates[1] += 1;
        if value_of_events() == 50 {
            break;
        }
    }
    // One for each interval in which there were writes, and one at their end.
    let most = written.as_millis() / INTERVAL.as_millis() + 2;
    assert!(updates.iter().all(|count| *count <= most), "{updates:?} updates in {written:?}");
}

#[test]
fn limits_of_keys_follow_the_namespace() {
    let directory = Directory::new();
    let streams = directory.path("streams");
    let file = format!(
        "[streams]\ndirectory = {streams:?}\ndurable_keys = \"kept.>\"\n\
         [namespace.\"kept.not\"]\ndurable_keys = false\n[namespace.also]\ndurable_keys = true\nmax_keys = 2\n\
         [namespace.\"few.>\"]\nmax_keys = 2\n[namespace.\"brief.>\"]\nkey_ttl = \"300ms\"\n"
    );
    let server = serve_in(&directory, &file);
    let mut client = Client::connect(&server);
    let mut set = |topic: &str, key: &str, more: Value| {
        let mut request = json!({"op": "set", "id": 1, "topic": topic, "key": key, "data": 1});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        client.request(request)
    };
    for topic in ["few.a", "also"] {
        assert_eq!(set(topic, "a", json!({}))["op"], "ack");
        assert_eq!(set(topic, "b", json!({}))["op"], "ack");
        let full = set(topic, "c", json!({}));
        assert_eq!(full["code"], 429, "{full}");
        assert!(full["error"].as_str().unwrap().contains("(2)"), "{full}");
        assert_eq!(status(&server.request(&format!("PUT /topics/{topic}/keys/c HTTP/1.1"), "1")), "429");
        assert_eq!(set(topic, "b", json!({"data": 2}))["op"], "ack", "a known key is set");
    }
    assert_eq!(set("few.b", "a", json!({}))["op"], "ack", "each topic has its own limit");

    // Values without a time to live get that of the namespace.
    let begin = Instant::now();
    assert_eq!(set("brief.a", "default", json!({}))["op"], "ack");
    assert_eq!(set("brief.a", "own", json!({"ttl": 3_600_000}))["op"], "ack");
    let key = |key: &str| status(&server.get(&format!("/topics/brief.a/keys/{key}"))).to_owned();
    until("the key has expired", || key("default") != "200");
    assert!(begin.elapsed() >= Duration::from_millis(300));
    assert_eq!((key("default"), key("own")), ("404".to_owned(), "200".to_owned()));

    for topic in ["kept.a", "kept.not"] {
        assert_eq!(set(topic, "a", json!({}))["op"], "ack");
    }
    // Dropping it kills the process.
    drop(server);
    let server = serve_in(&directory, &file);
    let has_key = |topic: &str| status(&server.get(&format!("/topics/{topic}/keys/a"))) == "200";
    let found = ["kept.a", "kept.not", "also", "few.a"].map(has_key);
    assert_eq!(found, [true, false, true, false], "durable keys survive");
}
