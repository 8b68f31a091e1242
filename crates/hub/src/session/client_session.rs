//! What each client protocol does for its client beside decoding and encoding.

use std::sync::Arc;
use std::time::Instant;

use hyper::header::{HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use sinews_server::{CloseCode, Closed, Context, KeyWrite};

use super::client_message;
use crate::access::auth::{Action, Denied, Rights, RightsChange};
use crate::access::namespaces::{ConnectionRates, TopicHook};
use crate::activity::{Activity, ActivityKind};
use crate::closing::{TOKEN_EXPIRED, close};
use crate::config::{ConfigHandle, HubConfig, RejectedClaims, log_rights};
use crate::connections::{ConnectionCommand, ConnectionPath, REVOKED, RegisteredConnection};
use crate::hooks::{HookCall, HookDetail, PendingReply};
use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::model::problem::{Problem, code, problem};
use crate::outgoing::options::HookOptions;
use crate::topics::HubTopics;

/// One client's rights, and its entry in the list of connections. A protocol without rates has `()` in their place.
pub(crate) struct ClientSession<R = ConnectionRates> {
    rights: Rights,
    live: ConfigHandle,
    hub: Arc<HubTopics>,
    /// Set while the connection is open.
    connection: Option<RegisteredConnection>,
    rates: R,
}

impl<R: Default> ClientSession<R> {
    /// Creates the session for a client whose connection is not open yet.
    pub(crate) fn new(rights: Rights, live: &ConfigHandle, hub: Arc<HubTopics>) -> Self {
        Self { rights, live: live.clone(), hub, connection: None, rates: R::default() }
    }
}

impl<R> ClientSession<R> {
    /// Registers the open connection at a path. Closes it if its token was revoked since its handshake; a later
    /// revocation finds the connection.
    pub(crate) fn open(&mut self, path: ConnectionPath, cx: &mut Context<'_>) {
        let registry = self.hub.connections();
        self.connection = Some(registry.register(path, &self.rights, cx.subscriber_id(), cx.waker()));
        if self.live.config().revocations().check(&self.rights).is_err() {
            close(cx, TOKEN_EXPIRED, REVOKED);
        }
        self.observe_connection(|| Activity { kind: ActivityKind::Connect, ..Activity::default() });
    }

    /// Observes an action of the client; the description has all but the client.
    pub(crate) fn observe<'a>(&self, describe: impl FnOnce() -> Activity<'a>) {
        self.hub.activity().observe(|| {
            let described = describe();
            Activity {
                path: match self.path() {
                    Some(path) => path.as_str(),
                    None => described.path,
                },
                connection: self.id(),
                user: self.rights.subject(),
                address: self.rights.address(),
                ..described
            }
        });
    }

    /// Observes an action on a topic.
    pub(crate) fn observe_topic(&self, kind: ActivityKind, topic: &str) {
        self.observe(|| Activity { kind, topic: Some(topic), ..Activity::default() });
    }

    /// Observes a rejected operation, perhaps on a topic.
    pub(crate) fn observe_rejection(&self, op: &str, topic: Option<&str>, code: u16, reason: &str) {
        self.observe(|| Activity {
            kind: ActivityKind::Reject,
            op: Some(op).filter(|op| !op.is_empty()),
            topic,
            code: Some(code),
            reason: Some(reason),
            ..Activity::default()
        });
    }

    /// Observes a connection's start or end. A client of polls has a connection for each poll.
    fn observe_connection(&self, describe: impl FnOnce() -> Activity<'static>) {
        if self.path() != Some(ConnectionPath::Poll) {
            self.observe(describe);
        }
    }

    /// Returns a write of a key, if it has to be observed when it is done.
    pub(crate) fn observed_write(&self, write: &KeyWrite) -> Option<KeyWrite> {
        self.hub.activity().is_observed().then(|| write.clone())
    }

    /// Observes a write of a key.
    pub(crate) fn observe_write(&self, topic: &str, write: Option<&KeyWrite>) {
        if let Some(write) = write {
            self.observe(|| Activity::key_write(topic, write));
        }
    }

    pub(crate) fn hub(&self) -> &Arc<HubTopics> {
        &self.hub
    }

    /// Returns the configuration at this moment.
    pub(crate) fn config(&self) -> Arc<HubConfig> {
        self.live.config()
    }

    /// Returns the open connection's id.
    pub(crate) fn id(&self) -> Option<String> {
        self.connection.as_ref().map(RegisteredConnection::id)
    }

    /// Returns the open connection's id, for publications that exclude it.
    pub(crate) fn connection_id(&self) -> Option<ConnectionId> {
        self.connection.as_ref().map(RegisteredConnection::connection_id)
    }

    /// Returns the open connection's path.
    pub(crate) fn path(&self) -> Option<ConnectionPath> {
        self.connection.as_ref().map(RegisteredConnection::path)
    }

    pub(crate) fn rights(&self) -> &Rights {
        &self.rights
    }

    /// Checks a right, as [`Rights::may`] does.
    pub(crate) fn may(&self, action: Action, topic: &str) -> Result<(), Denied> {
        self.rights.may(action, topic)
    }

    /// Replaces the rights, and shows them to the HTTP API. Closes the connection if their token was revoked since it
    /// was verified; a later revocation finds the connection with these rights.
    pub(crate) fn set_rights(&mut self, rights: Rights, cx: &mut Context<'_>) {
        self.rights = rights;
        // A connection that is not registered yet is checked then.
        let Some(connection) = &self.connection else { return };
        if connection.set_rights(&self.rights, self.live.config().revocations()).is_err() {
            close(cx, TOKEN_EXPIRED, REVOKED);
        }
    }

    /// Replaces the rights by those of the client's new token.
    ///
    /// # Errors
    /// The token is invalid, expired or revoked. The log of rejections has the path.
    pub(crate) fn renew(&mut self, token: &str, path: &str, cx: &mut Context<'_>) -> Result<(), Denied> {
        let rights = self.live.config().rights_of(Some(token), cx.peer().ip(), path)?;
        self.set_rights(rights, cx);
        // The deadline may be earlier than before: the server reads it after a wakeup.
        cx.waker().wake();
        Ok(())
    }

    /// Replaces the rights by the backend's. Returns whether they are valid.
    pub(crate) fn change_rights(&mut self, change: &RightsChange, cx: &mut Context<'_>) -> bool {
        let changed = self.live.config().changed_rights(change, &self.rights);
        // This node's options may differ from those of the node that has checked the change.
        let changed = changed.inspect_err(|fault| log_rights("rights of the backend", fault));
        let Ok(rights) = changed else { return false };
        self.set_rights(rights, cx);
        // As for a new token.
        cx.waker().wake();
        true
    }

    /// Returns the rights that the application's claims grant, or the connection's end; the log has the claims' fault.
    pub(crate) fn rights_of_claims(
        &self,
        claims: Map<String, Value>,
        cx: &Context<'_>,
    ) -> Result<Rights, (CloseCode, &'static str)> {
        let address = self.rights.address().unwrap_or_else(|| cx.peer().ip());
        self.live.config().rights_of_claims(claims, address).map_err(RejectedClaims::into_close)
    }

    /// Returns when the rights expire.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.rights.deadline()
    }

    /// Returns the hook whose URL the function selects, if there is one.
    pub(crate) fn hook(&self, url: impl FnOnce(&HookOptions) -> Option<String>) -> Option<TopicHook> {
        let config = self.live.config();
        let options = config.hooks()?.options();
        Some(TopicHook { url: url(options)?, failure: options.failure })
    }

    /// Sends a hook's request. Returns `None` without hooks: a reload may have removed them.
    pub(crate) fn request_hook(
        &self,
        hook: &TopicHook,
        detail: &HookDetail<'_>,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> Option<PendingReply> {
        let (config, id) = (self.live.config(), self.id().unwrap_or_default());
        Some(config.hooks()?.call(&hook.url, detail, &id, self.rights.client(), headers))
    }

    /// Reports the client's publication, if anything wants to know it.
    pub(crate) fn report_message(&self, topic: &str, content: &MessageContent) {
        client_message::report(&self.hub, topic, content, &self.rights, self.connection.as_ref());
    }

    /// Takes the commands of the HTTP API.
    pub(crate) fn take_commands(&self) -> Vec<ConnectionCommand> {
        self.connection.as_ref().map_or_else(Vec::new, RegisteredConnection::take_commands)
    }

    /// Executes the commands for a client without the `/ws` protocol: it has this subscription and no further ones.
    /// Returns the changes to its rights.
    pub(crate) fn execute_commands(
        &self,
        topic: Option<&str>,
        cx: &mut Context<'_>,
    ) -> Vec<Arc<RightsChange>> {
        let mut changes = Vec::new();
        for command in self.take_commands() {
            match command {
                ConnectionCommand::Close { code, reason } => close(cx, code, &reason),
                ConnectionCommand::ReportCluster { .. } | ConnectionCommand::ReportRejected(_) => {}
                ConnectionCommand::Refresh(change) => changes.push(change),
                ConnectionCommand::Describe { reply } => {
                    let subscriptions: Vec<Value> =
                        topic.iter().map(|topic| json!({ "topic": topic })).collect();
                    let _ = reply.send(json!({ "subscriptions": subscriptions }));
                }
                ConnectionCommand::Subscribe { reply, .. } | ConnectionCommand::Unsubscribe { reply, .. } => {
                    let path = self.path().map_or("", ConnectionPath::as_str);
                    let text = format!("a connection at {path} has no further subscriptions");
                    // The caller may have gone.
                    let _ = reply.send(Err(problem(code::NOT_SUBSCRIBED, text)));
                }
            }
        }
        changes
    }

    /// Sets the bytes that wait for the client ([`Handler::queued`](sinews_server::Handler::queued)).
    pub(crate) fn set_queued(&self, bytes: usize) {
        if let Some(connection) = &self.connection {
            connection.set_queued(bytes);
        }
    }

    /// Ends the registration of the connection.
    pub(crate) fn end(&mut self, closed: &Closed) {
        if self.connection.is_some() {
            let code = Some(closed.status()).filter(|code| *code > 0);
            self.observe_connection(|| Activity { kind: ActivityKind::Close, code, ..Activity::default() });
        }
        if let Some(connection) = self.connection.take() {
            connection.end(closed);
        }
    }
}

impl ClientSession {
    /// Checks a publication, or a write of a key, as [`Rights::check_publication`] does.
    pub(crate) fn check_publication(&mut self, topic: &str, bytes: usize) -> Result<(), Problem> {
        self.rights.check_publication(topic, bytes, &mut self.rates)
    }

    /// Takes a subscription from the rate, as [`Rights::check_subscribe_rate`] does.
    pub(crate) fn check_subscribe_rate(&mut self, topic: &str) -> Result<(), Problem> {
        self.rights.check_subscribe_rate(topic, &mut self.rates)
    }

    /// Checks a call, and returns its hook, as [`HookCall::hook`] does.
    pub(crate) fn call_hook(&mut self, call: &HookCall<'_>) -> Result<Arc<TopicHook>, Problem> {
        call.hook(self.live.config().hooks(), &self.rights, Some(&mut self.rates))
    }
}
