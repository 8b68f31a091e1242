//! A store's streams: created if they are missing, and checked.
//!
//! An epoch is a stream's creation time in microseconds, which no node can choose. A stream is created without usable
//! subjects, and gets the ones with its epoch by an update, which all nodes make in the same way.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use serde_json::{Value, json};
use sinews_store::{POSITION_MAX, StoreError};

use super::connection::{OperationState, StoreConnection};
use super::settings::NatsStoreSettings;
use super::wire::{JetStreamInfo, STREAM_NOT_FOUND, headers, micros};

/// Time in which a leader hears from its successor: the interval of heartbeats.
pub(super) const SUCCESSION: Duration = Duration::from_secs(1);
/// Attempts to reach a new stream, within two seconds.
const REACHABLE_ATTEMPTS: u32 = 200;
const REACHABLE_INTERVAL: Duration = Duration::from_millis(10);

/// A stream as the server describes it.
pub(super) struct OpenStream {
    pub(super) epoch: u64,
    pub(super) last: u64,
    /// The server's time.
    pub(super) time: Option<u64>,
}

/// A stream that the store needs.
pub(super) struct StreamPlan {
    pub(super) name: String,
    /// Token of its subjects: `h` or `k`.
    pub(super) kind: &'static str,
    /// Fields that every stream by this plan has.
    pub(super) fields: Value,
    /// Whether its messages are announced to followers.
    pub(super) is_announced: bool,
}

impl StreamPlan {
    /// Opens the stream, and creates it if it is missing.
    pub(super) async fn open(
        &self,
        connection: &StoreConnection,
        settings: &NatsStoreSettings,
    ) -> Result<OpenStream, StoreError> {
        let info = match info(connection, &self.name).await? {
            Some(info) => info,
            None => match self.create(connection, settings).await {
                Ok(info) => info,
                // The server answers one node only if several create it.
                Err(error) => info(connection, &self.name).await?.ok_or(error)?,
            },
        };
        self.check(settings, &info.config)?;
        let epoch = epoch(&info)?;
        let subject = format!("{}>", settings.subjects.stream(self.kind, &epoch.to_string()));
        let is_current =
            info.config["subjects"].as_array().is_some_and(|all| all.len() == 1 && all[0] == *subject);
        let info = if is_current { info } else { self.update(connection, settings, info, epoch).await? };
        Ok(OpenStream { epoch, last: info.state.last_seq, time: info.ts.as_deref().and_then(micros) })
    }

    async fn create(
        &self,
        connection: &StoreConnection,
        settings: &NatsStoreSettings,
    ) -> Result<JetStreamInfo, StoreError> {
        let replicas = settings.replicas.unwrap_or_else(|| if connection.is_clustered() { 3 } else { 1 });
        let mut config = self.fields.clone();
        config["name"] = json!(self.name);
        config["num_replicas"] = json!(replicas);
        // A version names no other value of a stream that was lost.
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        config["first_seq"] = json!(u64::try_from(time).unwrap_or(1));
        config["subjects"] =
            json!([format!("{}>", settings.subjects.stream(self.kind, &format!("new-{}", self.name)))]);
        match connection.api(&format!("STREAM.CREATE.{}", self.name), &config).await? {
            Ok(info) => Ok(info),
            Err(error) => Err(StoreError::Rejected(
                format!(
                    "stream {} with {replicas} replicas (setting `replicas`) cannot be created: {} ({})",
                    self.name, error.description, error.err_code
                )
                .into(),
            )),
        }
    }

    async fn update(
        &self,
        connection: &StoreConnection,
        settings: &NatsStoreSettings,
        info: JetStreamInfo,
        epoch: u64,
    ) -> Result<JetStreamInfo, StoreError> {
        let subject = format!("{}>", settings.subjects.stream(self.kind, &epoch.to_string()));
        let mut config = info.config;
        config["subjects"] = json!([subject]);
        if self.is_announced {
            config["republish"] =
                json!({ "src": subject, "dest": format!("{}>", settings.subjects.announced(epoch)) });
        }
        let updated = connection.api(&format!("STREAM.UPDATE.{}", self.name), &config).await?;
        updated.map_err(|error| error.store_error())
    }

    /// Checks the fields that the store depends on.
    fn check(&self, settings: &NatsStoreSettings, config: &Value) -> Result<(), StoreError> {
        let mut wanted = self.fields.clone();
        if let Some(replicas) = settings.replicas {
            wanted["num_replicas"] = json!(replicas);
        }
        let wanted = wanted.as_object().into_iter().flatten();
        let found = |name: &str| config.get(name).cloned().unwrap_or(Value::Null);
        match wanted.into_iter().find(|(name, value)| found(name) != **value) {
            None => Ok(()),
            Some((name, value)) => Err(StoreError::Rejected(
                format!("stream {}: {name} is {}, and topic stores need {value}", self.name, found(name))
                    .into(),
            )),
        }
    }
}

/// Waits until messages for a stream reach it: other servers learn of its subjects a moment after it has them.
pub(super) async fn until_reachable(
    connection: &StoreConnection,
    subjects: String,
) -> Result<(), StoreError> {
    // A message for another stream is rejected.
    let headers = headers(&[("Nats-Expected-Stream", "-")]);
    let subject = format!("{subjects}-");
    for _ in 0..REACHABLE_ATTEMPTS {
        let operation = OperationState::default();
        match connection.request(&operation, subject.clone(), Some(headers.clone()), Bytes::new()).await {
            Err(StoreError::Away(_)) => tokio::time::sleep(REACHABLE_INTERVAL).await,
            answer => return answer.map(drop),
        }
    }
    Err(StoreError::Away("a stream has no leader".into()))
}

/// A stream as its leader describes it; `None`: there is none.
pub(super) async fn info(
    connection: &StoreConnection,
    name: &str,
) -> Result<Option<JetStreamInfo>, StoreError> {
    match connection.api(&format!("STREAM.INFO.{name}"), &Value::Null).await? {
        Ok(info) => Ok(Some(info)),
        Err(error) if error.err_code == STREAM_NOT_FOUND => Ok(None),
        Err(error) => Err(error.store_error()),
    }
}

/// Describes a stream that has had this sequence. If the leader does not have it, a moment later: a leader that was frozen
/// answers before it knows its successor.
pub(super) async fn info_with(
    connection: &StoreConnection,
    name: &str,
    needed: u64,
) -> Result<Option<JetStreamInfo>, StoreError> {
    let first = info(connection, name).await?;
    if first.as_ref().is_none_or(|info| info.state.last_seq >= needed) {
        return Ok(first);
    }
    tokio::time::sleep(SUCCESSION).await;
    info(connection, name).await
}

pub(super) fn epoch(info: &JetStreamInfo) -> Result<u64, StoreError> {
    let epoch = micros(&info.created).filter(|epoch| *epoch <= POSITION_MAX);
    epoch.ok_or_else(|| StoreError::Rejected(format!("a stream's creation time is {}", info.created).into()))
}
