//! Messages of several buffers, and memory of the application's own type, without a copy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{deflating_pair, pair};
use sinews::{Bytes, Config, Kind, Message};
use sinews_testkit::Rng;

/// Memory of an application's own type, which records when it is freed.
struct TrackedBuffer {
    memory: Vec<u8>,
    is_freed: Arc<AtomicBool>,
}

impl AsRef<[u8]> for TrackedBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Drop for TrackedBuffer {
    fn drop(&mut self) {
        self.is_freed.store(true, Ordering::SeqCst);
    }
}

#[tokio::test]
async fn large_buffers_of_a_message_are_not_copied() {
    let (mut client, mut server) = pair();
    let counts = server.get_ref().counts();
    let pieces = [Bytes::from(vec![1; 20]), Bytes::from(vec![2; 10_000]), Bytes::from(vec![3; 50_000])];
    server.send_vectored(Kind::Binary, &pieces).await.unwrap();
    assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(pieces.concat()));
    let addresses = counts.addresses.lock().unwrap();
    assert!(pieces[1..].iter().all(|piece| addresses.contains(&(piece.as_ptr() as usize))));
}

#[tokio::test]
async fn buffers_can_be_empty_small_masked_and_compressed() {
    let pairs = [pair(), deflating_pair(&Config::default(), 1 << 20, None)];
    for (mut client, mut server) in pairs {
        for lens in [&[][..], &[0], &[3, 0, 1], &[125, 1], &[5, 70_001, 3], &[65_536, 9]] {
            let pieces: Vec<Bytes> = lens.iter().map(|len| Rng::new(7).bytes(*len).into()).collect();
            let (sent, received) = tokio::join!(client.send_vectored(Kind::Binary, &pieces), server.next());
            sent.unwrap();
            assert!(received.unwrap().unwrap() == Message::binary(pieces.concat()), "{lens:?} masked");
            let (sent, received) = tokio::join!(server.send_vectored(Kind::Binary, &pieces), client.next());
            sent.unwrap();
            assert!(received.unwrap().unwrap() == Message::binary(pieces.concat()), "{lens:?}");
        }
        let text = [Bytes::from_static(b"caf\xC3"), Bytes::from_static(b"\xA9")];
        client.send_vectored(Kind::Text, &text).await.unwrap();
        assert_eq!(server.next().await.unwrap().unwrap(), Message::text("café"));
    }
}

#[tokio::test]
async fn custom_memory_is_sent_without_a_copy_and_freed() {
    let (mut client, mut server) = pair();
    let counts = server.get_ref().counts();
    let is_freed = Arc::new(AtomicBool::new(false));
    let own = TrackedBuffer { memory: vec![7; 10_000], is_freed: is_freed.clone() };
    let at = own.memory.as_ptr() as usize;
    server.feed(Message::from_owner(own)).await.unwrap();
    assert!(!is_freed.load(Ordering::SeqCst), "it has not left");
    server.flush().await.unwrap();
    assert!(is_freed.load(Ordering::SeqCst) && counts.addresses.lock().unwrap().contains(&at));
    assert_eq!(client.next().await.unwrap().unwrap(), Message::binary(vec![7; 10_000]));
}

#[tokio::test]
async fn writing_half_sends_several_buffers() {
    let (client, mut server) = pair();
    let (mut write, _read) = client.split_locked();
    write.send_vectored(Kind::Binary, &[Bytes::from_static(b"ab"), Bytes::from_static(b"cd")]).await.unwrap();
    assert_eq!(server.next().await.unwrap().unwrap(), Message::binary("abcd"));
}
