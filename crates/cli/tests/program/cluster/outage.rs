//! Apps of the Pusher protocol over two nodes whose broker is killed, restarted and frozen: each node serves its clients
//! meanwhile, and both have the same state afterwards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ring::hmac;
use serde_json::{Value, json};
use sinews_testkit::{BodyReader, Frame};

use super::real::broker::{control, unused_name, url};
use super::users::{KEY, SECRET, message, subscription};
use crate::config::Directory;
use crate::hooks::{AppAnswer, Application};
use crate::support::{Running, Socket, until};

const CHANNEL: &str = "presence-room";

/// A channel without members, whose subscribers are counted.
const COUNTED: &str = "counted";

/// Size and number of the publications to a broker that is frozen: more than the bytes that may wait for it.
const FLOOD: (usize, usize) = (900_000, 40);

/// Answers of the HTTP API do not wait longer for nodes that cannot be reached, on a machine that is busy.
const ANSWER_MAX: Duration = Duration::from_secs(20);

fn sign(text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    hmac::sign(&key, text.as_bytes()).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Sends a signed request without a body; returns its status, and its JSON or its text.
fn api(node: &Running, method: &str, path: &str, query: &[(&str, &str)]) -> (u16, Value) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs().to_string();
    let mut fields =
        [&[("auth_key", KEY), ("auth_timestamp", &now), ("auth_version", "1.0")], query].concat();
    fields.sort_unstable();
    let query: Vec<String> = fields.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let query = query.join("&");
    let signature = sign(&format!("{method}\n{path}\n{query}"));
    let answer = node.request(&format!("{method} {path}?{query}&auth_signature={signature} HTTP/1.1"), "");
    let mut answer = BodyReader::new(answer.as_bytes());
    let body = answer.rest();
    (answer.status(), serde_json::from_str(&body).unwrap_or_else(|_| json!(body)))
}

fn trigger(node: &Running, channel: &str, data: &str) {
    let query = [("name", "e"), ("channel", channel), ("data", data)];
    assert_eq!(api(node, "POST", "/apps/3/events", &query), (200, json!({})));
}

fn terminate(node: &Running, user: &str) -> (u16, Value) {
    api(node, "POST", &format!("/apps/3/users/{user}/terminate_connections"), &[])
}

/// The ids of the members that a node knows.
fn members(node: &Running) -> BTreeSet<String> {
    let (status, answer) = api(node, "GET", &format!("/apps/3/channels/{CHANNEL}/users"), &[]);
    assert_eq!(status, 200, "{answer}");
    let users = answer["users"].as_array().unwrap().iter();
    users.map(|user| user["id"].as_str().unwrap().to_owned()).collect()
}

fn subscribers(node: &Running) -> u64 {
    let path = format!("/apps/3/channels/{COUNTED}");
    api(node, "GET", &path, &[("info", "subscription_count")]).1["subscription_count"].as_u64().unwrap()
}

/// The value of a metric with its labels.
fn metric(node: &Running, name: &str) -> u64 {
    node.metric(name).parse().unwrap_or(0)
}

/// The data of a message, parsed if it is a string of JSON.
fn data_of(message: &Value) -> Value {
    match &message["data"] {
        Value::String(text) => serde_json::from_str(text).unwrap_or_else(|_| json!(text)),
        data => data.clone(),
    }
}

/// A client of the app, with all messages that it has received.
struct AppClient {
    socket: Socket,
    socket_id: String,
    received: Vec<Value>,
}

impl AppClient {
    fn connect(node: &Running) -> Self {
        let mut socket = node.websocket(&format!("/app/{KEY}?protocol=7"));
        let established: Value = serde_json::from_str(&message(&mut socket).unwrap()).unwrap();
        assert_eq!(established["event"], "pusher:connection_established");
        let socket_id = data_of(&established)["socket_id"].as_str().unwrap().to_owned();
        Self { socket, socket_id, received: Vec::new() }
    }

    fn member(node: &Running, id: &str) -> Self {
        let mut client = Self::connect(node);
        let frame = subscription(CHANNEL, id, &client.socket_id);
        std::io::Write::write_all(&mut client.socket.stream, &frame).unwrap();
        client.sync();
        assert_eq!(client.received[0]["event"], "pusher_internal:subscription_succeeded");
        client
    }

    fn subscriber(node: &Running, channel: &str) -> Self {
        let mut client = Self::connect(node);
        client.send("pusher:subscribe", &json!({ "channel": channel }));
        client.sync();
        client
    }

    fn user(node: &Running, id: &str, watchlist: &[String]) -> Self {
        let mut client = Self::connect(node);
        let user_data = json!({ "id": id, "watchlist": watchlist }).to_string();
        let signature = sign(&format!("{}::user::{user_data}", client.socket_id));
        let auth = format!("{KEY}:{signature}");
        client.send("pusher:signin", &json!({ "auth": auth, "user_data": user_data }));
        client.sync();
        assert_eq!(client.received[0]["event"], "pusher:signin_success");
        client
    }

