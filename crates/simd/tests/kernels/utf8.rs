//! UTF-8 against a reference without ranges: the set of all prefixes of all encoded code points.

use std::collections::HashSet;

use sinews_simd::{Utf8Stream, validate_utf8};

/// Bytes at and next to every boundary of the grammar (RFC 3629 section 4).
const EDGES: [u8; 33] = [
    0x00, 0x41, 0x7f, 0x80, 0x81, 0x8f, 0x90, 0x91, 0x9f, 0xa0, 0xa1, 0xb0, 0xbe, 0xbf, 0xc0, 0xc1, 0xc2,
    0xdf, 0xe0, 0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf7, 0xf8, 0xfe, 0xff,
];

/// The classes of Markus Kuhn's decoder stress test, written out as bytes.
const STRESS: [&[u8]; 48] = [
    // First and last code point of each length, and the code points next to the surrogates.
    b"\x00 \xc2\x80 \xe0\xa0\x80 \xf0\x90\x80\x80",
    b"\x7f \xdf\xbf \xef\xbf\xbf \xf4\x8f\xbf\xbf",
    b"\xed\x9f\xbf \xee\x80\x80 \xef\xbf\xbd",
    "κόσμε, 世界, 🌍🌎🌏".as_bytes(),
    // Abolished lengths: five and six bytes, and four beyond U+10FFFF.
    b"\xf8\x88\x80\x80\x80",
    b"\xfc\x84\x80\x80\x80\x80",
    b"\xf7\xbf\xbf\xbf",
    b"\xfb\xbf\xbf\xbf\xbf",
    b"\xfd\xbf\xbf\xbf\xbf\xbf",
    b"\xf4\x90\x80\x80",
    // Continuations without a lead byte.
    b"\x80",
    b"\xbf",
    b"a\x80\xbf\x80b",
    b"\xc3\xa9\xa9",
    // Lead bytes without continuation.
    b"\xc2 \xdf ",
    b"\xe0 \xef ",
    b"\xf0 \xf4 ",
    b"\xf8 \xfb ",
    b"\xfc \xfd ",
    // The last continuation missing, at the end and before more.
    b"\xc2",
    b"\xe0\xa0",
    b"\xf0\x90\x80",
    b"\xdf",
    b"\xef\xbf",
    b"\xf4\x8f\xbf",
    b"\xe0\xa0a",
    b"\xf0\x90\x80a",
    b"\xc2\xe0\xa0\xf0\x90\x80\xdf\xef\xbf\xf4\x8f\xbf",
    // Bytes that never occur.
    b"\xfe",
    b"\xff",
    b"\xfe\xfe\xff\xff",
    // Overlong forms of the slash, of the last code point of each shorter length, and of NUL.
    b"\xc0\xaf",
    b"\xe0\x80\xaf",
    b"\xf0\x80\x80\xaf",
    b"\xc1\xbf",
    b"\xe0\x9f\xbf",
    b"\xf0\x8f\xbf\xbf",
    b"\xc0\x80",
    b"\xe0\x80\x80",
    b"\xf0\x80\x80\x80",
    // Surrogates, single and paired.
    b"\xed\xa0\x80",
    b"\xed\xaf\xbf",
    b"\xed\xb0\x80",
    b"\xed\xbf\xbf",
    b"\xed\xa0\x80\xed\xb0\x80",
    b"\xed\xaf\xbf\xed\xbf\xbf",
    // Noncharacters are valid.
    b"\xef\xbf\xbe \xef\xbf\xbf \xef\xb7\x90 \xf0\x9f\xbf\xbe",
    b"",
];

/// Finds the position of an error by lookup in the set of all valid prefixes.
struct Reference {
    /// The encodings of all code points without their last one, two or three bytes.
    prefixes: HashSet<Vec<u8>>,
}

impl Reference {
    fn new() -> Self {
        let mut prefixes = HashSet::new();
        let mut buf = [0; 4];
        // The last byte of an encoding counts 64 code points; the first of them yields all prefixes.
        for char in ('\0'..=char::MAX).step_by(64) {
            let encoded = char.encode_utf8(&mut buf).as_bytes();
            for len in 1..encoded.len() {
                if !prefixes.contains(&encoded[..len]) {
                    prefixes.insert(encoded[..len].to_vec());
                }
            }
        }
        Self { prefixes }
    }

