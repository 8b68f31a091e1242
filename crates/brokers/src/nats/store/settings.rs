//! Settings for a topic store at NATS.

use super::subjects::StoreSubjects;
use crate::error::BrokerConfigError;
use crate::nats::login::{LOGIN_SETTINGS, NatsLogin};
use crate::url::BrokerUrl;

const PORT: u16 = 4222;
const PREFIX: &str = "sinews";
/// Key streams. Each has a leader and a log of its own, and each node has a consumer for each.
const KEY_STREAMS: u64 = 4;
const KEY_STREAMS_MAX: u64 = 64;
/// Maximum copies that JetStream supports.
const REPLICAS_MAX: u64 = 5;

/// Connection parameters, and those of the streams.
pub(super) struct NatsStoreSettings {
    pub(super) login: NatsLogin,
    pub(super) subjects: StoreSubjects,
    /// Copies per stream; `None`: 3 in a cluster, otherwise 1.
    pub(super) replicas: Option<u64>,
    pub(super) key_streams: u64,
    /// The address without credentials, for logs.
    pub(super) name: String,
}

impl NatsStoreSettings {
    pub(super) fn from_address(mut address: BrokerUrl) -> Result<Self, BrokerConfigError> {
        address.default_port(PORT);
        let name = address.to_string();
        let login = NatsLogin::from_address(&mut address)?;
        let prefix = address.take("prefix").unwrap_or_else(|| PREFIX.to_owned());
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if prefix.is_empty() || prefix.len() > 32 || !prefix.bytes().all(is_plain) {
            return Err(address.setting_error("prefix", "it has 1 to 32 letters, digits and dashes"));
        }
        let replicas = match address.take_number("replicas", 0)? {
            0 => None,
            count if count <= REPLICAS_MAX => Some(count),
            _ => return Err(address.setting_error("replicas", format!("at most {REPLICAS_MAX}"))),
        };
        let key_streams = address.take_number("key.streams", KEY_STREAMS)?;
        if !(1..=KEY_STREAMS_MAX).contains(&key_streams) {
            return Err(address.setting_error("key.streams", format!("from 1 to {KEY_STREAMS_MAX}")));
        }
        let mut known = LOGIN_SETTINGS.to_vec();
        known.extend(["key.streams", "prefix", "replicas"]);
        known.sort_unstable();
        address.reject_unknown_settings(&known)?;
        Ok(Self { login, subjects: StoreSubjects { prefix }, replicas, key_streams, name })
    }
}
