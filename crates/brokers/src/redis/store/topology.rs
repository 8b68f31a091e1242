//! The primaries of a Redis Cluster: which server has which partition.
//!
//! Each server is asked for its own view (`CLUSTER NODES`). For a slot, the claim with the highest configuration epoch counts,
//! and a server's claim for itself more than another's for it: views differ while a slot moves and during a failover. A
//! primary that does not answer keeps its slots until another one claims them, so that it is the one that is away.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::{AsyncConnectionConfig, ConnectionAddr, ProtocolVersion, cmd};
use tokio::task::JoinHandle;

use super::connection::ServerThread;
use super::names::{PARTITIONS, slot};
use super::queue::DEADLINE;
use super::servers::ServerState;
use super::settings::{CONNECT_TIMEOUT, ServerLookup};
use super::store_thread::StoreThread;
use crate::redis::client::server;
use crate::redis::error::rejection;

/// Interval between two looks at the servers, if none is requested.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);
/// Interval while a server is away.
const AWAY_INTERVAL: Duration = Duration::from_millis(500);
/// Least time between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// Maximum servers that are asked: all primaries and replicas of most clusters.
const SERVERS_ASKED_MAX: usize = 32;

/// A primary's claim for slots.
#[derive(Clone, Debug, PartialEq, Eq)]
struct SlotClaim {
    /// Its configuration epoch, and whether this is its own view.
    rank: (u64, bool),
    address: String,
    /// First and last slots.
    ranges: Vec<(u16, u16)>,
}

/// A server's view of its cluster.
#[derive(Default)]
struct ClusterView {
    claims: Vec<SlotClaim>,
    /// Addresses of all servers.
    addresses: Vec<String>,
}

/// The tasks of a server.
struct RunningServer {
    state: Arc<ServerState>,
    tasks: Vec<JoinHandle<()>>,
}

/// Follows the primaries.
pub(super) struct Topology {
    store: Rc<StoreThread>,
    seeds: Vec<ConnectionAddr>,
    /// Addresses of the last look.
    known: BTreeSet<String>,
    running: HashMap<String, RunningServer>,
}

impl Topology {
    pub(super) fn new(store: Rc<StoreThread>, seeds: Vec<ConnectionAddr>) -> Self {
        Self { store, seeds, known: BTreeSet::new(), running: HashMap::new() }
    }

    /// Looks at the servers until the store is closed.
    pub(super) async fn run(mut self) {
        loop {
            match self.look().await {
                Ok(owners) => self.apply(&owners),
                Err(reason) => self.store.shared.servers.set_missing(&reason),
            }
            self.store.report_health();
            let is_up = self.store.shared.servers.health().is_up();
            let interval = if is_up { LOOK_INTERVAL } else { AWAY_INTERVAL };
            tokio::time::sleep(LOOK_PAUSE).await;
            let _ = tokio::time::timeout(interval, self.store.slots_moved.notified()).await;
        }
    }

    /// The owner of each partition, as far as one is known.
    async fn look(&mut self) -> Result<Vec<Option<String>>, String> {
        let known = self.known.iter().filter_map(|address| server(address, self.store.settings.is_tls).ok());
        let mut asked: Vec<ConnectionAddr> = known.collect();
        asked.extend(self.seeds.iter().filter(|seed| !self.known.contains(&seed.to_string())).cloned());
        asked.truncate(SERVERS_ASKED_MAX);
        let answers = join_all(asked.iter().map(|address| self.ask(address))).await;
        let (mut views, mut reasons) = (Vec::new(), Vec::new());
        for (address, answer) in asked.iter().zip(answers) {
            match answer {
                Ok(view) => views.push(view),
                Err(reason) => reasons.push(format!("{address}: {reason}")),
            }
        }
        if views.is_empty() {
            return Err(format!("no server of the cluster answers: {}", reasons.join("; ")));
        }
        self.known = views.iter().flat_map(|view| view.addresses.iter().cloned()).collect();
        let owners = owners(&views);
        if owners.iter().any(Option::is_none) {
            self.store.shared.servers.set_missing("no server of the cluster has the topic's slot");
        }
        Ok(owners)
    }

    /// Asks a server for its view.
    async fn ask(&self, address: &ConnectionAddr) -> Result<ClusterView, String> {
        let client = self.store.settings.client(address, ProtocolVersion::RESP2)?;
        let asked = async {
            let settings = AsyncConnectionConfig::new();
            let connected = client.get_multiplexed_async_connection_with_config(&settings).await;
            let mut connection = connected.map_err(|error| error.to_string())?;
            let mut command = cmd("CLUSTER");
            command.arg("NODES");
            let text: String =
                command.query_async(&mut connection).await.map_err(|error| rejection(&command, &error))?;
            Ok(view(&text, address))
        };
        tokio::time::timeout(CONNECT_TIMEOUT, asked).await.unwrap_or_else(|_| Err("no answer".to_owned()))
    }

