//! Measures start, handover and deletion of a directory with many streams.
//!
//! `cargo run --release -p sinews-stream --example many -- DIRECTORY [STREAMS] [THREADS] [batch|never]`
//!
//! The directory is emptied first. "handover" is the time from the first rejected append of the old process to the
//! first accepted append of the new one: `close`, `open`, and one append, which the preceding line lists separately.
//! "all in use" means that each stream has received a record in this run.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sinews_stream::record::{RecordBuilder, ValueKind};
use sinews_stream::{Durability, Fsync, StreamConfig, Streams, StreamsConfig};

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = PathBuf::from(
        arguments
            .next()
            .ok_or("missing DIRECTORY; usage: many DIRECTORY [STREAMS] [THREADS] [batch|never]")?,
    );
    let count: usize = arguments.next().map_or(Ok(1_000), |text| text.parse())?;
    let threads: usize = arguments.next().map_or(Ok(16), |text| text.parse())?;
    let fsync = match arguments.next().as_deref() {
        None | Some("batch") => Fsync::Batch,
        Some("never") => Fsync::Never,
        Some(other) => return Err(format!("{other}: expected batch or never").into()),
    };
    if directory.exists() {
        std::fs::remove_dir_all(&directory)?;
    }
    let names: Vec<String> = (0..count).map(|number| format!("stream-{number:06}")).collect();
    let streams = open(&directory)?;
    let config = StreamConfig::default().with_fsync(fsync);
    let took = each(&names, threads, |name| {
        streams.create(name, &config)?;
        append(&streams, name)
    })?;
    report("create and append", count, took);

    let (took, streams) = hand_over(&directory, streams, &names[0])?;
    report("handover, all in use", count, took);
    report_files("open files then");
    let (took, streams) = hand_over(&directory, streams, &names[1])?;
    report("handover, one in use", count, took);

    streams.close();
    drop(streams);
    let begun = Instant::now();
    let streams = open(&directory)?;
    report("start after a clean stop", count, begun.elapsed());
    let begun = Instant::now();
    append(&streams, &names[count / 2])?;
    report("first append to a stream", 1, begun.elapsed());
    let begun = Instant::now();
    let described = streams.describe_all().len();
    report("list all streams", described, begun.elapsed());
    streams.close();
    drop(streams);

    std::fs::remove_file(directory.join("catalog"))?;
    let begun = Instant::now();
    let streams = open(&directory)?;
    report("start without the catalog", count, begun.elapsed());

    let took = each(&names, threads, |name| {
        streams.delete(name)?;
        Ok(())
    })?;
    report("delete", count, took);
    let (took, _) = hand_over(&directory, streams, "new")?;
    report("handover after that", count, took);
    std::fs::remove_dir_all(&directory)?;
    Ok(())
}

fn open(directory: &Path) -> Result<Streams> {
    let config = StreamsConfig::default().with_max_streams(10_000_000);
    Ok(Streams::open(directory, config)?.0)
}

fn hand_over(directory: &Path, streams: Streams, first: &str) -> Result<(Duration, Streams)> {
    let begun = Instant::now();
    streams.close();
    let closed = begun.elapsed();
    let next = open(directory)?;
    let opened = begun.elapsed();
    append(&next, first)?;
    let took = begun.elapsed();
    let parts = [closed, opened - closed, took - opened].map(|part| part.as_secs_f64() * 1e3);
    println!("  close {:.1} ms, open {:.1} ms, append {:.1} ms", parts[0], parts[1], parts[2]);
    Ok((took, next))
}

fn append(streams: &Streams, name: &str) -> Result<()> {
    let stream = match streams.stream(name) {
        Some(stream) => stream,
        None => streams.create(name, &StreamConfig::default())?,
    };
    let mut builder = RecordBuilder::new();
    builder.push(1, b"", b"one record", ValueKind::Text)?;
    let records = builder.finish().ok_or("no record")?;
    stream.partition(0).ok_or("no partition")?.append(records)?.block(Durability::Disk)?;
    Ok(())
}

/// Calls `work` with each name, on this many threads.
fn each(names: &[String], threads: usize, work: impl Fn(&str) -> Result<()> + Sync) -> Result<Duration> {
    let begun = Instant::now();
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if let Err(error) = work(name) {
                        *failed.lock().expect("no panic holds it") = Some(error);
                        return;
                    }
                }
            });
        }
    });
    match failed.into_inner().expect("no panic holds it") {
        Some(error) => Err(error),
        None => Ok(begun.elapsed()),
    }
}

fn report(what: &str, count: usize, took: Duration) {
    println!("{what:<28} {count:>8} streams {:>12.1} ms", took.as_secs_f64() * 1e3);
}

fn report_files(what: &str) {
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        println!("{what:<28} {:>8}", files.count());
    }
}
