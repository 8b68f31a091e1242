//! 10,000 members over three nodes at a real broker, one of which is killed.
//!
//! `cargo xtask brokers` runs these tests. With `--measure` it prints the figures of the book.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::TcpStream;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::real::broker::{unused_name, url};
use super::real::{client, receive};
use super::tap::{BrokerTap, PRESENCE_CHANGES, PRESENCE_REQUEST, PRESENCE_SNAPSHOT, TapCounts};
use crate::support::{PROGRAM, Running, Socket, program_at, until};

/// Members, if the limit of descriptors permits it: each is a connection, and a third of them returns.
const MEMBERS: usize = 10_000;

/// Connections that are opened at a time.
pub(super) const BATCH: usize = 100;

/// Watchers of each node that survives.
const WATCHERS: usize = 4;

/// A node is dead after this time without a heartbeat, which it sends once a second.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time until members of a dead node are removed, and as much for a machine that is busy.
const REMOVED_MAX: Duration = Duration::from_secs(6 + 6);

/// Three nodes at the broker, and the number of messages there.
pub(super) struct TestCluster {
    pub(super) nodes: [Running; 3],
    pub(super) tap: BrokerTap,
}

impl TestCluster {
    pub(super) fn start(arguments: &[&str]) -> Self {
        Self::start_program(PROGRAM, arguments)
    }

    /// As [`start`](Self::start), with another build of the program.
    pub(super) fn start_program(program: impl AsRef<Path>, arguments: &[&str]) -> Self {
        let prefix = unused_name("presence");
        let tap = BrokerTap::start(url("").trim_end_matches('?'), &prefix);
        let cluster = url(&format!("prefix={prefix}"));
        // Members do not answer pings.
        let common = ["--cluster", &cluster, "--websocket-ping-interval", "off", "--log", "error"];
        let nodes = [(); 3].map(|()| {
            let mut command = program_at(&program, None);
            command.args(["serve", "--listen", "127.0.0.1:0"]).args(common).args(arguments);
            Running::start(&mut command)
        });
        for node in &nodes {
            until("all nodes are known", || node.get("/metrics").contains("\nsinews_cluster_nodes 3\n"));
        }
        Self { nodes, tap }
    }

    /// Kills a node, and returns when.
    pub(super) fn kill(&mut self, node: usize) -> Instant {
        let at = Instant::now();
        self.nodes[node].child.kill().unwrap();
        at
    }
}

/// Asserts that presence caused messages and bytes for each change, and neither requests nor whole copies.
pub(super) fn assert_proportional(counts: &TapCounts, changes: usize, elapsed: Duration) {
    assert_eq!((counts[PRESENCE_REQUEST].0, counts[PRESENCE_SNAPSHOT].0), (0, 0), "{counts:?}");
    let (messages, bytes) = counts[PRESENCE_CHANGES];
    // Two nodes announce changes every 100 ms, at most 256 in a message.
    let messages_max = 2 * (10 * (elapsed.as_secs() + 2) + changes as u64 / 256);
    assert!(messages <= messages_max, "{messages} messages for {changes} changes in {elapsed:?}: {counts:?}");
    let bytes_max = changes as u64 * 64 + messages * 256;
    assert!(bytes <= bytes_max, "{bytes} bytes for {changes} changes: {counts:?}");
    let all: u64 = counts.iter().map(|(messages, _)| messages).sum();
    assert!(all <= messages_max + 4 * (elapsed.as_secs() + 2), "{counts:?}");
}

/// Opens connections that join a topic as these members, and reads nothing more from them.
fn join_all(node: &Running, topic: &str, ids: &[String]) -> Vec<TcpStream> {
    let mut joined = Vec::new();
    for batch in ids.chunks(BATCH) {
        for (mut socket, id) in node.websockets("/ws", batch.len()).into_iter().zip(batch) {
            socket.send_message(&json!({ "op": "join", "topic": topic, "member": { "id": id } }));
            joined.push(socket.into_stream());
        }
    }
    joined
}

/// A client that follows the members of a topic, as `sinews.js` does.
struct Watcher {
    socket: Socket,
    topic: &'static str,
    /// The version of the known members.
    at: u64,
    members: BTreeSet<String>,
    /// Members that have left, and when that was known.
    left: Vec<(String, Instant)>,
    lists: u32,
}

