//! Clients at `/ws` with tokens.

use std::net::TcpStream;

use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions, TokenKeys};
use sinews_hub::{HostRules, HubConfig, Namespace, Namespaces};

use super::TestHub;

const SECRET: &str = "a secret of at least thirty-two bytes for HS256";

pub(crate) const API_KEY: &str = "api-key-for-tests-of-at-least-32-bytes";

/// A client at `/ws`.
pub(crate) struct Client(pub(crate) WebSocket<TcpStream>);

impl Client {
    pub(crate) fn new(hub: &TestHub) -> Self {
        Self::at(hub, "/ws")
    }

    /// A client with a token of these claims.
    pub(crate) fn with_token(hub: &TestHub, claims: Value) -> Self {
        Self::at(hub, &format!("/ws?token={}", token(claims)))
    }

    fn at(hub: &TestHub, path: &str) -> Self {
        let mut client = Self(hub.websocket(path));
        assert_eq!(client.receive()["op"], "welcome");
        client
    }

    pub(crate) fn receive(&mut self) -> Value {
        let message = self.0.next().expect("the connection is open").expect("a message");
        serde_json::from_slice(message.as_bytes()).unwrap()
    }

    /// Sends a request with an id; returns its answer.
    pub(crate) fn ask(&mut self, mut request: Value) -> Value {
        request["id"] = json!("q");
        self.0.send_text(&request.to_string()).unwrap();
        self.0.flush().unwrap();
        let mut answer = self.receive();
        if answer["op"] == "ignored" {
            answer = self.receive();
        }
        assert_eq!(answer["id"], "q", "{answer}");
        answer.as_object_mut().unwrap().remove("id");
        answer
    }
}

pub(crate) fn token(mut claims: Value) -> String {
    claims["exp"] = json!(4_000_000_000_u64);
    let key = jsonwebtoken::EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&jsonwebtoken::Header::default(), &claims, &key).unwrap()
}

/// A policy with an API key, and with tokens if they are required.
pub(crate) fn policy(has_tokens: bool, namespaces: impl IntoIterator<Item = Namespace>) -> HubConfig {
    let mut auth = AuthOptions::new();
    if has_tokens {
        auth = auth.with_keys(TokenKeys::Secret(SECRET.into()));
    }
    let policy = HubConfig::new(Auth::new(&auth).unwrap(), HostRules::default());
    let keys = ApiKeys::new().with_key(API_KEY).unwrap();
    policy.with_api_keys(keys).with_namespaces(Namespaces::new(namespaces).unwrap())
}
