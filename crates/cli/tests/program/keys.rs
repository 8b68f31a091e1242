//! Keys of topics over `/ws` and by plain requests, as docs/book/src/server/keys.md describes them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use sinews_testkit::{Frame, assert_fields};

use crate::auth::token;
use crate::config::Directory;
use crate::support::{Running, Socket, body, status};

/// A client of the protocol, and its view of one topic.
struct Client {
    socket: Socket,
    keys: BTreeMap<String, Value>,
    parts: BTreeMap<String, Value>,
    sequence: u64,
}

impl Client {
    fn connect(server: &Running, path: &str) -> Self {
        let socket = server.websocket(path);
        let mut client = Self { socket, keys: BTreeMap::new(), parts: BTreeMap::new(), sequence: 0 };
        assert_eq!(client.receive()["op"], "welcome");
        client
    }

    fn receive(&mut self) -> Value {
        self.socket.receive_message()
    }

    /// Sends a request and returns its answer. Updates before it are applied.
    fn request(&mut self, body: Value) -> Value {
        self.socket.send_message(&body);
        loop {
            let message = self.receive();
            if message["op"] != "keys" {
                return message;
            }
            self.apply(&message);
        }
    }

    fn apply(&mut self, message: &Value) {
        let is_snapshot = message.get("part").is_some();
        if message["part"] == 1 {
            self.parts.clear();
        }
        let view = if is_snapshot { &mut self.parts } else { &mut self.keys };
        for entry in message["set"].as_array().into_iter().flatten() {
            let value = entry.get("data").or_else(|| entry.get("b64")).unwrap();
            view.insert(entry["key"].as_str().unwrap().to_owned(), value.clone());
        }
        for key in message["deleted"].as_array().into_iter().flatten() {
            view.remove(key.as_str().unwrap());
        }
        if is_snapshot && message["more"] == false {
            self.keys = std::mem::take(&mut self.parts);
        }
        if message["more"] != true {
            self.sequence = message["seq"].as_u64().unwrap();
        }
    }

    /// Applies updates up to a sequence; returns the view.
    fn until(&mut self, sequence: u64) -> Value {
        while self.sequence < sequence {
            let message = self.receive();
            assert_eq!(message["op"], "keys", "{message}");
            self.apply(&message);
        }
        json!(self.keys)
    }
}

