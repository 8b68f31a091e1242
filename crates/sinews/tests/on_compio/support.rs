//! Tests on compio, over a pair of sockets.
#![allow(dead_code, unreachable_pub, reason = "each feature needs some of it")]

use std::cell::RefCell;
use std::io;
use std::num::NonZero;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
pub use std::time::Instant;

use compio::buf::{BufResult, IoBuf, IoBufMut, IoVectoredBuf};
use compio::driver::ProactorBuilder;
use compio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use compio::net::UnixStream;
use compio::runtime::RuntimeBuilder;
pub use compio::runtime::spawn;
pub use compio::time::sleep as pass;
use sinews::compio::{Transport, WebSocket};
use sinews::{Config, Error, Message, Role};
use sinews_testkit::negotiate;
pub use sinews_testkit::{noise, poll_once, wire};

/// Runs on compio, with this many managed buffers; prints a note on machines without io_uring.
pub fn run_with<F: Future<Output = ()>>(buffers: u16, test: impl FnOnce() -> F) {
    let mut proactor = ProactorBuilder::new();
    proactor.buffer_pool_size(NonZero::new(buffers).unwrap()).single_issuer(true).defer_taskrun(true);
    match RuntimeBuilder::new().with_proactor(proactor).build() {
        Ok(runtime) => runtime.block_on(async {
            compio::time::timeout(Duration::from_secs(60), test()).await.expect("bounded in time");
        }),
        Err(error) => println!("skipped: no runtime: {error}"),
    }
}

pub fn run<F: Future<Output = ()>>(test: impl FnOnce() -> F) {
    run_with(64, test);
}

pub type End = WebSocket<UnixStream>;
pub type Raw = UnixStream;

pub fn sockets() -> (UnixStream, UnixStream) {
    let (one, other) = std::os::unix::net::UnixStream::pair().unwrap();
    (UnixStream::from_std(one).unwrap(), UnixStream::from_std(other).unwrap())
}

/// A client and a server that share a configuration.
pub fn ends(config: &Config) -> (End, End) {
    let (client, raw) = raw_peer(Role::Client, config, &[]);
    let negotiated = negotiate(None, None).server;
    (client, WebSocket::from_negotiated(raw, negotiated, Arc::new(config.clone()), &[]))
}

/// The same with default limits.
pub fn pair() -> (End, End) {
    ends(&Config::default())
}

/// A connection of a role with these first bytes, and its raw peer.
pub fn raw_peer(role: Role, config: &Config, received: &[u8]) -> (End, Raw) {
    let (raw, near) = sockets();
    let negotiated = negotiate(None, None).of(role);
    (WebSocket::from_negotiated(near, negotiated, Arc::new(config.clone()), received), raw)
}

/// A server against a raw peer.
pub fn server_and_raw(config: &Config) -> (End, Raw) {
    raw_peer(Role::Server, config, &[])
}

/// Operations, each with the addresses of its buffers.
pub type Operations = Rc<RefCell<Vec<Vec<usize>>>>;

/// A writer that records its operations.
#[derive(Clone)]
pub struct Recorded(pub UnixStream, pub Operations);

impl AsyncWrite for Recorded {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.1.borrow_mut().push(vec![buf.as_init().as_ptr() as usize]);
        self.0.write(buf).await
    }

    async fn write_vectored<T: IoVectoredBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.1.borrow_mut().push(buf.iter_slice().map(|slice| slice.as_ptr() as usize).collect());
        self.0.write_vectored(buf).await
    }

    async fn flush(&mut self) -> io::Result<()> {
        self.0.flush().await
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }
}

/// A reader that returns a few bytes at a time.
pub struct ShortReads<S>(S, usize);

impl<S: AsyncRead> AsyncRead for ShortReads<S> {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        use compio::buf::IntoInner as _;
        let start = buf.buf_len();
        let slice = buf.slice(start..start + self.1);
        self.0.read(slice).await.into_inner()
    }
}

/// Length of the longest message on [`choppy_pairs`].
pub const LONGEST_CHOPPED: usize = 20_000;

/// Pairs whose server receives a few bytes at a time.
pub fn choppy_pairs() -> impl Iterator<Item = (End, WebSocket<(ShortReads<UnixStream>, UnixStream)>)> {
    [1, 2, 3, 7, 100, 1024, 5000].into_iter().map(|portion| {
        let (client, raw) = raw_peer(Role::Client, &Config::default(), &[]);
        let halves = (ShortReads(raw.clone(), portion), raw);
        (client, WebSocket::from_negotiated(halves, negotiate(None, None).server, Arc::default(), &[]))
    })
}

/// Bytes by which each message is longer than the one before, on [`narrow_pairs`].
pub const LENGTH_STEP: usize = 100;

/// Pairs whose sockets are often full.
pub fn narrow_pairs() -> impl Iterator<Item = (End, End)> {
    std::iter::once_with(|| ends(&Config::default().with_high_water(100_000).with_max_outbound(1 << 20)))
}

pub async fn write_raw(raw: &mut Raw, bytes: Vec<u8>) {
    raw.write_all(bytes).await.unwrap();
}

pub async fn read_raw_to_end(raw: &mut Raw) -> Vec<u8> {
    raw.read_to_end(Vec::new()).await.unwrap().1
}

/// Yields to the runtime, so that operations complete: bytes go through the kernel and back.
pub async fn turn() {
    let (mut one, mut other) = sockets();
    for _ in 0..3 {
        one.write_all([1]).await.unwrap();
        other.read_exact([0]).await.unwrap();
    }
}

pub fn text(n: usize) -> Message {
    Message::text(format!("message {n}"))
}

/// Echoes until the connection has ended.
pub async fn echo<S: Transport>(mut socket: WebSocket<S>) -> Result<(), Error> {
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_data() {
            socket.send(message).await?;
        }
    }
    Ok(())
}

/// Receives into memory with this capacity; evaluates to the result and the received bytes.
macro_rules! receive {
    ($socket:expr, $capacity:expr) => {{
        let (filled, mut memory) = $socket.recv_into(vec![0; $capacity]).await;
        let filled = filled.unwrap().unwrap();
        memory.truncate(filled.len);
        (filled, memory)
    }};
}
