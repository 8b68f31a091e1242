//! Numbers with units, parsed from text.

use std::fmt;
use std::time::Duration;

use sinews_hub::check_pattern;
use sinews_stream::Fsync;

use super::value::{Scalar, scalar};

/// A byte count, with `k`, `m` and `g` for KiB, MiB and GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ByteSize(pub(crate) usize);

/// Queue memory limit: a byte count, a share of the available memory, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryLimit {
    Bytes(usize),
    Percent(u8),
    Off,
}

/// A duration: a number with the unit `ms`, `s`, `m`, `h` or `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DurationSetting(pub(crate) Duration);

/// A duration above zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PositiveDuration(pub(crate) Duration);

/// A duration above zero, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DurationOrOff(pub(crate) Option<Duration>);

/// Stream sync policy: `batch`, `never`, or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FsyncPolicy(pub(crate) Fsync);

impl std::str::FromStr for FsyncPolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(Self(match text {
            "batch" => Fsync::Batch,
            "never" => Fsync::Never,
            _ => {
                let wait = text.parse().map_err(|why| format!("{why}; or batch, or never"))?;
                let PositiveDuration(wait) = wait;
                Fsync::Interval(wait)
            }
        }))
    }
}

/// A message count, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MessagesOrOff(pub(crate) usize);

impl std::str::FromStr for MessagesOrOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("off", _) => Ok(Self(0)),
            (_, Ok(messages)) if messages > 0 => Ok(Self(messages)),
            _ => Err("expected a number of messages of at least 1, or off".to_owned()),
        }
    }
}

/// A topic pattern, and how many messages each topic retains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HistorySetting {
    pub(crate) pattern: String,
    pub(crate) messages: usize,
}

impl std::str::FromStr for HistorySetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, messages) =
            text.rsplit_once('=').ok_or("expected a pattern and a number, such as chat.>=100")?;
        check_pattern(pattern)
            .map_err(|error| format!("{pattern:?} is not a valid topic pattern: {error}"))?;
        match messages.parse() {
            Ok(messages) if messages > 0 => Ok(Self { pattern: pattern.to_owned(), messages }),
            _ => Err(format!("{messages:?} is not a number of messages of at least 1")),
        }
    }
}

impl std::str::FromStr for ByteSize {
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
            let ByteSize(bytes) = bytes;
            return Ok(Self::Bytes(bytes));
        };
        match percent.parse() {
            Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
            _ => Err("a share of memory is a whole number from 1% to 100%".to_owned()),
        }
    }
}

impl std::str::FromStr for DurationSetting {
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

impl std::str::FromStr for PositiveDuration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let DurationSetting(wait) = text.parse()?;
        if wait.is_zero() { Err("must be longer than zero".to_owned()) } else { Ok(Self(wait)) }
    }
}

impl std::str::FromStr for DurationOrOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        text.parse().map(|PositiveDuration(wait)| Self(Some(wait)))
    }
}

/// Longer suffixes come first.
const UNITS: [(&str, u64); 5] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// A value that may be a secret: it is never printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Redacted(pub(crate) String);

impl From<String> for Redacted {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Redacted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Hidden")
    }
}

impl Scalar for Redacted {
    type Setting = Self;

    const PLACEHOLDER: &'static str = "SECRET";
    const IS_SECRET: bool = true;

    fn expected() -> String {
        "a string".to_owned()
    }

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Self(text.to_owned()))
    }

    fn setting(self) -> Self {
        self
    }
}

scalar!(
    ByteSize => usize, NumberOrText, "BYTES",
    "a number of bytes of at least 1, such as 65536, \"64k\" or \"16m\"",
    |ByteSize(bytes)| bytes
);
scalar!(
    MemoryLimit => Self, NumberOrText, "BYTES",
    "a number of bytes such as 1073741824, \"512m\" or \"4g\", a share of memory such as \"50%\", or \"off\"",
    |limit| limit
);
scalar!(
    DurationSetting => Duration, Text, "TIME",
    "a string with a number and a unit, such as \"30s\" or \"1m\"",
    |DurationSetting(wait)| wait
);
scalar!(
    PositiveDuration => Duration, Text, "TIME",
    "a string with a number and a unit, longer than zero, such as \"30s\"",
    |PositiveDuration(wait)| wait
);
scalar!(
    DurationOrOff => Option<Duration>, Text, "TIME",
    "a string with a number and a unit, longer than zero, such as \"30s\" or \"7d\", or \"off\"",
    |DurationOrOff(wait)| wait
);
scalar!(
    FsyncPolicy => Fsync, Text, "WHEN",
    "\"batch\", \"never\" or a string with a number and a unit, longer than zero, such as \"100ms\"",
    |FsyncPolicy(fsync)| fsync
);
scalar!(
    MessagesOrOff => usize, NumberOrText, "N",
    "a number of messages of at least 1, or \"off\"",
    |MessagesOrOff(messages)| messages
);
scalar!(
    HistorySetting => Self, Text, "PATTERN=N",
    "a pattern of topics and a number of messages such as \"chat.>=100\"",
    |history| history
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_parse_with_units() {
        let bytes = |text: &str| text.parse().map(|ByteSize(bytes)| bytes);
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
        let sync = |text: &str| text.parse().map(|FsyncPolicy(sync)| sync);
        assert_eq!(sync("batch"), Ok(Fsync::Batch));
        assert_eq!(sync("never"), Ok(Fsync::Never));
        assert_eq!(sync("100ms"), Ok(Fsync::Interval(Duration::from_millis(100))));
        for bad in ["", "0s", "always", "5"] {
            assert!(sync(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_parse_with_units() {
        let ms = |text: &str| text.parse().map(|DurationSetting(wait)| wait.as_millis());
        assert_eq!(ms("500ms"), Ok(500));
        assert_eq!(ms("0s"), Ok(0));
        assert_eq!(ms("90s"), Ok(90_000));
        assert_eq!(ms("5m"), Ok(300_000));
        assert_eq!(ms("1h"), Ok(3_600_000));
        assert_eq!(ms("7d"), Ok(604_800_000));
        assert!("0s".parse::<PositiveDuration>().is_err() && "0ms".parse::<DurationOrOff>().is_err());
        assert_eq!("1s".parse(), Ok(PositiveDuration(Duration::from_secs(1))));
        assert_eq!("off".parse(), Ok(DurationOrOff(None)));
        assert_eq!("1s".parse(), Ok(DurationOrOff(Some(Duration::from_secs(1)))));
        for bad in ["", "1", "s", "-1s", "1.5h", "1 s", "99999999999999999999s", "18446744073709551615d"] {
            assert!(ms(bad).is_err(), "{bad}");
        }
    }
}
