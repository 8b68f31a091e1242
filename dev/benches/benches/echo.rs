//! Overhead of the library beyond the system calls: an echo over an in-memory transport, polled as a runtime polls.
//!
//! `cargo bench -p sinews-benches --bench echo`

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use sinews::{Config, WebSocket};
use sinews_testkit::{Frame, negotiate};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Every other receive returns a burst; sent bytes are discarded.
struct Memory {
    burst: Vec<u8>,
    ready: bool,
}

impl AsyncRead for Memory {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.ready = !self.ready;
        if !self.ready {
            return Poll::Pending;
        }
        buf.put_slice(&self.burst);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Memory {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(buf.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

fn echo(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("echo");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let _entered = runtime.enter();
    for (size, count) in [(64, 1), (64, 16), (1024, 1)] {
        let frame = Frame::binary(vec![b'x'; size]).key([1, 2, 3, 4]).encode(sinews::Role::Client);
        let memory = Memory { burst: frame.repeat(count), ready: false };
        let config = Arc::new(Config::default());
        let mut socket = WebSocket::from_negotiated(memory, negotiate(None, None).server, config, &[]);
        let mut echo = Box::pin(async move {
            while let Some(message) = socket.next().await {
                socket.send(message.expect("the peer is sound")).await.expect("the transport takes all");
            }
        });
        let waker = Waker::from(Arc::new(Nobody));
        group.throughput(Throughput::Elements(count as u64));
        group.bench_function(format!("{count} x {size} B"), |bencher| {
            bencher.iter(|| echo.as_mut().poll(&mut Context::from_waker(&waker)));
        });
    }
}

struct Nobody;

impl std::task::Wake for Nobody {
    fn wake(self: Arc<Self>) {}
}

criterion_group!(benches, echo);
criterion_main!(benches);
