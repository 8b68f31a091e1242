//! Messages that the driver receives into their own buffer.

use std::sync::Arc;

use sinews_proto::{CloseCode, Config, Role, Time};
use sinews_session::{Flow, Resources, Session};

use crate::{RecordedEvents, negotiate};

struct End {
    session: Session,
    resources: Resources,
    heard: RecordedEvents,
}

impl End {
    fn new() -> Self {
        Self {
            session: Session::new(negotiate(Role::Server), Arc::new(Config::default()), Time::ZERO),
            resources: Resources::with_masks(|| [0; 4]),
            heard: RecordedEvents::default(),
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        let (session, mut bytes) = (&mut self.session, bytes.to_vec());
        let flow = session.receive(&mut bytes, &mut self.resources, Time::ZERO, &mut self.heard);
        assert_eq!(flow, Flow::Continue);
    }

    fn return_buffer(&mut self, buffer: Vec<u8>, appended: usize) {
        let session = &mut self.session;
        let flow =
            session.receive_appended(buffer, appended, &mut self.resources, Time::ZERO, &mut self.heard);
        assert_eq!(flow, Flow::Continue);
    }

    /// Appends as many bytes as the lent buffer admits; returns their number.
    fn append(&mut self, bytes: &[u8]) -> Option<usize> {
        let (mut buffer, room) = self.session.lend_assembly(&mut self.resources)?;
        let took = bytes.len().min(room);
        buffer.extend_from_slice(&bytes[..took]);
        self.return_buffer(buffer, took);
        Some(took)
    }

    fn close_code(&mut self) -> Option<CloseCode> {
        self.session.take_closed().and_then(|closed| closed.code())
    }
}

const KEY: [u8; 4] = [1, 2, 3, 4];

/// A masked frame of `length` bytes that encode their position.
fn frame(opcode: u8, length: usize) -> (Vec<u8>, Vec<u8>) {
    let payload: Vec<u8> = (0..length).map(|at| b'a' + (at % 23) as u8).collect();
    (masked(opcode, &payload), payload)
}

fn masked(opcode: u8, payload: &[u8]) -> Vec<u8> {
    let mut wire = vec![0x80 | opcode, 0x80 | 127];
    wire.extend((payload.len() as u64).to_be_bytes());
    wire.extend(KEY);
    wire.extend(payload.iter().zip(KEY.iter().cycle()).map(|(byte, key)| byte ^ key));
    wire
}

#[test]
fn chunks_and_lent_buffers_assemble_same_message() {
    for (opcode, step) in [(1, 100_003), (2, 65_537), (1, 300_000), (2, 1_000_001)] {
        let mut end = End::new();
        let (wire, payload) = frame(opcode, 1_000_000);
        let (mut at, mut appended, mut turn) = (0, 0, false);
        while at < wire.len() {
            let piece = &wire[at..wire.len().min(at + step)];
            turn = !turn;
            at += match turn.then(|| end.append(piece)).flatten() {
                Some(took) => {
                    appended += took;
                    took
                }
                None => {
                    end.receive(piece);
                    piece.len()
                }
            };
        }
        assert_eq!(end.heard.0, [payload]);
        assert_eq!(appended > 0, step < 900_000, "{appended} of {} were appended", wire.len());
    }
}

#[test]
fn lent_capacity_is_bounded_by_frame() {
    let mut end = End::new();
    let (wire, payload) = frame(2, 140_000);
    assert!(!end.session.awaits_large(), "no message is under assembly");
    end.receive(&wire[..14 + 70_000]);
    assert!(end.session.awaits_large());
    let (buffer, room) = end.session.lend_assembly(&mut end.resources).expect("much is to come");
    assert_eq!((room, buffer.len()), (70_000, 70_000));
    // No bytes received: the buffer returns unchanged.
    end.return_buffer(buffer, 0);
    assert_eq!(end.append(&[&wire[14 + 70_000..], b"the next frame"].concat()), Some(70_000));
    assert_eq!(end.heard.0, [payload]);
    assert!(end.append(b"x").is_none());
}

#[test]
fn lent_capacity_follows_received_bytes() {
    let mut end = End::new();
    let (wire, _) = frame(2, 16_000_000);
    let mut at = 14;
    end.receive(&wire[..at]);
    while let Some((buffer, room)) = end.session.lend_assembly(&mut end.resources) {
        assert!(room <= (4 * (at - 14)).clamp(64 << 10, 256 << 10), "{room} behind {}", at - 14);
        assert!(buffer.capacity() <= 5 * (at - 14) + (128 << 10), "memory follows the bytes received");
        end.return_buffer(buffer, 0);
        at += end.append(&wire[at..]).expect("the buffer was lent");
    }
    assert!(wire.len() - at < 64 << 10);
}

#[test]
fn lent_buffer_counts_as_incomplete() {
    let mut end = End::new();
    let (wire, _) = frame(2, 4_000_000);
    end.receive(&wire[..14 + 100_000]);
    let (buffer, _) = end.session.lend_assembly(&mut end.resources).expect("much is to come");
    assert_eq!(end.session.incomplete(), buffer.capacity());
    end.return_buffer(buffer, 0);
    assert!(end.session.incomplete() >= 100_000);
    end.append(&wire[14 + 100_000..]);
    let (buffer, _) = end.session.lend_assembly(&mut end.resources).expect("much is to come");
    let capacity = buffer.capacity();
    end.session.receive_end(Time::ZERO);
    assert_eq!(end.session.incomplete(), capacity);
    end.return_buffer(buffer, 0);
    assert_eq!(end.session.incomplete(), 0);
}

#[test]
fn memory_of_a_last_frame_does_not_exceed_its_message() {
    let (wire, payload) = frame(2, 7_000_000);
    for step in [60_000, 1_000_003] {
        let (mut end, mut at) = (End::new(), 0);
        while at < wire.len() - 10 {
            let piece = &wire[at..(at + step).min(wire.len() - 10)];
            at += end.append(piece).unwrap_or_else(|| {
                end.receive(piece);
                piece.len()
            });
            assert!(end.session.incomplete() <= payload.len(), "{} at {at}", end.session.incomplete());
        }
        end.receive(&wire[at..]);
        assert!(end.heard.0 == [&payload[..]]);
    }
}

#[test]
fn assembly_is_not_lent_for_short_remainder() {
    let mut end = End::new();
    let (wire, _) = frame(2, 65_535);
    end.receive(&wire[..14]);
    assert!(!end.session.awaits_large() && end.append(&wire[14..]).is_none());
}

#[test]
fn text_fails_at_first_invalid_byte() {
    let mut end = End::new();
    let mut text = vec![b'a'; 200_000];
    text[150_000] = 0xFF;
    let wire = masked(1, &text);
    end.receive(&wire[..14]);
    end.receive(&wire[14..14 + 70_000]);
    assert_eq!(end.append(&wire[14 + 70_000..14 + 130_000]), Some(60_000));
    assert!(end.session.is_open());
    assert_eq!(end.append(&wire[14 + 130_000..14 + 160_000]), Some(30_000));
    assert_eq!(end.close_code(), Some(CloseCode::INVALID_DATA));
    assert!(end.heard.0.is_empty() && end.append(&wire[..1000]).is_none());
}

#[test]
fn buffer_returned_after_end_is_discarded() {
    let mut end = End::new();
    let (wire, _) = frame(2, 200_000);
    end.receive(&wire[..14]);
    let (mut buffer, _) = end.session.lend_assembly(&mut end.resources).expect("much is to come");
    end.session.receive_end(Time::ZERO);
    buffer.extend_from_slice(&wire[14..1014]);
    end.return_buffer(buffer, 1000);
    assert!(end.heard.0.is_empty() && end.session.take_closed().is_some());
}
