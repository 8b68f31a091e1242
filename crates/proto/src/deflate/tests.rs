//! Tests of the codec with hand-written streams, streams from another zlib, and its own streams in any chunking.

use alloc::vec;
use alloc::vec::Vec;

use proptest::prelude::*;
use zlib_rs::{Deflate, DeflateFlush};

use super::outcome::BadDeflate;
use super::{Contexts, DeflateClass, Deflater, Inflater};

const NO_LIMIT: usize = usize::MAX;

/// Inflates a whole message in chunks of the sizes `cuts`, with a bounded capacity per call.
fn inflate_in(
    inflater: &mut Inflater,
    payload: &[u8],
    chunk: usize,
    room: usize,
) -> Result<Vec<u8>, BadDeflate> {
    let mut out = Vec::new();
    for piece in payload.chunks(chunk) {
        let mut rest = piece;
        loop {
            let done = inflater.inflate(rest, &mut out, room)?;
            assert!(done.produced <= room);
            rest = &rest[done.consumed..];
            if !done.full {
                assert!(rest.is_empty(), "it stops only at the end of input or capacity");
                break;
            }
        }
    }
    while inflater.finish(&mut out, room)?.full {}
    Ok(out)
}

fn inflate(inflater: &mut Inflater, payload: &[u8]) -> Result<Vec<u8>, BadDeflate> {
    inflate_in(inflater, payload, usize::MAX, NO_LIMIT)
}

fn deflate(deflater: &mut Deflater, message: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    deflater.deflate(message, &mut out, true);
    out
}

fn unhex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .bytes()
        .filter_map(|c| char::from(c).to_digit(16))
        .map(|digit| u8::try_from(digit).unwrap())
        .collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Bytes without repetition for a compressor to find.
fn noise(len: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    };
    (0..len).map(|_| next()).collect()
}

/// Writes deflate bits by hand (RFC 1951 section 3.1.1: values low bit first, codes high bit first).
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    free: u32,
}

impl Bits {
    fn value(&mut self, value: u32, count: u32) -> &mut Self {
        for bit in 0..count {
            if self.free == 0 {
                self.bytes.push(0);
                self.free = 8;
            }
            let at = 8 - self.free;
            *self.bytes.last_mut().unwrap() |= u8::from(value >> bit & 1 == 1) << at;
            self.free -= 1;
        }
        self
    }

    fn code(&mut self, code: u32, count: u32) -> &mut Self {
        self.value(code.reverse_bits() >> (32 - count), count)
    }

    fn header(&mut self, last: bool, kind: u32) -> &mut Self {
        self.value(u32::from(last), 1).value(kind, 2)
    }

    /// A literal below 144 in the fixed code.
    fn literal(&mut self, byte: u8) -> &mut Self {
        assert!(byte < 144);
        self.code(0x30 + u32::from(byte), 8)
    }

    /// A match of three bytes at the largest distances, 24,577 to 32,768, in the fixed code.
    fn far_match(&mut self, distance: u32) -> &mut Self {
        self.code(1, 7).code(29, 5).value(distance - 24_577, 13)
    }

    fn end_of_block(&mut self) -> &mut Self {
        self.code(0, 7)
    }

    fn align(&mut self) -> &mut Self {
        self.free = 0;
        self
    }

    fn stored(&mut self, last: bool, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).unwrap();
        self.header(last, 0).align();
        self.bytes.extend_from_slice(&len.to_le_bytes());
        self.bytes.extend_from_slice(&(!len).to_le_bytes());
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// The header of the empty stored block that the sender truncates.
    fn end_of_message(&mut self) -> Vec<u8> {
        self.header(false, 0).align();
        core::mem::take(&mut self.bytes)
    }
}

/// RFC 7692 section 7.2.3: each is "Hello" to a fresh window.
const HELLO: [&str; 5] = [
    "f2 48 cd c9 c9 07 00",
    // Stored (7.2.3.3).
    "00 05 00 fa ff 48 65 6c 6c 6f 00",
    // Final (7.2.3.4), with and without the empty block behind it.
    "f3 48 cd c9 c9 07 00 00",
    "f3 48 cd c9 c9 07 00",
    // Two blocks (7.2.3.5).
    "f2 48 05 00 00 00 ff ff ca c9 c9 07 00",
];

#[test]
fn examples_of_the_rfc() {
    for text in HELLO {
        let payload = unhex(text);
        for chunk in 1..=payload.len() {
            for room in [1, 2, 3, NO_LIMIT] {
                let mut inflater = Inflater::new(15);
                let out = inflate_in(&mut inflater, &payload, chunk, room);
                assert_eq!(out.as_deref(), Ok(&b"Hello"[..]), "{text} by {chunk}, room {room}");
            }
        }
    }
}

