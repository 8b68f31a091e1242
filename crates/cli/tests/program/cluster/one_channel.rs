//! 1,500 members of one presence channel of the Pusher protocol over three nodes, one of which is killed.
//!
//! Each member is a client that receives all changes. A few clients check each message. The bytes of the others show that
//! they have received the same ones. With an optimized build of the program in `SINEWS_TEST_RELEASE`,
//! there are 10,000: for a debug build, their lists are too much.

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde_json::Value;
use sinews_testkit::{Frame, Reply};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::oneshot;

use super::presence::{BATCH, Phase, PhaseCost, TestCluster, assert_proportional, described, member_count};
use super::tap::{PRESENCE_CHANGES, PRESENCE_REQUEST, PRESENCE_SNAPSHOT};
use super::users::{KEY, SECRET, between, message, subscription};
use crate::config::Directory;
use crate::support::{PROGRAM, Running, Socket, until};

const CHANNEL: &str = "presence-room";

/// Clients that check each message, of each node that survives: two of the first members and two of the last.
const WATCHERS: usize = 4;

/// Members with a debug build of the program.
const MEMBERS_DEBUG: usize = 1_500;

/// The time until members of a dead node are removed, the interval of updates for thousands of watchers, and as much for a
/// machine that is busy.
const REMOVED_MAX: Duration = Duration::from_secs(2 * (6 + 5));

/// Members whose messages are read and counted in bytes.
struct Crowd {
    runtime: Handle,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Crowd {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let handle = runtime.handle().clone();
        let (end, ended) = oneshot::channel();
        let run = move |runtime: Runtime| runtime.block_on(ended);
        let thread = thread::spawn(move || drop(run(runtime)));
        Self { runtime: handle, end: Some(end), thread: Some(thread) }
    }

    /// Connects these members to a node, and then subscribes all of them at once. Returns the received bytes of each.
    fn join(&self, node: &Running, ids: &[String]) -> Vec<Arc<AtomicU64>> {
        let mut connected = Vec::new();
        for batch in ids.chunks(BATCH) {
            let path = format!("/app/{KEY}?protocol=7");
            for (mut socket, id) in node.websockets(&path, batch.len()).into_iter().zip(batch) {
                let established = message(&mut socket).unwrap();
                let socket_id = between(&established, r#"\"socket_id\":\""#, r#"\""#).unwrap();
                connected.push((subscription(CHANNEL, id, socket_id), socket.into_stream()));
            }
        }
        let join = |(subscription, stream): (Vec<u8>, TcpStream)| {
            let received = Arc::<AtomicU64>::default();
            self.runtime.spawn(count_bytes(stream, subscription, Arc::clone(&received)));
            received
        };
        connected.into_iter().map(join).collect()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        drop(self.end.take());
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends a subscription, and counts the received bytes until the end of the connection.
async fn count_bytes(stream: TcpStream, subscription: Vec<u8>, received: Arc<AtomicU64>) {
    thread_local! {
        static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; 256 << 10]);
    }
    stream.set_nonblocking(true).unwrap();
    let mut stream = tokio::net::TcpStream::from_std(stream).unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut stream, &subscription).await.unwrap();
    while stream.readable().await.is_ok() {
        match BUFFER.with_borrow_mut(|buffer| stream.try_read(buffer)) {
            Ok(0) => return,
            Ok(count) => drop(received.fetch_add(count as u64, Ordering::Relaxed)),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            // A killed node resets its connections.
            Err(_) => return,
        }
    }
}

/// A member that checks all messages.
struct Watcher {
    socket: Socket,
    members: BTreeSet<String>,
    /// How often each member was added and removed.
    added: HashMap<String, u32>,
    removed: HashMap<String, u32>,
    /// Bytes of the frames of these events.
    bytes: u64,
    lists: u32,
}

