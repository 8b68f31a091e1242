//! librdkafka settings: permitted settings, and the defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use sinews_stream::record::ValueKind;

use crate::error::BrokerConfigError;
use crate::url::BrokerUrl;

const PORT: u16 = 9092;

/// The clients that a setting applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClientKind {
    Both,
    Producer,
    Consumer,
}

/// Permitted settings, by librdkafka's names. Excluded are settings that the bridge relies on (acknowledgements,
/// idempotence, offsets), callbacks, and features missing in the build.
const PERMITTED: [(&str, ClientKind); 53] = [
    ("allow.auto.create.topics", ClientKind::Consumer),
    ("batch.num.messages", ClientKind::Producer),
    ("batch.size", ClientKind::Producer),
    ("broker.address.family", ClientKind::Both),
    ("broker.address.ttl", ClientKind::Both),
    ("check.crcs", ClientKind::Consumer),
    ("client.dns.lookup", ClientKind::Both),
    ("client.id", ClientKind::Both),
    ("client.rack", ClientKind::Both),
    ("compression.level", ClientKind::Producer),
    ("compression.type", ClientKind::Producer),
    ("connections.max.idle.ms", ClientKind::Both),
    ("enable.ssl.certificate.verification", ClientKind::Both),
    ("fetch.max.bytes", ClientKind::Consumer),
    ("fetch.message.max.bytes", ClientKind::Consumer),
    ("fetch.min.bytes", ClientKind::Consumer),
    ("fetch.wait.max.ms", ClientKind::Consumer),
    ("isolation.level", ClientKind::Consumer),
    ("linger.ms", ClientKind::Producer),
    ("max.in.flight.requests.per.connection", ClientKind::Both),
    ("message.max.bytes", ClientKind::Both),
    ("message.timeout.ms", ClientKind::Producer),
    ("metadata.max.age.ms", ClientKind::Both),
    ("queue.buffering.max.kbytes", ClientKind::Producer),
    ("queue.buffering.max.messages", ClientKind::Producer),
    ("queued.max.messages.kbytes", ClientKind::Consumer),
    ("queued.min.messages", ClientKind::Consumer),
    ("receive.message.max.bytes", ClientKind::Both),
    ("reconnect.backoff.max.ms", ClientKind::Both),
    ("reconnect.backoff.ms", ClientKind::Both),
    ("request.timeout.ms", ClientKind::Producer),
    ("retry.backoff.max.ms", ClientKind::Both),
    ("retry.backoff.ms", ClientKind::Both),
    ("sasl.mechanism", ClientKind::Both),
    ("sasl.password", ClientKind::Both),
    ("sasl.username", ClientKind::Both),
    ("security.protocol", ClientKind::Both),
    ("socket.connection.setup.timeout.ms", ClientKind::Both),
    ("socket.keepalive.enable", ClientKind::Both),
    ("socket.nagle.disable", ClientKind::Both),
    ("socket.receive.buffer.bytes", ClientKind::Both),
    ("socket.send.buffer.bytes", ClientKind::Both),
    ("socket.timeout.ms", ClientKind::Both),
    ("ssl.ca.location", ClientKind::Both),
    ("ssl.certificate.location", ClientKind::Both),
    ("ssl.cipher.suites", ClientKind::Both),
    ("ssl.crl.location", ClientKind::Both),
    ("ssl.endpoint.identification.algorithm", ClientKind::Both),
    ("ssl.key.location", ClientKind::Both),
    ("ssl.key.password", ClientKind::Both),
    ("ssl.keystore.location", ClientKind::Both),
    ("ssl.keystore.password", ClientKind::Both),
    ("topic.metadata.refresh.interval.ms", ClientKind::Both),
];

/// The bridge's settings, in addition to librdkafka's.
const PREFIX: &str = "prefix";
const KIND: &str = "kind";

/// Configuration from which the threads create their clients.
#[derive(Clone)]
pub(super) struct Config {
    producer: ClientConfig,
    consumer: ClientConfig,
    /// Prefix of each stream and group name.
    pub(super) prefix: String,
    /// Kind of values whose producer does not declare one.
    pub(super) kind: ValueKind,
    /// Maximum message size, key included.
    pub(super) message_bytes_max: usize,
    pub(super) name: String,
    pub(super) failure_timeout: Duration,
}

