//! The connections of clients, for the HTTP API: their list, and commands to their handlers.
//!
//! A handler registers when its connection opens. A command is queued with the connection and wakes it; the handler
//! executes it on the connection's thread.

mod compact;
mod describe;
mod path;
mod revoke;
mod selector;
pub(crate) mod subscribe;

use std::borrow::Borrow;
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;

use parking_lot::{Mutex, MutexGuard};
#[cfg(test)]
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering as MemoryOrdering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;
use std::time::{SystemTime, UNIX_EPOCH};

use futures_channel::oneshot;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde_json::{Value, json};
use sinews_server::{CloseCode, Closed, SubscriberId};

use self::compact::Compact;
pub(crate) use self::path::ConnectionPath;
pub(crate) use self::selector::ConnectionSelector;
use crate::access::auth::{Denied, Revocations, Rights, RightsChange};
use crate::model::connection_id::ConnectionId;
use crate::model::events::{ClosedConnection, EventDetail, EventSink, WebhookEventKind};
use crate::model::problem::{Problem, code, problem};

/// Maximum commands that wait for one connection.
const COMMANDS_MAX: usize = 64;

/// Close reason for a connection whose token is revoked.
pub(crate) const REVOKED: &str = "the token has been revoked";

/// Connections that are looked at while the list is locked.
const STEP: usize = 256;

/// A command to the handler of a connection.
pub(crate) enum ConnectionCommand {
    Close {
        code: CloseCode,
        reason: Arc<str>,
    },
    Subscribe {
        topic: Arc<str>,
        reply: CommandReply,
    },
    Unsubscribe {
        topic: Arc<str>,
        reply: CommandReply,
    },
    /// Report the subscriptions and members.
    Describe {
        reply: oneshot::Sender<Value>,
    },
    /// Change the client's rights.
    Refresh(Arc<RightsChange>),
    /// Notify the client whether the cluster's other nodes are reached.
    ReportCluster {
        is_connected: bool,
    },
    /// Notify the client about its topics that do not get other nodes' publications, with the reasons.
    ReportRejected(Arc<BTreeMap<Arc<str>, Arc<str>>>),
}

/// Receives the result of a command.
pub(crate) type CommandReply = oneshot::Sender<Result<(), Problem>>;

/// Counts of open connections and their users: distinct `sub` of tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionCounts {
    pub(crate) connections: u64,
    pub(crate) users: u64,
}

/// All open connections of clients.
pub(crate) struct ConnectionRegistry {
    /// Distinguishes this process's ids from others.
    process: u32,
    state: Mutex<RegistryState>,
    events: OnceLock<Arc<dyn EventSink>>,
    /// A client was welcomed while the cluster's broker was unreachable. Cleared when it is reported.
    pub(crate) has_isolated: AtomicBool,
    /// Pages that were read.
    #[cfg(test)]
    pages: AtomicUsize,
}

#[derive(Default)]
struct RegistryState {
    last: u64,
    by_number: BTreeSet<NumberedConnection>,
    by_user: BTreeSet<(Arc<str>, u64)>,
    /// Users in `by_user`.
    users: usize,
}

/// A connection ordered by number.
struct NumberedConnection(Arc<ClientConnection>);

impl Borrow<u64> for NumberedConnection {
    fn borrow(&self) -> &u64 {
        &self.0.number
    }
}

impl PartialEq for NumberedConnection {
    fn eq(&self, other: &Self) -> bool {
        self.0.number == other.0.number
    }
}

impl Eq for NumberedConnection {}

impl PartialOrd for NumberedConnection {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for NumberedConnection {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.number.cmp(&other.0.number)
    }
}

impl RegistryState {
    fn find(&self, number: u64) -> Option<Arc<ClientConnection>> {
        self.by_number.get(&number).map(|connection| Arc::clone(&connection.0))
    }

    fn has_user(&self, user: &Arc<str>) -> bool {
        self.by_user.range((Arc::clone(user), 0)..).next().is_some_and(|(known, _)| known == user)
    }

    fn add_user(&mut self, user: Option<&str>, number: u64) {
        if let Some(user) = user.map(Arc::from) {
            self.users += usize::from(!self.has_user(&user));
            self.by_user.insert((user, number));
        }
    }

