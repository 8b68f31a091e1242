//! A connection's hooks. While a hook decides, the connection reads nothing: its messages keep their order, and wait at
//! most one chunk here, the rest in the network.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::Value;
use serde_json::value::RawValue;
use sinews_server::{CloseCode, Context, KeySubscription, KeyWrite, Kind, LogLimit, Payload, Request};

use super::keys::{KeyOp, KeyRequest};
use super::requests::{ClientPublication, SubscribeOptions};
use super::{JsonClient, OpReply, send_json};
use crate::access::auth::Action;
use crate::access::namespaces::TopicHook;
use crate::closing::{EXPIRED, FORBIDDEN, TOKEN_EXPIRED, close};
use crate::config::HubConfig;
use crate::hooks::UNANSWERED;
use crate::hooks::{CallData, HookCall, HookDetail, HookReply, PendingReply};
use crate::keys::KeyStore;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::model::{self, HookKind, MessageContent};
use crate::outgoing::options::HookFailure;
use crate::session::request_hooks::{accepted_content, accepted_write};

/// Limit for the log lines about an application's invalid topics.
static TOPIC_LINES: LogLimit = LogLimit::new();

/// A connection's hook state.
#[derive(Default)]
pub(super) struct ConnectionHooks {
    /// Handshake headers that requests repeat.
    headers: Vec<(HeaderName, HeaderValue)>,
    pending: Option<PendingHook>,
    /// A message that has arrived while a hook decides, and whether it is text: pausing reads outside a message lets
    /// one more through.
    waiting: Option<(bool, Bytes)>,
    /// The application has rejected the connection: messages before its end are discarded.
    is_rejected: bool,
    /// The rights have expired while another hook was pending.
    refresh_due: bool,
    /// The application has granted the rights: the client's tokens do not replace them.
    grants_rights: bool,
    /// The client's info as a member of any topic.
    info: Option<Value>,
    /// The same for single topics, of subscriptions.
    topic_infos: BTreeMap<String, Value>,
}

/// A hook that decides.
struct PendingHook {
    reply: PendingReply,
    failure: HookFailure,
    action: HookedAction,
}

/// The action that the hook decides about.
enum HookedAction {
    Connect,
    Refresh,
    Subscribe { topic: String, options: SubscribeOptions, id: Option<Value> },
    Publish { topic: String, content: MessageContent, idempotency_key: Option<String>, id: Option<Value> },
    WriteKey { topic: String, write: Box<KeyWrite>, id: Option<Value> },
    SubscribeKeys { topic: String, options: KeySubscription, id: Option<Value> },
    Rpc { id: Option<Value> },
}

/// Extension of expired rights if the application does not answer and the hook fails open.
const EXTENSION: Duration = Duration::from_secs(30);

impl ConnectionHooks {
    /// Keeps the handshake's headers; `None` without hooks.
    pub(super) fn for_connection(request: &Request<'_>, config: &HubConfig) -> Option<Box<Self>> {
        let hooks = config.hooks()?;
        Some(Box::new(Self { headers: hooks.headers_of(request), ..Self::default() }))
    }

    /// The state of a response whose request the application has accepted.
    pub(super) fn for_request(
        headers: Vec<(HeaderName, HeaderValue)>,
        grants_rights: bool,
        info: Option<Value>,
        topic_infos: BTreeMap<String, Value>,
    ) -> Box<Self> {
        Box::new(Self { headers, grants_rights, info, topic_infos, ..Self::default() })
    }

    /// The info that the application has set for a topic's member.
    pub(super) fn info(&self, topic: &str) -> Option<&Value> {
        self.topic_infos.get(topic).or(self.info.as_ref())
    }

    /// Forgets a topic.
    pub(super) fn forget(&mut self, topic: &str) {
        self.topic_infos.remove(topic);
    }
}

impl JsonClient {
    /// Whether a hook decides.
    pub(super) fn awaits_hook(&self) -> bool {
        self.hooks.as_ref().is_some_and(|hooks| hooks.pending.is_some())
    }

    /// Keeps a message while a hook decides, or discards it after a rejection. Returns whether it did.
    pub(super) fn holds_back(&mut self, payload: &Payload<'_>, cx: &mut Context<'_>) -> bool {
        let Some(hooks) = &mut self.hooks else { return false };
        if hooks.is_rejected {
            return true;
        }
        if hooks.pending.is_none() {
            return false;
        }
        if hooks.waiting.is_some() {
            close(cx, CloseCode::POLICY, "too many messages while a hook decides");
            return true;
        }
        hooks.waiting = Some((payload.kind() == Kind::Text, Bytes::copy_from_slice(payload)));
        cx.pause_reads();
        true
    }

