//! `WS /ws`: many topics on one WebSocket, in JSON. docs/book/src/server/protocol.md describes the messages.

mod commands;
mod durable;
pub(crate) mod encoding;
mod ending;
mod history;
mod hooks;
mod incoming;
mod keys;
mod known_fields;
pub(in crate::protocol) mod members;
mod publish;
mod reader;
mod recovery;
mod reply;
mod requests;
pub(crate) mod streams;

use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{
    Closed, Context, DroppedMessages, Handler, Kind, Payload, Position, ReplayFrom, Request, Sent, Topics,
};

use self::history::subscribe_from;
use self::hooks::ConnectionHooks;
use self::incoming::{ClientMessage, ClientOp};
use self::keys::{ConnectionKeys, KeyOp, KeyRequest, mark_stale};
use self::members::{JoinedTopics, MemberFields, PresenceDetail, presence_problem};
use self::reply::{OpReply, send_json};
use self::requests::{ClientPublication, RecoveredTopics, SubscribeOptions};
use self::streams::JsonStreams;
use crate::access::auth::{Action, Rights};
use crate::activity::ActivityKind;
use crate::admission::HandshakeRejection;
use crate::closing::{TOKEN_EXPIRED, close};
use crate::connections::ConnectionPath;
use crate::hooks::with_fields;
use crate::keys::KeyStore;
use crate::model::brief::brief;

use crate::config::ConfigHandle;
use crate::model;
use crate::model::encoding::MESSAGES;
use crate::model::opening::SharedOpening;
use crate::model::presence;
use crate::model::problem::{Problem, code, problem};
use crate::protocol::datagrams::{datagram_topics, use_datagrams};
use crate::session::client_session::ClientSession;
use crate::streams::follow::DurableSubscription;
use crate::topics::HubTopics;

/// The subprotocol, for clients that name one.
pub(crate) const NAME: &str = "sinews.v1";

/// The handler for one client.
pub(crate) struct JsonClient {
    session: ClientSession,
    /// Largest message in either direction, in bytes.
    max_message: u32,
    subscriptions: Vec<TopicSubscription>,
    joined: JoinedTopics,
    keys: ConnectionKeys,
    streams: JsonStreams,
    /// The client gets an acknowledgement for each subscription, with an id or without.
    acknowledges_all: bool,
    /// Reports of unknown fields to this client.
    ignored_reports: u8,
    /// Topics whose messages were replayed for patterns.
    recovered: Option<Box<RecoveredTopics>>,
    /// Topics whose publications leave as datagrams, until the connection is open.
    datagram_topics: Box<[String]>,
    /// The client of a response with events wants the topics that the server assigns to it.
    accepts_assigned: bool,
    /// `None` until a hook is used.
    hooks: Option<Box<ConnectionHooks>>,
}

/// A subscription to a topic or a pattern.
struct TopicSubscription {
    topic: String,
    presence: PresenceDetail,
    /// Position in a durable topic's stream.
    follow: Option<Box<DurableSubscription>>,
    /// The backend has subscribed the client: its own rights do not matter.
    by_server: bool,
}

impl JsonClient {
    pub(crate) fn new(
        request: &Request<'_>,
        live: &ConfigHandle,
        hub: Arc<HubTopics>,
        max_message: usize,
        streams: JsonStreams,
    ) -> Result<Self, HandshakeRejection> {
        let config = live.config();
        let datagram_topics = datagram_topics(request)?;
        let client = Self::with_rights(config.rights(request)?, live, hub, max_message, streams);
        Ok(Self { hooks: ConnectionHooks::for_connection(request, &config), datagram_topics, ..client })
    }

    /// Creates the handler for a client whose rights are known.
    pub(super) fn with_rights(
        rights: Rights,
        live: &ConfigHandle,
        hub: Arc<HubTopics>,
        max_message: usize,
        streams: JsonStreams,
    ) -> Self {
        Self {
            session: ClientSession::new(rights, live, hub),
            max_message: u32::try_from(max_message).unwrap_or(u32::MAX),
            subscriptions: Vec::new(),
            joined: JoinedTopics::default(),
            keys: ConnectionKeys::default(),
            streams,
            acknowledges_all: false,
            ignored_reports: 0,
            recovered: None,
            datagram_topics: Box::default(),
            accepts_assigned: false,
            hooks: None,
        }
    }

