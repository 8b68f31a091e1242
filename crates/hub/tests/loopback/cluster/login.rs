//! How nodes find their broker and log in: Sentinel at brokers in this process; keys, certificates and sockets at real
//! brokers.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use sinews_testkit::RealBroker;
use sinews_testkit::tls::TestCertificate;

use super::TestPeer;
use crate::support::fake_broker::{FakeBroker, WireProtocol};

/// Publishes from one node to the other.
fn assert_connected(nodes: &[TestPeer; 2]) {
    for node in nodes {
        node.until("both are known", |node| node.metric("sinews_cluster_nodes") == 2);
    }
    let mut subscriber = nodes[0].subscriber("a");
    let before = nodes[0].metric("sinews_cluster_received_total");
    nodes[0].until("the topic is subscribed", |node| {
        nodes[1].publish("a", "x");
        node.metric("sinews_cluster_received_total") > before
    });
    assert_eq!(subscriber.data(1), ["x"]);
}

fn nodes_at(url: &str) -> [TestPeer; 2] {
    [(); 2].map(|()| TestPeer::start_at(url, |builder| builder))
}

fn wait_for_reason(node: &TestPeer, reason: &str) {
    node.until("the reason is named", |node| node.request("GET /readyz", b"").1.contains(reason));
}

#[test]
fn nodes_follow_the_primary_that_sentinel_names() {
    let [sentinel, first, second] = [(); 3].map(|()| FakeBroker::start(WireProtocol::Redis));
    sentinel.promote(&first);
    let nodes = nodes_at(&sentinel.sentinel_url());
    assert_connected(&nodes);
    first.wait_for("sinews.all", 2);
    // The connections to a primary that becomes a replica stay open.
    sentinel.promote(&second);
    first.demote();
    second.wait_for("sinews.all", 2);
    assert_connected(&nodes);
    // The sentinels still name the earlier primary after a failure.
    sentinel.promote(&first);
    second.go_down();
    nodes.iter().for_each(|node| wait_for_reason(node, "no primary"));
    second.come_up();
    sentinel.promote(&second);
    second.wait_for("sinews.all", 2);
    assert_connected(&nodes);
}

#[test]
fn service_that_no_sentinel_knows_is_named() {
    let broker = FakeBroker::start(WireProtocol::Redis);
    let node = TestPeer::start_at(&broker.sentinel_url().replace("/main", "/other"), |builder| builder);
    wait_for_reason(&node, "it does not know the service other");
}

const REDIS: &str = "bind 127.0.0.1\nsave \"\"\nappendonly no\nuser default off\n\
                     user sinews on >secret allchannels +@all\n";

#[test]
fn redis_is_reached_over_a_unix_socket() {
    let files = tempfile::tempdir().unwrap();
    let path = files.path().join("redis.sock");
    let config = format!("port PORT\nunixsocket {}\n{REDIS}", path.display());
    let Some(broker) = RealBroker::start("redis-server", "redis", &config) else { return };
    assert_connected(&nodes_at(&format!("redis+unix://sinews:secret@{}", path.display())));
    drop(broker);
}

/// Writes a certificate and its key. Returns both paths.
fn write_certificate(directory: &Path, name: &str, certificate: &TestCertificate) -> [String; 2] {
    [("pem", certificate.pem()), ("key", certificate.key_pem())].map(|(kind, text)| {
        let path = directory.join(format!("{name}.{kind}"));
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    })
}

#[test]
fn brokers_with_tls_verify_the_certificate_of_a_node() {
    let files = tempfile::tempdir().unwrap();
    let (server, client) =
        (TestCertificate::for_names(&["127.0.0.1"]), TestCertificate::for_names(&["node"]));
    let [server_cert, server_key] = write_certificate(files.path(), "server", &server);
    let [client_cert, client_key] = write_certificate(files.path(), "client", &client);
    let redis = format!(
        "port 0\ntls-port PORT\ntls-cert-file {server_cert}\ntls-key-file {server_key}\n\
         tls-ca-cert-file {client_cert}\ntls-auth-clients yes\n{REDIS}"
    );
    let nats = format!(
        "listen: \"127.0.0.1:PORT\"\nauthorization {{ user: sinews, password: secret }}\n\
         tls {{ cert_file: \"{server_cert}\", key_file: \"{server_key}\", ca_file: \"{client_cert}\", verify: true }}\n"
    );
    let brokers = [("redis-server", "rediss", redis), ("nats-server", "nats+tls", nats)];
    for (program, scheme, config) in brokers {
        let Some(broker) = RealBroker::start(program, scheme, &config) else { continue };
        let with_ca = format!("{}?tls.ca={server_cert}", broker.url);
        assert_connected(&nodes_at(&format!("{with_ca}&tls.cert={client_cert}&tls.key={client_key}")));
        let [without, stranger] =
            [with_ca.clone(), format!("{with_ca}&tls.cert={server_cert}&tls.key={server_key}")]
                .map(|url| TestPeer::start_at(&url, |builder| builder));
        for node in [without, stranger] {
            node.until("the login fails", |node| {
                let (_, answer) = node.request("GET /readyz", b"");
                !answer.contains("not answered yet") && !answer.contains("secret")
            });
            assert_eq!(node.metric("sinews_cluster_connected"), 0);
        }
    }
}

