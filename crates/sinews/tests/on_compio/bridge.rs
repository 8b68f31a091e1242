//! The bridge for other protocol libraries: growth, limits, round trips, cancellation.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read as _, Write};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::support::{run, sockets};
use compio::buf::{BufResult, IoBuf, IoBufMut};
use compio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use compio::net::UnixStream;
use sinews::compio::SyncBridge;

/// A peer that returns and accepts as many bytes as requested; counts the operations.
#[derive(Clone, Default)]
struct EndlessStream(Rc<Cell<usize>>);

impl AsyncRead for EndlessStream {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.0.set(self.0.get() + 1);
        compio::io::repeat(7).read(buf).await
    }
}

impl AsyncWrite for EndlessStream {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        self.0.set(self.0.get() + 1);
        BufResult(Ok(buf.buf_len()), buf)
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}

type Bridge = SyncBridge<(EndlessStream, EndlessStream)>;

fn drain(bridge: &mut Bridge) -> usize {
    let mut drained = 0;
    let mut buffer = [0; 5000];
    while let Ok(count) = bridge.read(&mut buffer) {
        drained += count;
    }
    drained
}

#[test]
fn sixteen_mebibytes_are_received_in_few_operations() {
    run(|| async {
        let source = EndlessStream::default();
        let mut bridge: Bridge = SyncBridge::new((source.clone(), EndlessStream::default()));
        let mut received = 0;
        while received < 16 << 20 {
            assert_eq!(bridge.fill().await.unwrap(), bridge.readable());
            received += drain(&mut bridge);
        }
        // Seven doublings, then 1 MiB each.
        assert!(source.0.get() <= 7 + 16, "{} operations", source.0.get());
    });
}

#[test]
fn sixteen_mebibytes_are_sent_in_few_operations() {
    run(|| async {
        let sink = EndlessStream::default();
        let mut bridge: Bridge = SyncBridge::new((EndlessStream::default(), sink.clone()));
        let message = vec![1; 16 << 20];
        let mut at = 0;
        while at < message.len() {
            match bridge.write(&message[at..]) {
                Ok(count) => at += count,
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock);
                    bridge.flush().await.unwrap();
                }
            }
        }
        bridge.flush().await.unwrap();
        assert_eq!(bridge.unsent(), 0);
        assert_eq!(sink.0.get(), 16);
    });
}

#[test]
fn receive_buffer_doubles_and_shrinks_with_demand() {
    run(|| async {
        let (one, mut peer) = sockets();
        let mut bridge = SyncBridge::new(one);
        let mut buffer = vec![0; 1 << 20];
        let mut sizes = vec![];
        peer.write_all(vec![1; 100_000]).await.unwrap();
        while bridge.fill_size() <= 64 << 10 && sizes.len() < 4 {
            sizes.push(bridge.fill_size());
            bridge.fill().await.unwrap();
            let _ = bridge.read(&mut buffer).unwrap();
        }
        assert_eq!(sizes, [8 << 10, 16 << 10, 32 << 10, 64 << 10]);
        for _ in 0..10 {
            peer.write_all(b"little").await.unwrap();
            bridge.fill().await.unwrap();
            assert!(bridge.read(&mut buffer).unwrap() > 0);
        }
        assert_eq!(bridge.fill_size(), SyncBridge::<UnixStream>::START);
    });
}

#[test]
fn unread_bytes_are_bounded_by_the_limit_and_kept() {
    run(|| async {
        let mut bridge: Bridge =
            SyncBridge::with_limit((EndlessStream::default(), EndlessStream::default()), 20 << 10);
        let error = loop {
            if let Err(error) = bridge.fill().await {
                break error;
            }
        };
        assert_eq!(error.kind(), ErrorKind::OutOfMemory);
        assert_eq!(
            error.to_string(),
            "receive buffer is full: 20480 unread bytes reach the limit of the bridge"
        );
        assert_eq!(drain(&mut bridge), 20 << 10);
        bridge.fill().await.unwrap();
    });
}