    fn remove_user(&mut self, user: Option<&str>, number: u64) {
        if let Some(user) = user.map(Arc::from) {
            let entry = (user, number);
            let was_known = self.by_user.remove(&entry);
            self.users -= usize::from(was_known && !self.has_user(&entry.0));
        }
    }
}

/// An open connection of a client.
pub(crate) struct ClientConnection {
    registry: Arc<ConnectionRegistry>,
    number: u64,
    pub(crate) path: ConnectionPath,
    /// The bits of its id as a subscriber.
    subscriber: Compact<10>,
    waker: Waker,
    /// Bytes that wait for the client, if they are many.
    queued: AtomicU32,
    state: Mutex<CommandQueue>,
}

struct CommandQueue {
    /// Their subject is the user in the index.
    rights: Rights,
    /// Boxed, since most connections get none.
    #[expect(clippy::box_collection, reason = "a pointer for each idle connection")]
    commands: Option<Box<Vec<ConnectionCommand>>>,
    /// The close code, at the end; 0 before it.
    closed: u16,
    /// When the connection was opened, in milliseconds since 1970.
    opened: Compact<6>,
}

/// The registration of a connection, which ends when this is dropped.
pub(crate) struct RegisteredConnection(Arc<ClientConnection>);

impl Default for ConnectionRegistry {
    fn default() -> Self {
        let mut random = [0; 3];
        // Without random numbers, ids may repeat after a restart.
        let _ = SystemRandom::new().fill(&mut random);
        Self {
            process: u32::from_le_bytes([random[0], random[1], random[2], 0]),
            state: Mutex::default(),
            events: OnceLock::new(),
            has_isolated: AtomicBool::new(false),
            #[cfg(test)]
            pages: AtomicUsize::new(0),
        }
    }
}

impl fmt::Debug for ConnectionRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionRegistry").field("process", &self.process).finish_non_exhaustive()
    }
}

impl ConnectionRegistry {
    /// Registers an open connection at a path, with its client's rights, its id as a subscriber, and its handler's
    /// waker.
    pub(crate) fn register(
        self: &Arc<Self>,
        path: ConnectionPath,
        rights: &Rights,
        subscriber: SubscriberId,
        waker: Waker,
    ) -> RegisteredConnection {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        let connection_state = Mutex::new(CommandQueue {
            rights: rights.clone(),
            commands: None,
            closed: 0,
            opened: Compact::new(now.as_millis()),
        });
        let connection = Arc::new(ClientConnection {
            registry: Arc::clone(self),
            number,
            path,
            subscriber: Compact::new(subscriber.to_bits()),
            waker,
            queued: AtomicU32::new(0),
            state: connection_state,
        });
        state.by_number.insert(NumberedConnection(Arc::clone(&connection)));
        state.add_user(rights.subject(), number);
        drop(state);
        RegisteredConnection(connection)
    }

    /// Sets the sink that learns when connections end. The first call sets it.
    pub(crate) fn set_events(&self, events: Arc<dyn EventSink>) {
        let _ = self.events.set(events);
    }

    /// Returns the counts of open connections and their users.
    pub(crate) fn counts(&self) -> ConnectionCounts {
        let state = self.lock();
        ConnectionCounts { connections: state.by_number.len() as u64, users: state.users as u64 }
    }

    /// Returns a connection's id.
    pub(crate) fn id_of(&self, connection: &ClientConnection) -> String {
        ConnectionId { process: self.process, number: connection.number }.to_string()
    }

    /// Returns the number in an id of this process.
    fn number_of(&self, id: &str) -> Option<u64> {
        ConnectionId::parse(id).filter(|id| id.process == self.process).map(|id| id.number)
    }

    /// Returns a connection of this process as a subscriber, if it is open.
    pub(crate) fn subscriber(&self, id: ConnectionId) -> Option<SubscriberId> {
        let is_own = id.process == self.process;
        let connection = self.lock().find(id.number).filter(|_| is_own)?;
        Some(connection.subscriber())
    }

