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
use crate::access::auth::Action;
use crate::activity::ActivityKind;
use crate::admission::HandshakeRejection;
use crate::closing::{FORBIDDEN, TOKEN_EXPIRED, close};
use crate::config::ConfigHandle;
use crate::connections::ConnectionPath;
use crate::http::topic_of;
use crate::model::problem::code;
use crate::model::publication::{Publication, PublicationSender};
use crate::model::{self, MessageContent};
use crate::protocol::datagrams::{datagram_topics, use_datagrams};
use crate::session::client_session::ClientSession;
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
    datagram_topics: Box<[String]>,
    session: ClientSession,
    /// The connection counts as a subscriber.
    joined: bool,
    /// Set for durable topics, and for patterns that match a broker's durable topics.
    stream: Option<TopicAppender>,
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
        let config = live.config();
        let rights = config.rights(request)?;
        // A connect hook may grant other rights.
        if config.hooks().is_none_or(|hooks| hooks.options().connect.is_none()) {
            rights.may(Action::Subscribe, &topic)?;
        }
        let hooks = RawHooks::for_connection(request, &config);
        let stream = store.map(TopicAppender::new);
        Ok(Self {
            topic,
            is_pattern,
            include_self,
            datagram_topics,
            session: ClientSession::new(rights, live, hub),
            joined: false,
            stream,
            max_message: u32::try_from(max_message).unwrap_or(u32::MAX),
            hooks,
            is_rejected: false,
        })
    }

    /// Subscribes, if the rights and the hooks permit it.
    fn begin(&mut self, cx: &mut Context<'_>) {
        if let Err(denied) = self.session.may(Action::Subscribe, &self.topic) {
            return self.reject_op("subscribe", FORBIDDEN, &denied.problem, cx);
        }
        if !self.start_subscribe(cx) {
            self.subscribe(cx);
        }
    }

    fn subscribe(&mut self, cx: &mut Context<'_>) {
        match cx.subscribe(&PAYLOADS.topic(&self.topic)) {
            Ok(()) => {
                self.joined = true;
                self.session.hub().add_subscriber(cx, PAYLOADS, &self.topic);
                self.session.hub().retry_rejected(&self.topic);
                self.session.observe_topic(ActivityKind::Subscribe, &self.topic);
                if let Some(stream) = &mut self.stream {
                    stream.open(&self.topic, cx);
                }
            }
            // The name was checked before the upgrade, so this is another limit; the client receives it as the reason.
            Err(error) => {
                let fault = topics::subscription_fault(error);
                self.reject_op("subscribe", CloseCode::POLICY, &fault, cx);
            }
        }
    }

    /// Closes the connection, since an operation is rejected.
    fn reject_op(&self, op: &str, code: CloseCode, reason: &str, cx: &mut Context<'_>) {
        self.session.observe_rejection(op, Some(&self.topic), code.as_u16(), reason);
        close(cx, code, reason);
    }

    /// Publishes a message, if the rights, the limits and the hooks permit it.
    fn handle(&mut self, content: &MessageContent, cx: &mut Context<'_>) {
        if let Err(denied) = self.session.may(Action::Publish, &self.topic) {
            return self.reject_op("publish", FORBIDDEN, &denied.problem, cx);
        }
        if let Err(problem) = self.session.check_publication(&self.topic, content.len()) {
            let code = if problem.code == code::TOO_LARGE { CloseCode::TOO_BIG } else { CloseCode::POLICY };
            return self.reject_op("publish", code, &problem.text, cx);
        }
        if !self.start_publish(content, cx) {
            self.publish(content, cx);
        }
    }

    /// Publishes a message that was checked.
    fn publish(&mut self, content: &MessageContent, cx: &mut Context<'_>) {
        self.session.report_message(&self.topic, content);
        match &mut self.stream {
            Some(stream) => stream.append(&self.topic, content, self.session.rights(), cx),
            None => {
                let excludes_publisher = !self.include_self;
                // The publisher receives its own messages from the topic store, as all others do.
                let is_stored = excludes_publisher && self.session.hub().stored(&self.topic).is_some();
                let exclude = self.session.connection_id().filter(|_| is_stored);
                let sender =
                    PublicationSender { excludes_publisher, exclude, ..PublicationSender::default() };
                let content = content.into();
                let verified = self.session.rights().verified_sender(&self.topic);
                let publication = Publication::new(&self.topic, &content).with_sender(sender);
                let publication = publication.by(verified.as_ref());
                self.session.hub().publish(cx, &publication);
            }
        }
    }
}

impl Handler for TopicClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        self.session.open(ConnectionPath::Topic, cx);
        use_datagrams(PAYLOADS, std::mem::take(&mut self.datagram_topics), cx);
        if !self.start_connect(cx) {
            self.begin(cx);
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        if self.is_rejected {
            return;
        }
        if self.is_pattern {
            return self.reject_op("publish", CloseCode::POLICY, model::PUBLISHES_TO_PATTERN, cx);
        }
        let content = MessageContent::payload(payload.kind(), payload.detach());
        if !self.holds_back(&content, cx) {
            self.handle(&content, cx);
        }
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        let topic = self.joined.then_some(&*self.topic);
        for change in self.session.execute_commands(topic, cx) {
            if self.session.change_rights(&change, cx)
                && self.joined
                && let Err(denied) = self.session.may(Action::Subscribe, &self.topic)
            {
                close(cx, FORBIDDEN, &denied.problem);
            }
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
        self.session.set_queued(bytes);
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        self.session.end(closed);
        if std::mem::take(&mut self.joined) {
            self.session.hub().remove_subscriber(cx, PAYLOADS, &self.topic);
        }
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }
}