#[test]
fn keys_are_set_and_followed_over_ws_and_by_requests() {
    let server = Running::serve(&["--threads", "2"]);
    let mut writer = Client::connect(&server, "/ws");
    let ack = writer.request(json!({"op": "set", "id": 1, "topic": "game", "key": "anna", "data": {"x": 1}}));
    let epoch = ack["epoch"].clone();
    assert_eq!(ack, json!({"op": "ack", "id": 1, "epoch": epoch, "seq": 1}));
    let answer = server.request("PUT /topics/game/keys/b%20en HTTP/1.1", "text");
    assert!(answer.contains(&format!("ETag: \"{epoch}-2\"\r\n")), "{answer}");
    assert_eq!(body(&answer), json!({"topic": "game", "key": "b en", "epoch": epoch, "seq": 2}));

    let mut reader = Client::connect(&server, "/ws");
    let ack = reader.request(json!({"op": "subscribe", "id": 2, "topic": "game", "keys": true}));
    let expected =
        json!({"op": "ack", "id": 2, "topic": "game", "epoch": epoch, "seq": 2, "recovered": false});
    assert_eq!(ack, expected);
    let snapshot = json!({
        "op": "keys", "topic": "game", "epoch": epoch, "seq": 2, "part": 1, "more": false,
        "set": [
            {"key": "anna", "version": 1, "data": {"x": 1}},
            {"key": "b en", "version": 2, "data": "text"},
        ],
    });
    assert_eq!(reader.receive(), snapshot);
    writer.request(json!({"op": "set", "id": 3, "topic": "game", "key": "c", "b64": "AP8="}));
    let update = json!({"op": "keys", "topic": "game", "epoch": epoch, "seq": 3, "set": [{"key": "c", "version": 3, "b64": "AP8="}]});
    assert_eq!(reader.receive(), update);
    let ack = writer.request(json!({"op": "delete", "id": 4, "topic": "game", "key": "anna"}));
    assert_eq!(ack, json!({"op": "ack", "id": 4, "epoch": epoch, "seq": 4}));
    let update = json!({"op": "keys", "topic": "game", "epoch": epoch, "seq": 4, "deleted": ["anna"]});
    assert_eq!(reader.receive(), update);
    let ack = writer.request(json!({"op": "delete", "id": 5, "topic": "game", "key": "anna"}));
    assert_eq!(ack, json!({"op": "ack", "id": 5, "epoch": epoch, "seq": 4, "changed": false}));

    let list = body(&server.get("/topics/game/keys?limit=1"));
    let expected = json!({"topic": "game", "epoch": epoch, "seq": 4, "keys": [{"key": "b en", "version": 2, "data": "text"}], "more": true});
    assert_eq!(list, expected);
    let rest = body(&server.get("/topics/game/keys?after=b%20en&filter=*"));
    assert_eq!((&rest["keys"][0]["key"], &rest["more"]), (&json!("c"), &json!(false)));
    let one = server.get("/topics/game/keys/c");
    assert_eq!(body(&one), json!({"topic": "game", "epoch": epoch, "key": "c", "version": 3, "b64": "AP8="}));
    assert!(one.contains(&format!("ETag: \"{epoch}-3\"\r\n")));
    assert_eq!(status(&server.get("/topics/game/keys/anna")), 404);

    let ack = reader.request(json!({"op": "unsubscribe", "id": 6, "topic": "game", "keys": true}));
    assert_eq!(ack, json!({"op": "ack", "id": 6, "topic": "game"}));
    assert_eq!(status(&server.request("DELETE /topics/game/keys/c HTTP/1.1", "")), 200);
    let from = json!({"epoch": epoch, "seq": 4});
    let ack =
        reader.request(json!({"op": "subscribe", "id": 7, "topic": "game", "keys": true, "from": from}));
    assert_fields(&ack, json!({"recovered": true, "seq": 5}));
    reader.sequence = 4;
    reader.until(5);
    // Messages of the topic are independent of its keys.
    writer.request(json!({"op": "publish", "id": 8, "topic": "game", "data": 1}));
    assert_eq!(reader.request(json!({"op": "ping", "id": 9})), json!({"op": "pong", "id": 9}));
}

