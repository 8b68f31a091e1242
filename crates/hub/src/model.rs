//! What all parts of the hub name: topics, publication content, clients that create, hook kinds.

pub(crate) mod brief;
pub(crate) mod connection_id;
mod content;
mod creator;
pub(crate) mod encoding;
pub(crate) mod event;
pub(crate) mod events;
pub(crate) mod history;
mod hook_kind;
pub(crate) mod json;
pub(crate) mod json_list;
mod names;
pub(crate) mod nodes;
pub(crate) mod opening;
pub(crate) mod presence;
pub(crate) mod problem;
pub(crate) mod publication;
pub(crate) mod schema;
pub(crate) mod socket_id;
pub(crate) mod stable_hash;
pub(crate) mod stamp;
pub(crate) mod user_id;

pub(crate) use self::content::{MessageContent, push_json};
pub(crate) use self::creator::{Creator, network_of};
pub(crate) use self::hook_kind::HookKind;
pub use self::names::check_pattern;
pub(crate) use self::names::{
    NAME_MAX, PUBLISHES_TO_PATTERN, RESERVED, check_name, check_subscription, is_pattern, is_reserved,
    parse_patterns,
};
