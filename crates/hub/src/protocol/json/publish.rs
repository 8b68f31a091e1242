//! Publications.

use serde_json::{Value, json};
use sinews_server::Context;

use super::keys::publication_fields;
use super::requests::ClientPublication;
use super::{JsonClient, OpReply};
use crate::access::auth::Action;
use crate::model::opening::SharedOpening;
use crate::model::problem::{Problem, code, problem};
use crate::model::publication::Publication;
use crate::model::{self, HookKind};
use crate::session::publishing::{epoch_of, publish_once};
use crate::topics::recent::{KeyedPublication, Published, StoredPublication, check_key, client_key};

impl JsonClient {
    pub(super) fn publish(
        &mut self,
        publication: ClientPublication<'_>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let ClientPublication { topic, content, idempotency_key } = publication;
        model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
        idempotency_key.map_or(Ok(()), check_key)?;
        self.session.may(Action::Publish, topic)?;
        self.session.check_publication(topic, content.len())?;
        if let Some(hook) = self.session.rights().topic_hook(HookKind::Publish, topic)
            && self.has_hooks()
        {
            // The application has accepted the earlier publication.
            return match self.earlier_publication(topic, idempotency_key) {
                Some(earlier) => Ok(self.acknowledge_publication(earlier, true, id, cx)),
                None => self.start_publish(&hook, publication, id, cx),
            };
        }
        self.publish_accepted(publication, id, cx)
    }

    /// Publishes a message that was checked.
    pub(super) fn publish_accepted(
        &mut self,
        ClientPublication { topic, content, idempotency_key }: ClientPublication<'_>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let published = content.into();
        let sender = self.session.rights().verified_sender(topic);
        let publication = Publication::new(topic, &published).by(sender.as_ref());
        let store = self.streams.store_of(topic).cloned();
        if let Some(key) = idempotency_key {
            let key = client_key(self.session.rights().subject(), key);
            let (hub, rights) = (self.session.hub(), self.session.rights());
            let (published, is_repeated) =
                publish_once(hub, store.as_ref(), cx, &publication, Some(&key), rights);
            if !is_repeated {
                self.session.report_message(topic, content);
            }
            return Ok(self.acknowledge_publication(published, is_repeated, id, cx));
        }
        if let Some(store) = store {
            self.streams.append_to_durable(&store, topic, content, id, self.session.rights(), cx)?;
            self.session.report_message(topic, content);
            return Ok(OpReply::Deferred);
        }
        if let Some(stored) = self.session.hub().stored(topic).cloned() {
            let appended = stored.append_for_client(&publication, None);
            let ack = async move { appended.await.map(publication_fields) };
            self.session.report_message(topic, content);
            self.keys.acknowledge_later(Box::pin(ack), id, cx);
            return Ok(OpReply::Deferred);
        }
        let reached = self.session.hub().publish(cx, &publication);
        self.session.report_message(topic, content);
        if id.is_none() {
            return Ok(OpReply::Ack(Value::Null));
        }
        let mut ack = json!({ "reached": reached });
        if self.session.hub().is_isolated() {
            ack["cluster"] = json!(false);
        }
        Ok(OpReply::Ack(ack))
    }

    /// The client's earlier publication with an idempotency key.
    fn earlier_publication(&self, topic: &str, key: Option<&str>) -> Option<KeyedPublication> {
        let key = client_key(self.session.rights().subject(), key?);
        self.session.hub().recent().find(topic, &key, epoch_of(self.streams.store_of(topic), topic))
    }

    /// The answer to a publication with an idempotency key, at once if its result is known.
    fn acknowledge_publication(
        &mut self,
        published: KeyedPublication,
        is_repeated: bool,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> OpReply {
        match published {
            KeyedPublication::Done(published) => OpReply::Ack(acknowledgement(published, is_repeated)),
            KeyedPublication::Appending(append) => {
                let ack = async move { Ok(acknowledgement(append.await?, is_repeated)) };
                self.keys.acknowledge_later(Box::pin(ack), id, cx);
                OpReply::Deferred
            }
        }
    }

    /// The opening that a permitted publication waits for.
    pub(super) fn opening_of_publication(&self, topic: &str, has_key: bool) -> Option<SharedOpening> {
        let store = self.streams.store_of(topic)?;
        if has_key && self.session.may(Action::Publish, topic).is_ok() {
            return store.opening_of_recent(topic, self.session.hub().recent(), self.session.rights());
        }
        self.streams.opening_of_topic(topic, Action::Publish, self.session.rights())
    }
}

/// The fields in the acknowledgement of a publication with an idempotency key.
fn acknowledgement(published: Published, is_repeated: bool) -> Value {
    let (mut ack, is_repeated) = match published {
        Published::Delivered { subscribers, cluster } => {
            let mut ack = json!({ "reached": subscribers });
            if cluster == Some(false) {
                ack["cluster"] = json!(false);
            }
            (ack, is_repeated)
        }
        Published::Stored(StoredPublication { epoch, sequence, is_repeated: is_known }) => {
            (json!({ "epoch": epoch, "seq": sequence }), is_repeated || is_known)
        }
        Published::Unstored => (json!({ "stored": false }), is_repeated),
        Published::Elsewhere => (json!({}), true),
    };
    if is_repeated {
        ack["repeated"] = json!(true);
    }
    ack
}
