//! Numbers with units, parsed from text.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};
use sinews_stream::Fsync;

use crate::auth::pattern;

/// A number of bytes, with `k`, `m` and `g` for KiB, MiB and GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) usize);

/// Memory limit of queues: a number of bytes, a share of the available memory, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    Bytes(usize),
    Percent(u8),
    Off,
}

/// A duration: a number with the unit `ms`, `s`, `m`, `h` or `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait(pub(crate) Duration);

/// A duration above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SomeWait(pub(crate) Duration);

/// A duration above zero, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitOrOff(pub(crate) Option<Duration>);

/// Sync policy of streams: `batch`, `never`, or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FsyncWhen(pub(crate) Fsync);

impl std::str::FromStr for FsyncWhen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "batch" => Fsync::Batch,
            "never" => Fsync::Never,
            _ => {
                let wait = text.parse().map_err(|why| format!("{why}; or batch, or never"))?;
                let SomeWait(wait) = wait;
                Fsync::Interval(wait)
            }
        }))
    }
}

impl<'de> Deserialize<'de> for FsyncWhen {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A pattern of topics, and the number of messages that each retains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) pattern: String,
    pub(crate) messages: usize,
}

impl std::str::FromStr for Keep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, messages) =
            text.rsplit_once('=').ok_or("expected a pattern and a number, such as chat.>=100")?;
        if !pattern::is_valid(pattern) {
            return Err(format!("{pattern:?} is not a valid topic pattern"));
        }
        match messages.parse() {
            Ok(messages) if messages > 0 => Ok(Self { pattern: pattern.to_owned(), messages }),
            _ => Err(format!("{messages:?} is not a number of messages of at least 1")),
        }
    }
}

impl<'de> Deserialize<'de> for Keep {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl std::str::FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = match text.as_bytes().last() {
            Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
            Some(b'm' | b'M') => (&text[..text.len() - 1], 1 << 20),
            Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
            _ => (text, 1),
        };
        let number: usize =
            digits.parse().map_err(|_| "expected a number of bytes such as 65536, 64k or 16m")?;
        match number.checked_mul(unit) {
            Some(0) | None => Err("must be at least 1 byte and fit this machine".to_owned()),
            Some(bytes) => Ok(Self(bytes)),
        }
    }
}

impl std::str::FromStr for MemoryLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let Some(percent) = text.strip_suffix('%') else {
            let bytes =
                text.parse().map_err(|why| format!("{why}; or a share of memory such as 50%, or off"))?;
            let Bytes(bytes) = bytes;
            return Ok(Self::Bytes(bytes));
        };
        match percent.parse() {
            Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
            _ => Err("a share of memory is a whole number from 1% to 100%".to_owned()),
        }
    }
}

impl std::str::FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, ms) = UNITS
            .iter()
            .find_map(|(unit, ms)| Some((text.strip_suffix(unit)?, ms)))
            .ok_or("expected a number and a unit, such as 500ms, 30s, 5m, 1h or 7d")?;
        let number: u64 =
            digits.parse().map_err(|_| "expected a whole number before the unit, such as 90s")?;
        let total = number.checked_mul(*ms).ok_or("too long")?;
        Ok(Self(Duration::from_millis(total)))
    }
}

impl std::str::FromStr for SomeWait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Wait(wait) = text.parse()?;
        if wait.is_zero() { Err("must be longer than zero".to_owned()) } else { Ok(Self(wait)) }
    }
}

impl std::str::FromStr for WaitOrOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        text.parse().map(|SomeWait(wait)| Self(Some(wait)))
    }
}

/// Longer suffixes come first.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A number, or a string with a number and a unit.
#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(usize),
    Text(String),
}

impl NumberOrText {
    fn into_text(self) -> String {
        match self {
            Self::Number(number) => number.to_string(),
            Self::Text(text) => text,
        }
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NumberOrText::deserialize(deserializer)?.into_text().parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for MemoryLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        NumberOrText::deserialize(deserializer)?.into_text().parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for SomeWait {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

impl<'de> Deserialize<'de> for WaitOrOff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// One value, or a list of values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OneOrMore<T>(pub(crate) Vec<T>);

impl<T> Default for OneOrMore<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OneOrMore<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written<T> {
            One(T),
            List(Vec<T>),
        }
        Ok(Self(match Written::deserialize(deserializer)? {
            Written::One(one) => vec![one],
            Written::List(list) => list,
        }))
    }
}

/// A value that may be a secret: it is never printed.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub(crate) struct Hidden(pub(crate) String);

impl From<String> for Hidden {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_parse_with_units() {
        let bytes = |text: &str| text.parse().map(|Bytes(bytes)| bytes);
        assert_eq!(bytes("65536"), Ok(65_536));
        assert_eq!(bytes("64k"), Ok(65_536));
        assert_eq!(bytes("16M"), Ok(16 << 20));
        assert_eq!(bytes("2g"), Ok(2 << 30));
        for bad in ["", "k", "0", "-1", "1x", "99999999999999999999m", "1.5m"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn memory_limits_parse_as_bytes_share_or_off() {
        let limit = |text: &str| text.parse::<MemoryLimit>();
        assert_eq!(limit("50%"), Ok(MemoryLimit::Percent(50)));
        assert_eq!(limit("4g"), Ok(MemoryLimit::Bytes(4 << 30)));
        assert_eq!(limit("off"), Ok(MemoryLimit::Off));
        for bad in ["", "0%", "101%", "1.5%", "%", "-1%", "0", "none"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sync_policies_parse_as_names_or_durations() {
        let sync = |text: &str| text.parse().map(|FsyncWhen(sync)| sync);
        assert_eq!(sync("batch"), Ok(Fsync::Batch));
        assert_eq!(sync("never"), Ok(Fsync::Never));
        assert_eq!(sync("100ms"), Ok(Fsync::Interval(Duration::from_millis(100))));
        for bad in ["", "0s", "always", "5"] {
            assert!(sync(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_parse_with_units() {
        let ms = |text: &str| text.parse().map(|Wait(wait)| wait.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("0s"), Ok(0));
        assert_eq!(ms("90s"), Ok(90_000));
        assert_eq!(ms("5m"), Ok(300_000));
        assert_eq!(ms("1h"), Ok(3_600_000));
        assert_eq!(ms("7d"), Ok(604_800_000));
        assert!("0s".parse::<SomeWait>().is_err() && "0ms".parse::<WaitOrOff>().is_err());
        assert_eq!("1s".parse(), Ok(SomeWait(Duration::from_secs(1))));
        assert_eq!("off".parse(), Ok(WaitOrOff(None)));
        assert_eq!("1s".parse(), Ok(WaitOrOff(Some(Duration::from_secs(1)))));
        for bad in ["", "1", "s", "-1s", "1.5h", "1 s", "99999999999999999999s", "18446744073709551615d"] {
            assert!(ms(bad).is_err(), "{bad}");
        }
    }
}
