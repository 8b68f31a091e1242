//! Publications of a thread beside the workers, while a worker is busy.

mod lines;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::{Value, json};
use sinews::blocking::{Stream, WebSocket, connect};
use sinews_server::{
    BackendChoice, Context, EngineConfig, Handler, Payload, Position, Prepared, StopHandle, WebSocketRoute,
};

use super::*;
use crate::access::auth::{Auth, AuthOptions};
use crate::model::MessageContent;
use crate::model::encoding::Encoding;
use crate::model::nodes::NodePublicationId;
use crate::model::publication::{Publication, PublicationOrigin};
use crate::wire::{HandoverSender, frame_queue};
use crate::{HostRules, HubConfig, PusherApp, PusherApps};

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Occupies its worker from a message on until the test releases it.
struct BusyHandler {
    entered: SyncSender<()>,
    released: Arc<Mutex<Receiver<()>>>,
}

impl Handler for BusyHandler {
    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {
        self.entered.send(()).unwrap();
        self.released.lock().recv_timeout(TIMEOUT).unwrap();
    }
}

struct TestClient(WebSocket<Stream>);

impl TestClient {
    fn connect(address: SocketAddr, path: &str) -> Self {
        let (socket, _) = connect(format!("ws://{address}{path}")).open().unwrap();
        socket.get_ref().tcp().set_read_timeout(Some(TIMEOUT)).unwrap();
        Self(socket)
    }

    fn for_app(address: SocketAddr) -> Self {
        let mut client = Self::connect(address, "/app/key?protocol=7");
        assert_eq!(client.receive()["event"], "pusher:connection_established");
        client
    }

    fn send(&mut self, event: &str, data: &Value) {
        self.0.send_text(&json!({ "event": event, "data": data }).to_string()).unwrap();
    }

    fn receive(&mut self) -> Value {
        serde_json::from_str(&self.text()).unwrap()
    }

    fn text(&mut self) -> String {
        let message = self.0.next().expect("the connection is open").expect("a message");
        String::from_utf8(message.as_bytes().to_vec()).unwrap()
    }

    /// The data of the events up to this one.
    fn events_through(&mut self, last: u32) -> Vec<u32> {
        let mut data = Vec::new();
        while data.last() != Some(&last) {
            let message = self.receive();
            if message["event"] == "e" {
                data.push(message["data"].as_u64().unwrap() as u32);
            }
        }
        data
    }
}

/// Two connections that occupy the only worker.
struct BusyWorker {
    sockets: [TestClient; 2],
    is_busy: Receiver<()>,
    release: SyncSender<()>,
}

impl BusyWorker {
    /// Subscribes, and publishes before the worker handles the subscription.
    fn publish_during_subscription(
        &mut self,
        client: &mut TestClient,
        request: &Value,
        publish: impl FnOnce(),
    ) {
        let occupy = |socket: &mut TestClient| socket.0.send_text("occupy the worker").unwrap();
        occupy(&mut self.sockets[0]);
        self.is_busy.recv_timeout(TIMEOUT).unwrap();
        occupy(&mut self.sockets[1]);
        client.send("pusher:subscribe", request);
        self.release.send(()).unwrap();
        self.is_busy.recv_timeout(TIMEOUT).unwrap();
        publish();
        self.release.send(()).unwrap();
    }
}

/// Runs a hub on a server with one thread.
fn start(hub: Hub, router: Router) -> (RunningHub, SocketAddr, StopHandle, JoinHandle<()>) {
    let backend = match std::env::var("SINEWS_TEST_BACKEND").as_deref() {
        Ok("poll") => BackendChoice::Poll,
        Ok("uring") => BackendChoice::Uring,
        _ => BackendChoice::Auto,
    };
    let server = hub.configure(Server::new(hub.mount(router)));
    let server = server.threads(1).engine(EngineConfig::default().with_backend(backend));
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let hub = hub.start(&server).unwrap();
    let (address, stop) = (server.addresses()[0], server.stop_handle());
    (hub, address, stop, thread::spawn(move || server.run().unwrap()))
}

