//! `WS /topics/{name}`: messages are the payloads themselves.

mod appender;
pub(crate) mod encoding;
mod hooks;

use std::sync::Arc;
use std::time::Instant;

use sinews_server::{CloseCode, Closed, Context, Handler, Payload, Request};

use self::appender::TopicAppender;
use self::encoding::PAYLOADS;
use self::hooks::RawHooks;
use crate::access::auth::{Action, Rights, RightsChange};
use crate::access::namespaces::ConnectionRates;
use crate::admission::HandshakeRejection;
use crate::closing::{FORBIDDEN, TOKEN_EXPIRED, close};
use crate::config::{ConfigHandle, log_changed_rights};
use crate::connections::{ConnectionPath, RegisteredConnection};
use crate::http::topic_of;
use crate::model::problem::code;
use crate::model::publication::{Publication, PublicationSender};
use crate::model::{self, MessageContent};
use crate::protocol::datagrams::{datagram_topics, deliver_datagrams};
use crate::session::client_message;
use crate::streams::service::StreamService;
use crate::topics::{self, HubTopics};

/// The subprotocol of sockets whose messages are the payloads themselves. Browsers that pass a token in the list of
/// subprotocols need a second entry that the server can select.
pub(crate) const NAME: &str = "sinews.raw";

/// `WS /topics/{name}`: a message goes to all the topic's subscribers. A pattern only receives.
pub(crate) struct TopicClient {
    topic: String,
    /// The topic is a pattern, which only receives.
    is_pattern: bool,
    /// The sender receives its own messages too.
    include_self: bool,
    /// Topics whose publications leave as datagrams, until the connection is open.
    datagram_topics: Vec<String>,
    rights: Rights,
    live: ConfigHandle,
    hub: Arc<HubTopics>,
    /// The connection counts as a subscriber.
    joined: bool,
    /// Set for durable topics, and for patterns that match a broker's durable topics.
    stream: Option<TopicAppender>,
    /// Set while the connection is open.
    connection: Option<RegisteredConnection>,
    rates: ConnectionRates,
    /// Largest message in bytes.
    max_message: u32,
    /// `None` without hooks.
    hooks: Option<Box<RawHooks>>,
    /// A hook has rejected the client: messages before its end are discarded.
    is_rejected: bool,
}

/// The route, in the connection list and in requests to the application.
const PATH: &str = "/topics/{name}";

impl TopicClient {
    pub(crate) fn new(
        request: &Request<'_>,
        live: &ConfigHandle,
        hub: Arc<HubTopics>,
        store: Option<Arc<StreamService>>,
        max_message: usize,
    ) -> Result<Self, HandshakeRejection> {
        let topic = topic_of(request, model::check_subscription)
            .map_err(|problem| HandshakeRejection::request(400, &problem))?;
        let include_self = match request.query("self") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => {
                return Err(HandshakeRejection::request(400, "query parameter `self` must be true or false"));
            }
        };
        let datagram_topics = datagram_topics(request)?;
        let is_pattern = model::is_pattern(&topic);
        let store = store.filter(|store| match is_pattern {
            true => store.discovers(&topic),
            false => store.topics().is_durable(&topic),
        });
        if store.is_some() && !is_pattern && !include_self {
            return Err(HandshakeRejection::request(400, "self=false is not supported for durable topics"));
        }
        let policy = live.config();
        let rights = policy.rights(request)?;
        // A connect hook may grant other rights.
        if policy.hooks().is_none_or(|hooks| hooks.options().connect.is_none()) {
            rights.may(Action::Subscribe, &topic)?;
        }
        let hooks = RawHooks::for_connection(request, &policy);
        let stream = store.map(TopicAppender::new);
        Ok(Self {
            topic,
            is_pattern,
            include_self,
            datagram_topics,
            rights,
            live: live.clone(),
            hub,
            joined: false,
            stream,
            connection: None,
            rates: ConnectionRates::default(),
            max_message: u32::try_from(max_message).unwrap_or(u32::MAX),
            hooks,
            is_rejected: false,
        })
    }
}

