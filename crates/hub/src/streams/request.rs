//! Parameters of stream requests.

use std::time::{SystemTime, UNIX_EPOCH};

use sinews_stream::record::Records;
use sinews_stream::{Durability, Partition, StartPosition, Stream};

use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};

/// The partition that a request addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartitionChoice {
    /// Publications: by the first record's key, or in turn. Reads: all partitions.
    Any,
    Number(u32),
}

/// When a publication is acknowledged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum AckLevel {
    None,
    Memory,
    #[default]
    Disk,
    Broker,
}

impl AckLevel {
    /// The durability that an acknowledgement requires; `None` without acknowledgement.
    pub(crate) fn durability(self) -> Option<Durability> {
        match self {
            Self::None => None,
            Self::Memory => Some(Durability::Memory),
            Self::Disk => Some(Durability::Disk),
            Self::Broker => Some(Durability::Broker),
        }
    }
}

/// Where a subscription to a stream starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SubscriptionStart {
    pub(crate) start: StartPosition,
    /// The group whose committed offset takes precedence.
    pub(crate) group: Option<String>,
}

/// Chooses a publication's partition.
pub(crate) fn choose_partition(
    stream: &Stream,
    choice: PartitionChoice,
    records: &Records,
) -> Result<u32, Problem> {
    match choice {
        PartitionChoice::Number(partition) => find_partition(stream, partition).map(|_| partition),
        PartitionChoice::Any => {
            let first = records.iter().next().and_then(Result::ok);
            Ok(stream.pick(first.map_or(&[], |record| record.key)))
        }
    }
}

pub(crate) fn find_partition(stream: &Stream, partition: u32) -> Result<Partition, Problem> {
    stream.partition(partition).ok_or_else(|| {
        let (name, count) = (brief(stream.name()), stream.partitions());
        problem(
            code::NO_STREAM,
            format!("stream {name} has no partition {partition} ({count} partitions, from 0)"),
        )
    })
}

/// Microseconds since 1970.
pub(crate) fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