/// Runs a test with a hub, and stops it.
fn run(hub: Hub, router: Router, test: impl FnOnce(&RunningHub, SocketAddr)) {
    let (hub, address, stop, running) = start(hub, router);
    test(&hub, address);
    stop.stop_now();
    running.join().unwrap();
    hub.shut_down();
}

/// Adds a protocol's encoding to a hub that has not started.
fn register(hub: &mut Hub, encoding: Arc<dyn Encoding>) {
    let mut encodings = (**hub.topics.encodings()).clone();
    encodings.register([encoding]);
    let topics = Arc::get_mut(&mut hub.topics).expect("nothing has the topics yet");
    *topics = std::mem::take(topics).with_encodings(encodings);
}

#[test]
fn publications_of_other_processes_exclude_a_client_of_this_one() {
    let hub = Hub::builder().history("kept.>", 10).without_pages().build().unwrap();
    let (hub, address, stop, running) = start(hub, Router::new());
    let [(mut excluded, id), (mut other, _)] = [(); 2].map(|()| {
        let mut client = TestClient::connect(address, "/ws");
        let id = client.receive()["connection"].as_str().unwrap().to_owned();
        for topic in ["kept.a", "live.a"] {
            let request = json!({ "op": "subscribe", "id": 1, "topic": topic });
            client.0.send_text(&request.to_string()).unwrap();
            assert_eq!(client.receive()["op"], "ack");
        }
        (client, id)
    });
    let sender = HandoverSender { exclude: Some(id), ..HandoverSender::default() };
    let (topics, out) = (&hub.topics, &mut hub.publisher.clone());
    let content = |number: u32| MessageContent::Json(number.to_string().into());
    for (topic, number) in [("kept.a", 1), ("live.a", 2)] {
        topics.publish_from_predecessor(out, topic, &content(number), false, &sender);
    }
    drop(topics.begin_handover(frame_queue().0, out));
    let last = out.histories()[0].position;
    let next = Position { sequence: last.sequence + 1, ..last };
    for (topic, number, position) in [("kept.a", 3, Some(next)), ("live.a", 4, None)] {
        topics.deliver_from_successor(out, topic, &content(number), position, false, &sender);
    }
    let anyone = HandoverSender::default();
    topics.deliver_from_successor(out, "live.a", &content(5), None, false, &anyone);
    assert_eq!(excluded.receive()["data"], 5);
    assert_eq!([(); 5].map(|()| other.receive()["data"].clone()), [1, 2, 3, 4, 5]);
    drop((excluded, other));
    stop.stop_now();
    running.join().unwrap();
    hub.shut_down();
}

/// A worker that is busy while a busy handler and a subscription arrive reads both in one turn. While it is busy again,
/// events are published: the worker handles the subscription first, and the events on their way afterwards.
#[test]
fn pusher_4_10_client_that_subscribes_during_a_publication_receives_the_event_once() {
    let app = PusherApp::new("1", "key", "secret").with_topics("kept");
    let auth = Auth::new(&AuthOptions::new()).unwrap();
    let config = HubConfig::new(auth, HostRules::default());
    let config = config.with_pusher(PusherApps::new([app]).unwrap());
    let hub = Hub::builder().config(config).history("kept.>", 10).without_pages().build().unwrap();
    let ((entered, is_busy), (release, released)) = (sync_channel(1), sync_channel(1));
    let released = Arc::new(Mutex::new(released));
    let route = WebSocketRoute::new(move |_: &sinews_server::Request<'_>| {
        Ok(BusyHandler { entered: entered.clone(), released: Arc::clone(&released) })
    });
    let (hub, address, stop, running) = start(hub, Router::new().websocket("/busy", route));

    let (topics, publisher) = (Arc::clone(&hub.topics), hub.publisher.clone());
    let publish = |number: u32| {
        let event = MessageContent::Event(format!("{{\"event\":\"e\",\"data\":{number}}}").into());
        topics.publish(&mut publisher.clone(), &Publication::new("kept.cache-a", &(&event).into()));
    };
    // With a subscriber, publications are sent to the worker.
    let mut early = TestClient::for_app(address);
    early.send("pusher:subscribe", &json!({ "channel": "cache-a" }));
    let sockets = [(); 2].map(|()| TestClient::connect(address, "/busy"));
    let mut busy = BusyWorker { sockets, is_busy, release };
    let mut last = 0;
    for recover in [false, true, false, true] {
        let mut late = TestClient::for_app(address);
        let request = json!({ "channel": "cache-a", "recover": recover });
        let both = || (0..2).for_each(|at| publish(last + 1 + at));
        busy.publish_during_subscription(&mut late, &request, both);
        let mut events = late.events_through(last + 2);
        publish(last + 3);
        events.extend(late.events_through(last + 3));
        assert_eq!(events, [last + 2, last + 3], "with recovery: {recover}");
        let expected: Vec<u32> = (last + 1..=last + 3).collect();
        assert_eq!(early.events_through(last + 3), expected);
        last += 3;
    }
    overtake_a_publisher(&topics, &publisher, last);
    assert_eq!(early.events_through(last + 3), [last + 2, last + 3]);
    last += 3;
    // The client that repeats its subscription has received all earlier events.
    let both = || (0..2).for_each(|at| publish(last + 1 + at));
    busy.publish_during_subscription(&mut early, &json!({ "channel": "cache-a" }), both);
    publish(last + 3);
    assert_eq!(early.events_through(last + 3), [last + 1, last + 2, last + 3]);
    subscribe_during_a_handover(address, (&topics, &publisher), last + 3);
    drop((early, busy));
    stop.stop_now();
    running.join().unwrap();
    hub.shut_down();
}

