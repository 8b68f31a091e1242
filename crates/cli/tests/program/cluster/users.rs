//! 10,000 memberships of users in channels of the Pusher protocol over three nodes, one of which is killed.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use ring::hmac;
use serde_json::json;
use sinews_testkit::{Frame, Reply};

use super::presence::{TestCluster, assert_proportional};
use crate::config::Directory;
use crate::support::{Running, Socket, until};

pub(super) const KEY: &str = "278d425bdf160c739803";
pub(super) const SECRET: &str = "7ad3773142a6692b25b8";

/// Each channel has a third of the users, and each user is in a third of the channels: 10,000 memberships.
const USERS: usize = 300;
const CHANNELS: usize = 100;

/// Users of the killed node with a second connection at another node.
const STAYING: usize = 10;

/// Users at a node are in all channels.
fn node_of(user: usize) -> usize {
    user / 3 % 3
}

fn channels_of(user: usize) -> impl Iterator<Item = usize> {
    (0..CHANNELS).filter(move |channel| (channel + user).is_multiple_of(3))
}

/// Joins and leaves of a user in a channel, as a client sees them: whether it was listed, and the numbers of events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Seen {
    listed: u32,
    added: u32,
    removed: u32,
}

/// What a client has seen of each user in each channel; and in all, of the users of the test.
#[derive(Debug, Default)]
struct SeenUsers {
    users: HashMap<(usize, usize), Seen>,
    all: Seen,
}

impl SeenUsers {
    fn note(&mut self, (channel, user): (usize, usize), change: fn(&mut Seen)) {
        change(self.users.entry((channel, user)).or_default());
        if user < USERS {
            change(&mut self.all);
        }
    }

    /// Present users of all channels.
    fn present(&self) -> u32 {
        self.all.listed + self.all.added - self.all.removed
    }

    fn has_added(&self, channel: usize, user: usize) -> bool {
        self.users.get(&(channel, user)).is_some_and(|seen| seen.added == 1)
    }
}

/// A connection of a user in all of its channels, which counts what it receives.
struct UserClient {
    user: usize,
    node: usize,
    seen: Arc<Mutex<SeenUsers>>,
    stream: std::net::TcpStream,
    thread: Option<JoinHandle<()>>,
}

impl UserClient {
    fn connect(nodes: &[Running; 3], node: usize, user: usize) -> Self {
        let mut socket = nodes[node].websocket(&format!("/app/{KEY}?protocol=7"));
        let established = message(&mut socket).unwrap();
        let socket_id = between(&established, r#"\"socket_id\":\""#, r#"\""#).unwrap();
        let mut frames = Vec::new();
        for channel in channels_of(user) {
            frames.extend(subscription(&format!("presence-{channel}"), &user.to_string(), socket_id));
        }
        std::io::Write::write_all(&mut socket.stream, &frames).unwrap();
        let (seen, stream) = (Arc::<Mutex<SeenUsers>>::default(), socket.stream.try_clone().unwrap());
        let counted = Arc::clone(&seen);
        let thread = thread::spawn(move || {
            // The end of the client, or of its node.
            while let Some(message) = message(&mut socket) {
                note(&message, &mut counted.lock().unwrap());
            }
        });
        Self { user, node, seen, stream, thread: Some(thread) }
    }

    fn seen(&self) -> MutexGuard<'_, SeenUsers> {
        self.seen.lock().unwrap()
    }
}

/// The frame with which a connection subscribes to a presence channel as a user.
pub(super) fn subscription(channel: &str, user: &str, socket_id: &str) -> Vec<u8> {
    let member = json!({ "user_id": user }).to_string();
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = hmac::sign(&key, format!("{socket_id}:{channel}:{member}").as_bytes());
    let signature: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let data = json!({ "channel": channel, "auth": format!("{KEY}:{signature}"), "channel_data": member });
    let text = json!({ "event": "pusher:subscribe", "data": data }).to_string();
    Frame::text(text).encode(sinews_proto::Role::Client)
}

impl Drop for UserClient {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The next message; `None` at the end.
pub(super) fn message(socket: &mut Socket) -> Option<String> {
    loop {
        // A killed node resets its connections.
        match socket.receive().ok()?? {
            Reply::Message(_, text) => return Some(String::from_utf8(text).unwrap()),
            Reply::Close(..) => return None,
            _ => {}
        }
    }
}

/// What is between two parts of a text. There are 700,000 messages, too many to parse all of each.
pub(super) fn between<'a>(text: &'a str, start: &str, end: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(start)?;
    Some(rest.split_once(end)?.0)
}