/// A key of NATS: an Ed25519 pair, with the texts of its public key and its seed.
struct NatsPair {
    pair: Ed25519KeyPair,
    public: String,
    seed: String,
}

impl NatsPair {
    /// Makes a key; `kind` is the first letter of its public key.
    fn new(kind: u8, seed: u8) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap();
        let kind = (kind - b'A') << 3;
        let public = nats_text(&[&[kind], pair.public_key().as_ref()].concat());
        let seed = nats_text(&[&[18 << 3 | kind >> 5, kind << 3][..], &[seed; 32]].concat());
        Self { pair, public, seed }
    }

    /// Signs a JWT of NATS about another key.
    fn jwt(&self, subject: &Self, name: &str, nats: &Value) -> String {
        let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
        let claims = json!({
            "jti": name, "iat": 1_700_000_000, "iss": self.public, "sub": subject.public, "name": name, "nats": nats,
        });
        let parts = [header, claims].map(|part| BASE64_URL_SAFE_NO_PAD.encode(part.to_string()));
        let content = parts.join(".");
        let signature = BASE64_URL_SAFE_NO_PAD.encode(self.pair.sign(content.as_bytes()));
        format!("{content}.{signature}")
    }
}

/// Base32 of bytes with their CRC-16.
fn nats_text(bytes: &[u8]) -> String {
    let mut sum = 0_u16;
    for byte in bytes {
        sum ^= u16::from(*byte) << 8;
        for _ in 0..8 {
            sum = sum << 1 ^ if sum & 0x8000 == 0 { 0 } else { 0x1021 };
        }
    }
    let bits: String = bytes.iter().chain(&sum.to_le_bytes()).map(|byte| format!("{byte:08b}")).collect();
    let digits = bits.as_bytes().chunks(5).map(|digit| {
        let digit = format!("{:0<5}", str::from_utf8(digit).unwrap());
        char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"[usize::from_str_radix(&digit, 2).unwrap()])
    });
    digits.collect()
}

#[test]
fn nats_accepts_the_signature_of_a_key() {
    let files = tempfile::tempdir().unwrap();
    let (user, other) = (NatsPair::new(b'U', 1), NatsPair::new(b'U', 2));
    let [seed, wrong] = [("user", &user), ("other", &other)].map(|(name, key)| {
        let path = files.path().join(name);
        std::fs::write(&path, &key.seed).unwrap();
        path.display().to_string()
    });
    let config =
        format!("listen: \"127.0.0.1:PORT\"\nauthorization {{ users: [ {{ nkey: {} }} ] }}\n", user.public);
    let Some(broker) = RealBroker::start("nats-server", "nats", &config) else { return };
    let url = broker.url.replace("sinews:secret@", "");
    assert_connected(&nodes_at(&format!("{url}?nkey={seed}")));
    let node = TestPeer::start_at(&format!("{url}?nkey={wrong}"), |builder| builder);
    wait_for_reason(&node, "Authorization Violation");
}

#[test]
fn nats_accepts_the_jwt_and_the_signature_of_credentials() {
    let files = tempfile::tempdir().unwrap();
    let [operator, account, user] =
        [(b'O', 1), (b'A', 2), (b'U', 3)].map(|(kind, seed)| NatsPair::new(kind, seed));
    let system = NatsPair::new(b'A', 4);
    let operator_claims = json!({ "type": "operator", "version": 2, "system_account": system.public });
    let operator_jwt = operator.jwt(&operator, "operator", &operator_claims);
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
    });
    let account_claims = json!({ "type": "account", "version": 2, "limits": limits });
    let account_jwt = operator.jwt(&account, "account", &account_claims);
    let system_jwt = operator.jwt(&system, "system", &account_claims);
    let user_jwt = account.jwt(
        &user,
        "user",
        &json!({ "type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1 }),
    );
    let config = format!(
        "listen: \"127.0.0.1:PORT\"\noperator: {operator_jwt}\nresolver: MEMORY\n\
         resolver_preload: {{ {}: {account_jwt}, {}: {system_jwt} }}\n",
        account.public, system.public
    );
    let Some(broker) = RealBroker::start("nats-server", "nats", &config) else { return };
    let path = files.path().join("user.creds");
    let write = |jwt: &str| {
        let text = format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
             -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
            user.seed
        );
        std::fs::write(&path, text).unwrap();
    };
    write("eyJ.expired.x");
    let url = format!("{}?credentials={}", broker.url.replace("sinews:secret@", ""), path.display());
    let nodes = nodes_at(&url);
    for node in &nodes {
        node.until("the login fails", |node| {
            node.request("GET /readyz", b"").1.contains("Authorization Violation")
        });
    }
    // The file is read at each login.
    write(&user_jwt);
    assert_connected(&nodes);
}