/// RFC 7692 section 7.2.3.2: the second "Hello" is a reference to the first, for any block types of the
/// first message, so the window persists across a final block.
#[test]
fn window_is_taken_over() {
    for first in HELLO {
        for window_bits in [8, 9, 15] {
            let mut inflater = Inflater::new(window_bits);
            for payload in [first, "f2 00 11 00 00", "00", "f2 00 11 00 00"] {
                let expected: &[u8] = if payload == "00" { b"" } else { b"Hello" };
                assert_eq!(inflate(&mut inflater, &unhex(payload)).as_deref(), Ok(expected));
            }
            inflater.reset();
            assert_eq!(inflate(&mut inflater, &unhex("f2 00 11 00 00")), Err(BadDeflate));
        }
    }
}

/// A payload without bytes is not a message, for any end of the message before (RFC 7692 section 7.2.3.6).
#[test]
fn a_message_has_at_least_one_octet() {
    for first in HELLO {
        let mut inflater = Inflater::new(15);
        assert!(inflate(&mut inflater, &unhex(first)).is_ok());
        assert_eq!(inflate(&mut inflater, b""), Err(BadDeflate), "behind {first}");
    }
}

/// The longest possible reference, across a final block, over a ring that has wrapped around.
#[test]
fn window_persists_across_final_block() {
    for len in [32_768, 50_000, 65_535] {
        let text = noise(len, 7);
        let first = Bits::default().stored(true, &text).bytes.clone();
        let second = Bits::default().header(false, 1).far_match(32_768).end_of_block().end_of_message();
        let mut inflater = Inflater::new(15);
        assert_eq!(inflate(&mut inflater, &first).as_deref(), Ok(&text[..]));
        let expected = &text[len - 32_768..][..3];
        assert_eq!(inflate(&mut inflater, &second).as_deref(), Ok(expected), "{len}");
    }
}

#[test]
fn stream_may_continue_after_final_block() {
    let mut bits = Bits::default();
    for byte in *b"one two " {
        bits.header(true, 1).literal(byte).end_of_block().align();
    }
    bits.stored(false, b"three").stored(true, b"").align();
    bits.header(false, 1).literal(b'!').end_of_block();
    let payload = bits.end_of_message();
    for chunk in 1..=payload.len() {
        let out = inflate_in(&mut Inflater::new(15), &payload, chunk, 5);
        assert_eq!(out.as_deref(), Ok(&b"one two three!"[..]), "by {chunk}");
    }
}

#[test]
fn final_blocks_are_counted() {
    let final_blocks = |count| [0x03, 0x00].repeat(count);
    let mut inflater = Inflater::new(15);
    for _ in 0..3 {
        assert_eq!(inflate(&mut inflater, &final_blocks(1000)).as_deref(), Ok(&[][..]));
    }
    assert_eq!(inflate(&mut inflater, &final_blocks(1030)), Err(BadDeflate));
    inflater.reset();
    assert_eq!(inflate(&mut inflater, &final_blocks(1000)).as_deref(), Ok(&[][..]));
}

/// Three messages over one window: prices, prices, empty.
///
/// From Python 3.11 with zlib 1.2.13, for each (level, wbits):
/// `c = zlib.compressobj(level, zlib.DEFLATED, wbits)`, then for each message
/// `(c.compress(m) + c.flush(zlib.Z_SYNC_FLUSH))[:-4].hex()`, the empty one being `00`.
#[test]
fn streams_of_another_zlib() {
    const PRICES: [&str; 2] = [
        r#"{"symbol":"ABC","price":101.25,"volume":300}"#,
        r#"{"symbol":"ABC","price":101.30,"volume":120}"#,
    ];
    // Levels 6 with window 15 and 1 with window 9 give the same bytes here.
    let fixed = [
        "aa562aaecc4dcacf51b25272747256d2512a28ca4c4e55b2323430d43332d5512acbcf29cd05f28d0d0c6a0100",
        "aac6a3d6d800a1d6d0c8a01600",
        "00",
    ];
    // Level 0, window 15.
    let stored = [
        "002c00d3ff7b2273796d626f6c223a22414243222c227072696365223a3130312e32352c22766f6c756d65223a333030\
         7d00",
        "002c00d3ff7b2273796d626f6c223a22414243222c227072696365223a3130312e33302c22766f6c756d65223a313230\
         7d00",
        "00",
    ];
    for stream in [fixed, stored] {
        for chunk in [1, 2, 3, 7, NO_LIMIT] {
            let mut inflater = Inflater::new(9);
            for (payload, expected) in stream.iter().zip([PRICES[0], PRICES[1], ""]) {
                let out = inflate_in(&mut inflater, &unhex(payload), chunk, NO_LIMIT);
                assert_eq!(out.as_deref(), Ok(expected.as_bytes()));
            }
        }
    }
    // `c = zlib.compressobj(9, zlib.DEFLATED, -15)`;
    // `(c.compress(m * 40) + c.flush(zlib.Z_FINISH) + b"\0").hex()`.
    let finished = "ab562aaecc4dcacf51b25272747256d2512a28ca4c4e55b2323430d43332d5512acbcf29cd05f28d0d\
                    0c6aab47d58eaa1d553baa7654eda8da21a2160000";
    let out = inflate(&mut Inflater::new(15), &unhex(finished));
    assert_eq!(out, Ok(PRICES[0].repeat(40).into_bytes()));
}

