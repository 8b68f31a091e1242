//! Stream administration: creation, configuration, and consumer-group checks.

use std::time::Duration;

use sinews_stream::{CreateError, Lookup, StreamConfig, StreamInfo};

use super::durable_keys::TOMBSTONE_RETENTION;
use super::errors::{created, unusable};
use super::groups::check_group_name;
use super::service::StreamService;
use crate::model;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};

/// A change to a stream's configuration. `None` leaves a value as it is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StreamChange {
    pub(crate) partitions: Option<u32>,
    /// Bytes that each partition retains; all without a limit.
    pub(crate) retain_bytes: Option<Option<u64>>,
    /// Age up to which records are retained; all without a limit.
    pub(crate) retain_age: Option<Option<Duration>>,
    pub(crate) compact: Option<bool>,
}

impl StreamService {
    /// Returns metadata for an existing client stream.
    pub(crate) fn describe(&self, name: &str) -> Result<StreamInfo, Problem> {
        let missing = || problem(code::NO_STREAM, format!("stream {} does not exist", brief(name)));
        model::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        self.streams()?.describe(name).ok_or_else(missing)
    }

    /// Checks that a group of an existing stream has no members on this node: a member would continue at its own
    /// offset, and commit it again.
    pub(crate) fn check_group(&self, name: &str, group: &str) -> Result<(), Problem> {
        check_group_name(group)?;
        self.describe(name)?;
        match self.groups.members(name, group) {
            0 => Ok(()),
            members => {
                let text = format!("group {} has {members} members: stop them first", brief(group));
                Err(problem(code::NOT_SUBSCRIBED, text))
            }
        }
    }

    /// Creates a stream, or changes an existing stream's configuration. Waits for the disk.
    pub(crate) fn configure(&self, name: &str, change: &StreamChange) -> Result<(), Problem> {
        model::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        let new = self.store.config_of_new(name)?;
        let streams = self.streams()?;
        if let Lookup::Damaged(why) = streams.lookup(name) {
            return Err(unusable(name, &sinews_stream::StreamError::Damaged(why)));
        }
        let known = streams.describe(name).map(|info| info.config);
        let config = self.changed(name, known.as_ref(), new, change)?;
        streams.create(name, &config).map(drop).map_err(|error| match error {
            CreateError::Partitions { has } => {
                let max = StreamConfig::PARTITIONS_MAX;
                problem(
                    code::TOPIC,
                    format!("stream {} has {has} partitions, and at most {max}", brief(name)),
                )
            }
            error => created(name, &error),
        })
    }

    /// Returns the configuration after a change.
    fn changed(
        &self,
        name: &str,
        known: Option<&StreamConfig>,
        new: StreamConfig,
        change: &StreamChange,
    ) -> Result<StreamConfig, Problem> {
        let fault = |text: String| Err(problem(code::TOPIC, text));
        let (shown, is_topic) = (brief(name), self.topics.is_durable(name));
        let mut config = known.cloned().unwrap_or(new).with_automatic(false);
        if let Some(partitions) = change.partitions {
            if is_topic && partitions != 1 {
                return fault(format!(
                    "{partitions} partitions: the stream of the durable topic {shown} has 1"
                ));
            }
            if !(1..=StreamConfig::PARTITIONS_MAX).contains(&partitions) {
                return fault(format!(
                    "{partitions} partitions: the limit is {}",
                    StreamConfig::PARTITIONS_MAX
                ));
            }
            config = config.with_partitions(partitions);
        }
        let is_none = change.retain_bytes == Some(Some(0)) || change.retain_age == Some(Some(Duration::ZERO));
        if is_none {
            return fault("retention of 0: null retains all records".to_owned());
        }
        if let Some(bytes) = change.retain_bytes {
            config = config.with_retain_bytes(bytes);
        }
        if let Some(age) = change.retain_age {
            config = config.with_retain_age(age);
        }
        if let Some(compact) = change.compact {
            if known.is_some_and(|known| known.compaction().is_some() != compact) {
                return fault(format!("stream {shown}: compact is set by the creation of a stream"));
            }
            if compact && is_topic {
                return fault(format!(
                    "the records of the durable topic {shown} have no keys: compact is false"
                ));
            }
            if known.is_none() {
                config = config.with_compaction(compact.then_some(TOMBSTONE_RETENTION));
            }
        }
        Ok(config)
    }
}
