//! Topic members, and reports about their changes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use sinews_session::Prepared;

use crate::topics::name::{InvalidTopic, SUBSCRIPTIONS_MAX};

/// Default minimum interval between a topic's updates, and between attempts to send one.
pub(crate) const PRESENCE_INTERVAL: Duration = Duration::from_millis(100);

/// Maximum members that one update lists. Beyond it, each watcher lists all members: for thousands of watchers that
/// takes far more than the update.
pub(crate) const CHANGES_MAX: usize = 16_384;

/// Maximum bytes in the ids and infos that one update lists, each change with [`CHANGE_TEXT`]: the update must fit into
/// each watcher's queue.
pub(crate) const CHANGED_BYTES_MAX: usize = 512 << 10;

/// Bytes for the text around a changed member, in most protocols.
pub(crate) const CHANGE_TEXT: usize = 24;

/// As [`CHANGED_BYTES_MAX`], for an update with transitions: they are longer, each a message by itself.
pub(crate) const TRANSITION_BYTES_MAX: usize = 256 << 10;

/// Maximum changed members in an update with transitions: for more, one list with all members is shorter.
pub(crate) const TRANSITIONS_MAX: usize = 4_096;

/// Maximum members in one list.
pub(crate) const MEMBERS_MAX: usize = 1_000;

/// Topic member: a user or a device with one or more connections.
///
/// ```
/// use sinews_server::Member;
///
/// let member = Member::new("alice").with_info(r#"{"name":"Alice"}"#);
/// assert_eq!((member.id(), member.info()), ("alice", &br#"{"name":"Alice"}"#[..]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub(crate) id: Arc<str>,
    pub(crate) info: Arc<[u8]>,
}

impl Member {
    /// Maximum id length in characters, each up to 4 bytes: enough for any user name or UUID.
    pub const ID_MAX: usize = 128;

    /// Maximum info length in bytes: each update repeats it for each watcher.
    pub const INFO_MAX: usize = 1_024;

    /// Creates a member. Connections that join with the same id are one member.
    #[must_use]
    pub fn new(id: impl Into<Arc<str>>) -> Self {
        Self { id: id.into(), info: Arc::default() }
    }

    /// Sets what other clients learn about the member, for example JSON. Default: empty.
    #[must_use]
    pub fn with_info(mut self, info: impl Into<Bytes>) -> Self {
        // Of its own size: a member may stay for long.
        self.info = Arc::from(&*info.into());
        self
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the id, shared with the member.
    #[must_use]
    pub fn shared_id(&self) -> Arc<str> {
        Arc::clone(&self.id)
    }

    /// Returns the info from the connection that joined last.
    #[must_use]
    pub fn info(&self) -> &[u8] {
        &self.info
    }

    /// Checks the id and the info, as a join does.
    ///
    /// # Errors
    /// [`PresenceError::MemberId`], [`PresenceError::MemberInfo`].
    pub fn check(&self) -> Result<(), PresenceError> {
        let is_long = self.id.chars().nth(Self::ID_MAX).is_some();
        if self.id.is_empty() || is_long || self.id.chars().any(char::is_control) {
            return Err(PresenceError::MemberId);
        }
        if self.info.len() > Self::INFO_MAX {
            Err(PresenceError::MemberInfo(self.info.len()))
        } else {
            Ok(())
        }
    }
}

/// A topic's first members as the program has encoded them: [`Topics::first_members`](crate::Topics::first_members).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberPage {
    /// The presence version that the members belong to.
    pub version: u64,
    /// There are more members.
    pub more: bool,
    /// The members.
    pub encoded: Bytes,
}

/// A topic's presence counts, over all threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PresenceCount {
    /// Member count. A member with several connections counts once.
    pub members: usize,
    /// Joined connections, with and without a member.
    pub connections: usize,
    /// Change count so far: between two counts for a topic, the one with the larger version is newer.
    pub version: u64,
}

/// Changes of a topic's presence since its previous update.
///
/// An update is about the result: a member that joined and left in between is not listed, unless the members were read
/// in between. To apply one twice does no harm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceUpdate {
    pub(crate) topic: Arc<str>,
    pub(crate) count: PresenceCount,
    pub(crate) since: u64,
    pub(crate) connections_before: usize,
    pub(crate) joined: Vec<Member>,
    pub(crate) left: Vec<Arc<str>>,
    /// Versions for the changes in `joined` and in `left`, which are in this order.
    pub(crate) versions: [Vec<u64>; 2],
    pub(crate) transitions: Vec<PresenceTransition>,
    pub(crate) members: Vec<Member>,
    pub(crate) is_complete: bool,
    pub(crate) has_transitions: bool,
}

/// Update part: [`PresenceUpdate::parts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PresencePart<'a> {
    pub(crate) since: u64,
    pub(crate) version: u64,
    pub(crate) joined: &'a [Member],
    pub(crate) left: &'a [Arc<str>],
}

impl<'a> PresencePart<'a> {
    /// Returns the previous part's version, or the previous update's ([`PresenceUpdate::since`]).
    #[must_use]
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Returns the version after this part's changes.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// Returns the members that have joined, or have another info.
    #[must_use]
    pub fn joined(&self) -> &'a [Member] {
        self.joined
    }

    /// Returns the departed members' ids.
    pub fn left(&self) -> impl ExactSizeIterator<Item = &'a str> + use<'a> {
        self.left.iter().map(|id| &**id)
    }
}

/// A member's join with its first connection, or leave with its last: [`PresenceUpdate::transitions`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PresenceTransition {
    pub(crate) id: Arc<str>,
    pub(crate) info: Arc<[u8]>,
    pub(crate) has_joined: bool,
    pub(crate) version: u64,
}

