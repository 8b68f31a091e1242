//! Tables of the file for the whole server.

use std::num::{NonZeroU32, NonZeroUsize};

use serde::Deserialize;

use super::units::{Bytes, MemoryLimit, Wait};
use crate::args::Full;

/// `[limits]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LimitValues {
    pub(crate) max_connections: Option<NonZeroUsize>,
    pub(crate) max_connections_per_address: Option<NonZeroUsize>,
    pub(crate) handshakes_per_second: Option<NonZeroU32>,
    pub(crate) messages_per_second: Option<NonZeroU32>,
    pub(crate) max_memory: Option<MemoryLimit>,
    pub(crate) when_full: Option<Full>,
    pub(crate) max_history_memory: Option<Bytes>,
}

/// `[stop]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StopValues {
    pub(crate) delay: Option<Wait>,
    pub(crate) drain_window: Option<Wait>,
    pub(crate) grace: Option<Wait>,
}
