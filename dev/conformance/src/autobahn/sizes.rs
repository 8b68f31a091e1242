//! Sections 9 and 10: long messages, many fragments, many messages.

use sinews_proto::Kind::{self, Binary, Text};
use sinews_testkit::Frame;

use crate::Case;

const KINDS: [(Kind, u8); 2] = [(Text, 1), (Binary, 2)];

/// 9.1 and 9.2: one frame of 64 KiB to 16 MiB, the last of which is the default limit. `most` excludes longer
/// frames.
#[must_use]
pub fn section_9_whole(most: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (part, (kind, opcode)) in KINDS.into_iter().enumerate() {
        for (number, kib) in [64, 256, 1024, 4096, 8192, 16_384].into_iter().enumerate() {
            let payload = vec![b'*'; kib << 10];
            if payload.len() <= most {
                let case = Case::new(format!("9.{}.{}", part + 1, number + 1));
                cases.push(case.send(Frame::new(opcode, &payload)).echoes(kind, &payload).bye());
            }
        }
    }
    cases
}

/// 9.3 and 9.4: a message of `len` bytes (4 MiB in the suite) in fragments of 64 bytes up to the whole
/// length.
#[must_use]
pub fn section_9_fragmented(len: usize) -> Vec<Case> {
    let payload = vec![b'*'; len];
    let mut cases = Vec::new();
    for (part, (kind, _)) in KINDS.into_iter().enumerate() {
        for (number, bits) in (6..=22).step_by(2).enumerate() {
            let case = Case::new(format!("9.{}.{}", part + 3, number + 1));
            cases.push(case.message(kind, &payload, 1 << bits).bye());
        }
    }
    cases
}

/// 9.7 and 9.8: `count` messages (1,000 in the suite) of 0 to 4,096 bytes, each answered before the next.
#[must_use]
pub fn section_9_round_trips(count: usize) -> Vec<Case> {
    let mut cases = Vec::new();
    for (part, (kind, opcode)) in KINDS.into_iter().enumerate() {
        for (number, len) in [0, 16, 64, 256, 1024, 4096].into_iter().enumerate() {
            let payload = vec![b'*'; len];
            let mut case = Case::new(format!("9.{}.{}", part + 7, number + 1));
            for _ in 0..count {
                case = case.send(Frame::new(opcode, &payload)).echoes(kind, &payload).by_now();
            }
            cases.push(case.bye());
        }
    }
    cases
}

/// 10.1.1: 65,536 bytes in fragments of 1,300.
#[must_use]
pub fn section_10() -> Vec<Case> {
    let payload = vec![b'*'; 65_536];
    vec![Case::new("10.1.1").message(Text, &payload, 1300).bye()]
}
