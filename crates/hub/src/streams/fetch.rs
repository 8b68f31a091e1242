//! One read of a partition, for a request.

use std::future::poll_fn;
use std::sync::Arc;

use sinews_stream::{ReadResult, StartPosition, Stream};

use super::service::StreamService;
use super::store::{PartitionSource, ReadFailure};
use crate::model::problem::Problem;

/// The result of one fetch.
pub(crate) struct FetchedRecords {
    /// The first offset that counts.
    pub(crate) from: u64,
    /// The end of the readable records.
    pub(crate) end: u64,
    /// `None` at the end.
    pub(crate) read: Option<ReadResult>,
}

/// Reads once. If old records are gone, the result starts at the first one that exists.
pub(crate) async fn fetch(
    store: Arc<StreamService>,
    stream: Stream,
    partition: u32,
    offset: u64,
    most: usize,
) -> Result<FetchedRecords, Problem> {
    let mut source = store.source(&stream, partition)?;
    let mut from = store.seek(&stream, partition, StartPosition::Offset(offset))?;
    loop {
        match read_once(&store, &stream, partition, &mut source, from, most).await {
            Ok((read, end)) => return Ok(FetchedRecords { from, end, read }),
            Err(ReadFailure::Gap(to) | ReadFailure::Ahead(to)) => from = to,
            Err(ReadFailure::Failed(problem)) => return Err(problem),
        }
    }
}

/// Reads once and returns the end, too. The broker may have more records than this node has read.
pub(crate) async fn read_once(
    store: &StreamService,
    stream: &Stream,
    number: u32,
    source: &mut PartitionSource,
    from: u64,
    most: usize,
) -> Result<(Option<ReadResult>, u64), ReadFailure> {
    let most = most.clamp(1, READ_BYTES);
    let read = poll_fn(|cx| source.poll_read(from, most, cx.waker())).await?;
    let seen = source.partition().offsets().readable;
    if let Some(read) = read {
        return Ok((Some(read), seen));
    }
    let end = store.end(stream, number).await.map_err(ReadFailure::Failed)?;
    if from >= end || end <= seen {
        return Ok((None, end));
    }
    let read = poll_fn(|cx| source.poll_store(from, end, most, cx.waker())).await?;
    Ok((read, end))
}

/// Bytes per read. A batch is returned whole, even if it is larger.
pub(crate) const READ_BYTES: usize = 256 << 10;
