//! Shared state for operations, and the forms of their answers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use serde_json::Value;
use sinews_server::{Answer, Monitor, Response};

use crate::access::auth::{ApiRight, ApiRights, Rights};
use crate::cluster::Cluster;
use crate::config::ConfigHandle;
use crate::keys::KeyStore;
use crate::model::json::encode;
use crate::model::json_list::{JsonList, JsonListItem};
use crate::model::problem::{Problem, code};
use crate::streams::service::StreamService;
use crate::topics::HubTopics;
use crate::uncached::UNCACHED;

/// The API's path.
pub(super) const PREFIX: &str = "/api/v1";

/// `Retry-After` in seconds, for a full queue or a failed store.
const RETRY_AFTER: &str = "1";

/// What the operations use.
pub(super) struct ApiContext {
    pub(super) live: ConfigHandle,
    pub(super) hub: Arc<HubTopics>,
    pub(super) store: Option<Arc<StreamService>>,
    pub(super) cluster: Option<Arc<Cluster>>,
    pub(super) monitor: Monitor,
    pub(super) version: String,
    pub(super) commit: String,
    pub(super) begin: Instant,
}

/// Durable topics in one request whose records are read at a time.
const TOPICS_AT_ONCE: usize = 64;

impl ApiContext {
    /// Returns the store that keeps and shares topic keys.
    pub(super) fn key_store(&self) -> KeyStore<'_> {
        KeyStore::new(&self.hub, self.store.as_ref())
    }

    /// The store, if a topic is durable.
    pub(super) fn durable_store(&self, topic: &str) -> Option<&Arc<StreamService>> {
        self.store.as_ref().filter(|store| store.topics().is_durable(topic))
    }

    /// Of these topics, the durable ones whose last records have to be read before a publication with an idempotency
    /// key.
    pub(super) fn unread_topics<'a>(
        &self,
        rights: &ApiRights,
        topics: impl Iterator<Item = &'a str>,
    ) -> Vec<String> {
        let is_unread = |topic: &&str| {
            rights.may(ApiRight::Publish, topic).is_ok()
                && self.durable_store(topic).is_some_and(|store| store.must_read_keys(topic))
        };
        let unread: BTreeSet<&str> = topics.filter(is_unread).collect();
        unread.into_iter().map(str::to_owned).collect()
    }

    /// Reads durable topics' recent publications from their streams.
    pub(super) async fn read_keys(&self, topics: Vec<String>) -> Result<(), Problem> {
        let reads = topics.into_iter().filter_map(|topic| {
            let store = Arc::clone(self.durable_store(&topic)?);
            Some(async move {
                if let Some(records) = store.read_keys(topic, Rights::all()).await? {
                    records.remember(self.hub.recent());
                }
                Ok(())
            })
        });
        stream::iter(reads).buffer_unordered(TOPICS_AT_ONCE).try_collect().await
    }
}

/// An operation's result.
pub(super) type Executed = Result<Answer, Problem>;

/// A successful answer.
pub(super) fn success(body: &Value) -> Response {
    text_success(encode(body) + "\n")
}

/// A successful answer from encoded JSON.
pub(super) fn text_success(body: String) -> Response {
    Response::json(body).with_header("Cache-Control", UNCACHED)
}

/// A successful answer with a list, which is encoded as the client takes it.
pub(super) fn list_success<T: JsonListItem>(list: JsonList<T>) -> Response {
    text_success(String::new()).with_source(list)
}

/// The answer to a failed request; all failures have this form.
pub(super) fn failure(problem: &Problem) -> Response {
    let response = Response::json(format!("{}\n", problem.fields())).with_status(problem.code);
    let response = response.with_header("Cache-Control", UNCACHED);
    match problem.code {
        code::TOO_MANY | code::STORE => response.with_header("Retry-After", RETRY_AFTER),
        401 => response.with_header("WWW-Authenticate", "Bearer realm=\"sinews\""),
        _ => response,
    }
}
