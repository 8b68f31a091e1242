//! Table of the file for durable streams.

use std::num::NonZeroU32;
use std::path::PathBuf;

use serde::Deserialize;

use super::network::Place;
use super::units::{Bytes, FsyncWhen, Hidden, OneOrMore, WaitOrOff};

/// `[streams]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StreamValues {
    pub(crate) directory: Option<PathBuf>,
    pub(crate) listen: Option<OneOrMore<Place>>,
    pub(crate) topics: Option<OneOrMore<String>>,
    pub(crate) partitions: Option<NonZeroU32>,
    pub(crate) fsync: Option<FsyncWhen>,
    pub(crate) retain_bytes: Option<Bytes>,
    pub(crate) retain_age: Option<WaitOrOff>,
    pub(crate) segment_bytes: Option<Bytes>,
    pub(crate) max_streams: Option<NonZeroU32>,
    pub(crate) max_created_per_client: Option<NonZeroU32>,
    pub(crate) max_created_per_minute: Option<NonZeroU32>,
    pub(crate) expire_unused: Option<WaitOrOff>,
    pub(crate) store: Option<Hidden>,
    pub(crate) store_settings: Option<OneOrMore<Hidden>>,
    pub(crate) store_password: Option<Hidden>,
    pub(crate) store_password_file: Option<PathBuf>,
}
