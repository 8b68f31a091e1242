//! On compio: messages of several buffers, which are returned once sent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{Operations, Recorded, pair, poll_once, run, server_and_raw, sockets};
use compio::buf::IoBuf;
use compio::io::AsyncReadExt as _;
use sinews::compio::WebSocket;
use sinews::{Bytes, Config, Kind, Message, Misuse};
use sinews_testkit::negotiate;

/// Memory of an application's own type, which records when it is freed.
struct TrackedBuffer {
    memory: Vec<u8>,
    is_freed: Arc<AtomicBool>,
}

impl IoBuf for TrackedBuffer {
    fn as_init(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for TrackedBuffer {
    fn drop(&mut self) {
        self.is_freed.store(true, Ordering::SeqCst);
    }
}

#[test]
fn buffers_are_sent_without_a_copy_and_returned() {
    run(|| async {
        let agreed = negotiate(None, None);
        let (client, server) = sockets();
        let operations = Operations::default();
        let halves = (server.clone(), Recorded(server, operations.clone()));
        let mut server = WebSocket::from_negotiated(halves, agreed.server, Arc::default(), &[]);
        let mut client = WebSocket::from_negotiated(client, agreed.client, Arc::default(), &[]);
        let is_freed = Arc::new(AtomicBool::new(false));
        let own = TrackedBuffer { memory: vec![2; 10_000], is_freed: is_freed.clone() };
        let at = own.memory.as_ptr() as usize;
        let buffers = ([1_u8; 20], (own, (Bytes::from(vec![3; 5000]),)));
        let (sent, buffers) = server.send_vectored(Kind::Binary, buffers).await;
        sent.unwrap();
        let (head, (own, (tail,))) = buffers.expect("all has left");
        assert!(
            operations.borrow().iter().flatten().any(|address| *address == at)
                && !is_freed.load(Ordering::SeqCst)
        );
        let whole = [&head[..], &own.memory, &tail].concat();
        assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(whole));
    });
}

#[test]
fn masked_buffers_are_returned_also_from_halves() {
    run(|| async {
        let (client, mut server) = pair();
        let (mut write, _read) = client.split();
        let buffers = vec![vec![1_u8; 3], vec![2; 70_001], Vec::new(), vec![3; 2]];
        let (sent, back) = write.send_vectored(Kind::Binary, buffers.clone()).await;
        sent.unwrap();
        assert_eq!(back, Some(buffers.clone()));
        assert_eq!(server.next().await.unwrap().unwrap(), Message::binary(buffers.concat()));
    });
}

#[test]
fn dropped_call_frees_the_buffers_when_the_message_has_left() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        let is_freed = Arc::new(AtomicBool::new(false));
        let own = TrackedBuffer { memory: vec![7; 4 << 20], is_freed: is_freed.clone() };
        assert!(
            poll_once(server.send_vectored(Kind::Binary, [own])).is_pending(),
            "more than a socket takes"
        );
        assert!(!is_freed.load(Ordering::SeqCst), "part of it is in flight");
        let flushing = server.flush();
        let receiving = raw.read_exact(vec![0; 10 + (4 << 20)]);
        let (flushed, received) = futures_util::join!(flushing, receiving);
        flushed.unwrap();
        assert!(received.1[10..].iter().all(|byte| *byte == 7));
        assert!(is_freed.load(Ordering::SeqCst));
    });
}

#[test]
fn unsendable_buffers_are_returned_with_the_error() {
    run(|| async {
        let (_client, mut server) = pair();
        server.start_close(sinews::CloseCode::NORMAL, "").unwrap();
        let (sent, back) = server.send_vectored(Kind::Binary, [vec![7_u8; 5000]]).await;
        assert!(matches!(sent, Err(sinews::Error::Misuse(Misuse::Closing))), "{sent:?}");
        assert_eq!(back, Some([vec![7; 5000]]));
    });
}