#[test]
fn conditions_guard_writes_over_ws_and_by_requests() {
    let server = Running::serve(&["--threads", "1"]);
    let mut client = Client::connect(&server, "/ws");
    let mut ask = |more: Value| {
        let mut request = json!({"op": "set", "id": 1, "topic": "t", "key": "lock", "data": 1});
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if more["op"] == "delete" {
            request.as_object_mut().unwrap().remove("data");
        }
        client.request(request)
    };
    assert_eq!(ask(json!({"if_exists": true}))["code"], 412);
    let epoch = ask(json!({"if_new": true, "ttl": 60_000}))["epoch"].as_u64().unwrap();
    let problem = ask(json!({"if_new": true}));
    assert_fields(&problem, json!({"code": 412, "error": "the key exists, with version 1"}));
    assert_eq!(ask(json!({"version": 2}))["code"], 412);
    assert_eq!(ask(json!({"version": 1, "epoch": epoch ^ 1}))["code"], 412);
    assert_eq!(ask(json!({"version": 1, "epoch": epoch}))["seq"], 2);
    assert_eq!(ask(json!({"version": 2, "idempotency_key": "x"}))["seq"], 3);
    let repeated = ask(json!({"version": 2, "idempotency_key": "x"}));
    assert_fields(&repeated, json!({"seq": 3, "repeated": true}));
    for (more, code, part) in [
        (json!({"if_new": true, "version": 1}), 400, "one of if_new"),
        (json!({"epoch": 1}), 400, "one of if_new"),
        (json!({"filter": "a"}), 400, "not valid for keys"),
        (json!({"last": 1}), 400, "not valid for keys"),
        (json!({"b64": ""}), 400, "either data or b64"),
        (json!({"op": "delete", "ttl": 1}), 400, "are for set"),
        (json!({"ttl": 0}), 422, "time to live"),
        (json!({"key": "a.*"}), 422, "a key has"),
        (json!({"key": ""}), 422, "a key has"),
        (json!({"topic": "a.*"}), 422, "name one topic"),
        (json!({"idempotency_key": ""}), 422, "idempotency key"),
        (json!({"data": "x".repeat(70_000)}), 413, "max_value_bytes (65536)"),
        (json!({"op": "subscribe", "keys": true}), 400, "not valid for keys"),
        (json!({"op": "publish", "ttl": 1}), 400, "for keys only"),
    ] {
        let answer = ask(more.clone());
        assert_eq!(answer["code"], code, "{more}: {answer}");
        assert!(answer["error"].as_str().unwrap().contains(part), "{more}: {answer}");
    }
    let put = |headers: &str| server.request(&format!("PUT /topics/t/keys/lock HTTP/1.1{headers}"), "1");
    for (headers, expected) in [
        ("\r\nIf-None-Match: *", 412),
        ("\r\nIf-Match: \"1-1\"", 412),
        ("\r\nIf-Match: 3", 400),
        ("\r\nIf-Match: *\r\nIf-None-Match: *", 400),
        ("\r\nIf-Match: *", 200),
        (&format!("\r\nIf-Match: \"{epoch}-4\""), 200),
        ("\r\nIdempotency-Key: y\r\nIf-Match: *", 200),
    ] {
        let answer = put(headers);
        assert_eq!(status(&answer), expected, "{headers}: {answer}");
    }
    assert_eq!(body(&put("\r\nIdempotency-Key: y"))["repeated"], true);
    assert_eq!(status(&server.request("DELETE /topics/t/keys/other HTTP/1.1\r\nIf-Match: *", "")), 412);
    assert_eq!(status(&server.request("PUT /topics/t/keys/a?ttl=x HTTP/1.1", "1")), 400);
    assert_eq!(status(&server.request("PUT /topics/t/keys/a..b HTTP/1.1", "1")), 422);
    let foreign = server.request("PUT /topics/t/keys/a HTTP/1.1\r\nOrigin: https://example.com", "1");
    assert_eq!(status(&foreign), 403);
    let metrics = server.get("/metrics");
    assert!(
        metrics.contains("\nsinews_keys 1\n") && metrics.contains("\nsinews_keyed_topics 1\n"),
        "{metrics}"
    );
}

#[test]
fn tokens_name_the_keys_that_a_client_may_write() {
    let secret = crate::auth::keys("secret");
    let server = Running::serve(&["--threads", "1", "--auth-secret-file", &secret]);
    let arguments = ["--subject", "anna", "--keys", "players/{sub}", "--keys", "room.*/{sub}.>"];
    let anna = token(&secret, &[&arguments[..], &["--subscribe", "players"]].concat());
    let mut client = Client::connect(&server, &format!("/ws?token={anna}"));
    let mut set = |topic: &str, key: &str| {
        client.request(json!({"op": "set", "id": 1, "topic": topic, "key": key, "data": 1}))
    };
    assert_eq!(set("players", "anna")["op"], "ack");
    assert_eq!(set("room.7", "anna.cursor")["op"], "ack");
    let denied = set("players", "ben");
    assert_fields(&denied, json!({"code": 403, "needs": {"keys": ["players/ben"]}}));
    assert_eq!(set("room.7", "ben.cursor")["code"], 403);
    let denied = client.request(json!({"op": "delete", "id": 1, "topic": "players", "key": "ben"}));
    assert_eq!(denied["code"], 403);
    let subscribe = json!({"op": "subscribe", "id": 2, "topic": "players", "keys": true});
    assert_eq!(client.request(subscribe.clone())["op"], "ack");
    assert_eq!(client.until(1), json!({"anna": 1}));
    let denied = client.request(json!({"op": "subscribe", "id": 3, "topic": "room.7", "keys": true}));
    assert_eq!(denied["code"], 403);
    // The right to publish does not include the keys.
    let publisher = token(&secret, &["--publish", ">", "--subscribe", "other"]);
    let put = |key: &str, lines: &str| {
        server.request(&format!("PUT /topics/players/keys/{key} HTTP/1.1{lines}"), "1")
    };
    assert_eq!(status(&put("anna", &format!("\r\nAuthorization: Bearer {publisher}"))), 403);
    assert_eq!(status(&put("anna", &format!("\r\nAuthorization: Bearer {anna}"))), 200);
    assert_eq!(status(&put("anna", "")), 401);
    assert_eq!(status(&server.get("/topics/players/keys")), 401);
    // A renewed token without the right ends the subscription.
    client.until(2);
    client.socket.send(&Frame::text(json!({"op": "token", "id": 4, "token": publisher}).to_string()));
    let answers = [client.receive(), client.receive()];
    assert_eq!(answers[0]["op"], "ack", "{answers:?}");
    let ended = &answers[1];
    assert_fields(ended, json!({"code": 403, "topic": "players", "keys": true}));
    assert_eq!(
        client.request(json!({"op": "unsubscribe", "id": 5, "topic": "players", "keys": true}))["code"],
        409
    );
    // A subject must not widen its rights.
    let star = token(&secret, &["--subject", "*", "--keys", "players/{sub}"]);
    let answer = put("anna", &format!("\r\nAuthorization: Bearer {star}"));
    assert_eq!(status(&answer), 401);
    assert!(answer.contains("the token's sub is no name"), "{answer}");
}