fn note(message: &str, seen: &mut SeenUsers) {
    let event = between(message, "{\"event\":\"pusher_internal:", "\"").expect(message);
    let channel: usize = between(message, "\"channel\":\"presence-", "\"").unwrap().parse().unwrap();
    let user = || between(message, r#"\"user_id\":\""#, r#"\""#).unwrap().parse().unwrap();
    match event {
        "subscription_succeeded" => {
            let ids = between(message, r#"\"ids\":["#, "]").unwrap();
            for id in ids.split(',').map(|id| id.trim_matches(&['\\', '"'][..])) {
                seen.note((channel, id.parse().unwrap()), |seen| seen.listed += 1);
            }
        }
        "member_added" => seen.note((channel, user()), |seen| seen.added += 1),
        "member_removed" => seen.note((channel, user()), |seen| seen.removed += 1),
        event => panic!("{event}: {message}"),
    }
}

/// Checks each client: each user of each of its channels was listed or added, once; and was removed and added again as
/// often as expected.
fn check(clients: &[UserClient], events_of: impl Fn(usize) -> u32) -> Result<(), String> {
    for client in clients {
        let seen = client.seen();
        for channel in channels_of(client.user) {
            for user in (0..USERS).filter(|user| (channel + user).is_multiple_of(3)) {
                let seen = seen.users.get(&(channel, user)).copied().unwrap_or_default();
                let again = events_of(user);
                let is_right =
                    seen.listed + seen.added == 1 + again && seen.removed == again && seen.listed <= 1;
                if !is_right {
                    let Seen { listed, added, removed } = seen;
                    let (own, node) = (client.user, client.node);
                    return Err(format!(
                        "user {own} at node {node}: user {user} of channel {channel} was listed {listed} times, \
                         added {added} and removed {removed} times instead of {again} times"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// Waits until all clients have received these events.
fn until_seen(clients: &[UserClient], what: &str, is_complete: impl Fn(&SeenUsers, usize) -> bool) {
    let mut missing: Vec<&UserClient> = clients.iter().collect();
    until(what, || {
        missing.retain(|client| !is_complete(&client.seen(), client.user));
        missing.is_empty()
    });
}

/// The first connection of a user in the cluster adds the user once, and the last one removes it once, also when a node is
/// killed. A user that is connected to another node stays.
pub(super) fn users_are_added_and_removed_once() {
    let apps = Directory::new();
    let app = format!("id = \"3\"\nkey = \"{KEY}\"\nsecret = \"{SECRET}\"\nmax_members = 200\n");
    std::fs::write(apps.path("app.toml"), app).unwrap();
    let mut cluster = TestCluster::start(&["--pusher-apps-directory", &apps.path("")]);
    let mut clients: Vec<UserClient> =
        (0..USERS).map(|user| UserClient::connect(&cluster.nodes, node_of(user), user)).collect();
    let staying: BTreeSet<usize> = (0..USERS).filter(|user| node_of(*user) == 1).take(STAYING).collect();
    let users_of = |own: usize| (0..USERS).filter(move |user| user % 3 == own % 3);
    let is_present = |seen: &SeenUsers, own: usize| {
        seen.present() as usize == channels_of(own).count() * users_of(own).count()
    };
    until_seen(&clients, "all users know each other", is_present);
    clients.extend(staying.iter().map(|user| UserClient::connect(&cluster.nodes, 0, *user)));
    until_seen(&clients, "all connections know all users", is_present);
    check(&clients, |_| 0).unwrap();

    // The second connections of users must have reached the other nodes: changes of a node arrive in their order.
    let marker = UserClient::connect(&cluster.nodes, 0, USERS);
    let has_marker = |seen: &SeenUsers, own: usize| {
        // It is in the channels of a third of the users.
        own % 3 != USERS % 3 || channels_of(own).all(|channel| seen.has_added(channel, USERS))
    };
    until_seen(&clients, "the marker is known", has_marker);

    let before = cluster.tap.counts();
    let killed = cluster.kill(1);
    let (gone, clients): (Vec<_>, Vec<_>) = clients.into_iter().partition(|client| client.node == 1);
    let is_dead = |user: usize| node_of(user) == 1 && user < USERS && !staying.contains(&user);
    until_seen(&clients, "the users of the dead node are removed", |seen, own| {
        let dead = users_of(own).filter(|user| is_dead(*user)).count();
        seen.all.removed as usize >= channels_of(own).count() * dead
    });
    let elapsed = killed.elapsed();
    assert!(elapsed >= Duration::from_secs(4), "{elapsed:?}: the node may still live");
    assert!(elapsed <= Duration::from_secs(12), "removed after {elapsed:?}");
    assert_proportional(&cluster.tap.since(&before), 0, elapsed);
    drop(gone);

    let (before, begin) = (cluster.tap.counts(), Instant::now());
    let dead: Vec<usize> = (0..USERS).filter(|user| is_dead(*user)).collect();
    let returned: Vec<UserClient> =
        dead.iter().map(|user| UserClient::connect(&cluster.nodes, 2, *user)).collect();
    until_seen(&clients, "the users have returned", is_present);
    until_seen(&returned, "the users that have returned know all others", is_present);
    let changes = dead.iter().map(|user| channels_of(*user).count()).sum();
    assert_proportional(&cluster.tap.since(&before), changes, begin.elapsed());
    // Events of a channel arrive in their order: behind these ones, nothing is missing.
    let last = [3, 4, 5].map(|number| UserClient::connect(&cluster.nodes, 2, USERS + number));
    until_seen(&clients, "the last event is known", |seen, own| {
        let last = USERS + 3 + own % 3;
        channels_of(own).all(|channel| seen.has_added(channel, last))
    });
    check(&clients, |user| u32::from(is_dead(user))).unwrap();
    check(&returned, |_| 0).unwrap();
    println!(
        "measured: {} memberships of {} users of a killed node removed within {:.2} s at {} clients",
        changes,
        dead.len(),
        elapsed.as_secs_f64(),
        clients.len()
    );
    drop((marker, last));
}