    /// `Err` with the position of the first impossible byte, else whether the text is complete.
    fn judge(&self, bytes: &[u8]) -> Result<bool, usize> {
        let mut from = 0;
        for at in 0..bytes.len() {
            let point = &bytes[from..=at];
            if std::str::from_utf8(point).is_ok() {
                from = at + 1;
            } else if !self.prefixes.contains(point) {
                return Err(at);
            }
        }
        Ok(from == bytes.len())
    }

    #[track_caller]
    fn check_whole(&self, bytes: &[u8]) {
        let expected = match self.judge(bytes) {
            Ok(true) => None,
            Ok(false) => Some(bytes.len()),
            Err(at) => Some(at),
        };
        let error = validate_utf8(bytes).err().map(|error| error.valid_up_to());
        assert_eq!(error, expected, "{bytes:02x?}");
        assert_eq!(error.is_none(), std::str::from_utf8(bytes).is_ok(), "{bytes:02x?}");
    }

    /// Checks the text with boundaries at the given ascending positions.
    #[track_caller]
    fn check_cut(&self, bytes: &[u8], cuts: &[usize]) {
        let mut stream = Utf8Stream::new();
        let mut from = 0;
        let mut failed = None;
        for &to in cuts.iter().chain([&bytes.len()]) {
            let piece = &bytes[from..to];
            let answer = stream.push(piece);
            match (failed, answer) {
                (None, Ok(())) => {}
                (None, Err(error)) => failed = Some(from + error.valid_up_to()),
                (Some(_), Ok(())) => {
                    assert!(piece.is_empty(), "forgot its failure: {bytes:02x?} cut at {cuts:?}")
                }
                (Some(_), Err(error)) => assert_eq!(error.valid_up_to(), 0),
            }
            from = to;
        }
        let judged = self.judge(bytes);
        assert_eq!(failed, judged.err(), "{bytes:02x?} cut at {cuts:?}");
        assert_eq!(stream.is_complete(), judged == Ok(true), "{bytes:02x?} cut at {cuts:?}");
        assert_eq!(stream.finish().is_ok(), judged == Ok(true), "{bytes:02x?} cut at {cuts:?}");
        assert!(stream.push(b"next text").is_ok() && stream.finish().is_ok());
    }

    #[track_caller]
    fn check_every_cut(&self, bytes: &[u8]) {
        self.check_cut(bytes, &[]);
        for first in 0..=bytes.len() {
            self.check_cut(bytes, &[first]);
        }
        self.check_cut(bytes, &(0..bytes.len()).collect::<Vec<_>>());
    }
}

struct Noise(u64);

impl Noise {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % end
    }
}

/// Places the case in the range of the vector kernel: after, before and between enough bytes.
fn in_context(case: &[u8]) -> [Vec<u8>; 3] {
    let long =
        "The quick brown fox, der schnelle braune Füchs, 素早い茶色の狐 jumps. ".repeat(2).into_bytes();
    [[&long[..], case].concat(), [case, &long[..]].concat(), [&long[..], case, &long[..]].concat()]
}

#[test]
fn stress_cases_cut_anywhere() {
    let reference = Reference::new();
    for case in STRESS {
        reference.check_whole(case);
        reference.check_every_cut(case);
        for first in 0..=case.len() {
            for second in first..=case.len() {
                reference.check_cut(case, &[first, second]);
            }
        }
    }
}

#[test]
fn stress_cases_inside_long_texts() {
    let reference = Reference::new();
    for case in STRESS {
        for text in in_context(case) {
            reference.check_whole(&text);
            reference.check_every_cut(&text);
        }
    }
}