    fn send(&mut self, event: &str, data: &Value) {
        self.socket.send(&Frame::text(json!({ "event": event, "data": data }).to_string()));
    }

    /// Receives all messages that the server has sent until now.
    fn sync(&mut self) {
        self.send("pusher:ping", &json!({}));
        loop {
            let message = message(&mut self.socket).expect("the connection is open");
            let message: Value = serde_json::from_str(&message).unwrap();
            if message["event"] == "pusher:pong" {
                return;
            }
            self.received.push(message);
        }
    }

    /// The data of all events with this name.
    fn data(&self, event: &str) -> Vec<Value> {
        self.received.iter().filter(|message| message["event"] == event).map(data_of).collect()
    }

    /// The members that were added and removed, in their order, each with whether it was added.
    fn changes(&self) -> Vec<(bool, String)> {
        let change = |message: &Value| {
            let name = message["event"].as_str()?.strip_prefix("pusher_internal:member_")?.to_owned();
            Some((name == "added", data_of(message)["user_id"].as_str()?.to_owned()))
        };
        self.received.iter().filter_map(change).collect()
    }

    fn knows(&mut self, is_added: bool, id: &str) -> bool {
        self.sync();
        self.changes().contains(&(is_added, id.to_owned()))
    }

    /// The close code of a connection that the server closes.
    fn close_code(mut self) -> Option<u16> {
        loop {
            match self.socket.next() {
                Some(reply) if reply.close_code().is_some() => return reply.close_code(),
                Some(_) => {}
                None => return None,
            }
        }
    }
}

/// What webhooks have reported, in the order of the reports.
type Reports = Arc<Mutex<Vec<(String, String)>>>;

/// An application that collects the reports of members and of channels: each with its name, and the member or the channel.
fn collect_reports() -> (String, Reports) {
    let app = Application::start(|_| AppAnswer::Status(200));
    let (url, reports) = (app.url("/"), Reports::default());
    let collected = Arc::clone(&reports);
    thread::spawn(move || {
        while let Ok(request) = app.requests.recv() {
            for event in request.json()["events"].as_array().unwrap() {
                let of = event["user_id"].as_str().or_else(|| event["channel"].as_str()).unwrap().to_owned();
                collected.lock().unwrap().push((event["name"].as_str().unwrap().to_owned(), of));
            }
        }
    });
    (url, reports)
}

/// Checks that no report of a kind is repeated, and returns the present members or channels by the reports.
fn reported(reports: &Reports, [begin, end]: [&str; 2]) -> BTreeSet<String> {
    let mut present = BTreeMap::new();
    for (name, of) in reports.lock().unwrap().iter().filter(|(name, _)| name == begin || name == end) {
        let is_present = name == begin;
        let was_present = present.insert(of.clone(), is_present).unwrap_or(false);
        assert_ne!(was_present, is_present, "{name} of {of} is repeated");
    }
    present.into_iter().filter(|(_, is_present)| *is_present).map(|(of, _)| of).collect()
}

const MEMBERS: [&str; 2] = ["member_added", "member_removed"];
const CHANNELS: [&str; 2] = ["channel_occupied", "channel_vacated"];

/// Two nodes, and the clients that stay.
struct TwoNodes {
    _apps: Directory,
    nodes: [Running; 2],
    /// A member at each node.
    members: [AppClient; 2],
    /// A subscriber of the counted channel at each node.
    counters: [AppClient; 2],
    /// Watches the users that sign in during an outage.
    watcher: AppClient,
    reports: Reports,
    /// Connections that stay open.
    open: Vec<AppClient>,
    /// The expected changes of members at each node.
    expected: [BTreeMap<(bool, String), u32>; 2],
}

const OUTAGES: [(&str, &str); 2] = [("kill", "up"), ("stop", "cont")];