#[test]
fn truncated_messages_are_rejected() {
    let mut deflater = Deflater::new(6, 15);
    let text = br#"{"user":"ada","text":"a text long enough for a block with codes of its own"}"#;
    let mut wholes: Vec<Vec<u8>> = HELLO.iter().map(|text| unhex(text)).collect();
    wholes.push(deflate(&mut deflater, &text.repeat(50)));
    for (index, whole) in wholes.iter().enumerate() {
        let mut inflater = Inflater::new(15);
        for len in 0..whole.len() {
            // An empty message, a final block without its trailing bytes, and "He".
            let complete = matches!((index, len), (1, 1) | (2, 7) | (4, 4));
            let out = inflate(&mut inflater, &whole[..len]);
            assert_eq!(out.is_ok(), complete, "{len} octets of {whole:x?}");
            inflater.reset();
        }
        assert!(inflate(&mut inflater, whole).is_ok(), "usable after all those errors");
    }
}

#[test]
fn garbage_is_refused() {
    let bad = [
        unhex("07"),
        // A stored block whose length does not match its complement.
        unhex("00 05 00 fa fe 48 65 6c 6c 6f 00"),
        // A reference in front of the start.
        unhex("f2 00 11 00 00"),
        Bits::default().header(false, 1).far_match(32_768).end_of_block().end_of_message(),
        // Bytes after the end: a block that only the tail completes.
        unhex("f2 48 cd c9 c9 07 00 00 00 ff ff"),
        // An empty payload.
        Vec::new(),
    ];
    for payload in bad {
        assert_eq!(inflate(&mut Inflater::new(15), &payload), Err(BadDeflate), "{payload:x?}");
    }
}

#[test]
fn message_of_exact_capacity_is_not_full() {
    let text = noise(10_000, 3);
    for payload in [
        deflate(&mut Deflater::new(6, 15), &text),
        Bits::default().stored(true, &text).bytes.clone(),
        Bits::default().stored(false, &text).stored(false, b"").end_of_message(),
    ] {
        for (room, fits) in [(9_999, false), (10_000, true), (10_001, true)] {
            let mut out = Vec::new();
            let mut inflater = Inflater::new(15);
            let done = inflater.inflate(&payload, &mut out, room).unwrap();
            assert_eq!(done.full, !fits, "room {room}");
            assert_eq!(done.produced, room.min(10_000));
            assert_eq!(out, text[..done.produced]);
            if fits {
                assert_eq!(done.consumed, payload.len());
                let end = inflater.finish(&mut out, room - done.produced).unwrap();
                assert!(!end.full && end.produced == 0);
            } else {
                assert!(inflater.finish(&mut out, 0).unwrap().full);
                assert!(!inflater.finish(&mut out, 1).unwrap().full);
                assert_eq!(out, text);
            }
        }
    }
}

/// A decompression bomb stops at the capacity, in one piece or in many; memory follows the produced bytes.
#[test]
fn decompression_bomb_stops_at_capacity() {
    const ROOM: usize = 1 << 20;
    let mut deflater = Deflater::new(9, 15);
    let bomb = deflate(&mut deflater, &vec![0; 8 << 20]);
    assert!((8 << 20) / bomb.len() >= 1000);
    for chunk in [1, 100, NO_LIMIT] {
        let mut inflater = Inflater::new(15);
        let mut out = Vec::new();
        let full = bomb.chunks(chunk.min(bomb.len())).any(|piece| {
            let room = ROOM - out.len();
            inflater.inflate(piece, &mut out, room).unwrap().full
        });
        assert!(full);
        assert_eq!(out.len(), ROOM);
        assert!(out.capacity() <= 2 * ROOM);
        inflater.reset();
        assert_eq!(inflate(&mut inflater, &unhex(HELLO[0])).as_deref(), Ok(&b"Hello"[..]));
    }
}

