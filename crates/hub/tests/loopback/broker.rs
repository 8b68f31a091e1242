//! Durable topics at a broker that acknowledges when the test says so.

use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use serde_json::{Value, json};
use sinews::blocking::WebSocket;
use sinews_hub::{Hub, StreamOptions};
use sinews_stream::broker::{BatchEncoder, BrokerResponse, FlushOutcome, LogSink};
use sinews_stream::record::Records;
use sinews_stream::{AppendError, Completer, Durability, Partition, Pending, ReadResult, StartPosition};
use sinews_testkit::{assert_fields, until};

use crate::support::TestHub;
use crate::support::test_broker::{self, TestBroker};

/// The offset of the first record that is published here.
const FIRST: u64 = 5;

/// A broker with one stream.
#[derive(Default)]
struct HeldBroker(Mutex<HeldState>);

#[derive(Default)]
struct HeldState {
    sink: Option<LogSink>,
    held: Vec<(Records, Completer)>,
    stored: u64,
}

impl HeldBroker {
    /// Waits until this many appends wait for their acknowledgement.
    fn wait_for(&self, count: usize) {
        until(format_args!("{count} appends"), || self.0.lock().unwrap().held.len() >= count);
    }

    /// Stores the first append that waits, and delivers its records to the node. Returns its acknowledgement.
    fn store(&self) -> impl FnOnce() + use<> {
        let state = &mut *self.0.lock().unwrap();
        let (records, completer) = state.held.remove(0);
        let first = FIRST + state.stored;
        state.stored += u64::from(records.count());
        let sink = state.sink.as_mut().expect("the node follows the stream");
        for (offset, mut record) in (first..).zip(records.iter().flatten()) {
            record.offset = offset;
            assert!(sink.push(&record));
        }
        assert_eq!(sink.flush(Waker::noop()), Ok(FlushOutcome::Accepted));
        move || completer.reached(Durability::Broker, first)
    }

    fn fail(&self) {
        let (_, completer) = self.0.lock().unwrap().held.remove(0);
        completer.fail(AppendError::Broker("no memory".into()));
    }
}

impl TestBroker for HeldBroker {
    const FIRST_OFFSET: u64 = 1;

    fn publish(&self, _: &str, records: Records) -> Result<Pending, AppendError> {
        let (completer, pending) = Pending::channel(records.count());
        self.0.lock().unwrap().held.push((records, completer));
        Ok(pending)
    }

    fn follow(&self, _: &str, _: StartPosition, sink: Partition) {
        self.0.lock().unwrap().sink = Some(LogSink::new(sink));
    }

    fn fetch(&self, _: &str, from: u64, _: usize) -> BrokerResponse<ReadResult> {
        BrokerResponse::ready(Ok(BatchEncoder::new(from).finish()))
    }

    fn next_offset(&self, _: &str) -> u64 {
        FIRST + self.0.lock().unwrap().stored
    }

    fn committed(&self, group: &str) -> Option<u64> {
        match group {
            "ahead" => Some(u64::MAX - 1),
            "at-the-end" => Some(self.next_offset("")),
            _ => None,
        }
    }

    fn close(&self) {
        self.0.lock().unwrap().sink.take();
    }
}

struct Client(WebSocket<TcpStream>);

impl Client {
    fn receive(&mut self) -> Value {
        let message = self.0.next().expect("the connection is open").expect("a message");
        serde_json::from_slice(message.as_bytes()).unwrap()
    }

    fn send(&mut self, message: &Value) {
        self.0.send_text(&message.to_string()).unwrap();
        // Else it waits until messages that were received together are read.
        self.0.flush().unwrap();
    }

    fn request(&mut self, message: &Value) -> Value {
        self.send(message);
        self.receive()
    }
}

/// A hub with the durable topic `orders`.
fn hub() -> (Arc<HeldBroker>, TestHub) {
    let broker = Arc::new(HeldBroker::default());
    let streams = StreamOptions::at_broker(test_broker::whole(&broker), "held", "")
        .with_durable_topics(["orders".to_owned()]);
    (broker, TestHub::built(Hub::builder().streams(streams)))
}

fn client(hub: &TestHub) -> Client {
    let mut client = Client(hub.websocket("/ws"));
    assert_eq!(client.receive()["op"], "welcome");
    client
}

fn publication(id: Option<u64>, data: u64) -> Value {
    match id {
        Some(id) => json!({ "op": "publish", "id": id, "topic": "orders", "data": data }),
        None => json!({ "op": "publish", "topic": "orders", "data": data }),
    }
}