impl TwoNodes {
    fn start() -> Self {
        let (hook, reports) = collect_reports();
        let apps = Directory::new();
        let app = format!(
            "id = \"3\"\nkey = \"{KEY}\"\nsecret = \"{SECRET}\"\nsubscription_counts = true\nwebhooks = [{hook:?}]\n\
             webhook_events = [\"channel_occupied\", \"channel_vacated\", \"member_added\", \"member_removed\"]\n\
             webhook_private = true\nwebhook_grace = \"0s\"\n"
        );
        std::fs::write(apps.path("app.toml"), app).unwrap();
        let cluster = url(&format!("prefix={}", unused_name("outage")));
        let directory = apps.path("");
        let arguments = ["--cluster", &cluster, "--pusher-apps-directory", &directory, "--log", "error"];
        let nodes = [(); 2].map(|()| Running::serve(&arguments));
        for node in &nodes {
            until("both nodes report", || metric(node, "sinews_webhook_reporters") == 2);
        }
        let first = AppClient::member(&nodes[0], "stays-0");
        until("the other node knows the first member", || members(&nodes[1]).contains("stays-0"));
        let members = [first, AppClient::member(&nodes[1], "stays-1")];
        let counters = [0, 1].map(|at| AppClient::subscriber(&nodes[at], COUNTED));
        let watchlist: Vec<String> = OUTAGES.iter().map(|(down, _)| format!("late-{down}")).collect();
        let watcher = AppClient::user(&nodes[0], "watcher", &watchlist);
        let mut two = Self {
            _apps: apps,
            nodes,
            members,
            counters,
            watcher,
            reports,
            open: Vec::new(),
            expected: Default::default(),
        };
        two.expect(0, true, "stays-1");
        two.until_equal("the clients are known");
        two
    }

    /// Waits until both nodes, and the application, know the same members and numbers.
    fn until_equal(&self, what: &str) {
        until(what, || {
            let [one, two] = self.nodes.each_ref().map(members);
            let counts = self.nodes.each_ref().map(subscribers);
            one == two && counts[0] == counts[1] && counts[0] >= 2 && reported(&self.reports, MEMBERS) == one
        });
    }

    fn expect(&mut self, at: usize, is_added: bool, id: &str) {
        *self.expected[at].entry((is_added, id.to_owned())).or_default() += 1;
    }

    /// Adds a member, and waits until the members at these nodes know it.
    fn join(&mut self, node: usize, id: &str, knowing: &[usize]) -> AppClient {
        let client = AppClient::member(&self.nodes[node], id);
        for at in knowing {
            self.expect(*at, true, id);
            until("the member is known", || self.members[*at].knows(true, id));
        }
        client
    }

    /// Removes a connection of a member, and waits until the members at these nodes know that it has left.
    fn leave(&mut self, client: AppClient, id: &str, knowing: &[usize]) {
        drop(client);
        for at in knowing {
            self.expect(*at, false, id);
            until("the leave is known", || self.members[*at].knows(false, id));
        }
    }

    fn check_changes(&mut self) {
        for (client, expected) in self.members.iter_mut().zip(&self.expected) {
            client.sync();
            let mut changes: BTreeMap<(bool, String), u32> = BTreeMap::new();
            for change in client.changes() {
                *changes.entry(change).or_default() += 1;
            }
            assert_eq!(changes, *expected);
        }
    }

    /// An outage from its begin until both nodes have noticed it.
    fn begin(&self, down: &str) {
        control(down);
        if down == "stop" {
            // The nodes do not know it yet: what waits for the broker has a limit.
            let body = "x".repeat(FLOOD.0);
            for _ in 0..FLOOD.1 {
                let answer = self.nodes[0].request("POST /topics/flood HTTP/1.1", &body);
                assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
            }
            let full = metric(&self.nodes[0], "sinews_cluster_dropped_total{reason=\"queue_full\"}");
            let away = metric(&self.nodes[0], "sinews_cluster_dropped_total{reason=\"broker_away\"}");
            assert!(full + away > FLOOD.1 as u64 / 4, "{full} and {away} dropped");
        }
        for node in &self.nodes {
            for path in ["/readyz", "/up"] {
                until("the outage is noticed", || {
                    let answer = node.get(path);
                    answer.starts_with("HTTP/1.1 503 ") && answer.contains("broker of the cluster")
                });
            }
        }
    }

    /// Clients of each node are served, with all that the node knows.
    fn serve_locally(&mut self, outage: &str, leaves: [AppClient; 3]) {
        let id = |name: &str| format!("{name}-{outage}");
        let [leaver, both, moved] = leaves;
        let away = metric(&self.nodes[0], "sinews_cluster_dropped_total{reason=\"broker_away\"}");
        trigger(&self.nodes[0], COUNTED, outage);
        self.counters[0].sync();
        assert_eq!(*self.counters[0].data("e").last().unwrap(), outage);
        assert!(metric(&self.nodes[0], "sinews_cluster_dropped_total{reason=\"broker_away\"}") > away);

        let joined = self.join(0, &id("joins"), &[0]);
        assert!(members(&self.nodes[0]).contains("stays-1"), "members of the other node stay");
        self.open.push(joined);
        let brief = self.join(0, &id("brief"), &[0]);
        self.leave(brief, &id("brief"), &[0]);
        self.leave(leaver, &id("leaves"), &[1]);
        // The other node has another connection of this user.
        drop(both);
        let arrived = AppClient::member(&self.nodes[0], &id("moves"));
        self.open.push(arrived);
        self.leave(moved, &id("moves"), &[1]);

        let before = subscribers(&self.nodes[0]);
        self.open.push(AppClient::subscriber(&self.nodes[0], COUNTED));
        until("the number is known at its node", || {
            self.counters[0].sync();
            let counts = self.counters[0].data("pusher_internal:subscription_count");
            counts.last().unwrap()["subscription_count"] == before + 1
        });
        self.open.push(AppClient::user(&self.nodes[1], &id("late"), &[]));
        self.watcher.sync();
        assert!(!self.online().contains(&id("late")));
    }