impl Watcher {
    fn new(node: &Running, topic: &'static str) -> Self {
        let mut socket = client(node);
        socket.send_message(&json!({ "op": "subscribe", "topic": topic, "presence": true, "id": 1 }));
        assert_eq!(receive(&mut socket)["op"], "ack");
        let (members, left) = (BTreeSet::new(), Vec::new());
        let mut watcher = Self { socket, topic, at: 0, members, left, lists: 0 };
        watcher.list();
        watcher
    }

    /// Lists all members, page by page, and notes those that are missing since the last list.
    fn list(&mut self) {
        self.lists += 1;
        let (mut listed, mut after, mut updates) = (BTreeSet::new(), Value::Null, Vec::new());
        let mut at = None;
        loop {
            let mut request = json!({ "op": "members", "topic": self.topic, "id": 2 });
            if !after.is_null() {
                request["after"] = after;
            }
            self.socket.send_message(&request);
            let page = loop {
                let message = receive(&mut self.socket);
                if message["op"] == "members" {
                    break message;
                }
                updates.push(message);
            };
            at = at.or_else(|| page["at"].as_u64());
            let members = page["members"].as_array().unwrap();
            listed.extend(members.iter().map(|member| member["id"].as_str().unwrap().to_owned()));
            if page["more"] == false {
                break;
            }
            after = members.last().unwrap()["id"].clone();
        }
        let now = Instant::now();
        self.left.extend(self.members.difference(&listed).map(|id| (id.clone(), now)));
        self.members = listed;
        self.at = at.unwrap();
        for update in updates {
            self.apply(&update);
        }
    }

    fn apply(&mut self, update: &Value) {
        let (since, at) = (update["since"].as_u64().unwrap(), update["at"].as_u64().unwrap());
        if at <= self.at {
            return;
        }
        if update["complete"] == false || since > self.at {
            return self.list();
        }
        let now = Instant::now();
        for id in update["left"].as_array().into_iter().flatten() {
            let id = id.as_str().unwrap();
            if self.members.remove(id) {
                self.left.push((id.to_owned(), now));
            }
        }
        let joined = update["joined"].as_array().into_iter().flatten();
        self.members.extend(joined.map(|member| member["id"].as_str().unwrap().to_owned()));
        self.at = at;
    }

    /// Follows the members until there are this many.
    fn follow(&mut self, count: usize) {
        while self.members.len() != count {
            let message = receive(&mut self.socket);
            assert_eq!(message["op"], "presence", "{message}");
            self.apply(&message);
        }
    }

    fn follow_in_thread(mut self, count: usize) -> JoinHandle<Self> {
        thread::spawn(move || {
            self.follow(count);
            self
        })
    }
}