    /// Handles the message that has waited.
    pub(super) fn handle_waiting(&mut self, cx: &mut Context<'_>) {
        let hooks = self.hooks.as_mut().filter(|hooks| hooks.pending.is_none());
        if let Some((is_text, message)) = hooks.and_then(|hooks| hooks.waiting.take())
            && let Some(opening) = self.handle_bytes(is_text, &message, cx)
        {
            self.streams.defer(opening, message, cx);
        }
    }

    /// Closes the connection, and discards its further messages.
    fn reject(&mut self, code: CloseCode, reason: &str, cx: &mut Context<'_>) {
        self.session.observe_rejection("connect", None, code.as_u16(), reason);
        let hooks = self.hooks.get_or_insert_default();
        (hooks.is_rejected, hooks.waiting) = (true, None);
        close(cx, code, reason);
    }

    /// Whether the application has not yet accepted the connection.
    pub(super) fn is_connecting(&self) -> bool {
        let pending = self.hooks.as_ref().and_then(|hooks| hooks.pending.as_ref());
        pending.is_some_and(|pending| matches!(pending.action, HookedAction::Connect))
    }

    /// Pauses reads if a hook decides: streams may have resumed them.
    pub(super) fn pause_for_hook(&self, cx: &mut Context<'_>) {
        if self.awaits_hook() {
            cx.pause_reads();
        }
    }

    /// Asks the application whether to accept the connection. Returns `false` without such a hook.
    pub(super) fn start_connect(&mut self, path: &str, cx: &mut Context<'_>) -> bool {
        let Some(hook) = self.session.hook(|options| options.connect.clone()) else { return false };
        self.start(&hook, &HookDetail::Connect { path }, HookedAction::Connect, cx).is_ok()
    }

    /// Asks the application to extend expired rights. Returns `false` without such a hook.
    pub(super) fn start_refresh(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(hook) = self.session.hook(|options| options.refresh.clone()) else { return false };
        let state = self.hooks.get_or_insert_default();
        if state.is_rejected {
            return true;
        }
        if let Some(pending) = &state.pending {
            // A refresh that is pending serves each expiry.
            state.refresh_due |= !matches!(pending.action, HookedAction::Refresh);
            return true;
        }
        self.start(&hook, &HookDetail::Refresh, HookedAction::Refresh, cx).is_ok()
    }

    /// Whether there are hooks. If not, a hook that was looked up before belongs to a former policy, and the namespaces
    /// in force have none.
    pub(super) fn has_hooks(&self) -> bool {
        self.session.config().hooks().is_some()
    }

    /// Asks the application about a subscription.
    pub(super) fn start_subscribe(
        &mut self,
        hook: &TopicHook,
        topic: &str,
        options: SubscribeOptions,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let action = HookedAction::Subscribe { topic: topic.to_owned(), options, id: id.clone() };
        self.start(hook, &HookDetail::Subscribe { topic }, action, cx)
    }

    /// Asks the application about a publication.
    pub(super) fn start_publish(
        &mut self,
        hook: &TopicHook,
        publication: ClientPublication<'_>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let ClientPublication { topic, content, idempotency_key } = publication;
        let action = HookedAction::Publish {
            topic: topic.to_owned(),
            content: content.clone(),
            idempotency_key: idempotency_key.map(str::to_owned),
            id: id.clone(),
        };
        self.start(hook, &HookDetail::Publish { topic, content, idempotency_key }, action, cx)
    }

    /// The hook that decides about an operation on a topic's keys.
    ///
    /// # Errors
    /// A write is not permitted, whatever the application decides.
    pub(super) fn hook_of_keys(
        &mut self,
        request: &KeyRequest<'_>,
    ) -> Result<Option<Arc<TopicHook>>, Problem> {
        let topic = &*request.topic;
        if !self.has_hooks() {
            return Ok(None);
        }
        match &request.op {
            KeyOp::Write(write) => {
                let hook = self.session.rights().topic_hook(HookKind::Publish, topic);
                let Some(hook) = hook else { return Ok(None) };
                self.keys.check_write(topic, write, self.streams.store(), &mut self.session)?;
                Ok(Some(hook))
            }
            // The application has accepted the request of a response with events.
            KeyOp::Subscribe(_) if !self.acknowledges_all && self.check_hooked(topic).is_err() => {
                model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
                self.session.may(Action::Subscribe, topic)?;
                self.session.rights().check_keyed(topic)?;
                Ok(self.session.rights().subscribe_hook(topic)?)
            }
            KeyOp::Subscribe(_) | KeyOp::Unsubscribe => Ok(None),
        }
    }

