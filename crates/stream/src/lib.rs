//! Durable streams: an embedded log of partitioned streams.
//!
//! A stream has partitions. A partition is a sequence of records in segment files on disk; each record has an offset.
//! The crate depends on no socket and no async runtime: appends never block, waiting callers register a
//! [`Waker`](std::task::Waker), and the only threads are the log's writer and opener threads.
//!
//! ```
//! use sinews_stream::record::{self, ValueKind, RecordBuilder};
//! use sinews_stream::{Durability, StartPosition, StreamConfig, Streams, StreamsConfig};
//!
//! # let directory = std::env::temp_dir().join(format!("sinews-stream-doc-{}", std::process::id()));
//! let (streams, losses) = Streams::open(&directory, StreamsConfig::default())?;
//! assert!(losses.is_empty()); // damage found while opening, by stream
//! let stream = streams.create("orders", &StreamConfig::default().with_partitions(4))?;
//!
//! let mut builder = RecordBuilder::new();
//! builder.push(1_700_000_000_000_000, b"customer-7", b"one apple", ValueKind::Text)?;
//! let records = builder.finish().expect("one record");
//!
//! let partition = stream.partition(stream.pick(b"customer-7")).unwrap();
//! let appended = partition.append(records)?.block(Durability::Disk)?;
//! assert_eq!((appended.first, appended.count), (0, 1));
//!
//! let read = partition.read(partition.seek(StartPosition::Earliest), 64 << 10)?;
//! for batch in record::iter(&read.batches) {
//!     for record in batch?.records() {
//!         assert_eq!(record?.value, b"one apple");
//!     }
//! }
//! streams.close();
//! # std::fs::remove_dir_all(directory)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod broker;
mod catalog;
mod config;
mod copy_observer;
mod disk;
mod error;
mod executor;
mod groups;
mod index;
mod info;
mod meta;
mod name;
mod partition;
mod pending;
pub mod record;
mod seal;
mod segment;
mod stream;
mod streams;
#[cfg(test)]
mod tests;
mod thread_waker;
mod writer;

pub use config::{Fsync, StreamConfig, StreamsConfig};
pub use error::{
    AppendError, CommitError, CreateError, DeleteError, Loss, OpenError, ReadError, StreamError,
};
pub use executor::{ExternalWrite, WriteExecutor, WriteTask};
pub use info::{GroupInfo, Lookup, PartitionInfo, StreamInfo, StreamState};
pub use partition::{
    Partition, PartitionEvent, PartitionOffsets, ReadResult, StartPosition, Statistics, Watcher,
};
pub use pending::{AppendFuture, Appended, Completer, Durability, Pending};
pub use stream::Stream;
pub use streams::{CheckReport, OpenFuture, Streams};