fn follow_all(watchers: Vec<Watcher>, count: usize) -> Vec<Watcher> {
    let threads: Vec<_> = watchers.into_iter().map(|watcher| watcher.follow_in_thread(count)).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// The number of members that the descriptors of this process permit.
pub(super) fn member_count() -> usize {
    let limit = sinews_engine::raise_descriptor_limit().unwrap();
    let permitted = usize::try_from(limit).unwrap_or(usize::MAX).saturating_sub(1_000) / 4 * 3;
    MEMBERS.min(permitted)
}

/// CPU time of a process in seconds, where the system has `/proc`.
fn cpu_seconds(node: &Running) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", node.child.id())).unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

/// What a phase took: messages at the broker, time, and CPU seconds of each node.
pub(super) type PhaseCost = (TapCounts, Duration, [f64; 3]);

/// The figures at the begin of a phase.
pub(super) struct Phase {
    begin: Instant,
    counts: TapCounts,
    cpu: [f64; 3],
}

impl Phase {
    pub(super) fn begin(cluster: &TestCluster) -> Self {
        let cpu = cluster.nodes.each_ref().map(cpu_seconds);
        Self { begin: Instant::now(), counts: cluster.tap.counts(), cpu }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.begin.elapsed()
    }

    pub(super) fn end(&self, cluster: &TestCluster) -> PhaseCost {
        let mut cpu = cluster.nodes.each_ref().map(cpu_seconds);
        cpu.iter_mut().zip(self.cpu).for_each(|(now, before)| *now -= before);
        (cluster.tap.since(&self.counts), self.begin.elapsed(), cpu)
    }
}

pub(super) fn described(name: &str, (counts, elapsed, cpu): &PhaseCost) -> String {
    let (messages, bytes) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let changes = counts[PRESENCE_CHANGES];
    let mut text = format!(
        "{name}: {:.1} s; broker {messages} messages, {bytes} bytes, of presence {} and {}; CPU",
        elapsed.as_secs_f64(),
        changes.0,
        changes.1,
    );
    for cpu in cpu {
        let _ = write!(text, " {:.0} ms", cpu.max(0.0) * 1e3);
    }
    text
}

/// Members of a killed node leave once, in time, and return without a flood.
pub(super) fn members_of_a_killed_node_leave_once() {
    let count = member_count();
    let mut cluster = TestCluster::start(&[]);
    let ids: Vec<String> = (0..count).map(|number| format!("m{number}")).collect();
    let of_node = |node: usize| ids.iter().skip(node).step_by(3).cloned().collect::<Vec<_>>();
    let phase = Phase::begin(&cluster);
    let members: Vec<_> = (0..3).map(|node| join_all(&cluster.nodes[node], "room", &of_node(node))).collect();
    let watchers: Vec<_> =
        (0..2 * WATCHERS).map(|number| Watcher::new(&cluster.nodes[number % 2 * 2], "room")).collect();
    let mut watchers = follow_all(watchers, count);
    let joined = phase.end(&cluster);
    assert_eq!((joined.0[PRESENCE_REQUEST].0, joined.0[PRESENCE_SNAPSHOT].0), (0, 0), "{:?}", joined.0);
    for watcher in &mut watchers {
        watcher.left.clear();
        watcher.lists = 0;
    }

    let phase = Phase::begin(&cluster);
    let killed = cluster.kill(1);
    let dead: BTreeSet<String> = of_node(1).into_iter().collect();
    let watchers = follow_all(watchers, count - dead.len());
    let removed = phase.end(&cluster);
    let mut delays = Vec::new();
    for watcher in &watchers {
        let mut seen = BTreeMap::<&str, u32>::new();
        for (id, at) in &watcher.left {
            *seen.entry(id).or_default() += 1;
            delays.push(at.duration_since(killed));
        }
        assert!(seen.values().all(|times| *times == 1), "a watcher sees each leave once");
        assert!(seen.into_keys().eq(dead.iter()), "exactly the members of the dead node leave");
    }
    delays.sort_unstable();
    let last = *delays.last().unwrap();
    assert!(delays[0] >= NODE_TIMEOUT - Duration::from_secs(1), "{delays:?}: the node may still live");
    assert!(last <= REMOVED_MAX, "removed after {last:?}");
    assert_proportional(&removed.0, 0, removed.1);

    let phase = Phase::begin(&cluster);
    let return_begin = Instant::now();
    let dead: Vec<String> = dead.into_iter().collect();
    let (one, two) = dead.split_at(dead.len() / 2);
    let returned = [join_all(&cluster.nodes[0], "room", one), join_all(&cluster.nodes[2], "room", two)];
    let connected = return_begin.elapsed();
    let watchers = follow_all(watchers, count);
    let back = phase.end(&cluster);
    assert!(watchers.iter().all(|watcher| watcher.left.len() == dead.len()), "nobody else leaves");
    assert_proportional(&back.0, dead.len(), back.1);

    let at = |share: usize| delays[(delays.len() - 1) * share / 100].as_secs_f64();
    let lists: u32 = watchers.iter().map(|watcher| watcher.lists).sum();
    println!("measured: {count} members join: {}", described("known", &joined));
    println!(
        "measured: {} members of a killed node, at {} watchers: removed after p50 {:.2} s, p99 {:.2} s, last {:.2} s",
        dead.len(),
        watchers.len(),
        at(50),
        at(99),
        last.as_secs_f64()
    );
    println!("measured: {}", described("removal", &removed));
    println!(
        "measured: {}; connected in {:.1} s; {lists} lists",
        described("return", &back),
        connected.as_secs_f64()
    );
    drop((members, returned));
}
