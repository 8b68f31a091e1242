//! Updates of the members of a topic that have many changes.

use std::net::TcpStream;

use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_server::{Member, Topics};
use sinews_testkit::assert_fields;

use crate::support::{TestHub, parse};

/// Maximum number of members in one message.
const PAGE: usize = 256;

fn request(socket: &mut WebSocket<TcpStream>, message: &Value) -> Value {
    socket.send_text(&message.to_string()).unwrap();
    receive(socket)
}

fn receive(socket: &mut WebSocket<TcpStream>) -> Value {
    parse(socket.next().unwrap().unwrap().to_text().unwrap())
}

/// A client that follows the members of a topic, with the answer to its subscription.
fn watcher(hub: &TestHub) -> (WebSocket<TcpStream>, Value) {
    let mut socket = hub.websocket("/ws");
    socket
        .send_text(&json!({"op": "subscribe", "id": 1, "topic": "room", "members": true}).to_string())
        .unwrap();
    loop {
        let answer = receive(&mut socket);
        if answer["op"] == "ack" {
            return (socket, answer);
        }
    }
}

/// Joins of members that belong to one update.
fn join(hub: &TestHub, count: usize) {
    let info = |number: usize| json!({"number": number, "text": "\u{1}\"\\"}).to_string();
    let member = |number: usize| (Member::new(format!("\"{number}")).with_info(info(number)), 1);
    let members: Vec<_> = (0..count).map(member).collect();
    assert_eq!(hub.publisher.adjust_presence("room", count as isize, &members), 0);
}

#[test]
fn update_of_too_many_changes_lists_none_and_is_incomplete() {
    let hub = TestHub::new();
    let (mut socket, _) = watcher(&hub);
    let count = Topics::PRESENCE_CHANGES_MAX + 1;
    join(&hub, count);
    let update = receive(&mut socket);
    assert_fields(&update, json!({"op": "presence", "complete": false}));
    assert_eq!(update["subscribers"], count + 1, "{update}");
    assert_eq!((update.get("joined"), update.get("left")), (None, None), "{update}");
    // The watcher lists the members again, as the reference says.
    let page = request(&mut socket, &json!({"op": "members", "id": 1, "topic": "room"}));
    assert_eq!((page["members"].as_array().unwrap().len(), &page["more"]), (PAGE, &json!(true)), "{page}");
}

#[test]
fn update_of_many_changes_is_sent_in_several_messages_without_a_gap() {
    const MEMBERS: usize = 600;
    let hub = TestHub::new();
    let (mut socket, ack) = watcher(&hub);
    join(&hub, MEMBERS);
    let mut at = ack["at"].as_u64().unwrap();
    let mut numbers = Vec::new();
    while numbers.len() < MEMBERS {
        let update = receive(&mut socket);
        assert!(update["since"].as_u64().unwrap() <= at, "an update is missing: {update}");
        at = update["at"].as_u64().unwrap();
        let joined = update["joined"].as_array().unwrap();
        assert_eq!(joined.len(), PAGE.min(MEMBERS - numbers.len()), "{update}");
        for member in joined {
            let number = member["info"]["number"].as_u64().unwrap();
            assert_eq!(member["id"], format!("\"{number}"));
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..MEMBERS as u64), "each member joins once");
    // New clients get a page.
    let (_, ack) = watcher(&hub);
    let listed = ack["members"].as_array().unwrap();
    assert_eq!((&ack["more"], &ack["subscribers"], listed.len()), (&json!(true), &json!(MEMBERS + 2), PAGE));
    let first = json!({"id": "\"0", "connections": 1, "info": {"number": 0, "text": "\u{1}\"\\"}});
    assert_eq!(listed[0], first);
}
