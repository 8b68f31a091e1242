//! Two in-memory ends with a link that counts operations, and splits data by a seed.
#![allow(dead_code, unreachable_pub, reason = "each feature needs some of it")]

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

pub(crate) use crate::spawn::spawn;
use sinews::tokio::WebSocket;
use sinews::{Config, Message, Role};
use sinews_testkit::{Agreed, Rng, negotiate};
pub use sinews_testkit::{noise, poll_once, wire};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, DuplexStream, ReadBuf};
pub use tokio::time::{Instant, advance as pass};

/// A stream that counts its operations, and, with a seed, passes a few bytes at a time and is often not ready.
#[derive(Debug)]
pub struct ChoppyStream<S> {
    io: S,
    rng: Option<Rng>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
pub struct Counts {
    pub reads: AtomicUsize,
    pub writes: AtomicUsize,
    pub bytes_written: AtomicUsize,
    /// The addresses of the sent bytes.
    pub addresses: Mutex<Vec<usize>>,
}

impl Counts {
    fn add(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(count)) = written {
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.bytes_written.fetch_add(*count, Ordering::Relaxed);
        }
    }

    pub fn writes(&self) -> usize {
        self.writes.load(Ordering::Relaxed)
    }
}

impl<S> ChoppyStream<S> {
    pub fn new(io: S, seed: Option<u64>) -> Self {
        Self { io, rng: seed.map(Rng::new), counts: Arc::default() }
    }

    pub fn counts(&self) -> Arc<Counts> {
        self.counts.clone()
    }