impl PresenceTransition {
    /// Returns the member's id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns the member's info if it has joined; `None` if it has left.
    #[must_use]
    pub fn info(&self) -> Option<&[u8]> {
        self.has_joined.then_some(&*self.info)
    }

    /// Returns the member's info if it has joined, or its last info if it has left.
    #[must_use]
    pub fn last_info(&self) -> &[u8] {
        &self.info
    }

    /// Returns the presence version after the change.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }
}

/// Message to a topic's presence watchers ([`Server::presence`](crate::Server::presence)).
#[derive(Clone, Debug)]
pub struct PresenceMessage {
    pub(crate) message: Prepared,
    pub(crate) version: u64,
}

impl PresenceMessage {
    /// Creates a message that leads to a presence version: watchers that have read this version with
    /// [`Context::watch_members`](crate::Context::watch_members), or a later one, do not receive it.
    #[must_use]
    pub fn leading_to(version: u64, message: Prepared) -> Self {
        Self { message, version }
    }
}

/// A message to all watchers.
impl From<Prepared> for PresenceMessage {
    fn from(message: Prepared) -> Self {
        Self { message, version: 0 }
    }
}

impl PresenceUpdate {
    /// Returns the topic.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// Returns the numbers after the changes.
    #[must_use]
    pub fn count(&self) -> PresenceCount {
        self.count
    }

    /// Returns the previous update's version. A watcher whose version is smaller has missed an update, for example
    /// because it was too slow, and should list the members again ([`Topics::members`](crate::Topics::members)).
    #[must_use]
    pub fn since(&self) -> u64 {
        self.since
    }

    /// Returns the members that have joined, or have another info, ordered by their last changes.
    #[must_use]
    pub fn joined(&self) -> &[Member] {
        &self.joined
    }

    /// Returns the departed members' ids, in leave order.
    pub fn left(&self) -> impl ExactSizeIterator<Item = &str> {
        self.left.iter().map(|id| &**id)
    }

    /// Returns how many connections had joined at the previous update.
    #[must_use]
    pub fn connections_before(&self) -> usize {
        self.connections_before
    }

    /// Returns the joins and leaves ordered by version, for protocols with a message for each. A member with a new info
    /// is not among them. A member that has left and returned is listed twice if the members were read in between; a
    /// leave may concern a member that no watcher knows. None is listed after more than 4,096 changes
    /// ([`has_transitions`](Self::has_transitions)).
    #[must_use]
    pub fn transitions(&self) -> &[PresenceTransition] {
        &self.transitions
    }

    /// Returns whether the transitions are listed; otherwise [`members`](Self::members) has all members.
    #[must_use]
    pub fn has_transitions(&self) -> bool {
        self.has_transitions
    }

    /// Returns all members, ordered by id, if the [transitions](Self::has_transitions) are not listed; otherwise none.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// Returns whether all changes are listed. Otherwise more than
    /// [`Topics::PRESENCE_CHANGES_MAX`](crate::Topics::PRESENCE_CHANGES_MAX) members have changed, or their ids and
    /// infos exceed 512 KiB: none is listed, and the numbers are right.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// Presence of one topic, for a successor server:
/// [`Publisher::presence`](crate::Publisher::presence).
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "to be taken apart, sent, and put together again")]
pub struct PresenceSnapshot {
    /// Topic name.
    pub topic: String,
    /// Members, each with its connection count.
    pub members: Vec<(Member, usize)>,
    /// Joined connections without a member.
    pub anonymous: usize,
}

/// Presence of one server's own connections in a topic, for other servers: [`Publisher::take_own_presence`].
///
/// [`Publisher::take_own_presence`]: crate::Publisher::take_own_presence
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "as a snapshot")]
pub struct OwnPresence {
    /// Topic name.
    pub topic: Arc<str>,
    /// Joined connections, with and without a member.
    pub connections: usize,
    /// Some members, each with its connection count.
    pub members: Vec<(Member, usize)>,
}

/// Error from a join or from watching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PresenceError {
    /// The name is no topic name, or the connection has too many subscriptions.
    Topic(InvalidTopic),
    /// The member's id is empty, longer than [`Member::ID_MAX`] characters, or has a control character.
    MemberId,
    /// The member's info has this many bytes, more than [`Member::INFO_MAX`].
    MemberInfo(usize),
    /// The connection is present in [`Topics::SUBSCRIPTIONS_MAX`](crate::Topics::SUBSCRIPTIONS_MAX) topics already.
    TooManyTopics,
    /// All members together would exceed
    /// [`TopicConfig::with_max_presence_bytes`](crate::TopicConfig::with_max_presence_bytes).
    Full,
    /// The server has no update encoder: [`Server::presence`](crate::Server::presence).
    NoEncoder,
}

impl From<InvalidTopic> for PresenceError {
    fn from(invalid: InvalidTopic) -> Self {
        Self::Topic(invalid)
    }
}

impl fmt::Display for PresenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Topic(invalid) => invalid.fmt(f),
            Self::MemberId => {
                write!(f, "a member's id has 1 to {} characters and no control characters", Member::ID_MAX)
            }
            Self::MemberInfo(bytes) => {
                write!(f, "member info of {bytes} bytes exceeds the limit of {} bytes", Member::INFO_MAX)
            }
            Self::TooManyTopics => {
                write!(f, "a connection is present in at most {SUBSCRIPTIONS_MAX} topics")
            }
            Self::Full => {
                f.write_str("members exceed their memory limit (`TopicConfig::with_max_presence_bytes`)")
            }
            Self::NoEncoder => f.write_str("the server sends no presence updates (`Server::presence`)"),
        }
    }
}

impl std::error::Error for PresenceError {}
