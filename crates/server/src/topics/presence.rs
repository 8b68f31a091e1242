//! Presence: the members of each topic, and updates to the connections that watch it.
//!
//! ```text
//!   Context::join, leave, close ─▶ PresenceTable, shared: members, changes since the last update
//!                                     │ the first change schedules an update on its worker
//!                                     ▼
//!   batch timer ─▶ PresenceUpdate ─▶ the server's encoder, once ─▶ publication to all watchers
//! ```
//!
//! An update is published at once after a quiet interval, otherwise a [`PresenceInterval`] after the previous one. So
//! many joins and leaves of a topic become few updates, and fewer the more watchers the topic has. Updates are ordinary
//! publications to an internal topic, whose name no client can use: publications to other topics do no work for
//! presence.
//!
//! A message that does not fit into the mailbox of a thread waits, and with it the next update of its topic.
//!
//! [`PresenceInterval`]: crate::PresenceInterval

mod changes;
mod connections;
pub(crate) mod interval;
pub(crate) mod local;
pub(crate) mod member;
mod noted;
pub(crate) mod observed;
mod page;
mod present_members;
mod remote;
pub(crate) mod shared;
pub(crate) mod table;
pub(crate) mod undelivered;
mod update;
