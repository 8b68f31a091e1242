//! Memory for a message that is chosen once its length is known, and messages that fill their memory exactly.
#![cfg(feature = "tokio")]

mod common;

use common::{poll_once, server_and_raw};
use sinews::{Config, Kind, Role};
use sinews_testkit::Frame;
use tokio::io::{AsyncWriteExt as _, DuplexStream};

async fn send_raw(raw: &mut DuplexStream, frames: &[Frame]) {
    let bytes: Vec<u8> = frames.iter().flat_map(|frame| frame.encode(Role::Client)).collect();
    raw.write_all(&bytes).await.unwrap();
}

#[tokio::test]
async fn message_that_fills_its_buffer_is_last_when_its_empty_end_has_come() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    send_raw(&mut raw, &[Frame::binary([7; 10]).fin(false), Frame::continuation("")]).await;
    let mut buffer = [0; 10];
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((filled.kind, filled.len, filled.last), (Kind::Binary, 10, true));
}

#[tokio::test]
async fn empty_buffer_asks_whether_the_message_has_ended() {
    let (mut server, mut raw) = server_and_raw(&Config::default());
    send_raw(&mut raw, &[Frame::binary([7; 10]).fin(false)]).await;
    let mut buffer = [0; 10];
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (10, false), "the end has not come");
    assert!(poll_once(server.recv_into(&mut [])).is_pending(), "nothing is known yet");
    send_raw(&mut raw, &[Frame::continuation(""), Frame::binary([8; 3])]).await;
    let filled = server.recv_into(&mut []).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (0, true));
    // The next message has bytes, which do not fit.
    let filled = server.recv_into(&mut []).await.unwrap().unwrap();
    assert_eq!((filled.len, filled.last), (0, false));
    let filled = server.recv_into(&mut buffer).await.unwrap().unwrap();
    assert_eq!((&buffer[..filled.len], filled.last), (&[8; 3][..], true));
}
