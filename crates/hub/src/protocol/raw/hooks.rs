//! Hooks for `WS /topics/{name}`. While a hook decides, the connection reads nothing, as at `/ws`. A rejection closes
//! the connection, because the raw protocol has no error messages.

use std::collections::VecDeque;
use std::task::Poll;

use hyper::header::{HeaderName, HeaderValue};
use sinews_server::{CloseCode, Context, Request};

use super::TopicClient;
use crate::access::auth::Action;
use crate::access::namespaces::TopicHook;
use crate::closing::{FORBIDDEN, close};
use crate::config::HubConfig;
use crate::hooks::UNANSWERED;
use crate::hooks::{HookDetail, HookReply, PendingReply};
use crate::model::{HookKind, MessageContent};
use crate::outgoing::options::HookFailure;
use crate::session::request_hooks::accepted_content;

/// One connection's hooks.
#[derive(Default)]
pub(super) struct RawHooks {
    /// Handshake headers that requests repeat.
    headers: Vec<(HeaderName, HeaderValue)>,
    pending: Option<PendingRawHook>,
    /// Messages that have arrived while a hook decides: pausing reads outside a message lets one more through.
    waiting: VecDeque<MessageContent>,
}

struct PendingRawHook {
    reply: PendingReply,
    failure: HookFailure,
    action: RawAction,
}

/// The action that the hook permits or rejects.
enum RawAction {
    Connect,
    Subscribe,
    Publish(MessageContent),
}

/// Maximum number of messages that wait for a hook.
const WAITING_MAX: usize = 2;

impl RawHooks {
    /// A handshake's hooks; `None` without any.
    pub(super) fn for_connection(request: &Request<'_>, config: &HubConfig) -> Option<Box<Self>> {
        let headers = config.hooks()?.headers_of(request);
        Some(Box::new(Self { headers, ..Self::default() }))
    }
}

impl TopicClient {
    /// Whether a hook decides.
    pub(super) fn awaits_hook(&self) -> bool {
        self.hooks.as_ref().is_some_and(|hooks| hooks.pending.is_some())
    }

    /// Asks the application about the connection. Returns `false` without such a hook.
    pub(super) fn start_connect(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(hook) = self.session.hook(|options| options.connect.clone()) else { return false };
        let detail = HookDetail::Connect { path: super::PATH };
        self.start_hook(&hook, &detail, RawAction::Connect, cx)
    }

    /// Asks the application about the subscription. Returns `false` without such a hook.
    pub(super) fn start_subscribe(&mut self, cx: &mut Context<'_>) -> bool {
        let hook = match self.session.rights().subscribe_hook(&self.topic) {
            Ok(Some(hook)) => hook,
            Ok(None) => return false,
            Err(denied) => {
                close(cx, FORBIDDEN, &denied.problem);
                return true;
            }
        };
        let topic = self.topic.clone();
        self.start_hook(&hook, &HookDetail::Subscribe { topic: &topic }, RawAction::Subscribe, cx)
    }

    /// Asks the application about a publication. Returns `false` without such a hook.
    pub(super) fn start_publish(&mut self, content: &MessageContent, cx: &mut Context<'_>) -> bool {
        let hook = self.session.rights().topic_hook(HookKind::Publish, &self.topic);
        let Some(hook) = hook else { return false };
        let topic = self.topic.clone();
        let detail = HookDetail::Publish { topic: &topic, content, idempotency_key: None };
        self.start_hook(&hook, &detail, RawAction::Publish(content.clone()), cx)
    }

    /// Sends a request, and pauses reads until its answer.
    fn start_hook(
        &mut self,
        hook: &TopicHook,
        detail: &HookDetail<'_>,
        action: RawAction,
        cx: &mut Context<'_>,
    ) -> bool {
        let headers = self.hooks.as_ref().map_or_else(Vec::new, |hooks| hooks.headers.clone());
        let Some(reply) = self.session.request_hook(hook, detail, headers) else { return false };
        let hooks = self.hooks.get_or_insert_default();
        hooks.pending = Some(PendingRawHook { reply, failure: hook.failure, action });
        cx.pause_reads();
        // The wakeup polls the answer.
        cx.waker().wake();
        true
    }

