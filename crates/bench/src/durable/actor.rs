//! Producers and consumers: one thread each, one message in flight.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use hdrhistogram::Histogram;
use sinews_stream::record::{self, RecordBuilder, RecordLimits, ValueKind};

use crate::interrupt::Interrupt;
use crate::process;
use crate::streams::connection::{EncodedMessage, ServerAddresses, StreamConnection, op};
use crate::streams::{ProducerAck, StreamTransport};
use crate::tally;

/// The work of all actors at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DurablePhase {
    Producing,
    Consuming,
}

impl DurablePhase {
    pub(super) const BOTH: [Self; 2] = [Self::Producing, Self::Consuming];

    pub(super) fn name(self) -> &'static str {
        if self == Self::Producing { "producing" } else { "consuming" }
    }
}

/// Each actor's workload.
pub(super) struct ActorWorkload {
    publish: EncodedMessage,
    /// Records per batch, and a batch's stored bytes.
    records: u32,
    batch_bytes: u32,
    batches: usize,
    value: u8,
    size: u32,
}

/// Combined result for all actors in a phase.
#[derive(Clone, Debug)]
pub(super) struct ActorResult {
    /// Nanoseconds from each batch's request to its answer.
    pub(super) latency: Histogram<u64>,
    pub(super) elapsed: Duration,
    pub(super) batches: u64,
    pub(super) bytes: u64,
    /// The actor threads' CPU time.
    pub(super) busy: Duration,
}

impl ActorWorkload {
    pub(super) fn new(size: u32, records: u32, batches: usize, ack: ProducerAck) -> Result<Self, String> {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let value = b'v';
        let mut builder = RecordBuilder::with_limits(
            RecordLimits::default().with_max_bytes(BATCH_MAX).with_max_count(records),
        );
        for _ in 0..records {
            builder
                .push(since.as_micros() as u64, b"", &vec![value; size as usize], ValueKind::Bytes)
                .map_err(|_| {
                    format!("a batch of {records} records of {size} bytes exceeds {BATCH_MAX} bytes")
                })?;
        }
        let batch = builder.finish().ok_or("batch has no records")?;
        let batch_bytes = (record::BATCH_HEADER + batch.bytes().len()) as u32;
        Ok(Self {
            publish: EncodedMessage::publish(ack, batch.bytes()),
            records,
            batch_bytes,
            batches,
            value,
            size,
        })
    }

    /// A batch's stored bytes.
    pub(super) fn batch_bytes(&self) -> u32 {
        self.batch_bytes
    }
}

/// Runs one actor per stream, all concurrently.
pub(super) fn run(
    work: &ActorWorkload,
    phase: DurablePhase,
    transport: StreamTransport,
    addresses: &ServerAddresses,
    streams: &[String],
    interrupt: &Interrupt,
) -> Result<ActorResult, String> {
    let connections: Result<Vec<StreamConnection>, String> =
        streams.iter().map(|stream| StreamConnection::open(transport, addresses, stream)).collect();
    let start = Barrier::new(streams.len() + 1);
    let (all, elapsed) = thread::scope(|scope| {
        let start = &start;
        let threads: Vec<_> = connections?
            .into_iter()
            .map(|mut connection| {
                scope.spawn(move || {
                    start.wait();
                    let before = process::this_thread();
                    let latency = match phase {
                        DurablePhase::Producing => produce(work, &mut connection, interrupt),
                        DurablePhase::Consuming => consume(work, &mut connection, interrupt),
                    }?;
                    let after = process::this_thread();
                    let busy = after.zip(before).map(|(after, before)| after.busy - before.busy);
                    Ok((latency, busy.unwrap_or_default()))
                })
            })
            .collect();
        start.wait();
        let started = Instant::now();
        let ended = threads.into_iter().map(|thread| thread.join().map_err(|_| "load thread panicked")?);
        let all: Result<Vec<_>, String> = ended.collect();
        all.map(|all| (all, started.elapsed()))
    })?;
    let mut latency = tally::histogram();
    for (one, _) in &all {
        latency.add(one).expect("histograms have the same bounds");
    }
    let batches = latency.len();
    Ok(ActorResult {
        elapsed,
        batches,
        bytes: batches * u64::from(work.batch_bytes),
        busy: all.iter().map(|(_, busy)| *busy).sum(),
        latency,
    })
}

/// Publishes batches in sequence. Only this producer writes to its stream, so each batch follows the previous offset.
fn produce(
    work: &ActorWorkload,
    connection: &mut StreamConnection,
    interrupt: &Interrupt,
) -> Result<Histogram<u64>, String> {
    let mut latency = tally::histogram();
    for number in 0..work.batches as u64 {
        if interrupt.is_interrupted() {
            break;
        }
        let started = Instant::now();
        let answer = connection.request(&work.publish, op::PUBLISHED)?;
        tally::record(&mut latency, started.elapsed());
        let first = number * u64::from(work.records);
        if answer != [&first.to_le_bytes()[..], &work.records.to_le_bytes()].concat() {
            return Err(format!("batch {number} was acknowledged with wrong offsets: {answer:?}"));
        }
    }
    Ok(latency)
}

/// Fetches batches in sequence, and verifies every record.
fn consume(
    work: &ActorWorkload,
    connection: &mut StreamConnection,
    interrupt: &Interrupt,
) -> Result<Histogram<u64>, String> {
    let mut latency = tally::histogram();
    let mut next = 0;
    for _ in 0..work.batches {
        if interrupt.is_interrupted() {
            break;
        }
        let fetch = EncodedMessage::fetch(next, work.batch_bytes);
        let started = Instant::now();
        let answer = connection.request(&fetch, op::BATCHES)?;
        tally::record(&mut latency, started.elapsed());
        next = check(work, answer, next)?;
    }
    Ok(latency)
}

/// Verifies the records from an offset on; returns the offset after the last record.
fn check(work: &ActorWorkload, answer: &[u8], from: u64) -> Result<u64, String> {
    let batches = answer.get(BATCHES_HEAD..).ok_or("answer has no offsets")?;
    let mut next = from;
    for batch in record::iter(batches) {
        for record in batch.map_err(|error| error.to_string())?.records() {
            let record = record.map_err(|error| format!("record {next}: {error}"))?;
            let ends = [record.value.first(), record.value.last()];
            let right = record.value.len() == work.size as usize && ends == [Some(&work.value); 2];
            if record.offset != next || !right {
                return Err(format!("record {next} differs from the published record"));
            }
            next += 1;
        }
    }
    if next == from + u64::from(work.records) {
        Ok(next)
    } else {
        Err(format!("incomplete batch at offset {from}"))
    }
}

/// Answer bytes before the batches: three offsets.
const BATCHES_HEAD: usize = 24;

/// Maximum batch size in bytes: the server's message limit.
const BATCH_MAX: usize = 8 << 20;