    /// Asks the application about an operation on a topic's keys.
    pub(super) fn start_keys(
        &mut self,
        hook: &TopicHook,
        request: KeyRequest<'_>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let (topic, id) = (&*request.topic, id.clone());
        match request.op {
            KeyOp::Write(write) => {
                let reply = self.request(hook, &HookDetail::WriteKey { topic, write: &write })?;
                let action = HookedAction::WriteKey { topic: topic.to_owned(), write, id };
                self.await_reply(reply, hook, action, cx);
                Ok(OpReply::Deferred)
            }
            KeyOp::Subscribe(options) => {
                let action = HookedAction::SubscribeKeys { topic: topic.to_owned(), options, id };
                self.start(hook, &HookDetail::Subscribe { topic }, action, cx)
            }
            KeyOp::Unsubscribe => Ok(OpReply::Deferred),
        }
    }

    /// Passes a call to the application.
    pub(super) fn call(
        &mut self,
        method: &str,
        topic: Option<&str>,
        data: Option<&RawValue>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let call = HookCall { method, topic };
        let hook = self.session.call_hook(&call)?;
        let detail = HookDetail::Rpc { call, data: data.map(|data| CallData::Json(data.get())) };
        self.start(&hook, &detail, HookedAction::Rpc { id: id.clone() }, cx)
    }

    /// Sends a request, and pauses reads until its answer.
    fn start(
        &mut self,
        hook: &TopicHook,
        detail: &HookDetail<'_>,
        action: HookedAction,
        cx: &mut Context<'_>,
    ) -> Result<OpReply, Problem> {
        let reply = self.request(hook, detail)?;
        self.await_reply(reply, hook, action, cx);
        Ok(OpReply::Deferred)
    }

    fn request(&self, hook: &TopicHook, detail: &HookDetail<'_>) -> Result<PendingReply, Problem> {
        let headers = self.hooks.as_ref().map_or_else(Vec::new, |hooks| hooks.headers.clone());
        self.session.request_hook(hook, detail, headers).ok_or_else(unanswered)
    }

    /// Pauses reads until the answer.
    fn await_reply(
        &mut self,
        reply: PendingReply,
        hook: &TopicHook,
        action: HookedAction,
        cx: &mut Context<'_>,
    ) {
        let state = self.hooks.get_or_insert_default();
        state.pending = Some(PendingHook { reply, failure: hook.failure, action });
        cx.pause_reads();
        // The wakeup polls the answer.
        cx.waker().wake();
    }

    /// Completes the pending action if its answer is there.
    pub(super) fn poll_hook(&mut self, cx: &mut Context<'_>) {
        let Some(pending) = self.hooks.as_mut().and_then(|hooks| hooks.pending.as_mut()) else { return };
        let Poll::Ready(reply) = pending.reply.poll(&cx.waker()) else { return };
        let Some(PendingHook { failure, action, .. }) =
            self.hooks.as_mut().and_then(|hooks| hooks.pending.take())
        else {
            return;
        };
        cx.resume_reads();
        self.streams.restore_pause(cx);
        self.complete(action, reply.map_err(|failed| failed.opens(failure)), cx);
        let hooks = self.hooks.get_or_insert_default();
        let is_due = hooks.pending.is_none() && std::mem::take(&mut hooks.refresh_due);
        // There may be new rights since.
        if is_due && self.session.rights().has_expired() && !self.start_refresh(cx) {
            self.reject(TOKEN_EXPIRED, EXPIRED, cx);
        }
    }