    /// Sends the first message, with the application's value.
    fn send_welcome(&self, data: Option<&RawValue>, cx: &mut Context<'_>) {
        let mut welcome = json!({
            "op": "welcome",
            "connection": self.session.id(),
            "max_message": self.max_message,
            "max_subscriptions": Topics::SUBSCRIPTIONS_MAX,
            "max_topic": model::NAME_MAX,
        });
        self.add_state(&mut welcome);
        match data {
            Some(data) => {
                // After a Close, the message is dropped.
                let _ = cx.send_text(&with_fields(&welcome, &format!("\"data\":{}", data.get())));
            }
            None => send_json(cx, &welcome),
        }
    }

    /// Executes a request; returns the acknowledgement's fields besides the id.
    fn execute(
        &mut self,
        op: ClientOp<'_>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        match op {
            ClientOp::Subscribe { topic, options } => self.subscribe(&topic, options, id, cx),
            ClientOp::History { topic, range } => self.history(&topic, range, id, cx),
            ClientOp::Unsubscribe { topic } => self.unsubscribe(&topic, cx),
            ClientOp::Publish { topic, data, idempotency_key } => {
                let (content, idempotency_key) = (data.content()?, idempotency_key.as_deref());
                let publication = ClientPublication { topic: &topic, content: &content, idempotency_key };
                self.publish(publication, id, cx)
            }
            ClientOp::Presence { topic } => {
                model::check_name(&topic).map_err(|text| problem(code::TOPIC, text))?;
                self.session.may(Action::Subscribe, &topic)?;
                self.session.rights().check_presence(&topic)?;
                self.check_hooked(&topic)?;
                Ok(OpReply::Message(presence::presence_message(&topic, cx.topics().presence(&topic))))
            }
            ClientOp::Join { topic, member } => {
                self.check_hooked(&topic)?;
                self.join(&topic, member, cx)?;
                Ok(OpReply::Ack(json!({ "topic": topic })))
            }
            ClientOp::Leave { topic } if self.joined.leave(&topic, cx) => {
                self.session.observe_topic(ActivityKind::Leave, &topic);
                Ok(OpReply::Ack(json!({ "topic": topic })))
            }
            ClientOp::Leave { topic } => {
                Err(problem(code::NOT_SUBSCRIBED, format!("has not joined {}", brief(&topic))))
            }
            ClientOp::Members { topic, after } => {
                model::check_name(&topic).map_err(|text| problem(code::TOPIC, text))?;
                self.session.may(Action::Subscribe, &topic)?;
                self.session.rights().check_presence(&topic)?;
                self.check_hooked(&topic)?;
                let mut answer = json!({ "op": "members", "topic": topic });
                let members = presence::add_members(&mut answer, &topic, after.as_deref(), cx);
                Ok(OpReply::Members(answer, members))
            }
            ClientOp::Token { token } => self.renew(&token, cx),
            ClientOp::Rpc { method, topic, data } => self.call(&method, topic.as_deref(), data, id, cx),
            ClientOp::Keys(request) => self.execute_keys(request, id, cx),
            ClientOp::Ping => Ok(OpReply::Message(json!({ "op": "pong" }))),
            ClientOp::Stream(stream, op) => {
                let answer = self.streams.execute(stream, op, id, self.session.rights(), cx)?;
                Ok(match answer {
                    streams::StreamReply::Ack(fields) => OpReply::Ack(fields),
                    streams::StreamReply::Message(message) => OpReply::Encoded(message),
                    streams::StreamReply::Deferred => OpReply::Deferred,
                })
            }
        }
    }

    /// Joins a topic as a member, with the application's info if there is any.
    fn join(&mut self, topic: &str, member: MemberFields, cx: &mut Context<'_>) -> Result<(), Problem> {
        let member = self.named(topic, member);
        let is_subscribed = self.subscriptions.iter().any(|known| known.topic == topic);
        let (subscriptions, rights) = (self.subscriptions.len(), self.session.rights());
        self.joined.join(topic, member, is_subscribed, subscriptions, rights, cx)?;
        self.observe_join(topic);
        Ok(())
    }

    /// A member with the application's info, if there is any.
    fn named(&self, topic: &str, member: MemberFields) -> MemberFields {
        let hook = self.hooks.as_ref().and_then(|hooks| hooks.info(topic));
        member.with_info_of_application(hook, self.session.rights().info())
    }

    /// The store for topic keys.
    fn key_store(&self) -> KeyStore<'_> {
        KeyStore::new(self.session.hub(), self.streams.store())
    }

    fn execute_keys(
        &mut self,
        request: KeyRequest<'_>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        if matches!(request.op, KeyOp::Subscribe(_)) {
            self.session.check_subscribe_rate(&request.topic)?;
        }
        if let Some(hook) = self.hook_of_keys(&request)? {
            return self.start_keys(&hook, request, id, cx);
        }
        let ack = self.keys.execute(request, id, self.streams.store(), &mut self.session, cx)?;
        Ok(ack.map_or(OpReply::Deferred, OpReply::Ack))
    }

    /// Handles a message's bytes, unless it has to wait for a stream.
    fn handle_bytes(&mut self, is_text: bool, bytes: &[u8], cx: &mut Context<'_>) -> Option<SharedOpening> {
        let read = incoming::read(if is_text { bytes } else { b"" });
        let opening = match &read {
            Ok(ClientMessage { op: ClientOp::Stream(stream, op), .. }) => {
                self.streams.opening(stream.as_deref(), op, self.session.rights())
            }
            Ok(ClientMessage { op: ClientOp::Publish { topic, idempotency_key, .. }, .. }) => {
                self.opening_of_publication(topic, idempotency_key.is_some())
            }
            Ok(ClientMessage { op: ClientOp::History { topic, range }, .. }) => self
                .streams
                .opening_of_topic(topic, Action::Subscribe, self.session.rights())
                .or_else(|| self.opening_of_history(topic, Some(range.start()))),
            Ok(ClientMessage { op: ClientOp::Subscribe { topic, options }, .. }) => {
                self.opening_of_history(topic, options.start)
            }
            Ok(ClientMessage { op: ClientOp::Keys(request), .. }) => {
                ConnectionKeys::opening(request, self.key_store(), self.session.rights())
            }
            _ => None,
        };
        if opening.is_none() {
            self.handle_message(read, cx);
        }
        opening
    }

    /// What a subscription, or a request for the history, waits for that the client may make.
    fn opening_of_history(&self, topic: &str, from: Option<ReplayFrom>) -> Option<SharedOpening> {
        let is_permitted = || self.session.may(Action::Subscribe, topic).is_ok();
        let is_name = model::check_name(topic).is_ok();
        is_name
            .then(|| self.session.hub().opening_of_history(topic, from))
            .flatten()
            .filter(|_| is_permitted())
    }

    /// Executes a message and answers it.
    fn handle_message(
        &mut self,
        read: Result<ClientMessage<'_>, (Option<Value>, Problem)>,
        cx: &mut Context<'_>,
    ) {
        let observed = self.observed_op(&read);
        let (id, result) = match read {
            Ok(ClientMessage { id, op, ignored }) => {
                self.report_ignored(&ignored, &id, cx);
                let result = self.execute(op, &id, cx);
                (id, result)
            }
            Err((id, problem)) => (id, Err(problem)),
        };
        self.observe_failure(observed, &result);
        let (result, ended) = match result {
            Ok(OpReply::Renewed(ack, ended)) => (Ok(OpReply::Ack(ack)), ended),
            result => (result, Vec::new()),
        };
        self.answer(result, id, cx);
        for error in &ended {
            send_json(cx, error);
        }
    }

    /// Replaces the token. Subscriptions that the new token does not allow end.
    fn renew(&mut self, token: &str, cx: &mut Context<'_>) -> Result<OpReply, Problem> {
        self.check_token_decides()?;
        self.session.renew(token, "/ws", cx)?;
        let mut ack = json!({});
        if let Some(left) = self.session.rights().expires_in() {
            ack["expires_in"] = json!(left);
        }
        let ended = self.end_denied(cx);
        self.subscribe_to_assigned(cx);
        Ok(OpReply::Renewed(ack, ended))
    }

    fn subscribe(
        &mut self,
        topic: &str,
        options: SubscribeOptions,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let has_presence = options.presence > PresenceDetail::None;
        let check = if has_presence { model::check_name } else { model::check_subscription };
        check(topic).map_err(|text| problem(code::TOPIC, text))?;
        self.session.may(Action::Subscribe, topic)?;
        if has_presence {
            self.session.rights().check_presence(topic)?;
        }
        self.session.check_subscribe_rate(topic)?;
        match self.session.rights().subscribe_hook(topic)? {
            // The application has accepted the request of a response with events.
            Some(_) if self.acknowledges_all => self.subscribe_permitted(topic, options, id, cx),
            Some(hook) if self.has_hooks() => self.start_subscribe(&hook, topic, options, id, cx),
            // A reload has removed the hooks meanwhile.
            Some(_) => self.subscribe(topic, options, id, cx),
            None => self.subscribe_permitted(topic, options, id, cx),
        }
    }

    /// Subscribes to a topic or pattern that was checked.
    fn subscribe_permitted(
        &mut self,
        topic: &str,
        SubscribeOptions { presence, start, recovery }: SubscribeOptions,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let index = self.subscriptions.iter().position(|known| known.topic == topic);
        if index.is_none() {
            self.joined.check_room_to_subscribe(topic, self.subscriptions.len())?;
        }
        if let Some(store) = self.streams.store_of_subscription(topic).cloned() {
            // Nothing is replayed for a pattern.
            let resumes = recovery.is_some_and(|recovery| recovery.from.is_some());
            let start = start.or_else(|| resumes.then_some(ReplayFrom::Last(0)));
            return self.subscribe_to_stream(&store, topic, presence, start, id, cx);
        }
        let mut ack = json!({ "topic": topic });
        if index.is_none() || start.is_some() {
            // A server's own subscription does not wait for the topic store.
            let is_open = self.session.hub().opening_of_history(topic, None).is_none();
            match subscribe_from(topic, start, is_open, cx)? {
                Some(joined) => {
                    let Position { epoch, sequence } = joined.position;
                    ack["epoch"] = json!(epoch);
                    ack["seq"] = json!(sequence);
                    ack["replayed"] = json!(joined.replayed);
                    ack["complete"] = json!(joined.complete);
                    mark_stale(
                        &mut ack,
                        self.session.hub().stored(topic).and_then(|stored| stored.stale_for(topic)),
                    );
                }
                // The topic has no history, so earlier messages are unknown.
                None if start.is_some() => ack["complete"] = json!(false),
                None => {}
            }
        }
        let index = index.unwrap_or_else(|| self.add_subscription(topic, None, cx));
        if let Some(recovery) = recovery {
            self.recover(topic, *recovery, &mut ack, cx);
        }
        let members = self.add_presence(index, presence, &mut ack, cx)?;
        Ok(OpReply::acknowledge(ack, members))
    }

    /// Registers a new subscription.
    fn add_subscription(
        &mut self,
        topic: &str,
        follow: Option<Box<DurableSubscription>>,
        cx: &mut Context<'_>,
    ) -> usize {
        if self.joined.set_subscribed(topic, true) {
            self.session.hub().count_subscriber(MESSAGES);
        } else {
            self.session.hub().add_subscriber(cx, MESSAGES, topic);
        }
        self.session.hub().retry_rejected(topic);
        self.session.observe_topic(ActivityKind::Subscribe, topic);
        let presence = PresenceDetail::None;
        // Most clients have one subscription, and there may be many of them.
        if self.subscriptions.is_empty() {
            self.subscriptions.reserve_exact(1);
        }
        self.subscriptions.push(TopicSubscription {
            topic: topic.to_owned(),
            presence,
            follow,
            by_server: false,
        });
        self.subscriptions.len() - 1
    }

    /// Subscribes to presence if requested, and adds the subscriber count to the acknowledgement. Returns the members,
    /// encoded, if the client follows them. Adds a missing right to publish.
    fn add_presence(
        &mut self,
        index: usize,
        presence: PresenceDetail,
        ack: &mut Value,
        cx: &mut Context<'_>,
    ) -> Result<Option<Bytes>, Problem> {
        let known = &mut self.subscriptions[index];
        let topic = &*known.topic;
        if presence > known.presence {
            cx.watch_presence(topic).map_err(presence_problem)?;
            known.presence = presence;
        }
        let mut members = None;
        match known.presence {
            PresenceDetail::None => {}
            PresenceDetail::Changes => {
                let presence = cx.topics().presence(topic);
                ack["subscribers"] = json!(presence.connections);
                ack["at"] = json!(presence.version);
            }
            // A member finds itself in the list.
            PresenceDetail::Members if self.joined.contains(topic) => {
                members = Some(presence::add_members(ack, topic, None, cx));
            }
            PresenceDetail::Members => members = Some(presence::add_first_members(ack, topic, cx)),
        }
        // Responses with events cannot publish, whatever their rights.
        let is_name = || model::check_name(topic).is_ok();
        if !self.acknowledges_all && self.session.may(Action::Publish, topic).is_err() && is_name() {
            ack["publish"] = json!(false);
        }
        Ok(members)
    }
}