#[test]
fn compressor_respects_window_bits() {
    let mut text = noise(2_000, 9);
    text.extend_from_within(..);
    for level in [1, 2, 6, 9] {
        let narrow = deflate(&mut Deflater::new(level, 9), &text).len();
        let wide = deflate(&mut Deflater::new(level, 15), &text).len();
        assert!(narrow > 4_000 && wide < 2_400, "level {level}: {narrow}, {wide}");
    }
}

#[test]
fn flushed_parts_can_be_inflated_on_arrival() {
    let text = r#"{"symbol":"ABC","price":101.25,"volume":300}"#.repeat(9);
    let (first, second) = text.as_bytes().split_at(100);
    let mut deflater = Deflater::new(1, 15);
    let mut inflater = Inflater::new(15);
    for end in [&b""[..], b"the end"] {
        let mut out = Vec::new();
        for part in [first, b"", second] {
            let mut payload = Vec::new();
            deflater.deflate(part, &mut payload, false);
            let before = out.len();
            inflater.inflate(&payload, &mut out, NO_LIMIT).unwrap();
            assert_eq!(&out[before..], part);
        }
        let payload = deflate(&mut deflater, end);
        inflater.inflate(&payload, &mut out, NO_LIMIT).unwrap();
        assert!(!inflater.finish(&mut out, NO_LIMIT).unwrap().full);
        assert_eq!(out, [text.as_bytes(), end].concat());
    }
}

#[test]
fn the_empty_message_is_one_octet() {
    let mut deflater = Deflater::new(1, 15);
    let mut inflater = Inflater::new(15);
    for message in [&b""[..], b"", b"x", b"", b"x"] {
        let payload = deflate(&mut deflater, message);
        assert!(!message.is_empty() || payload == [0]);
        assert_eq!(inflate(&mut inflater, &payload).as_deref(), Ok(message));
    }
}

#[test]
fn borrowed_deflaters_are_reset() {
    let class = DeflateClass { level: 6, window_bits: 15 };
    let mut contexts = Contexts::new();
    let message = b"a message that would be a reference if the window were still there";
    let fresh = deflate(&mut Deflater::new(6, 15), message);
    for part in [&b""[..], b"given back in the middle of a message", b""] {
        let mut deflater = contexts.take_deflater(class);
        assert_eq!(deflate(&mut deflater, message), fresh);
        deflater.deflate(part, &mut Vec::new(), false);
        contexts.put_deflater(class, deflater);
    }
}

/// No message can refer to data received on another connection: neither in the stream nor after a final
/// block.
#[test]
fn borrowed_inflaters_are_reset() {
    let mut contexts = Contexts::new();
    let behind_final = |payload: &str| [vec![0x03, 0x00], unhex(payload)].concat();
    let hello = unhex(HELLO[0]);
    for payload in [
        hello.clone(),
        behind_final(HELLO[0]),
        unhex(HELLO[3]),
        Bits::default().stored(true, &noise(40_000, 1)).bytes.clone(),
    ] {
        for bad in [unhex("f2 00 11 00 00"), behind_final("f2 00 11 00 00")] {
            let mut inflater = contexts.take_inflater();
            assert!(inflate(&mut inflater, &payload).is_ok());
            contexts.put_inflater(inflater);
            let mut inflater = contexts.take_inflater();
            assert_eq!(inflate(&mut inflater, &bad), Err(BadDeflate));
            contexts.put_inflater(inflater);
            // Returned in the middle of a message, with a pending byte.
            let mut inflater = contexts.take_inflater();
            assert!(inflater.inflate(&hello, &mut Vec::new(), 3).unwrap().full);
            contexts.put_inflater(inflater);
        }
    }
}

