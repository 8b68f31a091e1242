//! Option values, parsed from text.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;

/// Formats of binary messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BinaryFormat {
    /// Offset, hex and characters.
    Dump,
    /// Hex in one line.
    Hex,
    /// Base64 in one line.
    Base64,
    /// Number of bytes.
    Size,
    /// The bytes unchanged.
    Raw,
}

/// A header, `Name: value`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderArg {
    pub(crate) name: String,
    pub(crate) value: String,
}

impl FromStr for HeaderArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once(':').ok_or("expected `Name: value`")?;
        Ok(Self { name: name.trim().to_owned(), value: value.trim().to_owned() })
    }
}

/// `HOST:PORT:ADDR`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResolveArg {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) address: IpAddr,
}

impl FromStr for ResolveArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || "expected host, port and address, such as example.com:443:127.0.0.1".to_owned();
        let (host, rest) = split_host(text).ok_or_else(fault)?;
        let (port, address) = rest.split_once(':').ok_or_else(fault)?;
        let address = address.trim_matches(['[', ']']).parse().map_err(|_| fault())?;
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| fault())?, address })
    }
}

/// `HOST:PORT:HOST:PORT`, as in curl; an empty part keeps the URL's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectTo {
    pub(crate) from: (String, Option<u16>),
    pub(crate) to: (String, Option<u16>),
}

impl FromStr for ConnectTo {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || "expected two hosts with ports, such as example.com:443:localhost:8443".to_owned();
        let port = |text: &str| match text {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| fault()),
        };
        let (from, rest) = split_host(text).ok_or_else(fault)?;
        let (from_port, rest) = rest.split_once(':').ok_or_else(fault)?;
        let (to, to_port) = split_host(rest).ok_or_else(fault)?;
        Ok(Self { from: (from.to_owned(), port(from_port)?), to: (to.to_owned(), port(to_port)?) })
    }
}

/// Splits off a name or an address, in brackets if it contains colons, from the text after the next colon.
fn split_host(text: &str) -> Option<(&str, &str)> {
    match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            Some((host, rest.strip_prefix(':')?))
        }
        None => text.split_once(':'),
    }
}

/// Message delimiter in a pipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delimiter(pub(crate) Vec<u8>);

impl FromStr for Delimiter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut bytes = Vec::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if c != '\\' {
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                continue;
            }
            bytes.push(match chars.next() {
                Some('n') => b'\n',
                Some('r') => b'\r',
                Some('t') => b'\t',
                Some('0') => 0,
                Some('\\') => b'\\',
                Some('x') => {
                    let digits: String = chars.by_ref().take(2).collect();
                    u8::from_str_radix(&digits, 16).map_err(|_| "expected two hex digits after \\x")?
                }
                _ => return Err("expected n, r, t, 0, \\ or two hex digits (xff) after \\".to_owned()),
            });
        }
        if bytes.is_empty() { Err("expected at least one byte".to_owned()) } else { Ok(Self(bytes)) }
    }
}

/// Replay speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Speed {
    Times(f64),
    Max,
}

impl Speed {
    /// Returns an event's replay time, from its recorded time since the start.
    pub(crate) fn scale(self, at: Duration) -> Duration {
        match self {
            Self::Max => Duration::ZERO,
            // The factor is at least 0.001; longer recordings are clamped.
            Self::Times(factor) => {
                Duration::try_from_secs_f64(at.as_secs_f64() / factor).unwrap_or(Duration::MAX)
            }
        }
    }
}

impl FromStr for Speed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "max" {
            return Ok(Self::Max);
        }
        match text.strip_suffix('x').unwrap_or(text).parse() {
            Ok(factor) if (0.001..=1e6).contains(&factor) => Ok(Self::Times(factor)),
            _ => Err("expected a factor such as 2x or 0.5x, from 0.001x to 1000000x, or max".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_parse_with_names_and_addresses() {
        let resolve = |text: &str| {
            text.parse().map(|ResolveArg { host, port, address }| (host, port, address.to_string()))
        };
        assert_eq!(resolve("a.b:443:127.0.0.1"), Ok(("a.b".into(), 443, "127.0.0.1".into())));
        assert_eq!(resolve("[::1]:80:[::2]"), Ok(("::1".into(), 80, "::2".into())));
        for bad in ["", "a", "a:1", "a:x:1.2.3.4", "a:1:b"] {
            assert!(resolve(bad).is_err(), "{bad}");
        }
        let to = |text: &str| text.parse().map(|ConnectTo { from, to }| (from, to));
        assert_eq!(to("a:1:b:2"), Ok((("a".into(), Some(1)), ("b".into(), Some(2)))));
        assert_eq!(to("::[::1]:2"), Ok(((String::new(), None), ("::1".into(), Some(2)))));
        for bad in ["", "a:1", "a:1:b", "a:x:b:2"] {
            assert!(to(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn delimiters_parse_into_bytes() {
        let bytes = |text: &str| text.parse().map(|Delimiter(bytes)| bytes);
        assert_eq!(bytes("\\r\\n"), Ok(b"\r\n".to_vec()));
        assert_eq!(bytes("\\0\\xff;\\\\"), Ok(b"\0\xff;\\".to_vec()));
        for bad in ["", "\\", "\\y", "\\xg1"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn speed_scales_replay_times() {
        let at = Duration::from_secs(3);
        let scaled = |text: &str| text.parse().map(|speed: Speed| speed.scale(at).as_millis());
        assert_eq!(scaled("2x"), Ok(1500));
        assert_eq!(scaled("0.5"), Ok(6000));
        assert_eq!(scaled("max"), Ok(0));
        for bad in ["", "0x", "-1x", "fast", "infx", "NaN"] {
            assert!(scaled(bad).is_err(), "{bad}");
        }
    }
}
