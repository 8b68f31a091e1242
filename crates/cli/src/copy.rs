//! `sinews streams`: copies a directory's streams to a broker, or deletes, checks and repairs them.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use sinews_stream::broker::Broker;
use sinews_stream::record::{self, Batch, RecordBuilder, Records};
use sinews_stream::{AppendError, Durability, OpenError, Pending, Stream, Streams, StreamsConfig};

use crate::settings::store::{StoreArgs, StoreSettings};

mod repair;

#[derive(Debug, Subcommand)]
pub(crate) enum StreamsCommand {
    /// Copy streams of a directory to a broker that has no streams of these names. No server may have the directory
    /// open.
    Copy(Box<CopyArgs>),
    /// Delete streams of a directory, with their records and committed offsets. On a running server, use DELETE
    /// /streams/NAME instead.
    Delete(DeleteArgs),
    /// Read all records of streams and print damage. No server may have the directory open. Exits with 1 if any
    /// stream is damaged
    Check {
        /// Directory of the streams
        #[arg(long = "from", value_name = "DIR")]
        directory: PathBuf,
        /// Streams to check [default: all]
        #[arg(value_name = "STREAM")]
        streams: Vec<String>,
    },
    /// Make a damaged stream usable: restore its configuration, and set aside unusable files. No server may have the
    /// directory open
    Repair {
        /// Directory of the streams
        #[arg(long = "from", value_name = "DIR")]
        directory: PathBuf,
        /// Stream to repair
        #[arg(value_name = "STREAM")]
        stream: String,
    },
}

#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Directory of the streams; no server may have it open
    #[arg(long, value_name = "DIR")]
    from: PathBuf,

    /// Streams to delete
    #[arg(value_name = "STREAM", required = true)]
    streams: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct CopyArgs {
    /// Directory of the streams
    #[arg(long, value_name = "DIR")]
    from: PathBuf,

    #[command(flatten)]
    store: StoreArgs,

    /// Streams to copy [default: all]
    #[arg(value_name = "STREAM")]
    streams: Vec<String>,
}

/// Maximum appends in flight.
const WINDOW: usize = 256;

/// Bytes per read from a partition.
const READ_BYTES: usize = 256 << 10;

/// Maximum records in an append: less than any broker's limit.
const APPEND_RECORDS: u32 = 1_000;

/// Attempts until the broker answers: one request may take 5 seconds.
const TRIES: u32 = 8;
const PAUSE: Duration = Duration::from_millis(500);

/// Timeout for accepting or acknowledging a record: longer than any broker client's retries.
const BROKER_WITHIN: Duration = Duration::from_secs(600);

/// Time to close: all appends are acknowledged or failed by then.
const CLOSE_WITHIN: Duration = Duration::from_secs(1);

pub(crate) fn run(command: &StreamsCommand) -> Result<(), String> {
    match command {
        StreamsCommand::Copy(args) => copy_all(args),
        StreamsCommand::Check { directory, streams } => repair::check(directory, streams),
        StreamsCommand::Repair { directory, stream } => repair::repair(directory, stream),
        StreamsCommand::Delete(args) => delete(args),
    }
}

fn delete(args: &DeleteArgs) -> Result<(), String> {
    let from = args.from.display();
    if !args.from.is_dir() {
        return Err(format!("--from {from}: no such directory"));
    }
    let (streams, _) = Streams::open(&args.from, StreamsConfig::default()).map_err(|error| match error {
        OpenError::Locked(_) => format!("--from {from}: {error}: use DELETE /streams/NAME on its server"),
        error => format!("--from {from}: {error}"),
    })?;
    for name in &args.streams {
        if !streams.delete(name).map_err(|error| format!("{name}: {error}"))? {
            return Err(format!("{from} has no stream {name}"));
        }
        print_line(&format!("{name}: deleted"))?;
    }
    streams.close();
    Ok(())
}