#[test]
fn unflushed_bytes_are_bounded_by_the_limit() {
    let test = || async {
        let mut bridge: Bridge =
            SyncBridge::with_limit((EndlessStream::default(), EndlessStream::default()), 10_000);
        assert_eq!(bridge.write(&[1; 20_000]).unwrap(), 10_000);
        assert_eq!(bridge.write(&[1]).unwrap_err().kind(), ErrorKind::WouldBlock);
        assert_eq!(Write::flush(&mut bridge).unwrap_err().kind(), ErrorKind::WouldBlock);
        bridge.flush().await.unwrap();
        Write::flush(&mut bridge).unwrap();
        assert_eq!(bridge.write(&[1; 7]).unwrap(), 7);
    };
    run(test);
}

#[test]
fn dropped_futures_lose_nothing() {
    run(|| async {
        let (one, other) = sockets();
        let (mut one, mut other) = (SyncBridge::new(one), SyncBridge::new(other));
        let poll = |future: std::pin::Pin<&mut dyn Future<Output = ()>>| {
            let _: Poll<()> = future.poll(&mut Context::from_waker(Waker::noop()));
        };
        let (mut sent, mut heard) = (Vec::new(), Vec::new());
        let mut buffer = [0; 3000];
        for n in 0..300_usize {
            let bytes = vec![n as u8; n];
            if one.write_all(&bytes).is_ok() {
                sent.extend(bytes);
            }
            poll(pin!(async { one.flush().await.unwrap() }));
            poll(pin!(async { drop(other.fill().await) }));
            if n % 5 == 0 {
                // Operations in flight continue meanwhile.
                one.flush().await.unwrap();
            }
            while let Ok(count) = other.read(&mut buffer) {
                heard.extend_from_slice(&buffer[..count]);
            }
        }
        one.flush().await.unwrap();
        one.shutdown().await.unwrap();
        while other.fill().await.unwrap() > 0 {
            while let Ok(count @ 1..) = other.read(&mut buffer) {
                heard.extend_from_slice(&buffer[..count]);
            }
        }
        assert!(heard == sent);
        assert_eq!(other.read(&mut buffer).unwrap(), 0, "end of input");
    });
}

/// Each side waits for the other's bytes before its own are accepted.
#[test]
fn both_directions_progress_concurrently() {
    run(|| async {
        let (one, other) = sockets();
        let (mut one, mut other) = (SyncBridge::new(one), SyncBridge::new(other));
        one.write_all(&vec![1; 1 << 20]).unwrap();
        other.write_all(&vec![2; 1 << 20]).unwrap();
        async fn pass(bridge: &mut SyncBridge<UnixStream>) {
            let mut buffer = vec![0; 1 << 20];
            let mut received = 0;
            while received < 1 << 20 {
                match bridge.read(&mut buffer) {
                    Ok(count) => received += count,
                    Err(_) => drop(bridge.fill_or_flush().await.unwrap()),
                }
            }
            bridge.flush().await.unwrap();
        }
        futures_util::join!(pass(&mut one), pass(&mut other));
    });
}

#[test]
fn end_of_input_is_permanent() {
    run(|| async {
        let (one, mut peer) = sockets();
        let mut bridge = SyncBridge::new(one);
        peer.write_all(b"last").await.unwrap();
        bridge.write_all(b"words").unwrap();
        bridge.shutdown().await.unwrap();
        let (_, heard) = peer.read_to_end(Vec::new()).await.unwrap();
        assert_eq!(heard, b"words");
        drop(peer);
        assert_eq!(bridge.fill().await.unwrap(), 4);
        assert_eq!(bridge.fill().await.unwrap(), 0);
        let mut text = String::new();
        bridge.read_to_string(&mut text).unwrap();
        assert_eq!(text, "last");
    });
}