#[test]
fn acknowledged_durable_keys_survive_a_killed_server() {
    durable_keys_survive_a_killed_server(&[]);
}

/// A broker stores no keys, and need not be reachable for them.
#[cfg(feature = "nats")]
#[test]
fn acknowledged_durable_keys_beside_a_broker_survive_a_killed_server() {
    durable_keys_survive_a_killed_server(&[
        "--store",
        "nats://127.0.0.1:1",
        "--streams-durable-topics",
        "stored.>",
    ]);
}

fn durable_keys_survive_a_killed_server(more: &[&str]) {
    let directory = Directory::new();
    let streams = directory.path("streams");
    let options = [&["--streams", &streams, "--streams-durable-keys", "game"][..], more].concat();
    let server = Running::serve(&options);
    let mut writer = Client::connect(&server, "/ws");
    let ack = writer.request(json!({"op": "set", "id": 1, "topic": "game", "key": "anna", "data": {"x": 1}}));
    let epoch = ack["epoch"].clone();
    assert_eq!(ack, json!({"op": "ack", "id": 1, "epoch": epoch, "seq": 1}));
    // Written before the acknowledgements, which arrive in order.
    for number in 2..200 {
        let set = json!({"op": "set", "id": number, "topic": "game", "key": "b", "data": number});
        writer.socket.send(&Frame::text(set.to_string()));
    }
    for number in 2..200 {
        assert_eq!(writer.receive(), json!({"op": "ack", "id": number, "epoch": epoch, "seq": number}));
    }
    let condition = json!({"op": "set", "id": 200, "topic": "game", "key": "b", "data": 0, "version": 5});
    assert_eq!(writer.request(condition)["code"], 412);
    let mut reader = Client::connect(&server, "/ws");
    let subscribe = json!({"op": "subscribe", "id": 2, "topic": "game", "keys": true});
    assert_eq!(reader.request(subscribe)["seq"], 199);
    assert_eq!(reader.until(199), json!({"anna": {"x": 1}, "b": 199}));
    // Dropping it kills the process.
    drop(server);
    let server = Running::serve(&options);
    let mut reader = Client::connect(&server, "/ws");
    let subscribe = json!({
        "op": "subscribe", "id": 2, "topic": "game", "keys": true, "from": {"epoch": epoch, "seq": 199},
    });
    let ack = reader.request(subscribe);
    assert_fields(&ack, json!({"recovered": true, "seq": 199, "epoch": epoch}));
    let deleted =
        json!({"op": "delete", "id": 3, "topic": "game", "key": "anna", "version": 1, "epoch": epoch});
    assert_eq!(reader.request(deleted)["seq"], 200);
    // A topic without durable keys starts anew.
    let other = reader.request(json!({"op": "set", "id": 4, "topic": "other", "key": "a", "data": 1}));
    assert_eq!(other["seq"], 1);
}

