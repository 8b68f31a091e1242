//! Durable streams: an embedded log of partitioned streams.
//!
//! A stream has partitions. A partition is a sequence of records in segment files on disk; each record has an offset.
//! The crate depends on no socket and no async runtime: appends never block, waiting callers register a
//! [`Waker`](std::task::Waker), and the only threads are the log's writer and opener threads.
//!
//! ```
//! use sinews_stream::record::{self, Kind, RecordBuilder};
//! use sinews_stream::{Durability, Start, StreamConfig, Streams, StreamsConfig};
//!
//! # let directory = std::env::temp_dir().join(format!("sinews-stream-doc-{}", std::process::id()));
//! let (streams, losses) = Streams::open(&directory, StreamsConfig::default())?;
//! assert!(losses.is_empty()); // damage found while opening, by stream
//! let stream = streams.create("orders", &StreamConfig::default().partitions(4))?;
//!
//! let mut builder = RecordBuilder::new();
//! builder.push(1_700_000_000_000_000, b"customer-7", b"one apple", Kind::Text)?;
//! let records = builder.finish().expect("one record");
//!
//! let partition = stream.partition(stream.pick(b"customer-7")).unwrap();
//! let appended = partition.append(records)?.block(Durability::Disk)?;
//! assert_eq!((appended.first, appended.count), (0, 1));
//!
//! let read = partition.read(partition.seek(Start::Earliest), 64 << 10)?;
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
mod carry;
mod catalog;
mod config;
mod disk;
mod error;
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
mod writer;

pub use carry::{Carried, Carrier, Task};
pub use config::{Fsync, StreamConfig, StreamsConfig};
pub use error::{
    AppendError, CommitError, CreateError, DeleteError, Loss, OpenError, ReadError, StreamError,
};
pub use info::{GroupInfo, Lookup, PartitionInfo, StreamInfo, StreamState};
pub use partition::{Ends, Partition, Past, Read, Start, Statistics};
pub use pending::{Appended, Completer, Durability, Pending, Wait};
pub use stream::Stream;
pub use streams::{Check, Opening, Streams};
