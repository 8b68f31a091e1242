//! Subscriptions for clients that send no messages: their response has the protocol's messages.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Value, json};
use sinews_server::{Context, KeySubscription, ReplayFrom};

use super::hooks::ConnectionHooks;
use super::keys::{KeyOp, KeyRequest};
use super::members::{self, MemberFields, PresenceDetail};
use super::requests::SubscribeOptions;
use super::{JsonClient, OpReply, send_json};
use crate::connections::ConnectionPath;
use crate::model::problem::{Problem, code, problem};

impl JsonClient {
    /// Registers a long poll's connection.
    pub(in crate::protocol) fn register_poll(&mut self, cx: &mut Context<'_>) {
        self.session.open(ConnectionPath::Poll, cx);
    }

    pub(super) fn is_poll(&self) -> bool {
        self.session.path() == Some(ConnectionPath::Poll)
    }

    /// Registers the connection of a response that ends with the client, and sends its first message: the id, by which
    /// a backend may address the connection.
    pub(in crate::protocol) fn register_reader(&mut self, cx: &mut Context<'_>) {
        self.session.open(ConnectionPath::Topics, cx);
        let mut welcome = json!({ "op": "welcome", "connection": self.session.id() });
        self.add_state(&mut welcome);
        send_json(cx, &welcome);
    }

    /// Adds the token's lifetime, and whether the cluster's broker is unreachable.
    pub(super) fn add_state(&self, welcome: &mut Value) {
        if let Some(left) = self.session.rights().expires_in() {
            welcome["expires_in"] = json!(left);
        }
        if self.session.hub().is_isolated() {
            welcome["cluster"] = json!(false);
            self.session.hub().connections().has_isolated.store(true, Ordering::Release);
        }
    }

    /// Prepares for this number of subscriptions of a client that sends no messages.
    pub(in crate::protocol) fn expect_subscriptions(&mut self, count: usize) {
        self.acknowledges_all = true;
        self.subscriptions.reserve_exact(count);
    }

    /// Subscribes such a client, and acknowledges it.
    ///
    /// # Errors
    /// The problem, which the client has been told.
    pub(in crate::protocol) fn subscribe_reader(
        &mut self,
        topic: &str,
        presence: PresenceDetail,
        start: Option<ReplayFrom>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let options = SubscribeOptions { presence, start, recovery: None };
        let result = self.subscribe(topic, options, &None, cx);
        self.acknowledge(result, json!({ "topic": topic }), cx)
    }

    /// Sends a subscription's acknowledgement, or its problem with these fields.
    fn acknowledge(
        &self,
        result: Result<OpReply, Problem>,
        subscription: Value,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        match result {
            Ok(reply) => {
                self.answer(Ok(reply), None, cx);
                Ok(())
            }
            Err(problem) => {
                let mut message = problem.clone().into_json();
                if let (Value::Object(message), Value::Object(fields)) = (&mut message, subscription) {
                    message.extend(fields);
                }
                send_json(cx, &message);
                Err(problem)
            }
        }
    }

    /// Sets the request headers that hooks repeat, whether the application has granted the rights, and the infos that
    /// it has set for members: of all topics, and of single ones.
    pub(in crate::protocol) fn with_hooks(
        mut self,
        headers: Vec<(HeaderName, HeaderValue)>,
        is_granted: bool,
        info: Option<Value>,
        topic_infos: BTreeMap<String, Value>,
    ) -> Self {
        self.hooks = Some(ConnectionHooks::for_request(headers, is_granted, info, topic_infos));
        self
    }

    /// Whether such a client may follow a topic's presence.
    ///
    /// # Errors
    /// The topic's namespace has no presence.
    pub(in crate::protocol) fn check_presence(&self, topic: &str) -> Result<(), Problem> {
        self.session.rights().check_presence(topic)
    }

    /// Whether such a client may join a topic as a member, which is the token's user by default.
    ///
    /// # Errors
    /// The problem with the topic or the member.
    pub(in crate::protocol) fn check_join(
        &self,
        topic: &str,
        member: Option<&MemberFields>,
    ) -> Result<(), Problem> {
        let member = member.cloned().map_or_else(|| MemberFields::for_user(self.session.rights()), Ok)?;
        members::checked(topic, self.named(topic, member), self.session.rights()).map(drop)
    }

    /// Makes such a client a member of a topic until its response ends, and notifies it.
    ///
    /// # Errors
    /// The problem, which the client has been told.
    pub(in crate::protocol) fn join_reader(
        &mut self,
        topic: &str,
        member: Option<MemberFields>,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        // The application has accepted the request.
        let member = member.map_or_else(|| MemberFields::for_user(self.session.rights()), Ok);
        let joined = member.and_then(|member| self.join(topic, member, cx));
        let reply = OpReply::Message(json!({ "op": "joined", "topic": topic }));
        self.acknowledge(joined.map(|()| reply), json!({ "topic": topic }), cx)
    }

    /// How many topics the client has joined.
    pub(in crate::protocol) fn joined_topics(&self) -> usize {
        self.joined.len()
    }

    /// Whether a topic's keys can be read.
    ///
    /// # Errors
    /// The topic has no keys for clients. Or they are not read from their stream yet, or cannot be.
    pub(in crate::protocol) fn check_keys(&self, topic: &str) -> Result<(), Problem> {
        self.session.rights().check_keyed(topic)?;
        self.key_store().check_ready(topic)
    }

    /// Subscribes such a client to a topic's keys, and acknowledges it.
    ///
    /// # Errors
    /// The problem, which the client has been told.
    pub(in crate::protocol) fn subscribe_to_keys(
        &mut self,
        topic: &str,
        options: KeySubscription,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let request = KeyRequest { topic: topic.into(), op: KeyOp::Subscribe(options) };
        let result = self.execute_keys(request, &None, cx);
        self.acknowledge(result, json!({ "topic": topic, "keys": true }), cx)
    }

    /// Whether the client is subscribed to keys.
    pub(in crate::protocol) fn is_subscribed_to_keys(&self) -> bool {
        self.keys.subscriptions() > 0
    }

    /// Begins the consumption of a stream by such a client, at the latest when the stream is open.
    ///
    /// # Errors
    /// The consumption cannot begin. The client has been told why.
    pub(in crate::protocol) fn consume_reader(
        &mut self,
        op: String,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        if let Some(opening) = self.handle_bytes(true, op.as_bytes(), cx) {
            self.streams.defer(opening, op.into(), cx);
        }
        match self.is_consuming() {
            true => Ok(()),
            false => Err(problem(code::STORE, "the stream cannot be read")),
        }
    }

    /// Whether the client consumes a stream, or will when the stream is open.
    pub(in crate::protocol) fn is_consuming(&self) -> bool {
        self.streams.is_consuming()
    }

    /// How many subscriptions the client has requested.
    pub(in crate::protocol) fn subscriptions(&self) -> usize {
        self.subscriptions.iter().filter(|known| !known.by_server).count()
    }

    /// Subscribes such a client to the topics of its token or claims, and of the backend from now on.
    pub(in crate::protocol) fn accept_assigned(&mut self, topics: &[String], cx: &mut Context<'_>) {
        self.accepts_assigned = true;
        self.subscribe_to_assigned(cx);
        self.subscribe_to_all(topics, cx);
    }
}