    /// Completes an action with its answer; `Err(true)` without an answer if the hook fails open. The rights may have
    /// changed while the hook decided.
    fn complete(&mut self, action: HookedAction, reply: Result<HookReply, bool>, cx: &mut Context<'_>) {
        match action {
            HookedAction::Connect => self.connected(reply, cx),
            HookedAction::Refresh => self.refreshed(reply, cx),
            HookedAction::Subscribe { topic, options, id } => {
                let topics = reply.as_ref().map_or_else(|_| Vec::new(), |reply| reply.topics.clone());
                let subscribed = topic.clone();
                let result = self.accept(reply).and_then(|reply| {
                    self.session.may(Action::Subscribe, &topic)?;
                    let result = self.subscribe_permitted(&topic, options, &id, cx)?;
                    if let Some(info) = reply.info {
                        self.hooks.get_or_insert_default().topic_infos.insert(topic, info);
                    }
                    Ok(result)
                });
                let is_accepted = result.is_ok();
                self.answer_hooked("subscribe", Some(&subscribed), result, id, cx);
                if is_accepted {
                    self.subscribe_to_all(&topics, cx);
                }
            }
            HookedAction::Publish { topic, content, idempotency_key, id } => {
                let result = self.accept(reply).and_then(|reply| {
                    self.session.may(Action::Publish, &topic)?;
                    let (rights, max) = (self.session.rights(), self.max_message as usize);
                    let content = accepted_content(rights, &topic, content, max, reply)?;
                    let idempotency_key = idempotency_key.as_deref();
                    let accepted = ClientPublication { topic: &topic, content: &content, idempotency_key };
                    self.publish_accepted(accepted, &id, cx)
                });
                self.answer_hooked("publish", Some(&topic), result, id, cx);
            }
            HookedAction::WriteKey { topic, write, id } => {
                let result = self.accept(reply).and_then(|reply| {
                    self.session.rights().may_write_key(&topic, write.key())?;
                    let max_message = self.max_message as usize;
                    let write = accepted_write(self.session.rights(), &topic, *write, max_message, reply)?;
                    let store = KeyStore::new(self.session.hub(), self.streams.store());
                    let observed = self.session.observed_write(&write);
                    let ack = self.keys.write(&topic, write, &id, store, cx)?;
                    self.session.observe_write(&topic, observed.as_ref());
                    Ok(ack.map_or(OpReply::Deferred, OpReply::Ack))
                });
                self.answer_hooked("set", Some(&topic), result, id, cx);
            }
            HookedAction::SubscribeKeys { topic, options, id } => {
                let result = self.accept(reply).and_then(|_| {
                    let request = KeyRequest { topic: (&*topic).into(), op: KeyOp::Subscribe(options) };
                    let streams = self.streams.store();
                    let ack = self.keys.execute(request, &id, streams, &mut self.session, cx)?;
                    Ok(ack.map_or(OpReply::Deferred, OpReply::Ack))
                });
                self.answer_hooked("subscribe", Some(&topic), result, id, cx);
            }
            HookedAction::Rpc { id } => match self.accept(reply.map_err(|_| false)) {
                Ok(reply) => {
                    let data = reply.data.as_ref().map_or("null", |data| data.get());
                    let id = id.map_or_else(String::new, |id| format!("\"id\":{id},"));
                    // After a Close, the message is dropped.
                    let _ = cx.send_text(&format!("{{\"op\":\"rpc\",{id}\"data\":{data}}}"));
                }
                Err(problem) => self.answer_hooked("rpc", None, Err(problem), id, cx),
            },
        }
    }

    /// Answers a request that the application has decided about.
    fn answer_hooked(
        &self,
        op: &str,
        topic: Option<&str>,
        result: Result<OpReply, Problem>,
        id: Option<Value>,
        cx: &mut Context<'_>,
    ) {
        if let Err(problem) = &result {
            self.session.observe_rejection(op, topic, problem.code, &problem.text);
        }
        self.answer(result, id, cx);
    }

    /// An accepted action's answer; `Err(true)` without an answer if the hook fails open.
    fn accept(&self, reply: Result<HookReply, bool>) -> Result<HookReply, Problem> {
        match reply {
            Ok(HookReply { rejection: Some(rejection), .. }) => {
                Err(problem(rejection.code.unwrap_or(code::NOT_SUBJECT), rejection.reason))
            }
            Ok(reply) => Ok(reply),
            Err(true) => Ok(HookReply::default()),
            Err(false) => Err(unanswered()),
        }
    }

