//! Reuse of large message buffers, and messages of several pieces.

use std::io::IoSlice;
use std::sync::Arc;

use bytes::Bytes;
use sinews_proto::{Config, Kind, Misuse, Role, Time};
use sinews_session::{Chain, Resources, Sent, Session, Tx};

use crate::negotiate;

const KEY: [u8; 4] = [1, 2, 3, 4];

struct End {
    session: Session,
    resources: Resources,
}

impl End {
    fn new(role: Role) -> Self {
        let config = Config::default().with_max_outbound(64 << 20);
        let session = Session::new(negotiate(role), Arc::new(config), Time::ZERO);
        Self { session, resources: Resources::with_masks(|| KEY) }
    }

    fn send(&mut self, send: impl FnOnce(&mut Tx<'_>) -> Result<Sent, Misuse>) {
        let sent = send(&mut self.session.tx(&mut self.resources, Time::ZERO));
        let _ = sent.expect("the connection is open");
        self.session.after_tx(&mut self.resources, Time::ZERO);
    }

    fn start(&mut self) -> Box<Chain> {
        self.session.start_send().expect("something was sent")
    }

    fn finish(&mut self, mut chain: Box<Chain>) {
        chain.advance(chain.len());
        self.session.finish_send(chain, &mut self.resources, Time::ZERO);
    }
}

fn wire(chain: &Chain) -> Vec<u8> {
    chain.pieces().collect::<Vec<_>>().concat()
}

/// The payload of the one frame on the wire, unmasked.
fn payload(wire: &[u8]) -> Vec<u8> {
    let (len, at) = match wire[1] & 0x7F {
        126 => (u64::from(u16::from_be_bytes([wire[2], wire[3]])), 4),
        127 => (u64::from_be_bytes(wire[2..10].try_into().expect("eight bytes")), 10),
        len => (u64::from(len), 2),
    };
    let (key, payload) = match wire[1] & 0x80 {
        0 => ([0; 4], &wire[at..]),
        _ => (wire[at..at + 4].try_into().expect("four bytes"), &wire[at + 4..]),
    };
    assert_eq!(payload.len() as u64, len, "one frame");
    payload.iter().zip(key.iter().cycle()).map(|(byte, key)| byte ^ key).collect()
}

#[test]
fn memory_of_large_message_is_reused_for_next_message() {
    for role in [Role::Client, Role::Server] {
        let mut end = End::new(role);
        let message: Vec<u8> = (0..1_000_000).map(|at| at as u8).collect();
        let mut first = None;
        for _ in 0..3 {
            end.send(|tx| tx.send_binary(&message));
            let chain = end.start();
            assert!(payload(&wire(&chain)) == message, "{role:?}");
            let memory = chain.pieces().map(|piece| piece.as_ptr() as usize).max();
            assert_eq!(*first.get_or_insert(memory), memory, "{role:?}: memory of the previous message");
            end.finish(chain);
            // Occupies the memory that the session has freed.
            std::mem::forget(vec![1_u8; 1_000_100]);
        }
        assert!(end.resources.release_idle(), "used since the last call");
        assert!(!end.resources.release_idle(), "unused since the last call");
    }
}

#[test]
fn small_messages_around_a_large_one_keep_their_order() {
    for role in [Role::Client, Role::Server] {
        let mut end = End::new(role);
        let large = vec![7; 500_000];
        for round in 0..3 {
            end.send(|tx| tx.send_text("before"));
            end.send(|tx| tx.send_binary(&large));
            end.send(|tx| tx.send_text("behind"));
            let chain = end.start();
            let bytes = wire(&chain);
            let head = if role == Role::Client { 4 } else { 0 };
            let first = payload(&bytes[..2 + head + 6]);
            let second = payload(&bytes[2 + head + 6..bytes.len() - (2 + head + 6)]);
            let third = payload(&bytes[bytes.len() - (2 + head + 6)..]);
            assert!((&*first, &*third) == (b"before", b"behind") && second == large, "{role:?} {round}");
            end.finish(chain);
        }
    }
}

#[test]
fn server_sends_pieces_without_copy() {
    let mut end = End::new(Role::Server);
    let pieces = [Bytes::from(vec![1; 100]), Bytes::from(vec![2; 10_000]), Bytes::from(vec![3; 20_000])];
    end.send(|tx| tx.send_pieces(Kind::Binary, &pieces));
    let chain = end.start();
    assert!(payload(&wire(&chain)) == pieces.concat());
    let lies: Vec<*const u8> = chain.pieces().map(<[u8]>::as_ptr).collect();
    assert!(lies.contains(&pieces[1].as_ptr()) && lies.contains(&pieces[2].as_ptr()));
    end.finish(chain);
}

#[test]
fn pieces_of_a_client_are_masked_as_one_message() {
    for lens in [&[][..], &[0], &[1, 2, 3], &[5, 0, 70_001, 3], &[300_001, 7, 300_001]] {
        let mut end = End::new(Role::Client);
        let pieces: Vec<Bytes> =
            lens.iter().map(|len| (0..*len).map(|at: usize| at as u8).collect::<Vec<u8>>().into()).collect();
        end.send(|tx| tx.send_pieces(Kind::Binary, &pieces));
        let chain = end.start();
        let mut slices = [IoSlice::new(&[]); 4];
        assert_eq!(chain.slices(&mut slices), 1, "masked into one buffer");
        assert!(payload(&wire(&chain)) == pieces.concat(), "{lens:?}");
        end.finish(chain);
    }
}