    /// The users that the watcher has seen come, in their order.
    fn online(&self) -> Vec<String> {
        let events = self.watcher.data("pusher_internal:watchlist_events");
        let events = events.iter().flat_map(|data| data["events"].as_array().unwrap());
        let online = events.filter(|event| event["name"] == "online");
        let ids = online.flat_map(|event| event["user_ids"].as_array().unwrap());
        ids.map(|id| id.as_str().unwrap().to_owned()).collect()
    }

    /// The broker returns: both nodes have the same state.
    fn end(&mut self, (down, up): (&str, &str), user: AppClient) {
        let id = |name: &str| format!("{name}-{down}");
        control(up);
        for node in &self.nodes {
            for path in ["/readyz", "/up"] {
                until("it is ready again", || node.get(path).starts_with("HTTP/1.1 200 "));
            }
        }
        for (at, is_added, id) in [(0, false, id("leaves")), (1, true, id("joins")), (1, true, id("moves"))] {
            self.expect(at, is_added, &id);
            until("the change is known", || self.members[at].knows(is_added, &id));
        }
        until("the user is online", || {
            self.watcher.sync();
            self.online().contains(&id("late"))
        });
        self.until_equal("both nodes are equal");
        trigger(&self.nodes[1], COUNTED, "again");
        for client in &mut self.counters {
            until("events reach both nodes", || {
                client.sync();
                client.data("e").last().is_some_and(|data| data == "again")
            });
        }
        let counts = self.nodes.each_ref().map(subscribers);
        for (client, count) in self.counters.iter_mut().zip(counts) {
            until("clients know the number", || {
                client.sync();
                let known = client.data("pusher_internal:subscription_count");
                known.last().unwrap()["subscription_count"] == count
            });
        }
        assert_eq!(terminate(&self.nodes[0], &id("user")), (200, json!({})));
        assert_eq!(user.close_code(), Some(4009));
        // Changes of a node arrive in their order: nothing is missing behind these.
        for node in [0, 1] {
            let last = self.join(node, &format!("last-{node}-{down}"), &[0, 1]);
            self.open.push(last);
        }
        self.check_changes();
    }
}

/// A user that has signed in at both nodes is terminated by a node that cannot reach the other one.
fn terminate_locally(two: &TwoNodes, down: &str, [near, mut far]: [AppClient; 2]) -> AppClient {
    let begin = Instant::now();
    let (status, answer) = terminate(&two.nodes[0], &format!("user-{down}"));
    assert!(begin.elapsed() < ANSWER_MAX, "{:?}", begin.elapsed());
    assert_eq!(status, 503, "{answer}");
    assert!(answer.as_str().unwrap().contains("other nodes"), "{answer}");
    assert_eq!(near.close_code(), Some(4009));
    far.sync();
    far
}

/// An outage changes nothing for the clients of a node, and both nodes converge afterwards: no member is lost or added twice.
pub(super) fn apps_survive_outages_of_the_broker() {
    let mut two = TwoNodes::start();
    for (down, up) in OUTAGES {
        let id = |name: &str| format!("{name}-{down}");
        let leaves = [two.join(1, &id("leaves"), &[0, 1]), two.join(1, &id("both"), &[0, 1])];
        let other = AppClient::member(&two.nodes[0], &id("both"));
        two.open.push(other);
        let [leaver, both] = leaves;
        let leaves = [leaver, both, two.join(1, &id("moves"), &[0, 1])];
        let users = [0, 1].map(|at| AppClient::user(&two.nodes[at], &id("user"), &[]));
        // The other node knows the second connection of the user: changes of a node arrive in their order.
        let marker = two.join(0, &id("marker"), &[0, 1]);
        two.open.push(marker);
        two.begin(down);
        two.serve_locally(down, leaves);
        let user = terminate_locally(&two, down, users);
        two.end((down, up), user);
    }
    let online = two.online();
    assert_eq!(online, OUTAGES.map(|(down, _)| format!("late-{down}")), "each once");
    let channels: BTreeSet<String> = [CHANNEL, COUNTED].map(str::to_owned).into();
    until("the channels are reported", || reported(&two.reports, CHANNELS) == channels);
}