    /// How many bytes may pass now; `None`: none, and the task is woken at once.
    fn admit(&mut self, cx: &Context<'_>, most: usize) -> Option<usize> {
        let Some(rng) = &mut self.rng else { return Some(most) };
        if rng.below(3) == 0 {
            cx.waker().wake_by_ref();
            return None;
        }
        let cut = if rng.below(4) == 0 { 1 << rng.below(16) } else { 1 + rng.below(9) };
        Some(most.min(cut))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ChoppyStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.counts.reads.fetch_add(1, Ordering::Relaxed);
        let Some(most) = self.admit(cx, buf.remaining()) else { return Poll::Pending };
        let mut part = vec![0; most];
        let mut part = ReadBuf::new(&mut part);
        let read = Pin::new(&mut self.io).poll_read(cx, &mut part);
        buf.put_slice(part.filled());
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ChoppyStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let Some(most) = self.admit(cx, buf.len()) else { return Poll::Pending };
        self.counts.addresses.lock().unwrap().push(buf.as_ptr() as usize);
        let written = Pin::new(&mut self.io).poll_write(cx, &buf[..most]);
        self.counts.add(&written);
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.rng.is_some() {
            let all = bufs.iter().map(|buf| &**buf).collect::<Vec<&[u8]>>().concat();
            return self.poll_write(cx, &all);
        }
        self.counts.addresses.lock().unwrap().extend(bufs.iter().map(|buf| buf.as_ptr() as usize));
        let written = Pin::new(&mut self.io).poll_write_vectored(cx, bufs);
        self.counts.add(&written);
        written
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

pub type ChoppyEnd = WebSocket<ChoppyStream<DuplexStream>>;

/// A client and a server; the link has this capacity in each direction.
pub fn pair_with(config: &Config, capacity: usize, seed: Option<u64>) -> (ChoppyEnd, ChoppyEnd) {
    pair_of(negotiate(None, None), config, capacity, seed)
}

/// The same with compression.
pub fn deflating_pair(config: &Config, capacity: usize, seed: Option<u64>) -> (ChoppyEnd, ChoppyEnd) {
    let deflate = Some(sinews::DeflateConfig::new());
    pair_of(negotiate(deflate.clone(), deflate), config, capacity, seed)
}

fn pair_of(agreed: Agreed, config: &Config, capacity: usize, seed: Option<u64>) -> (ChoppyEnd, ChoppyEnd) {
    let (client, server) = tokio::io::duplex(capacity);
    let config = Arc::new(config.clone());
    let client = ChoppyStream::new(client, seed);
    let server = ChoppyStream::new(server, seed.map(|seed| seed + 1));
    (
        WebSocket::from_negotiated(client, agreed.client, config.clone(), &[]),
        WebSocket::from_negotiated(server, agreed.server, config, &[]),
    )
}

/// The same with default limits and a link that does not split data.
pub fn pair() -> (ChoppyEnd, ChoppyEnd) {
    pair_with(&Config::default(), 1 << 20, None)
}

/// An end in memory, and its raw peer.
pub type End = WebSocket<DuplexStream>;
pub type Raw = DuplexStream;

/// A client and a server that share a configuration.
pub fn ends(config: &Config) -> (End, End) {
    let (client, raw) = raw_peer(Role::Client, config, &[]);
    let negotiated = negotiate(None, None).server;
    (client, WebSocket::from_negotiated(raw, negotiated, Arc::new(config.clone()), &[]))
}

/// A connection of a role with these first bytes, and its raw peer.
pub fn raw_peer(role: Role, config: &Config, received: &[u8]) -> (End, Raw) {
    let (raw, near) = tokio::io::duplex(1 << 20);
    let negotiated = negotiate(None, None).of(role);
    (WebSocket::from_negotiated(near, negotiated, Arc::new(config.clone()), received), raw)
}

/// A server against a raw peer.
pub fn server_and_raw(config: &Config) -> (End, Raw) {
    raw_peer(Role::Server, config, &[])
}

/// Length of the longest message on [`choppy_pairs`].
pub const LONGEST_CHOPPED: usize = 70_000;

/// Pairs over links that cut data at any byte.
pub fn choppy_pairs() -> impl Iterator<Item = (ChoppyEnd, ChoppyEnd)> {
    (0..30).map(|seed| pair_with(&Config::default(), 4096, Some(seed)))
}

/// Bytes by which each message is longer than the one before, on [`narrow_pairs`].
pub const LENGTH_STEP: usize = 1;

/// Pairs over links that are often full.
pub fn narrow_pairs() -> impl Iterator<Item = (ChoppyEnd, ChoppyEnd)> {
    (0..20).map(|seed| pair_with(&Config::default().with_high_water(1000), 37, Some(seed)))
}

pub async fn write_raw(raw: &mut Raw, bytes: Vec<u8>) {
    raw.write_all(&bytes).await.unwrap();
}

pub async fn read_raw_to_end(raw: &mut Raw) -> Vec<u8> {
    let mut received = Vec::new();
    raw.read_to_end(&mut received).await.unwrap();
    received
}

/// Runs on Tokio with a paused clock.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(test());
}

/// Yields to the runtime, so that other tasks continue.
pub async fn turn() {
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
}

/// Receives into memory with this capacity; evaluates to the result and the received bytes.
macro_rules! receive {
    ($socket:expr, $capacity:expr) => {{
        let mut memory = vec![0; $capacity];
        let filled = $socket.recv_into(&mut memory).await.unwrap().unwrap();
        memory.truncate(filled.len);
        (filled, memory)
    }};
}

pub fn text(n: usize) -> Message {
    Message::text(format!("message {n}"))
}

/// Echoes until the connection has ended.
pub async fn echo<S: AsyncRead + AsyncWrite + Unpin>(mut socket: WebSocket<S>) -> Result<(), sinews::Error> {
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_data() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

/// The lengths of all text and binary messages until the end.
pub async fn received_lengths<S: AsyncRead + AsyncWrite + Unpin>(mut socket: WebSocket<S>) -> Vec<usize> {
    let mut lengths = Vec::new();
    while let Some(message) = socket.next_data().await {
        lengths.push(message.expect("sound").len());
    }
    lengths
}
