//! Settings of librdkafka: permitted settings, and the defaults.

use std::collections::BTreeMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::config::RDKafkaLogLevel;

use super::super::ConnectError;
use super::super::address::Address;
use crate::record::Kind;

const PORT: u16 = 9092;

/// The clients that a setting applies to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum For {
    Both,
    Producer,
    Consumer,
}

/// Permitted settings, by librdkafka's names. Excluded are settings that the bridge relies on (acknowledgements,
/// idempotence, offsets), callbacks, and features missing in the build.
const PERMITTED: [(&str, For); 53] = [
    ("allow.auto.create.topics", For::Consumer),
    ("batch.num.messages", For::Producer),
    ("batch.size", For::Producer),
    ("broker.address.family", For::Both),
    ("broker.address.ttl", For::Both),
    ("check.crcs", For::Consumer),
    ("client.dns.lookup", For::Both),
    ("client.id", For::Both),
    ("client.rack", For::Both),
    ("compression.level", For::Producer),
    ("compression.type", For::Producer),
    ("connections.max.idle.ms", For::Both),
    ("enable.ssl.certificate.verification", For::Both),
    ("fetch.max.bytes", For::Consumer),
    ("fetch.message.max.bytes", For::Consumer),
    ("fetch.min.bytes", For::Consumer),
    ("fetch.wait.max.ms", For::Consumer),
    ("isolation.level", For::Consumer),
    ("linger.ms", For::Producer),
    ("max.in.flight.requests.per.connection", For::Both),
    ("message.max.bytes", For::Both),
    ("message.timeout.ms", For::Producer),
    ("metadata.max.age.ms", For::Both),
    ("queue.buffering.max.kbytes", For::Producer),
    ("queue.buffering.max.messages", For::Producer),
    ("queued.max.messages.kbytes", For::Consumer),
    ("queued.min.messages", For::Consumer),
    ("receive.message.max.bytes", For::Both),
    ("reconnect.backoff.max.ms", For::Both),
    ("reconnect.backoff.ms", For::Both),
    ("request.timeout.ms", For::Producer),
    ("retry.backoff.max.ms", For::Both),
    ("retry.backoff.ms", For::Both),
    ("sasl.mechanism", For::Both),
    ("sasl.password", For::Both),
    ("sasl.username", For::Both),
    ("security.protocol", For::Both),
    ("socket.connection.setup.timeout.ms", For::Both),
    ("socket.keepalive.enable", For::Both),
    ("socket.nagle.disable", For::Both),
    ("socket.receive.buffer.bytes", For::Both),
    ("socket.send.buffer.bytes", For::Both),
    ("socket.timeout.ms", For::Both),
    ("ssl.ca.location", For::Both),
    ("ssl.certificate.location", For::Both),
    ("ssl.cipher.suites", For::Both),
    ("ssl.crl.location", For::Both),
    ("ssl.endpoint.identification.algorithm", For::Both),
    ("ssl.key.location", For::Both),
    ("ssl.key.password", For::Both),
    ("ssl.keystore.location", For::Both),
    ("ssl.keystore.password", For::Both),
    ("topic.metadata.refresh.interval.ms", For::Both),
];

/// Settings of the bridge, in addition to librdkafka's.
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
    pub(super) kind: Kind,
    /// Maximum size of a message, key included.
    pub(super) message_bytes_max: usize,
    pub(super) name: String,
    pub(super) failure_timeout: Duration,
}

impl Config {
    pub(super) fn of(mut address: Address) -> Result<Self, ConnectError> {
        address.default_port(PORT);
        let prefix = address.take(PREFIX).unwrap_or_default();
        let kind = kind_of(&mut address)?;
        let failure_timeout = address.take_failure_timeout()?;
        let mut set = settings_of(&mut address)?;
        for (name, value) in std::mem::take(&mut address.settings) {
            if !PERMITTED.iter().any(|(permitted, _)| *permitted == name) {
                return Err(address.refused(&name, why_not(&name)));
            }
            set.insert(name, value);
        }
        let producer = client_config(&PRODUCER, &set, For::Producer);
        let consumer = client_config(&CONSUMER, &set, For::Consumer);
        let number = |name: &str| {
            producer
                .get(name)
                .and_then(|text| text.parse().ok())
                .ok_or_else(|| address.refused(name, "not a whole number"))
        };
        let message_bytes_max = number("message.max.bytes")?;
        let name = address.to_string();
        let config = Self { producer, consumer, prefix, kind, message_bytes_max, name, failure_timeout };
        config.check(&address, &set)?;
        Ok(config)
    }

    /// Checks each value with librdkafka, one setting at a time, so that the error names the setting.
    fn check(&self, address: &Address, set: &BTreeMap<String, String>) -> Result<(), ConnectError> {
        for (name, value) in set {
            if let Err(rdkafka::error::KafkaError::ClientConfig(_, why, ..)) =
                ClientConfig::new().set(name, value).create_native_config()
            {
                return Err(address.refused(name, why));
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

    /// The topic of a stream, if its name is a valid topic name.
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

fn client_config(defaults: &[(&str, &str)], set: &BTreeMap<String, String>, client: For) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set_log_level(RDKafkaLogLevel::Warning);
    for (name, value) in defaults {
        config.set(*name, *value);
    }
    for (name, value) in set {
        let permitted = PERMITTED.iter().find(|(known, _)| known == name);
        if permitted.is_none_or(|(_, whom)| *whom == For::Both || *whom == client) {
            config.set(name, value);
        }
    }
    config
}

/// The URL without its settings, as librdkafka settings.
fn settings_of(address: &mut Address) -> Result<BTreeMap<String, String>, ConnectError> {
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
        return Err(address.refused("security.protocol", "it conflicts with TLS of the scheme kafka+tls"));
    }
    Ok(set)
}

fn kind_of(address: &mut Address) -> Result<Kind, ConnectError> {
    match address.take(KIND).as_deref() {
        None | Some("bytes") => Ok(Kind::Bytes),
        Some("text") => Ok(Kind::Text),
        Some("json") => Ok(Kind::Json),
        Some(other) => Err(address.refused(KIND, format!("`{other}` is not bytes, text or json"))),
    }
}

fn why_not(name: &str) -> String {
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