    /// Keeps a message while a hook decides. Returns whether it did.
    pub(super) fn holds_back(&mut self, content: &MessageContent, cx: &mut Context<'_>) -> bool {
        let Some(hooks) = self.hooks.as_mut().filter(|hooks| hooks.pending.is_some()) else { return false };
        if hooks.waiting.len() >= WAITING_MAX {
            close(cx, CloseCode::POLICY, "too many messages while a hook decides");
            return true;
        }
        hooks.waiting.push_back(content.clone());
        cx.pause_reads();
        true
    }

    /// Completes the pending action if its answer is there, and then handles the messages that have waited.
    pub(super) fn poll_hook(&mut self, cx: &mut Context<'_>) {
        let Some(pending) = self.hooks.as_mut().and_then(|hooks| hooks.pending.as_mut()) else { return };
        let Poll::Ready(reply) = pending.reply.poll(&cx.waker()) else { return };
        let Some(PendingRawHook { failure, action, .. }) =
            self.hooks.as_mut().and_then(|hooks| hooks.pending.take())
        else {
            return;
        };
        cx.resume_reads();
        if let Some(stream) = &self.stream {
            stream.restore_pause(cx);
        }
        let reply = match reply {
            Ok(HookReply { rejection: Some(rejection), .. }) => {
                return self.reject(close_code(rejection.code), &rejection.reason, cx);
            }
            Ok(reply) => reply,
            Err(failed) if failed.opens(failure) => HookReply::default(),
            Err(_) => return self.reject(CloseCode::TRY_AGAIN_LATER, UNANSWERED, cx),
        };
        match action {
            RawAction::Connect => self.accept_connection(reply, cx),
            RawAction::Subscribe => self.subscribe(cx),
            RawAction::Publish(content) => self.accept_publication(content, reply, cx),
        }
        while !self.awaits_hook()
            && let Some(content) = self.hooks.as_mut().and_then(|hooks| hooks.waiting.pop_front())
        {
            self.handle(&content, cx);
        }
    }

    fn accept_connection(&mut self, reply: HookReply, cx: &mut Context<'_>) {
        if let Some(claims) = reply.claims {
            match self.session.rights_of_claims(claims, cx) {
                Ok(rights) => self.session.set_rights(rights, cx),
                Err((code, reason)) => return self.reject(code, reason, cx),
            }
        }
        self.begin(cx);
    }

    fn accept_publication(&mut self, content: MessageContent, reply: HookReply, cx: &mut Context<'_>) {
        // The rights may have changed while the hook decided.
        if let Err(denied) = self.session.may(Action::Publish, &self.topic) {
            return self.reject(FORBIDDEN, &denied.problem, cx);
        }
        let (rights, max) = (self.session.rights(), self.max_message as usize);
        match accepted_content(rights, &self.topic, content, max, reply) {
            Ok(content) => self.publish(&content, cx),
            Err(problem) => self.reject(close_code(Some(problem.code)), &problem.text, cx),
        }
    }

    /// Closes the connection, and discards its further messages.
    fn reject(&mut self, code: CloseCode, reason: &str, cx: &mut Context<'_>) {
        if let Some(hooks) = &mut self.hooks {
            hooks.waiting.clear();
        }
        self.is_rejected = true;
        self.reject_op("", code, reason, cx);
    }
}

/// The close code for a rejection: the application's, or 4000 and its status.
fn close_code(code: Option<u16>) -> CloseCode {
    let code = match code {
        Some(status @ 400..=499) => CloseCode::new(4_000 + status),
        Some(503) => Some(CloseCode::TRY_AGAIN_LATER),
        Some(code) => CloseCode::new(code),
        None => None,
    };
    code.unwrap_or(FORBIDDEN)
}
