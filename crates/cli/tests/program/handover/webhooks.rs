//! Reports of topics during a handover.

use super::*;
use crate::hooks::{AppAnswer, Application};

/// Opens a connection that is a subscriber and a member, and names its process; `None` if the predecessor closes it.
fn joined(address: SocketAddr) -> Option<(Socket, String)> {
    let mut socket = Socket::open(address, "/ws");
    let welcome = socket.receive_message()?;
    let process = welcome["connection"].as_str()?.split_once('-')?.0.to_owned();
    for request in [
        json!({"op": "subscribe", "id": 1, "topic": "t"}),
        json!({"op": "join", "id": 2, "topic": "t", "member": {"id": "anna"}}),
    ] {
        assert_eq!(socket.request(&request)?["op"], "ack");
    }
    Some((socket, process))
}

#[test]
fn webhooks_report_no_absence_of_clients_that_move_to_the_successor() {
    let application = Application::start(|_| AppAnswer::Status(200));
    let mut service = Service::start(
        "webhooks",
        &format!(
            "[webhook.app]\nurl = {:?}\nsecret = \"0123456789abcdef0123456789abcdef\"\ngrace = \"0s\"\ndelay = \"0s\"\n\
             events = [\"topic_occupied\", \"topic_vacated\", \"member_joined\", \"member_left\"]",
            application.url("/")
        ),
    );
    let names = |count: usize| {
        let mut all = Vec::new();
        while all.len() < count {
            let body = application.request().json();
            let events = body["events"].as_array().unwrap().iter();
            all.extend(events.map(|event| event["event"].as_str().unwrap().to_owned()));
        }
        all
    };
    let (mut old, predecessor) = joined(service.address).unwrap();
    assert_eq!(names(2), ["topic_occupied", "member_joined"]);
    service.restart();
    let new = loop {
        // The predecessor accepts connections for a moment, and closes them.
        match joined(service.address) {
            Some((socket, process)) if process != predecessor => break socket,
            _ => {}
        }
    };
    while old.receive_message().is_some() {}
    service.old_one_ends();
    drop(new);
    assert_eq!(names(2), ["member_left", "topic_vacated"]);
    assert!(application.requests.try_recv().is_err());
}