#[test]
fn failing_is_immediate() {
    for (bytes, at) in [
        (&b"\xc0"[..], 0),
        (b"\xc1", 0),
        (b"\xf5", 0),
        (b"\xff", 0),
        (b"\x80", 0),
        (b"\xe0\x80", 1),
        (b"\xe0\x9f", 1),
        (b"\xed\xa0", 1),
        (b"\xf0\x8f", 1),
        (b"\xf4\x90", 1),
        (b"\xe2\x82\x41", 2),
        (b"\xf0\x9f\x8c\xc3", 3),
    ] {
        let mut stream = Utf8Stream::new();
        assert_eq!(stream.push(&bytes[..at]), Ok(()), "{bytes:02x?}");
        assert_eq!(stream.push(&bytes[at..]).unwrap_err().valid_up_to(), 0, "{bytes:02x?}");
        assert_eq!(Utf8Stream::new().push(bytes).unwrap_err().valid_up_to(), at, "{bytes:02x?}");
    }
}

#[test]
fn all_sequences_of_one_and_two_bytes() {
    let reference = Reference::new();
    for first in 0..=255 {
        reference.check_whole(&[first]);
        reference.check_every_cut(&[first]);
        for second in 0..=255 {
            reference.check_whole(&[first, second]);
            reference.check_every_cut(&[first, second]);
        }
    }
}

/// All 16 million if optimized; otherwise all pairs with every interesting third byte.
#[test]
fn all_sequences_of_three_bytes() {
    let reference = Reference::new();
    let every: Vec<u8> = (0..=255).collect();
    let thirds = if cfg!(debug_assertions) { &EDGES[..] } else { &every };
    for first in 0..=255 {
        for second in 0..=255 {
            for &third in thirds {
                reference.check_whole(&[first, second, third]);
            }
        }
    }
}

#[test]
fn sequences_of_four_edge_bytes() {
    let reference = Reference::new();
    let mut noise = Noise(1);
    for _ in 0..100_000 {
        let bytes: [u8; 4] = std::array::from_fn(|_| EDGES[noise.below(EDGES.len())]);
        reference.check_whole(&bytes);
        reference.check_every_cut(&bytes);
    }
    for first in 0xf0..=0xf5 {
        for second in 0x7f..=0xc0 {
            for third in [0x7f, 0x80, 0xbf, 0xc0] {
                for fourth in [0x7f, 0x80, 0xbf, 0xc0] {
                    reference.check_whole(&[first, second, third, fourth]);
                    reference.check_every_cut(&[first, second, third, fourth]);
                }
            }
        }
    }
}

#[test]
fn every_code_point() {
    let mut text = String::new();
    text.extend('\0'..=char::MAX);
    assert_eq!(validate_utf8(text.as_bytes()), Ok(()));
    for piece in [1, 3, 64, 1_021] {
        let mut stream = Utf8Stream::new();
        assert!(text.as_bytes().chunks(piece).all(|piece| stream.push(piece).is_ok()), "pieces of {piece}");
        assert_eq!(stream.finish(), Ok(()));
    }
}

#[test]
fn random_texts_with_an_invalid_byte() {
    let reference = Reference::new();
    let mut noise = Noise(2);
    let alphabet: Vec<char> =
        "abc def\u{7f}\u{80}ü\u{7ff}\u{800}世\u{d7ff}\u{e000}\u{ffff}\u{10000}🌍\u{10ffff}".chars().collect();
    for _ in 0..20_000 {
        let chars = noise.below(120);
        // Half of the texts contain a long run of ASCII, the other half mixes throughout.
        let letters = if noise.below(2) == 0 { 4 } else { alphabet.len() };
        let mut bytes = (0..chars).map(|_| alphabet[noise.below(letters)]).collect::<String>().into_bytes();
        if !bytes.is_empty() && noise.below(4) > 0 {
            let at = noise.below(bytes.len());
            bytes[at] = EDGES[noise.below(EDGES.len())];
        }
        bytes.truncate(bytes.len() - noise.below(4).min(bytes.len()));
        reference.check_whole(&bytes);
        let mut cuts =
            [noise.below(bytes.len() + 1), noise.below(bytes.len() + 1), noise.below(bytes.len() + 1)];
        cuts.sort_unstable();
        reference.check_cut(&bytes, &cuts);
    }
}

#[test]
fn error_reports_position() {
    let error = validate_utf8(b"ab\xff").unwrap_err();
    assert_eq!(error.to_string(), "invalid UTF-8 at byte 2");
    assert!(size_of::<Utf8Stream>() <= 8);
}