impl TopicClient {
    /// Replaces the rights by the backend's. Without the right to subscribe, the connection is closed.
    fn change_rights(&mut self, change: &RightsChange, cx: &mut Context<'_>) {
        match self.live.config().changed_rights(change, &self.rights) {
            Ok(rights) => self.rights = rights,
            // This node's options may differ from those of the node that has checked the change.
            Err(fault) => return log_changed_rights(&fault),
        }
        self.live.config().announce_rights(self.connection.as_ref(), &self.rights, cx);
        // The deadline may be earlier than before: the server reads it after a wakeup.
        cx.waker().wake();
        if self.joined
            && let Err(denied) = self.rights.may(Action::Subscribe, &self.topic)
        {
            close(cx, FORBIDDEN, &denied.problem);
        }
    }
}

impl TopicClient {
    /// Subscribes, if the rights and the hooks permit it.
    fn begin(&mut self, cx: &mut Context<'_>) {
        if let Err(denied) = self.rights.may(Action::Subscribe, &self.topic) {
            return close(cx, FORBIDDEN, &denied.problem);
        }
        if !self.start_subscribe(cx) {
            self.subscribe(cx);
        }
    }

    fn subscribe(&mut self, cx: &mut Context<'_>) {
        match cx.subscribe(&PAYLOADS.topic(&self.topic)) {
            Ok(()) => {
                self.joined = true;
                self.hub.add_subscriber(cx, PAYLOADS, &self.topic);
                self.hub.retry_rejected(&self.topic);
                if let Some(stream) = &mut self.stream {
                    stream.open(&self.topic, cx);
                }
            }
            // The name was checked before the upgrade, so this is another limit; the client receives it as the reason.
            Err(error) => close(cx, CloseCode::POLICY, &topics::subscription_fault(error)),
        }
    }

    /// Publishes a message, if the rights, the limits and the hooks permit it.
    fn handle(&mut self, content: &MessageContent, cx: &mut Context<'_>) {
        if let Err(denied) = self.rights.may(Action::Publish, &self.topic) {
            return close(cx, FORBIDDEN, &denied.problem);
        }
        if let Err(problem) = self.rights.check_publication(&self.topic, content.len(), &mut self.rates) {
            let code = if problem.code == code::TOO_LARGE { CloseCode::TOO_BIG } else { CloseCode::POLICY };
            return close(cx, code, &problem.text);
        }
        if !self.start_publish(content, cx) {
            self.publish(content, cx);
        }
    }

    /// Publishes a message that was checked.
    fn publish(&mut self, content: &MessageContent, cx: &mut Context<'_>) {
        client_message::report(&self.hub, &self.topic, content, &self.rights, self.connection.as_ref());
        match &mut self.stream {
            Some(stream) => stream.append(&self.topic, content, &self.rights, cx),
            None => {
                let excludes_publisher = !self.include_self;
                let sender = PublicationSender { excludes_publisher, ..PublicationSender::default() };
                let content = content.into();
                self.hub.publish(cx, &Publication::new(&self.topic, &content).with_sender(sender));
            }
        }
    }
}

impl Handler for TopicClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        let registry = self.hub.connections();
        self.connection =
            Some(registry.register(ConnectionPath::Topic, &self.rights, cx.subscriber_id(), cx.waker()));
        self.live.config().close_if_revoked(&self.rights, cx);
        deliver_datagrams(PAYLOADS, std::mem::take(&mut self.datagram_topics), cx);
        if !self.start_connect(cx) {
            self.begin(cx);
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if self.is_rejected {
            return;
        }
        if self.is_pattern {
            return close(cx, CloseCode::POLICY, model::PUBLISHES_TO_PATTERN);
        }
        let content = MessageContent::payload(payload.kind(), payload.detach());
        if !self.holds_back(&content, cx) {
            self.handle(&content, cx);
        }
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        let changes = self.connection.as_ref().map(|connection| connection.execute_commands(cx));
        for change in changes.unwrap_or_default() {
            self.change_rights(&change, cx);
        }
        self.poll_hook(cx);
        if let Some(stream) = &mut self.stream {
            stream.woken(cx);
        }
        // The stream may have resumed reads.
        if self.awaits_hook() {
            cx.pause_reads();
        }
    }

    fn queued(&mut self, bytes: usize) {
        if let Some(connection) = &self.connection {
            connection.set_queued(bytes);
        }
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        if let Some(connection) = self.connection.take() {
            connection.end(closed);
        }
        if std::mem::take(&mut self.joined) {
            self.hub.remove_subscriber(cx, PAYLOADS, &self.topic);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.rights.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }
}
