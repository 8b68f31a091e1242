//! Inputs that have triggered faults in other projects.

/// Classification of a byte sequence as UTF-8.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Valid as a whole.
    Valid,
    /// The byte at this offset is invalid in any text with the preceding bytes.
    Impossible(usize),
    /// Valid so far, but incomplete.
    Incomplete,
}

/// Classifies `bytes` only by the table in RFC 3629 section 4.
#[must_use]
pub fn verdict(bytes: &[u8]) -> Verdict {
    // Missing continuation bytes, and the next byte's range.
    let mut missing = 0;
    let (mut low, mut high) = (0x80, 0xbf);
    for (at, &byte) in bytes.iter().enumerate() {
        if missing > 0 {
            if !(low..=high).contains(&byte) {
                return Verdict::Impossible(at);
            }
            missing -= 1;
            (low, high) = (0x80, 0xbf);
            continue;
        }
        (missing, low, high) = match byte {
            0x00..=0x7f => (0, 0x80, 0xbf),
            0xc2..=0xdf => (1, 0x80, 0xbf),
            0xe0 => (2, 0xa0, 0xbf),
            0xed => (2, 0x80, 0x9f),
            0xe1..=0xef => (2, 0x80, 0xbf),
            0xf0 => (3, 0x90, 0xbf),
            0xf1..=0xf3 => (3, 0x80, 0xbf),
            0xf4 => (3, 0x80, 0x8f),
            _ => return Verdict::Impossible(at),
        };
    }
    if missing > 0 { Verdict::Incomplete } else { Verdict::Valid }
}

/// The sequences of Markus Kuhn's UTF-8 stress test in the 19 groups and the order that Autobahn's cases
/// 6.5 to 6.23 use.
#[must_use]
pub fn kuhn() -> Vec<Vec<Vec<u8>>> {
    let greek = "\u{3ba}\u{1f79}\u{3c3}\u{3bc}\u{3b5}".as_bytes();
    let prefixes = (1..=greek.len()).map(|len| greek[..len].to_vec()).collect();
    let lonely = [(0xc0, 0xdf), (0xe0, 0xef), (0xf0, 0xf7), (0xf8, 0xfb), (0xfc, 0xfd)]
        .map(|(from, to): (u8, u8)| (from..to).flat_map(|start| [start, b' ']).collect());
    let cut = hex("c0 e080 f08080 f8808080 fc80808080 df efbf f7bfbf fbbfbfbf fdbfbfbfbf");
    let mut continuations = hex("80 bf 80bf 80bf80 80bf80bf 80bf80bf80 80bf80bf80bf");
    continuations.push((0x80..0xbf).collect());
    let mut correct = ["hello\u{24}world", "hello\u{a2}world", "hello\u{20ac}world", "hello\u{24b62}world"]
        .map(|text| text.as_bytes().to_vec())
        .to_vec();
    correct.push(greek.to_vec());
    vec![
        correct,
        prefixes,
        hex("00 c280 e0a080 f0908080"),
        hex("f888808080 fc8480808080"),
        hex("7f dfbf efbfbf f48fbfbf"),
        hex("f7bfbfbf fbbfbfbfbf fdbfbfbfbfbf"),
        hex("ed9fbf ee8080 efbfbd f48fbfbf f4908080"),
        continuations,
        lonely.to_vec(),
        cut.clone(),
        vec![cut.concat()],
        hex("fe ff fefeffff"),
        hex("c0af e080af f08080af f8808080af fc80808080af"),
        hex("c1bf e09fbf f08fbfbf f887bfbfbf fc83bfbfbfbf"),
        hex("c080 e08080 f0808080 f880808080 fc8080808080"),
        hex("eda080 edadbf edae80 edafbf edb080 edbe80 edbfbf"),
        hex("eda080edb080 eda080edbfbf edadbfedb080 edadbfedbfbf \
             edae80edb080 edae80edbfbf edafbfedb080 edafbfedbfbf"),
        non_characters(),
        hex("efbfb9 efbfba efbfbb efbfbc efbfbd efbfbe efbfbf"),
    ]
}

/// The last two code points of each plane, which are noncharacters and yet valid.
fn non_characters() -> Vec<Vec<u8>> {
    let mut sequences = hex("efbfbe efbfbf");
    for plane in 1..=16_u32 {
        for last in [0xfffe, 0xffff] {
            let character = char::from_u32(plane << 16 | last).expect("within Unicode, and no surrogate");
            sequences.push(character.to_string().into_bytes());
        }
    }
    sequences
}

/// Close codes that are valid on the wire, at their range edges, including all registered codes.
pub const CLOSE_CODES_VALID: [u16; 16] =
    [1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014, 3000, 3999, 4000, 4999];

/// Close codes that are invalid on the wire.
pub const CLOSE_CODES_INVALID: [u16; 13] =
    [0, 1, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535];

/// Payload lengths around all thresholds: header forms, vectors, blocks, this workspace's buffers.
pub const LENGTHS: [usize; 27] = [
    0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 63, 64, 65, 124, 125, 126, 127, 128, 255, 256, 1024, 4096,
    65_535, 65_536, 65_537,
];

/// Absurd frame lengths.
pub const LENGTHS_ABSURD: [u64; 5] = [1 << 62, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, u64::MAX];

/// Parses byte strings in hexadecimal, separated by spaces.
///
/// # Panics
/// If the text is not hexadecimal.
#[must_use]
pub fn hex(text: &str) -> Vec<Vec<u8>> {
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).expect("ASCII");
        u8::from_str_radix(pair, 16).expect("hexadecimal")
    };
    text.split_whitespace().map(|word| word.as_bytes().chunks(2).map(byte).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stress_list_has_the_shape_of_autobahn() {
        let groups: Vec<usize> = kuhn().iter().map(Vec::len).collect();
        assert_eq!(groups, [5, 11, 4, 2, 4, 3, 5, 8, 5, 10, 1, 3, 5, 5, 5, 7, 8, 34, 7]);
        let valid = kuhn().concat().iter().filter(|bytes| verdict(bytes) == Verdict::Valid).count();
        assert_eq!(valid, 63);
    }

    #[test]
    fn the_verdict_agrees_with_the_standard_library() {
        for bytes in kuhn().concat() {
            let expected = match std::str::from_utf8(&bytes) {
                Ok(_) => Verdict::Valid,
                Err(error) if error.error_len().is_none() => Verdict::Incomplete,
                Err(error) => {
                    // It includes the broken sequence's valid bytes; an invalid first byte counts as one.
                    let start = error.valid_up_to();
                    let starts = std::str::from_utf8(&bytes[start..=start]);
                    let good = starts.is_err_and(|first| first.error_len().is_none());
                    Verdict::Impossible(start + if good { error.error_len().unwrap_or(0) } else { 0 })
                }
            };
            assert_eq!(verdict(&bytes), expected, "{bytes:x?}");
        }
    }
}