    /// The connection with an id, if it is open.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<ClientConnection>> {
        let number = self.number_of(id)?;
        self.lock().find(number)
    }

    /// Returns connections in opening order: after an id, for one user or all, at most `limit`.
    ///
    /// # Errors
    /// The id is from another process.
    pub(crate) fn page(
        &self,
        user: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<ClientConnection>>, Problem> {
        let after = after.map(|after| {
            self.number_of(after).ok_or_else(|| problem(code::MALFORMED, "after: no id of this process"))
        });
        let after = after.transpose()?.unwrap_or(0);
        #[cfg(test)]
        self.pages.fetch_add(1, MemoryOrdering::Relaxed);
        let state = self.lock();
        Ok(match user {
            None => {
                let found = state.by_number.range::<u64, _>((Bound::Excluded(after), Bound::Unbounded));
                found.take(limit).map(|connection| Arc::clone(&connection.0)).collect()
            }
            Some(user) => {
                let start = (Arc::from(user), after);
                let found = state.by_user.range((Bound::Excluded(start), Bound::Unbounded));
                let numbers = found.take_while(|(known, _)| **known == *user).take(limit);
                numbers.filter_map(|(_, number)| state.find(*number)).collect()
            }
        })
    }

    /// Returns a cluster's connections, ordered by process and then by opening, as far as this process has them: after
    /// an id from any process.
    pub(crate) fn cluster_page(
        &self,
        user: Option<&str>,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<Arc<ClientConnection>> {
        let process = after.and_then(ConnectionId::parse).map_or(0, |id| id.process);
        match process.cmp(&self.process) {
            Ordering::Greater => Vec::new(),
            // The id is this process's.
            Ordering::Equal => self.page(user, after, limit).unwrap_or_default(),
            Ordering::Less => self.page(user, None, limit).unwrap_or_default(),
        }
    }

    /// Returns connections whose client reads slowly, for one user or all: the longest queue first, at most `limit`.
    pub(crate) fn slowest(&self, user: Option<&str>, limit: usize) -> Vec<Arc<ClientConnection>> {
        let (mut slowest, mut after) = (Vec::<(u32, Arc<ClientConnection>)>::new(), None::<String>);
        loop {
            let found = self.page(user, after.as_deref(), STEP).unwrap_or_default();
            let Some(last) = found.last() else { break };
            after = Some(self.id_of(last));
            let queued = |connection: &ClientConnection| connection.queued.load(MemoryOrdering::Relaxed);
            slowest
                .extend(found.into_iter().map(|one| (queued(&one), one)).filter(|(queued, _)| *queued > 0));
            slowest.sort_by_key(|(queued, _)| Reverse(*queued));
            slowest.truncate(limit);
        }
        slowest.into_iter().map(|(_, connection)| connection).collect()
    }

    /// Notifies all clients whether the cluster's other nodes are reached. Connections that open meanwhile know it from
    /// their welcome.
    pub(crate) fn report_cluster(&self, is_connected: bool) {
        // A client whose command queue is full learns it from its next acknowledgement.
        self.for_each(|connection| drop(connection.send(ConnectionCommand::ReportCluster { is_connected })));
    }

    /// Calls a function for each connection that is open now.
    fn for_each(&self, mut call: impl FnMut(&ClientConnection)) {
        let newest = self.lock().last;
        let mut after = None::<String>;
        loop {
            let found = self.page(None, after.as_deref(), STEP).unwrap_or_default();
            let Some(last) = found.last() else { return };
            after = Some(self.id_of(last));
            for connection in &found {
                if connection.number > newest {
                    return;
                }
                call(connection);
            }
        }
    }

    /// Returns the next connections that a selector may name, in opening order, after an id. A token's selector has no
    /// index: [`names`](ConnectionSelector::names) decides.
    ///
    /// # Errors
    /// As [`page`](Self::page).
    pub(crate) fn candidates(
        &self,
        selector: &ConnectionSelector,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<ClientConnection>>, Problem> {
        match selector {
            ConnectionSelector::User(user) => self.page(Some(user), after, limit),
            ConnectionSelector::Connection(id) => {
                Ok(self.find(id).filter(|_| after.is_none()).into_iter().collect())
            }
            ConnectionSelector::Token(_) => self.page(None, after, limit),
        }
    }

    /// Closes connections; returns their number.
    pub(crate) fn close_all(&self, selector: &ConnectionSelector, code: CloseCode, reason: &str) -> usize {
        self.close_if(selector, code, reason, |_| true)
    }

    /// Changes the rights of connections; returns their number.
    pub(crate) fn refresh_all(&self, selector: &ConnectionSelector, change: RightsChange) -> usize {
        let change = Arc::new(change);
        self.command_all(selector, |connection| {
            connection.may_refresh(&change).then(|| ConnectionCommand::Refresh(Arc::clone(&change)))
        })
    }

    fn close_if(
        &self,
        selector: &ConnectionSelector,
        code: CloseCode,
        reason: &str,
        is_affected: impl Fn(&Rights) -> bool,
    ) -> usize {
        let reason: Arc<str> = reason.into();
        self.command_all(selector, |connection| {
            let close = || ConnectionCommand::Close { code, reason: Arc::clone(&reason) };
            is_affected(&connection.rights()).then(close)
        })
    }

    /// Sends a command to each connection that a selector names and that needs one; returns their number.
    fn command_all(
        &self,
        selector: &ConnectionSelector,
        make: impl Fn(&ClientConnection) -> Option<ConnectionCommand>,
    ) -> usize {
        let page = |after: Option<&str>| self.candidates(selector, after, STEP);
        self.command_each(page, |connection| selector.names(connection).then(|| make(connection)).flatten())
    }

    /// Sends a command to each connection that needs one, in pages that follow an id; returns their number.
    fn command_each(
        &self,
        page: impl Fn(Option<&str>) -> Result<Vec<Arc<ClientConnection>>, Problem>,
        make: impl Fn(&ClientConnection) -> Option<ConnectionCommand>,
    ) -> usize {
        let (mut count, mut after) = (0, None::<String>);
        loop {
            let found = page(after.as_deref()).unwrap_or_default();
            let Some(last) = found.last() else { return count };
            after = Some(self.id_of(last));
            for connection in &found {
                count +=
                    usize::from(make(connection).is_some_and(|command| connection.send(command).is_ok()));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, RegistryState> {
        self.state.lock()
    }
}

/// Returns a connection for a list in the HTTP API.
pub(crate) fn described(registry: &ConnectionRegistry, connection: &ClientConnection) -> Value {
    let rights = connection.rights();
    let mut described = json!({
        "connection": registry.id_of(connection), "path": connection.path.as_str(), "opened": connection.opened(),
        "queued": connection.queued.load(MemoryOrdering::Relaxed),
    });
    if let Some(user) = rights.subject() {
        described["user"] = json!(user);
    }
    if let Some(address) = rights.address() {
        described["address"] = json!(address.to_string());
    }
    described
}

impl CommandQueue {
    fn opened(&self) -> u64 {
        u64::try_from(self.opened.get()).unwrap_or(u64::MAX)
    }
}

impl ClientConnection {
    /// When it was opened, in milliseconds since 1970.
    pub(crate) fn opened(&self) -> u64 {
        self.lock().opened()
    }

    fn subscriber(&self) -> SubscriberId {
        SubscriberId::from_bits(self.subscriber.get())
    }

    /// Returns its client's rights.
    pub(crate) fn rights(&self) -> Rights {
        self.lock().rights.clone()
    }

    /// Returns whether a rights change applies: a connection without a token or claims has no expiry, and an app's
    /// clients have no claims.
    pub(crate) fn may_refresh(&self, change: &RightsChange) -> bool {
        let has_grant = || self.lock().rights.is_granted();
        self.path != ConnectionPath::App && (matches!(change, RightsChange::Claims(_)) || has_grant())
    }

    /// Queues a command for the handler, and wakes it. If the queue is full, a close replaces all commands.
    ///
    /// # Errors
    /// Too many commands wait.
    pub(crate) fn send(&self, command: ConnectionCommand) -> Result<(), Problem> {
        let mut state = self.lock();
        let commands = state.commands.get_or_insert_default();
        if commands.len() >= COMMANDS_MAX && matches!(command, ConnectionCommand::Close { .. }) {
            commands.clear();
        }
        if commands.len() >= COMMANDS_MAX {
            let text = format!("queue of the connection's commands is full (limit {COMMANDS_MAX})");
            return Err(problem(code::TOO_MANY, text));
        }
        commands.push(command);
        drop(state);
        self.waker.wake_by_ref();
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, CommandQueue> {
        self.state.lock()
    }
}

impl RegisteredConnection {
    pub(crate) fn id(&self) -> String {
        self.0.registry.id_of(&self.0)
    }

    pub(crate) fn connection_id(&self) -> ConnectionId {
        ConnectionId { process: self.0.registry.process, number: self.0.number }
    }

    pub(crate) fn path(&self) -> ConnectionPath {
        self.0.path
    }

    /// Sets the bytes that wait for the client ([`Handler::queued`](sinews_server::Handler::queued)).
    pub(crate) fn set_queued(&self, bytes: usize) {
        self.0.queued.store(u32::try_from(bytes).unwrap_or(u32::MAX), MemoryOrdering::Relaxed);
    }

    /// The queued commands.
    pub(crate) fn take_commands(&self) -> Vec<ConnectionCommand> {
        self.0.lock().commands.take().map_or_else(Vec::new, |commands| *commands)
    }

    /// Replaces the client's rights, and its user.
    ///
    /// # Errors
    /// Their token was revoked since it was verified: the revocation has not found this connection. A later one finds
    /// it.
    pub(crate) fn set_rights(&self, rights: &Rights, revocations: &Revocations) -> Result<(), Denied> {
        let number = self.0.number;
        let (mut registry, mut state) = (self.0.registry.lock(), self.0.lock());
        registry.remove_user(state.rights.subject(), number);
        registry.add_user(rights.subject(), number);
        state.rights = rights.clone();
        drop((state, registry));
        revocations.check(rights)
    }

    /// Ends a WebSocket's registration, with its close code.
    pub(crate) fn end(self, closed: &Closed) {
        self.0.lock().closed = closed.status();
    }

    /// Reports the end of the connection, if anything wants to know it. The end of a poll does not say that its client
    /// has gone.
    fn report(&self) {
        let ClientConnection { registry, path, state, .. } = &*self.0;
        if *path == ConnectionPath::Poll {
            return;
        }
        let kind = WebhookEventKind::ConnectionClosed;
        let Some(events) = registry.events.get().filter(|events| events.wants(kind)) else { return };
        let state = state.lock();
        let closed = ClosedConnection {
            id: registry.id_of(&self.0),
            path: path.as_str(),
            user: state.rights.subject().map(Arc::from),
            address: state.rights.address(),
            opened: state.opened(),
            code: (state.closed > 0).then_some(state.closed),
        };
        drop(state);
        events.emit(EventDetail::ConnectionClosed(Box::new(closed)));
    }
}

impl Drop for RegisteredConnection {
    fn drop(&mut self) {
        self.report();
        let mut registry = self.0.registry.lock();
        registry.by_number.remove(&self.0.number);
        registry.remove_user(self.0.lock().rights.subject(), self.0.number);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use super::*;
    use crate::access::auth::{Revocation, RevokedTokens};

    #[derive(Default)]
    struct CountedWakes(AtomicUsize);

    impl Wake for CountedWakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn subscriber() -> SubscriberId {
        SubscriberId::from_bits(7)
    }

    fn close_command() -> ConnectionCommand {
        ConnectionCommand::Close { code: CloseCode::POLICY, reason: "test".into() }
    }

    #[test]
    fn connections_are_found_until_they_are_dropped() {
        let registry = Arc::new(ConnectionRegistry::default());
        let register = |rights: &Rights| {
            registry.register(ConnectionPath::Protocol, rights, subscriber(), Waker::noop().clone())
        };
        let (anna, ben) = (Rights::for_subject("anna"), Rights::for_subject("ben"));
        let connections = [register(&anna), register(&Rights::all()), register(&anna), register(&ben)];
        let ids: Vec<String> = connections.iter().map(RegisteredConnection::id).collect();
        let page = |user, after, limit| -> Vec<String> {
            let found = registry.page(user, after, limit).unwrap();
            found.iter().map(|connection| registry.id_of(connection)).collect()
        };
        assert_eq!(page(None, None, 9), ids);
        assert_eq!(registry.counts().users, 2);
        assert_eq!(page(None, Some(&ids[1]), 1), ids[2..3]);
        assert_eq!(page(Some("anna"), None, 9), [ids[0].clone(), ids[2].clone()]);
        assert_eq!(page(Some("anna"), Some(&ids[0]), 9), ids[2..3]);
        assert!(page(Some("ann"), None, 9).is_empty());
        assert!(registry.find(&ids[3]).is_some());
        assert!(registry.find("0-1").is_none() && registry.find("").is_none());
        assert_eq!(registry.page(None, Some("x"), 1).map(drop).unwrap_err().code, 400);
        let none = Revocations::default();
        assert!(connections[3].set_rights(&anna, &none).is_ok());
        assert!(page(Some("ben"), None, 9).is_empty());
        assert_eq!(page(Some("anna"), Some(&ids[2]), 9), ids[3..]);
        assert_eq!(registry.counts().users, 1);
        assert!(connections[3].set_rights(&anna, &none).is_ok());
        assert_eq!(registry.counts().users, 1, "the same user");
        drop(connections);
        assert_eq!(registry.counts().users, 0);
        assert!(page(None, None, 9).is_empty() && page(Some("anna"), None, 9).is_empty());
        assert!(registry.find(&ids[3]).is_none());
    }

    #[test]
    fn rights_that_were_revoked_since_their_verification_are_denied() {
        let registry = Arc::new(ConnectionRegistry::default());
        let connection =
            registry.register(ConnectionPath::Protocol, &Rights::all(), subscriber(), Waker::noop().clone());
        let revocations = Revocations::default();
        let [first, second] = ["one", "two"].map(|id| Rights::for_token("anna", id, None));
        let revocation = |id: &str| Revocation::new(RevokedTokens::WithId(id.into()), f64::MAX);
        // Before the connection has the rights: it does not find them.
        assert_eq!(registry.revoke(&revocations, &[revocation("one")]), 0);
        assert!(connection.set_rights(&first, &revocations).is_err());
        // And after it.
        assert!(connection.set_rights(&second, &revocations).is_ok());
        assert_eq!(registry.revoke(&revocations, &[revocation("two")]), 1);
        assert!(matches!(connection.take_commands()[..], [ConnectionCommand::Close { .. }]));
    }

    #[test]
    fn slowest_connections_are_listed_first() {
        let registry = Arc::new(ConnectionRegistry::default());
        let (anna, other) = (Rights::for_subject("anna"), Rights::all());
        let register = |rights: &Rights| {
            registry.register(ConnectionPath::Protocol, rights, subscriber(), Waker::noop().clone())
        };
        let connections: Vec<_> =
            (0..STEP + 3).map(|at| register(if at == 0 { &anna } else { &other })).collect();
        assert!(registry.slowest(None, 9).is_empty());
        for (at, bytes) in [(0, 20_000), (5, 30_000), (STEP + 1, 40_000), (STEP + 2, usize::MAX)] {
            connections[at].set_queued(bytes);
        }
        let slowest = |user, limit| -> Vec<String> {
            registry.slowest(user, limit).iter().map(|one| registry.id_of(one)).collect()
        };
        let ids: Vec<String> = connections.iter().map(RegisteredConnection::id).collect();
        let at = |numbers: &[usize]| -> Vec<String> { numbers.iter().map(|at| ids[*at].clone()).collect() };
        assert_eq!(slowest(None, 3), at(&[STEP + 2, STEP + 1, 5]));
        assert_eq!(slowest(Some("anna"), 3), at(&[0]));
        connections[STEP + 2].set_queued(0);
        assert_eq!(slowest(None, 9), at(&[STEP + 1, 5, 0]));
    }

    #[test]
    fn commands_wake_the_handler_and_are_bounded() {
        let (registry, count) = (Arc::new(ConnectionRegistry::default()), Arc::new(CountedWakes::default()));
        let registered = registry.register(
            ConnectionPath::Protocol,
            &Rights::all(),
            subscriber(),
            Waker::from(Arc::clone(&count)),
        );
        let connection = registry.find(&registered.id()).unwrap();
        let report = || ConnectionCommand::ReportCluster { is_connected: true };
        for _ in 0..COMMANDS_MAX {
            connection.send(report()).unwrap();
        }
        assert_eq!(connection.send(report()).unwrap_err().code, 429);
        assert_eq!(count.0.load(Ordering::Relaxed), COMMANDS_MAX);
        connection.send(close_command()).unwrap();
        let commands = registered.take_commands();
        assert!(matches!(commands[..], [ConnectionCommand::Close { .. }]), "{}", commands.len());
        assert!(registered.take_commands().is_empty() && connection.send(report()).is_ok());
    }
}