impl Watcher {
    fn new(node: &Running, id: &str) -> Self {
        let mut socket = node.websocket(&format!("/app/{KEY}?protocol=7"));
        let established = message(&mut socket).unwrap();
        let socket_id = between(&established, r#"\"socket_id\":\""#, r#"\""#).unwrap();
        socket.stream.write_all(&subscription(CHANNEL, id, socket_id)).unwrap();
        let (added, removed) = (HashMap::new(), HashMap::new());
        Self { socket, members: BTreeSet::new(), added, removed, bytes: 0, lists: 0 }
    }

    /// Starts a phase without events.
    fn clear(&mut self) {
        (self.added, self.removed) = Default::default();
        (self.bytes, self.lists) = (0, 0);
    }

    /// Handles messages until there are this many members.
    fn follow(&mut self, count: usize) {
        while self.members.len() != count {
            let message = message(&mut self.socket).expect("the connection stays");
            let event = between(&message, "{\"event\":\"pusher_internal:", "\"").expect(&message);
            if event == "subscription_succeeded" {
                let message: Value = serde_json::from_str(&message).unwrap();
                let data: Value = serde_json::from_str(message["data"].as_str().unwrap()).unwrap();
                let ids = data["presence"]["ids"].as_array().unwrap();
                self.members = ids.iter().map(|id| id.as_str().unwrap().to_owned()).collect();
                self.lists += 1;
                continue;
            }
            let id = between(&message, r#"\"user_id\":\""#, r#"\""#).unwrap().to_owned();
            // A head of 2 bytes, or of 4.
            self.bytes += message.len() as u64 + if message.len() < 126 { 2 } else { 4 };
            let (seen, is_change) = match event {
                "member_added" => (&mut self.added, self.members.insert(id.clone())),
                "member_removed" => (&mut self.removed, self.members.remove(&id)),
                event => panic!("{event}: {message}"),
            };
            assert!(is_change, "the member {id} is known: {message}");
            *seen.entry(id).or_default() += 1;
        }
    }

    /// The answer to a ping is behind all that the server has queued for this client.
    fn sync(&mut self) {
        self.socket.send(&Frame::text(r#"{"event":"pusher:ping","data":{}}"#));
        let Some(Reply::Message(_, text)) = self.socket.next() else { panic!("the connection stays") };
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("pusher:pong"), "an event without a change: {text}");
    }
}

fn follow_all(watchers: Vec<Watcher>, count: usize) -> Vec<Watcher> {
    let follow = |mut watcher: Watcher| {
        thread::spawn(move || {
            watcher.follow(count);
            watcher
        })
    };
    let threads: Vec<_> = watchers.into_iter().map(follow).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

/// Waits until each member has received as many bytes more as the watchers have, in events of these members.
fn until_received(members: &[Arc<AtomicU64>], before: &[u64], watchers: &mut [Watcher]) {
    let bytes = watchers[0].bytes;
    for watcher in watchers {
        assert_eq!((watcher.bytes, watcher.lists), (bytes, 0), "all watchers receive the same events");
        watcher.sync();
    }
    let received = |(member, before): (&Arc<AtomicU64>, &u64)| member.load(Ordering::Relaxed) - before;
    until("all members have received the events", || {
        members.iter().zip(before).map(received).all(|more| more >= bytes)
    });
    let more = members.iter().zip(before).map(received).filter(|more| *more != bytes).count();
    assert_eq!(more, 0, "members that have received more than the watchers");
}

fn received(members: &[Arc<AtomicU64>]) -> Vec<u64> {
    members.iter().map(|member| member.load(Ordering::Relaxed)).collect()
}

/// Waits until no member receives anything in an interval: updates of the joins are behind.
fn until_quiet(members: &[Arc<AtomicU64>]) {
    let mut before = Vec::new();
    until("all updates are delivered", || {
        let was = std::mem::replace(&mut before, received(members));
        let is_quiet = was == before;
        if !is_quiet {
            thread::park_timeout(Duration::from_millis(500));
        }
        is_quiet
    });
}

/// Kills the second node: its members are removed once, at all members that stay. Also returns the time, and the work.
fn remove_one_node(
    cluster: &mut TestCluster,
    mut watchers: Vec<Watcher>,
    staying: &[Arc<AtomicU64>],
    (dead, count): (&BTreeSet<String>, usize),
) -> (Vec<Watcher>, Duration, PhaseCost) {
    until_quiet(staying);
    watchers.iter_mut().for_each(Watcher::clear);
    let before = received(staying);
    let phase = Phase::begin(cluster);
    let killed = cluster.kill(1);
    let mut watchers = follow_all(watchers, count - dead.len());
    let elapsed = killed.elapsed();
    let removed = phase.end(cluster);
    assert!(elapsed >= Duration::from_secs(4), "{elapsed:?}: the node may still live");
    assert!(elapsed <= REMOVED_MAX, "removed after {elapsed:?}");
    for watcher in &watchers {
        assert!(watcher.added.is_empty() && watcher.removed.values().all(|times| *times == 1));
        let removed: BTreeSet<&String> = watcher.removed.keys().collect();
        let first = removed.first().copied().cloned();
        assert!(
            removed.iter().copied().eq(dead),
            "{} members were removed, from {first:?} on, with {} lists",
            removed.len(),
            watcher.lists
        );
    }
    until_received(staying, &before, &mut watchers);
    assert_proportional(&removed.0, 0, removed.1);
    (watchers, elapsed, removed)
}

/// Members of one channel join in time. Those of a killed node are removed once, at all other members, and return without a
/// flood at the broker.
pub(super) fn members_of_one_channel_are_added_and_removed_once() {
    let release = std::env::var_os("SINEWS_TEST_RELEASE");
    let is_debug = release.is_none() && cfg!(debug_assertions);
    let count = if is_debug { member_count().min(MEMBERS_DEBUG) } else { member_count() };
    let apps = Directory::new();
    // Members do not answer pings.
    let app = format!(
        "id = \"3\"\nkey = \"{KEY}\"\nsecret = \"{SECRET}\"\nmax_members = {count}\nactivity_timeout = \"1d\"\n"
    );
    std::fs::write(apps.path("app.toml"), app).unwrap();
    let mut cluster = TestCluster::start_program(
        release.unwrap_or_else(|| PROGRAM.into()),
        // On a machine that is busy, many clients read late.
        &["--pusher-apps-directory", &apps.path(""), "--websocket-max-outbound", "16m"],
    );
    let ids: Vec<String> = (0..count).map(|number| format!("m{number}")).collect();
    let of_node = |node: usize| ids.iter().skip(node).step_by(3).cloned().collect::<Vec<_>>();
    let crowd = Crowd::start();

    let phase = Phase::begin(&cluster);
    let (mut watchers, mut late) = (Vec::new(), Vec::new());
    let mut members = Vec::new();
    for node in [0, 1, 2] {
        let ids = of_node(node);
        let (watched, others) = ids.split_at(if node == 1 { 0 } else { WATCHERS });
        let (early, last) = watched.split_at(watched.len() / 2);
        watchers.extend(early.iter().map(|id| Watcher::new(&cluster.nodes[node], id)));
        late.extend(last.iter().map(|id| (node, id.clone())));
        members.push(crowd.join(&cluster.nodes[node], others));
    }
    let connected = phase.elapsed();
    watchers.extend(late.iter().map(|(node, id)| Watcher::new(&cluster.nodes[*node], id)));
    let watchers = follow_all(watchers, count);
    let joined = phase.end(&cluster);
    let counts = &joined.0;
    assert_eq!((counts[PRESENCE_REQUEST].0, counts[PRESENCE_SNAPSHOT].0), (0, 0), "{counts:?}");
    assert!(
        counts[PRESENCE_CHANGES].1 <= count as u64 * 128,
        "{counts:?}: more than one report of each member"
    );

    let dead: BTreeSet<String> = of_node(1).into_iter().collect();
    let staying: Vec<Arc<AtomicU64>> = [&members[0][..], &members[2]].concat();
    let (mut watchers, elapsed, removed) = remove_one_node(&mut cluster, watchers, &staying, (&dead, count));

    watchers.iter_mut().for_each(Watcher::clear);
    let before = received(&staying);
    let phase = Phase::begin(&cluster);
    let returning: Vec<String> = dead.iter().cloned().collect();
    let (one, two) = returning.split_at(returning.len() / 2);
    let returned = [crowd.join(&cluster.nodes[0], one), crowd.join(&cluster.nodes[2], two)];
    let mut watchers = follow_all(watchers, count);
    let back = phase.end(&cluster);
    for watcher in &watchers {
        assert!(watcher.removed.is_empty() && watcher.added.values().all(|times| *times == 1));
    }
    until_received(&staying, &before, &mut watchers);
    assert_proportional(&back.0, dead.len(), back.1);
    println!("measured: {count} members of one channel join: {}", described("known", &joined));
    println!("measured: connected in {:.1} s", connected.as_secs_f64());
    println!(
        "measured: {} members of a killed node removed within {:.2} s at {} members; {}",
        dead.len(),
        elapsed.as_secs_f64(),
        staying.len() + watchers.len(),
        described("removal", &removed)
    );
    println!("measured: {}", described("return", &back));
    drop(returned);
}