    /// Starts servers that have got partitions, and ends those without any.
    fn apply(&mut self, owners: &[Option<String>]) {
        for owner in owners.iter().flatten() {
            if !self.running.contains_key(owner)
                && let Ok(address) = server(owner, self.store.settings.is_tls)
            {
                let state = Arc::new(ServerState::new(&format!("redis://{owner}"), true));
                let tasks = ServerThread::spawn(&self.store, state.clone(), ServerLookup::Server(address));
                self.running.insert(owner.clone(), RunningServer { state, tasks });
            }
        }
        let is_used = |address: &String| owners.iter().flatten().any(|owner| owner == address);
        let unused: Vec<String> = self.running.keys().filter(|address| !is_used(address)).cloned().collect();
        let unused: Vec<RunningServer> =
            unused.iter().filter_map(|address| self.running.remove(address)).collect();
        let state = |owner: &String| self.running.get(owner).map(|server| server.state.clone());
        let by_partition = owners.iter().map(|owner| owner.as_ref().and_then(state)).collect();
        let all = self.running.values().map(|server| server.state.clone()).collect();
        self.store.shared.servers.replace(by_partition, all);
        for server in unused {
            server.state.queue.pause(&server.state.fault("the server has no slots of this topic any more"));
            // Operations in flight get their answers.
            tokio::task::spawn_local(async move {
                tokio::time::sleep(DEADLINE).await;
                server.tasks.iter().for_each(JoinHandle::abort);
            });
        }
    }
}

/// The owner of each partition.
fn owners(views: &[ClusterView]) -> Vec<Option<String>> {
    let claims: Vec<&SlotClaim> = views.iter().flat_map(|view| &view.claims).collect();
    let owner = |partition| {
        let slot = slot(partition);
        let is_claimed =
            |claim: &&&SlotClaim| claim.ranges.iter().any(|(first, last)| (*first..=*last).contains(&slot));
        claims.iter().filter(is_claimed).max_by_key(|claim| claim.rank).map(|claim| claim.address.clone())
    };
    (0..PARTITIONS).map(owner).collect()
}

/// Reads `id host:port@bus[,name] flags primary ping pong epoch link slot…` in each line. A server may not know its own host.
fn view(text: &str, asked: &ConnectionAddr) -> ClusterView {
    let mut view = ClusterView::default();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let &[_, address, flags, _, _, _, epoch, _, ref slots @ ..] = &fields[..] else { continue };
        let is = |flag: &str| flags.split(',').any(|other| other == flag);
        if is("noaddr") || is("handshake") {
            continue;
        }
        let (address, name) = address.split_once(',').unwrap_or((address, ""));
        let (host, port) =
            address.split('@').next().and_then(|host| host.rsplit_once(':')).unwrap_or_default();
        let name = name.split(',').next().unwrap_or_default();
        let host = match (name, host, asked) {
            ("" | "?", "", ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. }) => host,
            ("" | "?", host, _) => host,
            (name, ..) => name,
        };
        let address = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        view.addresses.push(address.clone());
        // A slot that is about to move is in brackets, too.
        let ranges: Vec<(u16, u16)> = slots.iter().filter_map(|slots| range(slots)).collect();
        if is("master") && !ranges.is_empty() {
            let rank = (epoch.parse().unwrap_or(0), is("myself"));
            view.claims.push(SlotClaim { rank, address, ranges });
        }
    }
    view
}

/// Reads `first-last` or one slot.
fn range(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some((first.parse().ok()?, last.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_of(text: &str) -> ClusterView {
        view(text, &ConnectionAddr::Tcp("asked".to_owned(), 7000))
    }

    #[test]
    fn views_name_their_servers() {
        let view = view_of(
            "a :7000@17000 myself,master - 0 0 5 connected 0-99 200 [93->-b]\n\
             b 10.0.0.2:7001@17001,two,shard-id=x slave a 0 0 5 connected\n\
             c ::1:7002@17002 master,fail - 0 0 4 disconnected 100-199\n\
             d :0@0 master,noaddr - 0 0 9 disconnected 0-16383\nx\n",
        );
        assert_eq!(view.addresses, ["asked:7000", "two:7001", "[::1]:7002"]);
        let claim = |rank, address: &str, ranges: &[_]| SlotClaim {
            rank,
            address: address.to_owned(),
            ranges: ranges.to_vec(),
        };
        let expected = [
            claim((5, true), "asked:7000", &[(0, 99), (200, 200)]),
            claim((4, false), "[::1]:7002", &[(100, 199)]),
        ];
        assert_eq!(view.claims, expected);
    }

    #[test]
    fn newest_claim_counts() {
        let line = |host: &str, flags: &str, epoch: u64| {
            format!("x {host}:1@2 {flags} - 0 0 {epoch} connected 0-16383\n")
        };
        let (old, new) =
            (view_of(&line("old", "myself,master", 3)), view_of(&line("new", "myself,master", 4)));
        assert_eq!(owners(&[new, old])[7].as_deref(), Some("new:1"));
        // The server itself knows first that it has given slots away, and first that it has got them.
        let both = [
            view_of(&(line("a", "master", 3) + "b b:1@2 myself,master - 0 0 3 connected\n")),
            view_of(&line("b", "myself,master", 3)),
        ];
        assert_eq!(owners(&both)[0].as_deref(), Some("b:1"));
        assert_eq!(owners(&[]), vec![None; 64]);
    }
}
