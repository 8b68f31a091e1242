//! Revocations of clusters with a topic store.

use serde_json::json;
use sinews_store::StoreError;

use super::api::{token, user, with_tokens};
use super::{KEY, TestPeer};
use crate::support::fake_broker::{FakeBroker, WireProtocol};
use crate::support::fake_store::FakeStore;

/// A node with this store.
fn join(broker: &FakeBroker, store: &FakeStore) -> TestPeer {
    TestPeer::start_with(broker, |builder| with_tokens(builder).topic_store(store.connect()))
}

/// The status of a user's publication.
fn publish(node: &TestPeer, user: &str) -> u16 {
    let authorization = format!("Authorization: Bearer {}\r\n", token(user));
    node.request_with("POST /topics/a", &authorization, b"1").0
}

fn revoke(node: &TestPeer, user: &str) -> u16 {
    let authorization = format!("Authorization: Bearer {KEY}\r\n");
    let body = json!({ "user": user }).to_string();
    node.request_with("POST /api/v1/revoke", &authorization, body.as_bytes()).0
}

#[test]
fn revocation_survives_a_lost_message_and_the_end_of_all_nodes() {
    let (broker, store) = (FakeBroker::start(WireProtocol::Redis), FakeStore::new());
    let nodes = [(); 2].map(|()| join(&broker, &store));
    let (mut client, _) = user(&nodes[1], "anna");
    broker.lose(Some("of_user"));
    assert_eq!(revoke(&nodes[0], "anna"), 200);
    while let Some(Ok(_)) = client.0.next() {}
    assert_eq!(client.0.closed().unwrap().code().map(u16::from), Some(4401));
    broker.lose(None);
    drop(nodes);
    let late = join(&broker, &store);
    late.until("the revocation is read", |node| publish(node, "anna") == 401);
    assert_eq!(publish(&late, "ben"), 403, "this token is valid, without a right");
}

#[test]
fn revocation_during_an_outage_is_stored_afterwards() {
    let (broker, store) = (FakeBroker::start(WireProtocol::Redis), FakeStore::new());
    let node = join(&broker, &store);
    store.fail(Some(StoreError::Away("no route".into())));
    assert_eq!(revoke(&node, "anna"), 503);
    assert_eq!(publish(&node, "anna"), 401, "it is in effect");
    store.fail(None);
    let late = join(&broker, &store);
    late.until("the revocation is read", |node| publish(node, "anna") == 401);
}
