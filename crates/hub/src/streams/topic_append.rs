//! Publications to durable topics, by requests that wait for their position.

use std::sync::Arc;

use futures_util::future::{self, Either};
use sinews_stream::{Durability, Pending};

use super::service::StreamService;
use crate::access::auth::{Action, Rights};
use crate::model::MessageContent;
use crate::model::problem::Problem;
use crate::topics::recent::StoredPublication;

/// Appends a message to a durable topic's stream, with its idempotency key if it has one, at once if the stream is
/// open. The result is its position, when the stream's durability is reached.
pub(crate) fn append_to_topic(
    store: &Arc<StreamService>,
    topic: &str,
    content: MessageContent,
    idempotency_key: Option<&str>,
    rights: Rights,
) -> impl Future<Output = Result<StoredPublication, Problem>> + Send + use<> {
    let opening = store.opening(topic, Action::Publish, &rights);
    let (store, topic) = (Arc::clone(store), topic.to_owned());
    let idempotency_key = idempotency_key.map(str::to_owned);
    let append = move || {
        let key = idempotency_key.as_deref();
        let (relay, records) = store.prepare_publication(&topic, &content, key, &rights)?;
        let pending = match idempotency_key {
            None => store.append(relay.stream(), 0, records)?,
            Some(_) => store.append_once(relay.stream(), records)?,
        };
        Ok((relay.epoch(), pending))
    };
    let appended = match opening {
        None => Either::Left(future::ready(append())),
        Some(opening) => Either::Right(async move { opening.await.and_then(|()| append()) }),
    };
    async move {
        let (epoch, mut pending): (u64, Pending) = appended.await?;
        let appended = pending.wait(Durability::Broker).await?;
        Ok(StoredPublication { epoch, sequence: appended.first + 1, is_repeated: appended.repeated })
    }
}
