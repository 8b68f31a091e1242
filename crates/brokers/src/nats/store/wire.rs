//! JetStream's answers, and message headers.

use std::time::{Duration, Instant};

use async_nats::{HeaderMap, HeaderValue, Message};
use serde::Deserialize;
use sinews_store::StoreError;

pub(super) const MSG_ID: &str = "Nats-Msg-Id";
pub(super) const EXPECTED_LAST: &str = "Nats-Expected-Last-Subject-Sequence";
pub(super) const SEQUENCE: &str = "Nats-Sequence";
pub(super) const LAST_SEQUENCE: &str = "Nats-Last-Sequence";
pub(super) const TIME_STAMP: &str = "Nats-Time-Stamp";
pub(super) const SUBJECT: &str = "Nats-Subject";
pub(super) const PENDING: &str = "Nats-Num-Pending";
pub(super) const UP_TO: &str = "Nats-UpTo-Sequence";

/// The expected sequence differs.
const WRONG_LAST: u64 = 10_071;
/// Another message of the subject, or with the same id, is in flight.
const IN_FLIGHT: [u64; 2] = [10_164, 10_158];
/// The expected id differs.
const WRONG_LAST_ID: u64 = 10_070;
pub(super) const STREAM_NOT_FOUND: u64 = 10_059;
pub(super) const NO_MESSAGE: u64 = 10_037;

/// Time for which an observation of the server's clock is not replaced by a later one.
const CLOCK_AGE: Duration = Duration::from_secs(60);
/// A JetStream error.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct JetStreamError {
    pub(super) code: u64,
    #[serde(default)]
    pub(super) err_code: u64,
    #[serde(default)]
    pub(super) description: String,
}

impl JetStreamError {
    /// The stream has another state than the message expects, or may have.
    pub(super) fn is_conflict(&self) -> bool {
        self.is_in_flight() || matches!(self.err_code, WRONG_LAST | WRONG_LAST_ID)
    }

    /// The same message may be accepted a moment later.
    pub(super) fn is_in_flight(&self) -> bool {
        IN_FLIGHT.contains(&self.err_code)
    }

    /// The error for an operation without an effect.
    pub(super) fn store_error(&self) -> StoreError {
        let text = format!("NATS: {} ({})", self.description, self.err_code);
        // Without a leader, without resources for now: the same operation may succeed later.
        if self.code >= 500 || self.code == 429 {
            StoreError::Away(text.into())
        } else {
            StoreError::Rejected(text.into())
        }
    }
}

/// An answer, or an error.
#[derive(Deserialize)]
pub(super) struct JetStreamAnswer<T> {
    error: Option<JetStreamError>,
    #[serde(flatten)]
    value: Option<T>,
}

impl<T: serde::de::DeserializeOwned> JetStreamAnswer<T> {
    pub(super) fn parse(payload: &[u8]) -> Result<T, JetStreamError> {
        let unreadable = |description| JetStreamError { code: 500, err_code: 0, description };
        match serde_json::from_slice::<Self>(payload) {
            Ok(Self { error: Some(error), .. }) => Err(error),
            Ok(Self { value: Some(value), .. }) => Ok(value),
            Ok(_) => Err(unreadable("an answer lacks fields".to_owned())),
            Err(error) => Err(unreadable(format!("an answer is unreadable: {error}"))),
        }
    }
}

/// Acknowledges a message.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct PubAck {
    pub(super) seq: u64,
    #[serde(default)]
    pub(super) duplicate: bool,
}

/// Describes a stream.
#[derive(Debug, Deserialize)]
pub(super) struct JetStreamInfo {
    pub(super) config: serde_json::Value,
    pub(super) created: String,
    pub(super) state: JetStreamState,
    /// The server's time.
    pub(super) ts: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct JetStreamState {
    pub(super) last_seq: u64,
}

pub(super) fn header<'a>(message: &'a Message, name: &'static str) -> Option<&'a str> {
    message.headers.as_ref()?.get(name).map(HeaderValue::as_str)
}

pub(super) fn number(message: &Message, name: &'static str) -> Option<u64> {
    header(message, name)?.parse().ok()
}

/// The time when a message was stored, in microseconds since 1970.
pub(super) fn stored_at(message: &Message) -> Option<u64> {
    micros(header(message, TIME_STAMP)?)
}

pub(super) fn status(message: &Message) -> u16 {
    message.status.map_or(200, |status| status.as_u16())
}

pub(super) fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.insert(*name, *value);
    }
    headers
}

/// Microseconds since 1970 for a time in UTC (RFC 3339), as Go prints it.
pub(super) fn micros(text: &str) -> Option<u64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(|part| part.parse::<u64>().ok());
    let (year, month, day) = (date.next()??, date.next()??, date.next()??);
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let mut time = time.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    let micros: u64 = format!("{fraction:0<6}").get(..6)?.parse().ok()?;
    // Days since 1970-01-01 in the Gregorian calendar, whose years begin in March here.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(((days * 24 + hour) * 60 + minute) * 60_000_000 + second * 1_000_000 + micros)
}

/// The server's clock, as it was last observed. Nodes' clocks may be wrong.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerClock {
    micros: u64,
    at: Instant,
}

impl ServerClock {
    pub(super) fn observed(micros: u64) -> Self {
        Self { micros, at: Instant::now() }
    }

    /// Whether another observation was less late. The server's clock may have been set back since an old one.
    pub(super) fn is_behind(&self, other: &Self) -> bool {
        self.now() < other.now() || self.at.elapsed() > CLOCK_AGE
    }

    /// Its time in microseconds since 1970.
    pub(super) fn now(&self) -> u64 {
        self.micros.saturating_add(as_micros(self.at.elapsed()))
    }
}

pub(super) fn as_micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_observation_of_the_clock_is_worse() {
        let hour = 3_600_000_000;
        let clock = ServerClock::observed(hour);
        assert!(clock.is_behind(&ServerClock::observed(2 * hour)));
        assert!(!clock.is_behind(&ServerClock::observed(hour - 1_000_000)));
    }

    #[test]
    fn times_are_parsed() {
        assert_eq!(micros("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(micros("2026-11-30T16:07:17.868766123Z"), Some(1_796_054_837_868_766));
        assert_eq!(micros("2024-02-29T23:59:59.5Z"), Some(1_709_251_199_500_000));
        for invalid in
            ["", "2026-11-30T16:07:17+01:00", "2026-13-01T00:00:00Z", "1969-01-01T00:00:00Z", "xT1Z"]
        {
            assert_eq!(micros(invalid), None, "{invalid}");
        }
    }

    #[test]
    fn errors_are_told_from_answers() {
        let ack = JetStreamAnswer::<PubAck>::parse(br#"{"stream":"s","seq":7,"duplicate":true}"#).unwrap();
        assert_eq!((ack.seq, ack.duplicate), (7, true));
        let error = br#"{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"s","seq":0}"#;
        let error = JetStreamAnswer::<PubAck>::parse(error).unwrap_err();
        assert!(error.is_conflict() && !error.is_in_flight());
        assert!(matches!(error.store_error(), StoreError::Rejected(_)));
        assert!(
            JetStreamAnswer::<PubAck>::parse(b"{}").is_err()
                && JetStreamAnswer::<PubAck>::parse(b"x").is_err()
        );
    }
}
