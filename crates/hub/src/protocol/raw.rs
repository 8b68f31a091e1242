//! `WS /topics/{name}`: messages are the payloads themselves.

mod appender;

use std::sync::Arc;
use std::time::Instant;

use sinews_server::{CloseCode, Closed, Context, Handler, Payload, Request};

use self::appender::TopicAppender;
use crate::admission::HandshakeRejection;
use crate::auth::{Action, Rights};
use crate::client_message;
use crate::closing::{FORBIDDEN, TOKEN_EXPIRED, close};
use crate::connections::RegisteredConnection;
use crate::http::topic_of;
use crate::namespaces::ConnectionRates;
use crate::policy::AccessPolicy;
use crate::problem::code;
use crate::streams::service::StreamService;
use crate::topics::{self, HubTopics, MessageContent, TopicForm};

/// The subprotocol of sockets whose messages are the payloads themselves. Browsers that pass a token in the list of
/// subprotocols need a second entry that the server can select.
pub(crate) const NAME: &str = "sinews.raw";

/// `WS /topics/{name}`: a message goes to all subscribers of the topic. A pattern only receives.
pub(crate) struct TopicClient {
    topic: String,
    /// The topic is a pattern, which only receives.
    is_pattern: bool,
    /// The sender receives its own messages too.
    include_self: bool,
    rights: Rights,
    hub: Arc<HubTopics>,
    /// The connection counts as a subscriber.
    joined: bool,
    /// Set for durable topics.
    stream: Option<TopicAppender>,
    /// Set while the connection is open.
    connection: Option<RegisteredConnection>,
    rates: ConnectionRates,
}

impl TopicClient {
    pub(crate) fn new(
        request: &Request<'_>,
        policy: &AccessPolicy,
        hub: Arc<HubTopics>,
        store: Option<Arc<StreamService>>,
    ) -> Result<Self, HandshakeRejection> {
        let topic = topic_of(request, topics::check_subscription)
            .map_err(|problem| HandshakeRejection::request(400, &problem))?;
        let include_self = match request.query("self") {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => {
                return Err(HandshakeRejection::request(400, "query parameter `self` must be true or false"));
            }
        };
        let store = store.filter(|store| store.topics().is_durable(&topic));
        if store.is_some() && !include_self {
            return Err(HandshakeRejection::request(400, "self=false is not supported for durable topics"));
        }
        let allowed = |rights: Rights| {
            rights.may(Action::Subscribe, &topic)?;
            rights.check_without_hooks(Action::Subscribe, &topic)?;
            Ok(rights)
        };
        let rights = policy.rights(request).and_then(allowed)?;
        let stream = store.map(TopicAppender::new);
        let is_pattern = topics::is_pattern(&topic);
        Ok(Self {
            topic,
            is_pattern,
            include_self,
            rights,
            hub,
            joined: false,
            stream,
            connection: None,
            rates: ConnectionRates::default(),
        })
    }
}

impl Handler for TopicClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        let registry = self.hub.connections();
        self.connection = Some(registry.register("/topics/{name}", &self.rights, cx.waker()));
        match cx.subscribe(&TopicForm::Plain.topic(&self.topic)) {
            Ok(()) => {
                self.joined = true;
                self.hub.add_subscriber(cx, TopicForm::Plain, &self.topic);
                if let Some(stream) = &mut self.stream {
                    stream.open(&self.topic, cx);
                }
            }
            // The name was checked before the upgrade, so this is another limit; the client receives it as the reason.
            Err(error) => close(cx, CloseCode::POLICY, &topics::subscription_fault(error)),
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if self.is_pattern {
            return close(cx, CloseCode::POLICY, topics::PUBLISHES_TO_PATTERN);
        }
        let may_publish = self.rights.may(Action::Publish, &self.topic);
        let without_hooks = || self.rights.check_without_hooks(Action::Publish, &self.topic);
        if let Err(denied) = may_publish.and_then(|()| without_hooks()) {
            return close(cx, FORBIDDEN, &denied.problem);
        }
        if let Err(problem) = self.rights.check_publication(&self.topic, payload.len(), &mut self.rates) {
            let code = if problem.code == code::TOO_LARGE { CloseCode::TOO_BIG } else { CloseCode::POLICY };
            return close(cx, code, &problem.text);
        }
        let content = MessageContent::payload(payload.kind(), payload.detach());
        client_message::report(&self.hub, (&self.topic, &content), &self.rights, self.connection.as_ref());
        match &mut self.stream {
            Some(stream) => stream.publish(&self.topic, &content, &self.rights, cx),
            None => {
                self.hub.publish(cx, &self.topic, &content, self.include_self);
            }
        }
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        if let Some(connection) = &self.connection {
            connection.execute_close(cx);
        }
        if let Some(stream) = &mut self.stream {
            stream.woken(cx);
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
            self.hub.remove_subscriber(cx, TopicForm::Plain, &self.topic);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.rights.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }
}
