//! Message sizes, and payloads that identify their messages.

use std::fs;
use std::path::Path;
use std::str::FromStr;

/// Message sizes in bytes: a number, a range, or several with weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct MessageSizes {
    parts: Vec<WeightedSize>,
    text: String,
}

#[derive(Clone, Debug, PartialEq)]
struct WeightedSize {
    from: usize,
    to: usize,
    weight: u64,
}

impl FromStr for MessageSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts: Result<Vec<WeightedSize>, String> = text.split(',').map(part).collect();
        let parts = parts?;
        if parts.iter().all(|part| part.weight == 0) {
            return Err("all weights are 0".to_owned());
        }
        Ok(Self { parts, text: text.to_owned() })
    }
}

impl std::fmt::Display for MessageSizes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

fn part(text: &str) -> Result<WeightedSize, String> {
    let (sizes, weight) = match text.split_once(':') {
        Some((sizes, weight)) => (sizes, weight.parse().map_err(|_| format!("{weight}: expected a weight"))?),
        None => (text, 1),
    };
    let (from, to) = match sizes.split_once('-') {
        Some((from, to)) => (bytes(from)?, bytes(to)?),
        None => (bytes(sizes)?, bytes(sizes)?),
    };
    if from > to {
        return Err(format!("{sizes}: expected a range"));
    }
    Ok(WeightedSize { from, to, weight })
}

fn bytes(text: &str) -> Result<usize, String> {
    let (number, shift) = match text.to_ascii_lowercase() {
        text if text.ends_with('k') => (text[..text.len() - 1].to_owned(), 10),
        text if text.ends_with('m') => (text[..text.len() - 1].to_owned(), 20),
        text => (text, 0),
    };
    let size = number.trim().parse::<usize>().ok().filter(|size| *size <= SIZE_MAX >> shift);
    size.map(|size| size << shift)
        .ok_or_else(|| format!("{text}: expected a size of up to 64m bytes, such as 64, 16k or 1m"))
}

impl MessageSizes {
    /// Selects a message size by an evenly distributed number.
    fn pick(&self, number: u64) -> usize {
        let all: u64 = self.parts.iter().map(|part| part.weight).sum();
        let mut left = (number >> 32) % all.max(1);
        for part in &self.parts {
            if left < part.weight {
                return part.from + (number & 0xFFFF_FFFF) as usize % (part.to - part.from + 1);
            }
            left -= part.weight;
        }
        self.parts[0].from
    }

    fn largest(&self) -> usize {
        self.parts.iter().map(|part| part.to).max().unwrap_or(0)
    }

    fn single(&self) -> Option<usize> {
        match &self.parts[..] {
            [one] if one.from == one.to => Some(one.from),
            _ => None,
        }
    }
}

/// All payloads in a run. A message is derived from its number alone, so that comparing an echo needs no copy.
#[derive(Clone, Debug)]
pub(crate) enum Corpus {
    /// Slices from one block, with varying start.
    Generated {
        block: Vec<u8>,
        sizes: MessageSizes,
        single: Option<usize>,
    },
    Recorded(Vec<Vec<u8>>),
}

impl Corpus {
    pub(crate) fn made(sizes: &MessageSizes, text: bool) -> Self {
        let mut seed = 0x5EED_u64;
        let mut next = || {
            seed = mix(seed);
            // Any slice of letters and digits is valid text; binary uses every byte value.
            let byte = (seed >> 40) as u8;
            if text {
                b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"[usize::from(byte & 63)]
            } else {
                byte
            }
        };
        let block = (0..sizes.largest() + OFFSETS).map(|_| next()).collect();
        Self::Generated { block, single: sizes.single(), sizes: sizes.clone() }
    }

    /// Reads a file's lines as messages.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read, has no lines, or contains invalid UTF-8 although text is
    /// required.
    pub(crate) fn recorded(path: &Path, text: bool) -> Result<Self, String> {
        let all = fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let lines: Vec<Vec<u8>> = all
            .split(|byte| *byte == b'\n')
            .map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec())
            .filter(|line| !line.is_empty())
            .collect();
        if lines.is_empty() {
            return Err(format!("{}: file has no lines to send", path.display()));
        }
        if let Some(at) = lines.iter().position(|line| text && std::str::from_utf8(line).is_err()) {
            return Err(format!("{}: message {} is not valid UTF-8; use --binary", path.display(), at + 1));
        }
        Ok(Self::Recorded(lines))
    }

    /// Returns the message with this number.
    #[inline]
    pub(crate) fn message(&self, number: u64) -> &[u8] {
        match self {
            Self::Generated { block, sizes, single } => {
                let mixed = mix(number);
                let size = single.unwrap_or_else(|| sizes.pick(mixed));
                let at = (mixed >> 13) as usize % OFFSETS;
                &block[at..at + size]
            }
            Self::Recorded(lines) => &lines[(number % lines.len() as u64) as usize],
        }
    }
}

/// Hashes a number to all bits.
#[inline]
pub(crate) fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (number ^ number >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ mixed >> 31
}

/// Possible start offsets in the block.
const OFFSETS: usize = 4096;

const SIZE_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_number_range_or_mix() {
        let of = |text: &str| {
            let sizes: MessageSizes = text.parse().unwrap();
            let all: Vec<usize> = (0..2000).map(|number| sizes.pick(mix(number))).collect();
            (
                *all.iter().min().unwrap(),
                *all.iter().max().unwrap(),
                all.iter().filter(|size| **size == 64).count(),
            )
        };
        assert_eq!(of("64"), (64, 64, 2000));
        let (least, most, _) = of("10-20");
        assert_eq!((least, most), (10, 20));
        let (least, most, small) = of("64:90,16k:10");
        assert_eq!((least, most), (64, 16 << 10));
        assert!((1700..1900).contains(&small), "{small} of 2000 are 90 %");
        for wrong in ["", "x", "9-3", "1:0", "65m", "1:x", "-3"] {
            assert!(wrong.parse::<MessageSizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn consecutive_messages_differ() {
        for text in [false, true] {
            let corpus = Corpus::made(&"16".parse().unwrap(), text);
            for number in 0..1000 {
                assert_ne!(corpus.message(number), corpus.message(number + 1));
                assert!(!text || corpus.message(number).is_ascii());
            }
        }
    }
}
