//! Measures throughput and CPU cost of appending and reading batches, and of writing the same bytes to a plain file.
//!
//! `cargo run --release -p sinews-stream --example append -- DIRECTORY [SECONDS]`

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sinews_stream::record::{RecordBuilder, RecordLimits, Records, ValueKind};
use sinews_stream::{AppendError, Durability, Fsync, Partition, StreamConfig, Streams, StreamsConfig};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory =
        PathBuf::from(arguments.next().ok_or("missing DIRECTORY; usage: append DIRECTORY [SECONDS]")?);
    let seconds = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let time = Duration::from_secs(seconds);
    std::fs::create_dir_all(&directory)?;
    println!(
        "{:<52} {:>9} {:>8} {:>10} {:>10} {:>8}",
        "", "batches/s", "MB/s", "CPU µs/b", "b/sync", "p50 µs"
    );
    let large = records(1000, 1000);
    plain(&directory, &large, time)?;
    for (fsync, name) in [(Fsync::Batch, "fsync per batch"), (Fsync::Never, "no fsync")] {
        for producers in [1, 4] {
            let title = format!("1000 x 1000 B, {producers} at once, {name}");
            append(&directory, &title, fsync, producers, &large, time)?;
        }
        append(&directory, &format!("1 x 100 B, 64 at once, {name}"), fsync, 64, &records(1, 100), time)?;
    }
    check(&large, time)?;
    read(&directory, time)
}

fn records(count: u64, size: usize) -> Records {
    let mut builder = RecordBuilder::new();
    for number in 0..count {
        // A million bytes are far below the default limit.
        builder.push(number, b"", &vec![number as u8; size], ValueKind::Bytes).expect("records are small");
    }
    builder.finish().expect("there are records")
}

/// Writes the same bytes with `write` and `fdatasync`: the speed of the disk.
fn plain(directory: &Path, records: &Records, time: Duration) -> Result<()> {
    let path = directory.join("plain");
    let mut file = File::create(&path)?;
    let mut latencies = Vec::new();
    let (start, cpu) = (Instant::now(), cpu());
    while start.elapsed() < time {
        let begin = Instant::now();
        file.write_all(records.bytes())?;
        file.sync_data()?;
        latencies.push(begin.elapsed());
    }
    let batches = latencies.len() as u64;
    report("the same 1000 x 1000 B, write and fdatasync", batches, records, start, cpu, 1.0, latencies);
    std::fs::remove_file(path)?;
    Ok(())
}

fn append(
    directory: &Path,
    title: &str,
    fsync: Fsync,
    producers: usize,
    records: &Records,
    time: Duration,
) -> Result<()> {
    let path = directory.join("log");
    let _ = std::fs::remove_dir_all(&path);
    let (streams, _) = Streams::open(&path, StreamsConfig::default())?;
    let config = StreamConfig::default().with_fsync(fsync).with_retain_bytes(Some(1 << 30));
    let partition = streams.create("s", &config)?.partition(0).ok_or("a partition")?;
    let batches = AtomicU64::new(0);
    let (start, cpu) = (Instant::now(), cpu());
    let threads: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..producers)
            .map(|_| scope.spawn(|| produce(&partition, records, start, time, &batches)))
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let mut latencies = Vec::new();
    for thread in threads {
        latencies.extend(thread.map_err(|_| "a producer has panicked")??);
    }
    let statistics = partition.statistics();
    let per_sync = statistics.batches as f64 / statistics.syncs.max(1) as f64;
    report(title, batches.into_inner(), records, start, cpu, per_sync, latencies);
    Ok(())
}

/// Appends a batch, waits until it is on disk, and repeats.
fn produce(
    partition: &Partition,
    records: &Records,
    start: Instant,
    time: Duration,
    batches: &AtomicU64,
) -> std::result::Result<Vec<Duration>, AppendError> {
    let mut latencies = Vec::new();
    while start.elapsed() < time {
        let begin = Instant::now();
        partition.append(records.clone())?.block(Durability::Disk)?;
        latencies.push(begin.elapsed());
        batches.fetch_add(1, Ordering::Relaxed);
    }
    Ok(latencies)
}

/// Checks the records that a producer has sent.
fn check(records: &Records, time: Duration) -> Result<()> {
    let (start, cpu) = (Instant::now(), cpu());
    let mut batches = 0;
    while start.elapsed() < time / 3 {
        Records::check(records.bytes().clone(), &RecordLimits::default())?;
        batches += 1;
    }
    report("checking 1000 x 1000 B", batches, records, start, cpu, 0.0, Vec::new());
    Ok(())
}

/// Reads all batches repeatedly, 1 MiB at a time, shared and without decoding them.
fn read(directory: &Path, time: Duration) -> Result<()> {
    let path = directory.join("log");
    let _ = std::fs::remove_dir_all(&path);
    let (streams, _) = Streams::open(&path, StreamsConfig::default())?;
    let partition =
        streams.create("s", &StreamConfig::default().with_fsync(Fsync::Never))?.partition(0).ok_or("none")?;
    let records = records(100, 1000);
    for _ in 0..5000 {
        partition.append(records.clone())?.block(Durability::Disk)?;
    }
    let (start, cpu) = (Instant::now(), cpu());
    let (mut batches, mut from) = (0, 0);
    while start.elapsed() < time / 3 {
        let read = partition.read(from, 1 << 20)?;
        from = if read.batches.is_empty() { 0 } else { read.next };
        batches += read.batches.len() as u64 / (records.bytes().len() as u64 + 32);
    }
    report("reading 100 x 1000 B, 1 MiB at a time", batches, &records, start, cpu, 0.0, Vec::new());
    streams.close();
    std::fs::remove_dir_all(path)?;
    Ok(())
}

fn report(
    title: &str,
    batches: u64,
    records: &Records,
    start: Instant,
    cpu_before: f64,
    per_sync: f64,
    mut latencies: Vec<Duration>,
) {
    let (time, cpu) = (start.elapsed().as_secs_f64(), cpu() - cpu_before);
    let each = 1e6 * cpu / batches.max(1) as f64;
    let bytes = (batches * records.bytes().len() as u64) as f64 / 1e6 / time;
    latencies.sort_unstable();
    let middle = latencies.get(latencies.len() / 2).map_or(0, |latency| latency.as_micros());
    println!(
        "{title:<52} {:>9.0} {bytes:>8.1} {each:>10.1} {per_sync:>10.1} {middle:>8}",
        batches as f64 / time
    );
}

/// CPU seconds that this process has used, in steps of a hundredth; 0 where the system does not report them.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may contain any characters: fields 12 and 13 are user and system time.
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    fields.skip(11).take(2).filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}