/// The next message, without its time.
fn receive(client: &mut Client) -> Value {
    let mut message = client.receive();
    let time = message.as_object_mut().unwrap().remove("at");
    assert!(time.is_some_and(|at| at.is_u64()), "{message}");
    message
}

fn message(seq: u64, data: u64) -> Value {
    json!({ "op": "message", "topic": "orders", "epoch": 1, "seq": seq, "data": data })
}

#[test]
fn publication_is_acknowledged_by_the_broker_and_delivered_when_it_is_stored() {
    let (broker, hub) = hub();
    let (mut publisher, mut subscriber) = (client(&hub), client(&hub));
    let ack = subscriber.request(&json!({ "op": "subscribe", "id": 1, "topic": "orders" }));
    assert_fields(&ack, json!({"op": "ack", "seq": FIRST}));
    publisher.send(&publication(Some(1), 10));
    publisher.send(&publication(Some(2), 20));
    broker.wait_for(2);
    let other = publisher.request(&json!({ "op": "publish", "id": 3, "topic": "other", "data": 0 }));
    assert_eq!(other["id"], 3, "the broker has acknowledged nothing: {other}");
    let acknowledgements = [broker.store(), broker.store()];
    assert_eq!(
        [receive(&mut subscriber), receive(&mut subscriber)],
        [message(FIRST + 1, 10), message(FIRST + 2, 20)]
    );
    let other = publisher.request(&json!({ "op": "publish", "id": 4, "topic": "other", "data": 0 }));
    assert_eq!(other["id"], 4, "the broker has acknowledged nothing: {other}");
    for (seq, acknowledge) in (FIRST + 1..).zip(acknowledgements) {
        acknowledge();
        let ack = publisher.receive();
        assert_eq!(ack, json!({ "op": "ack", "id": seq - FIRST, "epoch": 1, "seq": seq }));
    }
    // The copy may not have the delivered messages yet.
    let mut late = client(&hub);
    let resume = |epoch: u64| json!({ "op": "subscribe", "id": 1, "topic": "orders", "from": { "epoch": epoch, "seq": FIRST } });
    let ack = late.request(&resume(1));
    assert_fields(&ack, json!({"replayed": 2, "complete": true}));
    assert_eq!([receive(&mut late), receive(&mut late)], [message(FIRST + 1, 10), message(FIRST + 2, 20)]);
    let ack = client(&hub).request(&resume(2));
    assert_eq!((&ack["epoch"], &ack["complete"]), (&json!(1), &json!(false)), "another epoch: {ack}");
    publisher.send(&publication(None, 30));
    broker.wait_for(1);
    broker.store()();
    for client in [&mut subscriber, &mut late] {
        assert_eq!(receive(client), message(FIRST + 3, 30));
    }
}

#[test]
fn member_whose_committed_offset_is_beyond_the_end_gets_reset() {
    let (broker, hub) = hub();
    let mut publisher = client(&hub);
    for id in 1..=3 {
        publisher.send(&publication(Some(id), 10));
        broker.wait_for(1);
        broker.store()();
        assert_eq!(publisher.receive()["op"], "ack");
    }
    for (group, is_reset) in [("ahead", true), ("at-the-end", false)] {
        let mut member = client(&hub);
        member.send(&json!({ "op": "consume", "id": 1, "stream": "orders", "group": group }));
        let assigned = loop {
            let message = member.receive();
            assert_ne!(message["op"], "error", "{message}");
            if message["op"] == "assigned" {
                break message;
            }
        };
        let partition = &assigned["partitions"][0];
        assert_eq!(partition["offset"], json!(FIRST + 3), "{assigned}");
        assert_eq!(partition["reset"] == json!(true), is_reset, "{assigned}");
    }
}

#[test]
fn failed_publication_without_an_id_is_reported() {
    let (broker, hub) = hub();
    let mut publisher = client(&hub);
    // More than are answered only if they fail.
    let count = 100;
    for data in 0..count {
        publisher.send(&publication(None, data));
    }
    broker.wait_for(count as usize);
    for _ in 0..count / 2 {
        broker.store()();
        broker.fail();
    }
    for _ in 0..count / 2 {
        let failure = publisher.receive();
        assert_eq!(failure["op"], "error", "{failure}");
        assert!(failure.to_string().contains("no memory"), "{failure}");
    }
    let other = publisher.request(&json!({ "op": "publish", "id": 3, "topic": "other", "data": 0 }));
    assert_eq!(other["id"], 3, "nothing else is reported: {other}");
}