#[test]
fn idle_contexts_are_bounded_and_kept_by_class() {
    let mut contexts = Contexts::new();
    let class = |index: u8| DeflateClass { level: 1 + index % 9, window_bits: 9 + index / 9 };
    let taken: Vec<_> = (0..20).map(|index| contexts.take_deflater(class(index))).collect();
    for (index, deflater) in (0..20).zip(taken) {
        contexts.put_deflater(class(index), deflater);
    }
    let inflaters: Vec<_> = (0..20).map(|_| contexts.take_inflater()).collect();
    for inflater in inflaters {
        contexts.put_inflater(inflater);
    }
    assert_eq!(contexts.idle(), (8, 8));
    // The newest stay, and each is found under its own class.
    let narrow = class(19);
    let deflater = contexts.take_deflater(narrow);
    assert_eq!(contexts.idle(), (8, 7));
    drop(deflater);
    contexts.take_deflater(narrow);
    assert_eq!(contexts.idle(), (8, 7), "made anew, not taken from another class");
}

/// A sender that keeps its window across final blocks, as another implementation might.
#[test]
fn messages_with_final_blocks_over_one_window() {
    let mut inflater = Inflater::new(15);
    let mut sent: Vec<u8> = Vec::new();
    for index in 0..40_u32 {
        let mut message = noise(1_777, index % 5 + 1);
        message.extend_from_slice(b"and text");
        let mut sender = Deflate::new(6, false, 15);
        if !sent.is_empty() {
            let window = sent.len().saturating_sub(32_768);
            sender.set_dictionary(&sent[window..]).unwrap();
        }
        let mut payload = vec![0; 4_000];
        sender.compress(&message, &mut payload, DeflateFlush::Finish).unwrap();
        payload.truncate(usize::try_from(sender.total_out()).unwrap());
        assert!(index < 5 || payload.len() < 300, "refers to earlier messages");
        if index % 2 == 0 {
            payload.push(0);
        }
        let chunk = 1 + index as usize % 7;
        let out = inflate_in(&mut inflater, &payload, chunk, 500);
        assert_eq!(out.as_deref(), Ok(&message[..]), "message {index}");
        sent.extend_from_slice(&message);
    }
}

/// Text, noise, and repetition near and far.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        (0..40_usize, any::<u32>()).prop_map(|(len, seed)| noise(len, seed)),
        (1..3_000_usize, any::<u8>()).prop_map(|(len, byte)| vec![byte; len]),
        (1..60_usize).prop_map(|times| br#"{"id":17,"kind":"tick"},"#.repeat(times)),
        (1..20_000_usize).prop_map(|len| noise(len, 5)),
    ];
    prop::collection::vec(piece, 0..5).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn deflated_messages_inflate(
        messages in prop::collection::vec(message(), 1..5),
        level in 1..=9_u8,
        window_bits in 9..=15_u8,
        takeover in any::<bool>(),
        part in 1..30_000_usize,
        chunk in 1..5_000_usize,
        room in 1..9_000_usize,
    ) {
        let mut deflater = Deflater::new(level, window_bits);
        let mut inflater = Inflater::new(window_bits);
        for message in &messages {
            let mut payload = Vec::new();
            for piece in message.chunks(part) {
                deflater.deflate(piece, &mut payload, false);
            }
            deflater.deflate(&[], &mut payload, true);
            let out = inflate_in(&mut inflater, &payload, chunk, room);
            prop_assert_eq!(out.as_ref(), Ok(message));

            if !takeover {
                deflater.reset();
                inflater.reset();
            }
            let whole = deflate(&mut deflater, message);
            let out = inflate_in(&mut inflater, &whole, usize::MAX, NO_LIMIT);
            prop_assert_eq!(out.as_ref(), Ok(message));
        }
    }

    /// Any input ends in the same bytes or the same error for any chunking.
    #[test]
    fn damage_is_reported_identically_for_any_chunking(
        message in message(),
        at in any::<prop::sample::Index>(),
        flip in 1..=255_u8,
        chunk in 1..50_usize,
        room in 1..9_000_usize,
    ) {
        let mut payload = deflate(&mut Deflater::new(6, 15), &message);
        let at = at.index(payload.len());
        payload[at] ^= flip;
        let whole = inflate(&mut Inflater::new(15), &payload);
        let mut inflater = Inflater::new(15);
        prop_assert_eq!(inflate_in(&mut inflater, &payload, chunk, room), whole);
        inflater.reset();
        let hello = inflate(&mut inflater, &unhex(HELLO[0]));
        prop_assert_eq!(hello.as_deref(), Ok(&b"Hello"[..]));
    }

    #[test]
    fn any_bytes_at_all_are_survived(payload in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut out = Vec::new();
        let mut inflater = Inflater::new(15);
        if inflater.inflate(&payload, &mut out, 10_000).is_ok() {
            let _ = inflater.finish(&mut out, 10_000);
        }
        prop_assert!(out.len() <= 20_000);
    }
}