impl Config {
    pub(super) fn from_url(mut address: BrokerUrl) -> Result<Self, BrokerConfigError> {
        address.default_port(PORT);
        let prefix = address.take(PREFIX).unwrap_or_default();
        let kind = kind_of(&mut address)?;
        let failure_timeout = address.take_failure_timeout()?;
        let mut set = url_settings(&mut address)?;
        for (name, value) in std::mem::take(&mut address.settings) {
            if !PERMITTED.iter().any(|(permitted, _)| *permitted == name) {
                return Err(address.setting_error(&name, rejection_reason(&name)));
            }
            set.insert(name, value);
        }
        let producer = client_config(&PRODUCER, &set, ClientKind::Producer);
        let consumer = client_config(&CONSUMER, &set, ClientKind::Consumer);
        let number = |name: &str| {
            producer
                .get(name)
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| address.setting_error(name, "not a whole number"))
        };
        let message_bytes_max = number("message.max.bytes")?;
        let name = address.to_string();
        let config = Self { producer, consumer, prefix, kind, message_bytes_max, name, failure_timeout };
        config.check(&address, &set)?;
        Ok(config)
    }

    /// Checks each value with librdkafka, one setting at a time, so that the error names the setting.
    fn check(&self, address: &BrokerUrl, set: &BTreeMap<String, String>) -> Result<(), BrokerConfigError> {
        for (name, value) in set {
            if let Err(rdkafka::error::KafkaError::ClientConfig(_, reason, ..)) =
                ClientConfig::new().set(name, value).create_native_config()
            {
                return Err(address.setting_error(name, reason));
            }
        }
        Ok(())
    }

    pub(super) fn producer(&self) -> ClientConfig {
        self.producer.clone()
    }

    /// A consumer that does not join its group: the group only names the stored offsets.
    pub(super) fn consumer(&self, group: &str) -> ClientConfig {
        let mut config = self.consumer.clone();
        config.set("group.id", group);
        config
    }

    /// Returns a stream's topic, if its name is a valid topic name.
    pub(super) fn topic(&self, stream: &str) -> Result<String, String> {
        let topic = format!("{}{stream}", self.prefix);
        let is_legal = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        if (1..=TOPIC_BYTES_MAX).contains(&topic.len())
            && topic.bytes().all(is_legal)
            && topic != "."
            && topic != ".."
        {
            return Ok(topic);
        }
        Err(format!(
            "`{topic}` is not a valid Kafka topic: it needs 1 to {TOPIC_BYTES_MAX} of a-z, A-Z, 0-9, `.`, `_`, `-`"
        ))
    }
}

/// Kafka's limit.
const TOPIC_BYTES_MAX: usize = 249;

/// Defaults. Memory is bounded by `queue.buffering.max.kbytes` for unacknowledged records, and by
/// `queued.max.messages.kbytes` for each followed partition.
const PRODUCER: [(&str, &str); 8] = [
    ("acks", "all"),
    ("client.id", "sinews"),
    ("enable.idempotence", "true"),
    // Waiting makes batches larger only while few are in flight; otherwise it only adds latency.
    ("linger.ms", "1"),
    ("message.max.bytes", "1000000"),
    ("queue.buffering.max.kbytes", "65536"),
    ("queue.buffering.max.messages", "100000"),
    ("topic.metadata.propagation.max.ms", "30000"),
];
const CONSUMER: [(&str, &str); 8] = [
    ("allow.auto.create.topics", "true"),
    ("auto.offset.reset", "earliest"),
    ("client.id", "sinews"),
    ("enable.auto.commit", "false"),
    ("enable.auto.offset.store", "false"),
    ("message.max.bytes", "1000000"),
    ("queued.max.messages.kbytes", "16384"),
    // Maximum time that a commit waits for a lost coordinator.
    ("session.timeout.ms", "10000"),
];

fn client_config(
    defaults: &[(&str, &str)],
    set: &BTreeMap<String, String>,
    client: ClientKind,
) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Warning);
    for (name, value) in defaults {
        config.set(*name, *value);
    }
    for (name, value) in set {
        let permitted = PERMITTED.iter().find(|(known, _)| known == name);
        if permitted.is_none_or(|(_, client_kind)| *client_kind == ClientKind::Both || *client_kind == client)
        {
            config.set(name, value);
        }
    }
    config
}

/// The URL without its settings, as librdkafka settings.
fn url_settings(address: &mut BrokerUrl) -> Result<BTreeMap<String, String>, BrokerConfigError> {
    let mut set = BTreeMap::from([("bootstrap.servers".to_owned(), address.hosts.join(","))]);
    let mut insert = |name: &str, value: &str| set.insert(name.to_owned(), value.to_owned());
    let has_tls = address.scheme == "kafka+tls";
    let has_user = address.user.is_some() || address.settings.contains_key("sasl.username");
    if let Some(protocol) = match (has_user, has_tls) {
        (true, true) => Some("sasl_ssl"),
        (true, false) => Some("sasl_plaintext"),
        (false, true) => Some("ssl"),
        (false, false) => None,
    } {
        insert("security.protocol", protocol);
    }
    if has_user {
        insert("sasl.mechanism", "PLAIN");
    }
    if let Some(user) = address.user.take() {
        insert("sasl.username", &user);
    }
    if let Some(password) = address.password.take() {
        insert("sasl.password", &password);
    }
    let contradicts = address
        .settings
        .get("security.protocol")
        .is_some_and(|protocol| has_tls && !protocol.to_ascii_lowercase().ends_with("ssl"));
    if contradicts {
        return Err(
            address.setting_error("security.protocol", "it conflicts with TLS of the scheme kafka+tls")
        );
    }
    Ok(set)
}

fn kind_of(address: &mut BrokerUrl) -> Result<ValueKind, BrokerConfigError> {
    match address.take(KIND).as_deref() {
        None | Some("bytes") => Ok(ValueKind::Bytes),
        Some("text") => Ok(ValueKind::Text),
        Some("json") => Ok(ValueKind::Json),
        Some(other) => Err(address.setting_error(KIND, format!("`{other}` is not bytes, text or json"))),
    }
}

fn rejection_reason(name: &str) -> String {
    let fixed = PRODUCER.iter().chain(&CONSUMER).any(|(known, _)| *known == name);
    if fixed || name == "bootstrap.servers" || name == "group.id" {
        return "reserved: the bridge sets it".to_owned();
    }
    let known = PERMITTED.iter().map(|(known, _)| *known).chain([PREFIX, KIND]);
    let letters = |text: &str| text.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
    // Most mistakes differ only in dots and dashes.
    let near = known.into_iter().find(|known| letters(known) == letters(&name.to_ascii_lowercase()));
    near.map_or_else(
        || "unknown or not permitted".to_owned(),
        |near| format!("unknown; did you mean `{near}`?"),
    )
}
