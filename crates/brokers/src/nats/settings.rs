//! Settings for a connection to NATS, and for the streams that it creates.

use std::time::Duration;

use async_nats::ConnectOptions;
use async_nats::jetstream::stream;

use super::login::NatsLogin;
use crate::error::BrokerConfigError;
use crate::remote::REQUEST_TIMEOUT;
use crate::url::{BrokerUrl, FAILURE_TIMEOUT};

/// Setting names, for errors.
pub(super) const SETTINGS: [&str; 13] = [
    "credentials",
    FAILURE_TIMEOUT,
    "max.age.seconds",
    "max.bytes",
    "nkey",
    "partitions",
    "prefix",
    "queue.bytes",
    "replicas",
    "storage",
    "tls.ca",
    "tls.cert",
    "tls.key",
];

/// Duplicate window of streams created here, and the time for which an append is resent. Less if a stream retains
/// messages for a shorter time.
const DUPLICATE_WINDOW: Duration = Duration::from_secs(120);

/// Connection parameters, and the configuration of new streams.
pub(super) struct NatsSettings {
    pub(super) login: NatsLogin,
    pub(super) prefix: String,
    pub(super) partitions: u32,
    replicas: usize,
    storage: stream::StorageType,
    max_bytes: i64,
    max_age: Duration,
}

impl NatsSettings {
    pub(super) fn from_address(address: &mut BrokerUrl) -> Result<Self, BrokerConfigError> {
        let partitions = address.take_number("partitions", 1)?;
        let replicas = address.take_number("replicas", 1)?;
        let max_bytes = address.take_number("max.bytes", 0)?;
        let storage = match address.take("storage").as_deref() {
            None | Some("file") => stream::StorageType::File,
            Some("memory") => stream::StorageType::Memory,
            Some(other) => {
                return Err(address.setting_error("storage", format!("`{other}` is not file or memory")));
            }
        };
        Ok(Self {
            login: NatsLogin::from_address(address)?,
            prefix: address.take("prefix").unwrap_or_default(),
            partitions: u32::try_from(partitions)
                .map_err(|_| address.setting_error("partitions", "the number is too large"))?,
            replicas: usize::try_from(replicas)
                .map_err(|_| address.setting_error("replicas", "the number is too large"))?,
            storage,
            // JetStream uses -1 for no limit.
            max_bytes: i64::try_from(max_bytes).ok().filter(|bytes| *bytes > 0).unwrap_or(-1),
            max_age: Duration::from_secs(address.take_number("max.age.seconds", 0)?),
        })
    }

    pub(super) async fn options(&self) -> Result<ConnectOptions, String> {
        Ok(self.login.options(REQUEST_TIMEOUT).await?.ping_interval(REQUEST_TIMEOUT))
    }

    /// A JetStream stream's name and its subject. JetStream permits few characters: all except letters, digits and
    /// dashes are encoded as `_` and two hexadecimal digits.
    pub(super) fn name(&self, stream: &str, partition: u32) -> String {
        format!("{}-{partition}", escaped(&format!("{}{stream}", self.prefix)))
    }

    /// The stream whose first partition has this name, if one has.
    pub(super) fn stream_of(&self, name: &str) -> Option<String> {
        let stream = unescaped(name.strip_suffix("-0")?)?.strip_prefix(&*self.prefix)?.to_owned();
        (self.name(&stream, 0) == name).then_some(stream)
    }

    pub(super) fn duplicate_window(&self) -> Duration {
        if self.max_age.is_zero() { DUPLICATE_WINDOW } else { DUPLICATE_WINDOW.min(self.max_age) }
    }

    pub(super) fn stream(&self, name: &str) -> stream::Config {
        stream::Config {
            name: name.to_owned(),
            subjects: vec![name.to_owned()],
            storage: self.storage,
            num_replicas: self.replicas,
            max_bytes: self.max_bytes,
            max_age: self.max_age,
            duplicate_window: self.duplicate_window(),
            ..stream::Config::default()
        }
    }
}

/// The text that [`escaped`] has encoded.
fn unescaped(text: &str) -> Option<String> {
    let mut parts = text.split('_');
    let mut bytes = parts.next()?.as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).ok()
}

pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || byte == b'-' {
            escaped.push(byte.into());
        } else {
            escaped.push_str(&format!("_{byte:02x}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn names_of_first_partitions_are_decoded() {
        let mut url = BrokerUrl::parse("nats://one:1?prefix=a.", &BTreeMap::new()).unwrap();
        let settings = NatsSettings::from_address(&mut url).unwrap();
        for stream in ["chat.room", "ä_b-0", "x", "50%"] {
            assert_eq!(settings.stream_of(&settings.name(stream, 0)).as_deref(), Some(stream));
            assert_eq!(settings.stream_of(&settings.name(stream, 1)), None);
        }
        for other in ["", "-0", "x-0", "a_2e", "a_2-0", "a_2E-0", "a_zz-0", "a_ff-0", "KV_a-0"] {
            assert_eq!(settings.stream_of(other), None, "{other}");
        }
    }
}
