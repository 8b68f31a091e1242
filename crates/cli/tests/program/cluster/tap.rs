//! Counts the messages of a cluster at its broker, as one more subscriber of all of its subjects.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

/// Kinds of messages, by their numbers (`hub/src/cluster/message.rs`).
pub(super) const PRESENCE_CHANGES: usize = 3;
pub(super) const PRESENCE_SNAPSHOT: usize = 4;
pub(super) const PRESENCE_REQUEST: usize = 5;

/// Messages and their bytes by kind.
pub(super) type TapCounts = [(u64, u64); 8];

pub(super) struct BrokerTap {
    stream: TcpStream,
    counts: Arc<Mutex<TapCounts>>,
    thread: Option<JoinHandle<()>>,
}

impl BrokerTap {
    /// Subscribes to all subjects of a cluster at `nats://host:port` or `redis://host:port`.
    pub(super) fn start(url: &str, prefix: &str) -> Self {
        let (scheme, address) = url.split_once("://").unwrap();
        let stream = TcpStream::connect(address).unwrap();
        let counts = Arc::<Mutex<TapCounts>>::default();
        let counted = Arc::clone(&counts);
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let read = if scheme == "nats" { nats_message } else { redis_message };
        if scheme == "nats" {
            write!(&stream, "CONNECT {{\"verbose\":false}}\r\nSUB {prefix}.> 1\r\nPING\r\n").unwrap();
            while line(&mut reader).unwrap() != "PONG" {}
        } else {
            write!(&stream, "PSUBSCRIBE {prefix}.*\r\n").unwrap();
            assert!(redis_message(&mut reader).unwrap().is_empty(), "it is subscribed");
        }
        let thread = thread::spawn(move || {
            // The end of the tap closes the connection.
            while let Ok(message) = read(&mut reader) {
                let Some(kind) = message.get(1) else { continue };
                if let Some(count) = counted.lock().unwrap().get_mut(usize::from(*kind)) {
                    *count = (count.0 + 1, count.1 + message.len() as u64);
                }
            }
        });
        Self { stream, counts, thread: Some(thread) }
    }

    pub(super) fn counts(&self) -> TapCounts {
        *self.counts.lock().unwrap()
    }

    /// What was counted since then.
    pub(super) fn since(&self, earlier: &TapCounts) -> TapCounts {
        let mut counts = self.counts();
        for (count, earlier) in counts.iter_mut().zip(earlier) {
            *count = (count.0 - earlier.0, count.1 - earlier.1);
        }
        counts
    }
}

impl Drop for BrokerTap {
    fn drop(&mut self) {
        let _ = self.stream.shutdown(Shutdown::Both);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches("\r\n").to_owned())
}

fn payload(reader: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut payload = vec![0; length + 2];
    reader.read_exact(&mut payload)?;
    payload.truncate(length);
    Ok(payload)
}

/// The payload of a message; empty for other lines.
fn nats_message(reader: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let line = line(reader)?;
    if line == "PING" {
        reader.get_ref().write_all(b"PONG\r\n")?;
    }
    match line.strip_prefix("MSG ").and_then(|head| head.rsplit_once(' ')) {
        Some((_, length)) => payload(reader, length.parse().unwrap()),
        None => Ok(Vec::new()),
    }
}

/// The payload of a message; empty for other answers.
fn redis_message(reader: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let count: usize = line(reader)?.trim_start_matches('*').parse().unwrap();
    let mut last = Vec::new();
    for _ in 0..count {
        let head = line(reader)?;
        // The answer to a subscription ends with a number.
        last = match head.strip_prefix('$') {
            Some(length) => payload(reader, length.parse().unwrap())?,
            None => Vec::new(),
        };
    }
    Ok(last)
}