fn copy_all(args: &CopyArgs) -> Result<(), String> {
    sinews_hub::auth::crypto::install();
    let settings = StoreSettings::from_args(&args.store)?
        .ok_or("--store is missing: it names the target of the copy")?;
    let from = args.from.display();
    let (streams, losses) = Streams::open(&args.from, StreamsConfig::default())
        .map_err(|error| format!("--from {from}: {error}"))?;
    for loss in losses {
        print_line(&format!("{from}: {loss}"))?;
    }
    let chosen = if args.streams.is_empty() {
        streams.list()
    } else {
        let find = |name: &String| streams.stream(name).ok_or_else(|| format!("{from} has no stream {name}"));
        args.streams.iter().map(find).collect::<Result<_, _>>()?
    };
    let most = chosen.iter().map(Stream::partitions).max().unwrap_or(1);
    let broker = settings.connect(most)?;
    let copied = chosen.iter().try_for_each(|stream| copy(stream, &*broker));
    broker.close(CLOSE_WITHIN);
    copied
}

fn copy(stream: &Stream, broker: &dyn Broker) -> Result<(), String> {
    let name = stream.name();
    let failed = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    let has = in_time(|| broker.partitions(name).block()).map_err(|error| failed(&error))?;
    if has != stream.partitions() {
        let count = stream.partitions();
        return Err(failed(&format!(
            "it has {count} partitions here and {has} at the broker: keys would change partitions"
        )));
    }
    let mut starts = Vec::new();
    for number in 0..has {
        let (first, end) =
            in_time(|| broker.offset_range(name, number).block()).map_err(|error| failed(&error))?;
        if first < end {
            return Err(failed(&format!("the broker has records of partition {number} already")));
        }
        starts.push(end);
    }
    for (number, start) in (0..has).zip(starts) {
        let shift = copy_partition(stream, number, start, broker).map_err(|error| failed(&error))?;
        for group in stream.groups() {
            let Some(offset) = stream.committed(&group, number) else { continue };
            let offset = u64::try_from(i128::from(offset) + shift).unwrap_or_default();
            broker.commit(name, number, &group, offset).block().map_err(|error| failed(&error))?;
        }
    }
    Ok(())
}

/// Copies the records. Returns the difference between their offsets at the broker and here.
fn copy_partition(stream: &Stream, number: u32, start: u64, broker: &dyn Broker) -> Result<i128, String> {
    let partition = stream.partition(number).ok_or("no such partition")?;
    let ends = partition.offsets();
    let shift = i128::from(start) - i128::from(ends.earliest);
    let mut waiting = VecDeque::new();
    let (mut next, mut count) = (ends.earliest, 0);
    while next < ends.readable {
        let read = partition.read(next, READ_BYTES).map_err(|error| error.to_string())?;
        for batch in record::iter(&read.batches) {
            let batch = batch.map_err(|error| error.to_string())?;
            for (base, records) in appends(&batch)? {
                count += u64::from(records.count());
                let pending = publish(stream.name(), number, &records, broker, BROKER_WITHIN)?;
                waiting.push_back((i128::from(base) + shift, pending));
                if waiting.len() >= WINDOW
                    && let Some((expected, pending)) = waiting.pop_front()
                {
                    check(expected, pending)?;
                }
            }
        }
        next = read.next;
    }
    waiting.into_iter().try_for_each(|(expected, pending)| check(expected, pending))?;
    let how = match shift {
        0 => "the offsets are the same".to_owned(),
        shift => format!("offsets are {shift:+}"),
    };
    print_line(&format!("{}/{number}: {count} records, {how}", stream.name()))?;
    Ok(shift)
}

/// Returns a batch's records as appends that each broker accepts, each with its first record's offset.
fn appends(batch: &Batch<'_>) -> Result<Vec<(u64, Records)>, String> {
    let mut appends = Vec::new();
    let (mut builder, mut base) = (RecordBuilder::new(), 0);
    for record in batch.records() {
        let record = record.map_err(|error| error.to_string())?;
        if builder.count() == APPEND_RECORDS {
            appends.extend(builder.finish().map(|records| (base, records)));
        }
        if builder.is_empty() {
            base = record.offset;
        }
        let pushed = builder.push(record.timestamp, record.key, record.value, record.kind);
        pushed.map_err(|error| format!("offset {}: {error}", record.offset))?;
    }
    appends.extend(builder.finish().map(|records| (base, records)));
    Ok(appends)
}