    fn connected(&mut self, reply: Result<HookReply, bool>, cx: &mut Context<'_>) {
        let reply = match reply {
            Ok(HookReply { rejection: Some(rejection), .. }) => {
                let code = rejection.code.and_then(CloseCode::new).unwrap_or(FORBIDDEN);
                return self.reject(code, &rejection.reason, cx);
            }
            Ok(reply) => reply,
            Err(true) => HookReply::default(),
            Err(false) => return self.reject(CloseCode::TRY_AGAIN_LATER, UNANSWERED, cx),
        };
        if let Some(claims) = reply.claims {
            match self.session.rights_of_claims(claims, cx) {
                Ok(rights) => {
                    self.session.set_rights(rights, cx);
                    self.hooks.get_or_insert_default().grants_rights = true;
                }
                Err((code, reason)) => return self.reject(code, reason, cx),
            }
        } else if self.session.rights().has_expired() {
            // While the application decided.
            return self.reject(TOKEN_EXPIRED, EXPIRED, cx);
        }
        self.hooks.get_or_insert_default().info = reply.info;
        self.send_welcome(reply.data.as_deref(), cx);
        self.subscribe_to_assigned(cx);
        self.subscribe_to_all(&reply.topics, cx);
    }

    fn refreshed(&mut self, reply: Result<HookReply, bool>, cx: &mut Context<'_>) {
        let reply = match reply {
            Ok(HookReply { rejection: Some(rejection), .. }) => {
                let code = rejection.code.and_then(CloseCode::new).unwrap_or(TOKEN_EXPIRED);
                return self.reject(code, &rejection.reason, cx);
            }
            Ok(reply) => reply,
            Err(true) => {
                let rights = self.session.rights().until(Instant::now() + EXTENSION);
                return self.session.set_rights(rights, cx);
            }
            Err(false) => return self.reject(TOKEN_EXPIRED, EXPIRED, cx),
        };
        let claims = reply.claims.map(|claims| self.session.rights_of_claims(claims, cx));
        let rights = match claims.transpose() {
            Ok(rights) => rights,
            Err((TOKEN_EXPIRED, reason)) => return self.reject(TOKEN_EXPIRED, reason, cx),
            Err(_) => None,
        };
        let Some(rights) = rights else {
            return self.reject(TOKEN_EXPIRED, EXPIRED, cx);
        };
        self.session.set_rights(rights, cx);
        let hooks = self.hooks.get_or_insert_default();
        hooks.grants_rights = true;
        if reply.info.is_some() {
            hooks.info = reply.info;
        }
        for error in self.end_denied(cx) {
            send_json(cx, &error);
        }
        self.subscribe_to_assigned(cx);
    }

    /// Checks that a client's token may replace its rights.
    ///
    /// # Errors
    /// The application has granted the rights.
    pub(super) fn check_token_decides(&self) -> Result<(), Problem> {
        if !self.hooks.as_ref().is_some_and(|hooks| hooks.grants_rights) {
            return Ok(());
        }
        let text = "a hook has granted the rights of this connection: the op `token` does not replace them";
        Err(problem(code::NOT_SUBJECT, text))
    }

    /// Subscribes the client to the topics in its token or claims. Former ones remain.
    pub(super) fn subscribe_to_assigned(&mut self, cx: &mut Context<'_>) {
        if self.acknowledges_all && !self.accepts_assigned {
            return;
        }
        let topics = self.session.rights().assigned_topics().to_vec();
        self.subscribe_to_all(&topics, cx);
    }

    /// Subscribes the client to topics in the application's answer.
    pub(super) fn subscribe_to_all(&mut self, topics: &[String], cx: &mut Context<'_>) {
        for topic in topics {
            let checked = model::check_subscription(topic).map_err(|text| problem(code::TOPIC, text));
            if let Err(problem) = checked.and_then(|()| self.subscribe_by_server(topic, cx))
                && let Some(omitted) = TOPIC_LINES.permit(Instant::now())
            {
                tracing::warn!(topic = %brief(topic), omitted, "topic of a hook: {}", problem.text);
            }
        }
    }

    /// Checks that the client has subscribed to a topic if a hook decides about its subscriptions.
    ///
    /// # Errors
    /// It has not.
    pub(super) fn check_hooked(&self, topic: &str) -> Result<(), Problem> {
        let is_subscribed = || self.subscriptions.iter().any(|known| known.topic == topic);
        if self.session.rights().subscribe_hook(topic)?.is_none() || is_subscribed() {
            return Ok(());
        }
        Err(problem(
            code::NOT_SUBJECT,
            format!("a hook decides about subscriptions to {}: subscribe first", brief(topic)),
        ))
    }
}

fn unanswered() -> Problem {
    problem(code::STORE, UNANSWERED)
}
