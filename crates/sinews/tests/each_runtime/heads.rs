//! Memory for a message that is chosen once its length is known, and messages that fill their memory exactly.

use std::time::Duration;

use crate::support::{noise, pass, poll_once, run, server_and_raw, wire, write_raw};
use sinews::{Config, Kind, Role};
use sinews_testkit::Frame;

#[test]
fn message_that_fills_its_buffer_is_last_once_its_empty_end_is_received() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        write_raw(&mut raw, wire(&[Frame::binary([7; 10]).fin(false), Frame::continuation("")])).await;
        let (filled, _) = receive!(server, 10);
        assert_eq!((filled.kind, filled.len, filled.last), (Kind::Binary, 10, true));
    });
}

#[test]
fn empty_buffer_waits_for_the_end_of_the_message() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        write_raw(&mut raw, wire(&[Frame::binary([7; 10]).fin(false)])).await;
        let (filled, _) = receive!(server, 10);
        assert_eq!((filled.len, filled.last), (10, false), "the end is not received");
        assert!(poll_once(async { receive!(server, 0) }).is_pending(), "the end is not known");
        write_raw(&mut raw, wire(&[Frame::continuation(""), Frame::binary([8; 3])])).await;
        let (filled, _) = receive!(server, 0);
        assert_eq!((filled.len, filled.last), (0, true));
        // The next message has bytes, which do not fit.
        let (filled, _) = receive!(server, 0);
        assert_eq!((filled.len, filled.last), (0, false));
        let (filled, memory) = receive!(server, 10);
        assert_eq!((memory, filled.last), (vec![8; 3], true));
    });
}

#[test]
fn head_returns_the_length_before_the_payload_is_received() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        let payload = noise(300_000);
        let wire = Frame::binary(payload.clone()).encode(Role::Client);
        let (first, rest) = wire.split_at(40);
        write_raw(&mut raw, first.to_vec()).await;
        let head = server.next_head().await.unwrap().unwrap();
        assert_eq!((head.kind, head.len, head.last), (Kind::Binary, payload.len(), true));
        assert_eq!(server.next_head().await.unwrap().unwrap(), head, "another call returns the same");
        let receiving = async { receive!(server, head.len) };
        let ((filled, memory), ()) = futures_util::join!(receiving, write_raw(&mut raw, rest.to_vec()));
        assert_eq!((filled.len, filled.last), (payload.len(), true));
        assert!(memory == payload);
    });
}

#[test]
fn head_of_a_fragmented_message_returns_the_known_length() {
    run(|| async {
        let (mut server, mut raw) = server_and_raw(&Config::default());
        assert!(poll_once(server.next_head()).is_pending());
        write_raw(&mut raw, wire(&[Frame::text("first").fin(false), Frame::ping("!")])).await;
        let head = server.next_head().await.unwrap().unwrap();
        assert_eq!((head.kind, head.len, head.last), (Kind::Text, 5, false));
        let (filled, memory) = receive!(server, 5);
        assert_eq!((memory, filled.last), (b"first".to_vec(), false));
        assert!(poll_once(server.next_head()).is_pending(), "no further frame has begun");
        write_raw(&mut raw, wire(&[Frame::continuation("second")])).await;
        let head = server.next_head().await.unwrap().unwrap();
        assert_eq!((head.kind, head.len, head.last), (Kind::Text, 6, true));
        let (filled, _) = receive!(server, 5);
        assert_eq!((filled.len, filled.last), (5, false));
        let head = server.next_head().await.unwrap().unwrap();
        assert_eq!((head.len, head.last), (1, true), "the rest that did not fit");
        let (filled, memory) = receive!(server, 5);
        assert_eq!((memory, filled.last), (b"d".to_vec(), true));
    });
}

#[test]
fn reading_half_returns_message_heads() {
    run(|| async {
        let (server, mut raw) = server_and_raw(&Config::default());
        let (_write, mut read) = server.split();
        write_raw(&mut raw, wire(&[Frame::binary(noise(1000))])).await;
        let head = read.next_head().await.unwrap().unwrap();
        assert_eq!((head.len, head.last), (1000, true));
        let (filled, memory) = receive!(read, head.len);
        assert!(filled.last && memory == noise(1000));
        drop(raw);
        assert!(read.next_head().await.unwrap().is_err(), "the end without a Close");
        assert!(read.next_head().await.is_none());
    });
}

#[test]
fn head_describes_its_message_after_sends_that_read_input() {
    run(|| async {
        for (behind, sent) in [(0, 10), (200, 10), (200, 2 << 20)] {
            let (mut server, mut raw) = server_and_raw(&Config::default());
            write_raw(&mut raw, wire(&[Frame::binary([7; 100])])).await;
            let head = server.next_head().await.unwrap().unwrap();
            assert_eq!((head.len, head.last), (100, true));
            write_raw(&mut raw, wire(&[Frame::ping("x"), Frame::binary(vec![9; behind])])).await;
            for _ in 0..3 {
                pass(Duration::from_millis(20)).await;
                let _ = poll_once(server.send_binary(&vec![0; sent]));
            }
            assert_eq!(server.next_head().await.unwrap().unwrap(), head, "another call returns the same");
            let (filled, memory) = receive!(server, 100);
            assert_eq!((memory, filled.last), (vec![7; 100], true), "{behind} bytes behind");
            let next = server.next_data().await.unwrap().unwrap();
            assert_eq!(next.as_bytes(), vec![9; behind]);
        }
        let (server, mut raw) = server_and_raw(&Config::default());
        let (mut write, mut read) = server.split();
        write_raw(&mut raw, wire(&[Frame::binary([9; 200])])).await;
        assert_eq!(read.next_head().await.unwrap().unwrap().len, 200);
        write_raw(&mut raw, wire(&[Frame::binary([8; 50])])).await;
        for _ in 0..3 {
            pass(Duration::from_millis(20)).await;
            write.send("reads the input").await.unwrap();
        }
        let (filled, memory) = receive!(read, 200);
        assert_eq!((memory, filled.last), (vec![9; 200], true));
    });
}
