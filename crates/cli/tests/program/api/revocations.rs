//! Revocations outlive the process, and reach all nodes of a cluster.

use serde_json::{Value, json};
use std::fs;

use super::connections::{close_of, connect};
use super::{KEY, call, call_with};
use crate::auth::token;
use crate::cluster::at_bus;
use crate::cluster::broker::{FakeBroker, WireProtocol};
use crate::config::Directory;
use crate::support::{Running, until};

struct TokenServers {
    directory: Directory,
    secret: String,
}

impl TokenServers {
    fn new() -> Self {
        let directory = Directory::new();
        let secret = crate::auth::keys("secret");
        Self { directory, secret }
    }

    fn start(&self, arguments: &[&str]) -> Running {
        let common = ["--api-key", KEY, "--auth-secret-file", &self.secret];
        Running::serve(&[&common[..], arguments].concat())
    }

    fn token(&self, user: &str, id: &str) -> String {
        token(&self.secret, &["--subject", user, "--id", id, "--subscribe", ">"])
    }
}

/// Whether the server rejects a token.
fn rejects(server: &Running, token: &str) -> bool {
    match server.try_websocket(&format!("/ws?token={token}"), "") {
        Ok(_) => false,
        Err(head) => {
            assert!(head.starts_with("HTTP/1.1 401 "), "{head}");
            true
        }
    }
}

fn nodes(server: &Running) -> usize {
    call(server, "GET /nodes", &Value::Null)["nodes"].as_array().unwrap().len()
}

#[test]
fn revocations_are_in_effect_after_a_restart_with_a_directory_of_streams() {
    let servers = TokenServers::new();
    let streams = ["--streams", &servers.directory.path("streams")];
    let (anna, ben, carl) =
        (servers.token("anna", "1"), servers.token("ben", "2"), servers.token("carl", "3"));
    let mut server = servers.start(&streams);
    call(&server, "POST /revoke", &json!({"user": "anna"}));
    call(&server, "POST /revoke", &json!({"token": "2"}));
    for _ in 0..2 {
        // Without a chance to write anything.
        drop(server);
        server = servers.start(&streams);
        assert!(rejects(&server, &anna) && rejects(&server, &ben) && !rejects(&server, &carl));
    }
    // An incomplete record at the end, as a crash leaves it, hides none before it.
    drop(server);
    let file = servers.directory.path("streams/revocations");
    let mut bytes = fs::read(&file).unwrap();
    bytes.extend_from_slice(b"\x40\0\0\0incomplete");
    fs::write(&file, bytes).unwrap();
    let server = servers.start(&streams);
    assert!(rejects(&server, &anna) && rejects(&server, &ben) && !rejects(&server, &carl));
}

#[test]
fn revocation_that_cannot_be_stored_is_in_effect_and_reported() {
    let servers = TokenServers::new();
    let streams = servers.directory.path("streams");
    let server = servers.start(&["--streams", &streams]);
    let (anna, ben) = (servers.token("anna", "1"), servers.token("ben", "2"));
    fs::remove_file(format!("{streams}/revocations")).unwrap();
    let answer = call_with(&server, KEY, "", "POST /api/v1/revoke", r#"{"user":"anna"}"#);
    assert_eq!(answer.status, 503);
    assert!(answer.body["error"].as_str().unwrap().contains("a restart forgets it"), "{}", answer.body);
    assert!(rejects(&server, &anna));
    // The next one writes the file anew.
    call(&server, "POST /revoke", &json!({"user": "ben"}));
    drop(server);
    let server = servers.start(&["--streams", &streams]);
    assert!(rejects(&server, &ben) && rejects(&server, &anna));
}

#[test]
fn revocations_reach_all_nodes_and_those_that_join_later() {
    for engine in [WireProtocol::Nats, WireProtocol::Redis] {
        let (broker, servers) = (FakeBroker::start(engine), TokenServers::new());
        let url = broker.url();
        let start = |name: &str| servers.start(&[&at_bus(&url)[..], &["--cluster-node-name", name]].concat());
        let [a, b] = ["a", "b"].map(start);
        until("both nodes are known", || nodes(&a) == 2);
        // Clients that connect earlier receive a report of the login at the broker.
        for node in [&a, &b] {
            until("it is ready", || node.get("/readyz").starts_with("HTTP/1.1 200 "));
        }
        let (anna, ben) = (servers.token("anna", "1"), servers.token("ben", "2"));
        let (mut of_anna, _) = connect(&b, &anna);
        assert_eq!(call(&a, "POST /revoke", &json!({"user": "anna"}))["connections"], 1);
        assert_eq!(close_of(&mut of_anna), (4401, "the token has been revoked".to_owned()));
        assert!(rejects(&b, &anna));
        let late = ["c", "d", "e"].map(start);
        for node in &late {
            until("a node that joins learns it", || rejects(node, &anna));
        }

        // An outage of the broker.
        let (mut of_ben, _) = connect(&b, &ben);
        broker.go_down();
        let revoked = call(&a, "POST /revoke", &json!({"token": "2"}));
        assert_eq!(revoked["connections"], 0, "{revoked}");
        assert!(!rejects(&b, &ben), "{revoked}");
        broker.come_up();
        // Reports of the outage come first.
        let code = loop {
            if let Some(code) = of_ben.0.next().expect("a Close").close_code() {
                break code;
            }
        };
        assert_eq!(code, 4401);
        until("the outage is over", || {
            [&a, &b].iter().chain(&late.each_ref()).all(|node| rejects(node, &ben))
        });
    }
}