/// A third node's answer, with the second event, overtakes the three events of their publisher.
fn overtake_a_publisher(topics: &HubTopics, publisher: &Publisher, last: u32) {
    let from = |number| NodePublicationId { node: 7, start: 1, number, index: 0 };
    let event = |number: u32| format!("{{\"event\":\"e\",\"data\":{number}}}");
    let restored = Prepared::text(event(last + 2));
    topics.restore_last_event(publisher, "kept.cache-a", &restored, Some(from(5)), Duration::ZERO);
    for (number, origin) in [(last + 1, 4), (last + 2, 5), (last + 3, 6)] {
        let content = MessageContent::Event(event(number).into());
        let content = (&content).into();
        let publication = Publication::new("kept.cache-a", &content);
        let publication = publication.with_origin(PublicationOrigin::Node(from(origin)));
        topics.publish(&mut publisher.clone(), &publication);
    }
}

/// A cache channel's last event waits for its position from the successor process: a client that recovers receives the
/// event once, with its position, and another client at once.
fn subscribe_during_a_handover(
    address: SocketAddr,
    (topics, publisher): (&HubTopics, &Publisher),
    last: u32,
) {
    let (sender, forwarded) = frame_queue();
    topics.begin_handover(sender, publisher);
    let event = |number: u32| MessageContent::Event(format!("{{\"event\":\"e\",\"data\":{number}}}").into());
    topics.publish(&mut publisher.clone(), &Publication::new("kept.cache-a", &(&event(last + 1)).into()));
    let mut recovering = TestClient::for_app(address);
    recovering.send("pusher:subscribe", &json!({ "channel": "cache-a", "recover": true }));
    let ack = recovering.receive();
    let (epoch, sequence) = ack["position"].as_str().expect("a position").split_once('-').unwrap();
    let mut plain = TestClient::for_app(address);
    plain.send("pusher:subscribe", &json!({ "channel": "cache-a" }));
    assert_eq!(plain.events_through(last + 1), [last + 1]);
    let mut position = Position { epoch: epoch.parse().unwrap(), sequence: sequence.parse().unwrap() };
    for (number, answers) in [(last + 1, true), (last + 2, false)] {
        position.sequence += 1;
        let (out, sender) = (&mut publisher.clone(), HandoverSender::default());
        topics.deliver_from_successor(out, "kept.cache-a", &event(number), Some(position), answers, &sender);
    }
    assert_eq!(recovering.events_through(last + 2), [last + 1, last + 2]);
    assert_eq!(plain.events_through(last + 2), [last + 2]);
    drop(forwarded);
    topics.end_handover(&mut publisher.clone());
}