#[test]
fn idempotency_keys_of_durable_keys_survive_a_killed_server() {
    let directory = Directory::new();
    let streams = directory.path("streams");
    let options = ["--streams", &streams, "--streams-durable-keys", "game"];
    let set = |data: u32, name: &str| json!({"op": "set", "id": 1, "topic": "game", "key": "a", "data": data, "idempotency_key": name});
    let delete =
        |name: &str| json!({"op": "delete", "id": 1, "topic": "game", "key": "b", "idempotency_key": name});
    let server = Running::serve(&options);
    let mut client = Client::connect(&server, "/ws");
    let first = client.request(set(1, "one"));
    client.request(json!({"op": "set", "id": 1, "topic": "game", "key": "b", "data": 1}));
    let deleted = client.request(delete("gone"));
    let second = client.request(set(2, "two"));
    client.request(json!({"op": "set", "id": 1, "topic": "game", "key": "b", "data": 2}));
    let repeated = |ack: &Value| {
        let mut ack = ack.clone();
        ack["repeated"] = json!(true);
        ack
    };
    let check = |client: &mut Client| {
        assert_eq!(client.request(set(9, "one")), repeated(&first));
        assert_eq!(client.request(set(9, "two")), repeated(&second));
        assert_eq!(client.request(delete("gone")), repeated(&deleted));
    };
    check(&mut client);
    // Dropping it kills the process; the second one is stopped.
    drop(server);
    let server = Running::serve(&options);
    check(&mut Client::connect(&server, "/ws"));
    server.signal("TERM");
    assert!(server.wait().0.success());
    let server = Running::serve(&options);
    let mut client = Client::connect(&server, "/ws");
    check(&mut client);
    client.request(json!({"op": "subscribe", "id": 2, "topic": "game", "keys": true}));
    let last = client.request(set(3, "three"))["seq"].as_u64().unwrap();
    assert_eq!(client.until(last), json!({"a": 3, "b": 2}));
    // An idempotency key is one of its key.
    let other = client.request(
        json!({"op": "set", "id": 1, "topic": "game", "key": "c", "data": 1, "idempotency_key": "one"}),
    );
    assert_eq!(other.get("repeated"), None);
}

/// Durable keys that cannot be stored are in the metrics: beyond a limit of streams, and with a damaged stream.
#[test]
fn durable_keys_that_are_not_stored_are_counted() {
    let directory = Directory::new();
    let streams = directory.path("streams");
    let options = ["--streams", &streams, "--streams-durable-keys", "game,other", "--log", "off"];
    let metric = |server: &Running, line: &str| {
        let metrics = server.get("/metrics");
        assert!(metrics.contains(&format!("\nsinews_durable_{line}\n")), "{line}: {metrics}");
    };
    let set = |topic: &str| json!({"op": "set", "id": 1, "topic": topic, "key": "a", "data": 1});
    let server = Running::serve(&[&options[..], &["--streams-max-streams", "1"]].concat());
    let mut client = Client::connect(&server, "/ws");
    assert_eq!(client.request(set("game"))["op"], "ack");
    metric(&server, "key_writes_rejected_total{cause=\"limit\"} 0");
    assert_eq!(client.request(set("other"))["code"], 429);
    metric(&server, "key_writes_rejected_total{cause=\"limit\"} 1");
    metric(&server, "keys_unstored{cause=\"unreadable\"} 0");
    drop((client, server));
    // The keys are beyond the limit of memory at the next start.
    let server = Running::serve(&[&options[..], &["--limits-max-keyed-memory", "1"]].concat());
    metric(&server, "keys_unstored{cause=\"unreadable\"} 1");
    assert_eq!(Client::connect(&server, "/ws").request(set("game"))["code"], 503);
    metric(&server, "key_writes_rejected_total{cause=\"unreadable\"} 1");
}