impl Handler for JsonClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        let path = if self.streams.has_default() { ConnectionPath::Stream } else { ConnectionPath::Protocol };
        self.session.open(path, cx);
        use_datagrams(MESSAGES, std::mem::take(&mut self.datagram_topics), cx);
        if !self.start_connect(path.as_str(), cx) {
            self.send_welcome(None, cx);
            self.subscribe_to_assigned(cx);
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if self.holds_back(&payload, cx) {
            return;
        }
        if let Some(opening) = self.handle_bytes(payload.kind() == Kind::Text, &payload, cx) {
            self.streams.defer(opening, payload.detach(), cx);
        }
    }

    fn dropped(&mut self, missed: &DroppedMessages, cx: &mut Context<'_>) {
        if self.return_to_log(missed, cx) {
            return;
        }
        // The notice would displace more messages.
        if !cx.has_capacity() {
            return cx.report_later(missed);
        }
        let mut message = json!({ "op": "dropped", "messages": missed.messages() });
        let name = |topic| if missed.is_presence() { Some(topic) } else { MESSAGES.name(topic) };
        if let Some(topic) = missed.topic().and_then(name) {
            message["topic"] = json!(topic);
        }
        if cx.send_text(&message.to_string()) == Ok(Sent::Dropped) {
            cx.report_later(missed);
        }
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        self.poll_hook(cx);
        if self.is_connecting() {
            return;
        }
        self.handle_waiting(cx);
        self.execute_commands(cx);
        if let Some((text, opened)) = self.streams.take_deferred(cx) {
            let read = match (incoming::read(&text), opened) {
                (Ok(ClientMessage { id, .. }), Err(problem)) => Err((id, problem)),
                (read, _) => read,
            };
            self.handle_message(read, cx);
        }
        while let Some((id, stored)) = self.keys.take_stored(cx) {
            self.answer(stored.map(OpReply::Ack), id, cx);
        }
        self.keys.resume_if_free(cx);
        self.streams.woken(cx);
        self.follow(cx);
        self.keys.pause_if_full(cx);
        self.pause_for_hook(cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.streams.drain(cx);
        self.follow(cx);
        self.keys.pause_if_full(cx);
        self.pause_for_hook(cx);
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        if self.start_refresh(cx) {
            return;
        }
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }

    fn queued(&mut self, bytes: usize) {
        self.session.set_queued(bytes);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        self.session.end(closed);
        self.hooks = None;
        self.streams.close();
        for subscription in std::mem::take(&mut self.subscriptions) {
            self.session.hub().remove_subscriber(cx, MESSAGES, &subscription.topic);
        }
    }
}