/// Checks that records have the expected offsets at the broker: other writers or gaps would shift them.
fn check(expected: i128, mut pending: Pending) -> Result<(), String> {
    let acknowledged = within(BROKER_WITHIN, "acknowledged nothing", |waker| {
        match pending.poll(Durability::Broker, &mut Context::from_waker(waker)) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    });
    let first = acknowledged?.map_err(|error| error.to_string())?.first;
    if i128::from(first) == expected {
        return Ok(());
    }
    Err(format!(
        "record expected at offset {expected} is at {first}: the copied records have a gap, or another client \
         publishes. Delete the records at the broker before another attempt"
    ))
}

/// Publishes, and waits up to the limit for queue capacity.
fn publish(
    stream: &str,
    number: u32,
    records: &Records,
    broker: &dyn Broker,
    limit: Duration,
) -> Result<Pending, String> {
    loop {
        match broker.publish(stream, number, records.clone()) {
            Ok(pending) => return Ok(pending),
            Err(AppendError::Busy) => {
                within(limit, "had no queue capacity", |waker| {
                    broker.watch_queue_space(waker).then_some(())
                })?;
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Polls on each wake-up until there is an answer or the limit expires.
fn within<T>(limit: Duration, what: &str, mut ask: impl FnMut(&Waker) -> Option<T>) -> Result<T, String> {
    let waker = Waker::from(Arc::new(CopyWaker(thread::current())));
    let since = Instant::now();
    loop {
        if let Some(answer) = ask(&waker) {
            return Ok(answer);
        }
        let left = limit.saturating_sub(since.elapsed());
        if left.is_zero() {
            return Err(format!("the broker has {what} for {} seconds", limit.as_secs()));
        }
        thread::park_timeout(left);
    }
}

struct CopyWaker(Thread);

impl Wake for CopyWaker {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Repeats a request while the connection or a topic is being created.
fn in_time<T, E>(mut ask: impl FnMut() -> Result<T, E>) -> Result<T, E> {
    for _ in 1..TRIES {
        if let Ok(answer) = ask() {
            return Ok(answer);
        }
        thread::sleep(PAUSE);
    }
    ask()
}

fn print_line(line: &str) -> Result<(), String> {
    writeln!(io::stdout().lock(), "{line}").map_err(|error| format!("standard output: {error}"))
}

#[cfg(all(test, feature = "redis"))]
mod tests {
    use std::collections::BTreeMap;

    use sinews_stream::broker::BatchEncoder;
    use sinews_stream::record::{Record, ValueKind};

    use super::*;

    #[test]
    fn large_batch_is_copied_as_several_appends() {
        let mut encoder = BatchEncoder::new(7);
        for offset in 7..2_507 {
            encoder.push(&Record { offset, timestamp: 1, key: b"", value: b"x", kind: ValueKind::Bytes });
        }
        let read = encoder.finish();
        let batch = record::iter(&read.batches).next().unwrap().unwrap();
        let appends = appends(&batch).unwrap();
        let found: Vec<_> = appends.iter().map(|(base, records)| (*base, records.count())).collect();
        assert_eq!(found, [(7, 1_000), (1_007, 1_000), (2_007, 500)]);
    }

    #[test]
    fn waiting_for_broker_capacity_times_out() {
        // Nothing listens there, so that no append leaves the queue, whose capacity is one append.
        let broker = sinews_brokers::connect("redis://127.0.0.1:1?queue.bytes=1", &BTreeMap::new()).unwrap();
        let mut builder = RecordBuilder::new();
        builder.push(1, b"", b"x", ValueKind::Bytes).unwrap();
        let records = builder.finish().unwrap();
        let publish = || publish("s", 0, &records, &*broker, Duration::ZERO);
        assert!(publish().is_ok());
        assert_eq!(publish().unwrap_err(), "the broker has had no queue capacity for 0 seconds");
        let never: Result<(), String> = within(Duration::from_millis(1), "given no answer", |_| None);
        assert_eq!(never.unwrap_err(), "the broker has given no answer for 0 seconds");
    }
}
