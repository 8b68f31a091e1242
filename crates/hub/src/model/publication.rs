//! Publications.

use std::cell::OnceCell;
use std::sync::Arc;

use sinews_server::Position;

use crate::model::MessageContent;
use crate::model::connection_id::ConnectionId;
use crate::model::event::Event;
use crate::model::nodes::NodePublicationId;
use crate::model::socket_id::parse_socket_id;
use crate::model::stamp::{MessageStamp, VerifiedSender};

/// A publication: a content for a topic, and where it comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Publication<'a, 'c> {
    pub(crate) topic: &'a str,
    pub(crate) content: &'a PublishedContent<'c>,
    /// The position that a stream or another process has assigned.
    pub(crate) position: Option<Position>,
    pub(crate) origin: PublicationOrigin,
    pub(crate) sender: PublicationSender,
    /// The client that has published, where its topic has senders.
    pub(crate) verified: Option<&'a Arc<VerifiedSender>>,
    /// When it was published, in milliseconds since 1970.
    pub(crate) time: Option<u64>,
}

/// Where a publication comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PublicationOrigin {
    /// A client or a backend of this process.
    #[default]
    Local,
    /// A durable topic's stream, which has assigned the position.
    Stream,
    /// The topic store, which has assigned the position, behind another message.
    Store { prev: u64 },
    /// Another node in the cluster.
    Node(NodePublicationId),
    /// The predecessor process, which waits for some publications' positions, and has delivered the others.
    Predecessor { awaits: bool },
    /// The successor process.
    Successor,
}

/// A publication's sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PublicationSender {
    /// The socket of an app's client that has published.
    pub(crate) socket: Option<u128>,
    /// The connection that does not receive the publication, in this process or in another one.
    pub(crate) exclude: Option<ConnectionId>,
    /// The publishing connection does not receive the publication.
    pub(crate) excludes_publisher: bool,
}

impl<'a, 'c> Publication<'a, 'c> {
    /// Creates a publication of this process.
    pub(crate) fn new(topic: &'a str, content: &'a PublishedContent<'c>) -> Self {
        let (origin, sender) = (PublicationOrigin::Local, PublicationSender::default());
        Self { topic, content, position: None, origin, sender, verified: None, time: None }
    }

    pub(crate) fn with_origin(self, origin: PublicationOrigin) -> Self {
        Self { origin, ..self }
    }

    pub(crate) fn with_sender(self, sender: PublicationSender) -> Self {
        Self { sender, ..self }
    }

    /// Sets the client that has published.
    pub(crate) fn by(self, verified: Option<&'a Arc<VerifiedSender>>) -> Self {
        Self { verified, ..self }
    }

    /// Sets when it was published.
    pub(crate) fn with_time(self, time: Option<u64>) -> Self {
        Self { time, ..self }
    }

    /// Returns the fields of its protocol message.
    pub(crate) fn stamp(&self, position: Option<Position>) -> MessageStamp<'a> {
        MessageStamp { position, time: self.time, sender: self.verified.map(|sender| &**sender) }
    }

    /// Sets the position, if it is assigned already.
    pub(crate) fn at(self, position: Option<Position>) -> Self {
        Self { position, ..self }
    }
}

/// A publication that waits for another process.
#[derive(Clone, Debug)]
pub(crate) struct WaitingPublication {
    pub(crate) topic: String,
    pub(crate) content: MessageContent,
    pub(crate) origin: PublicationOrigin,
    pub(crate) sender: PublicationSender,
    pub(crate) verified: Option<Arc<VerifiedSender>>,
    pub(crate) time: Option<u64>,
}

impl From<&Publication<'_, '_>> for WaitingPublication {
    fn from(publication: &Publication<'_, '_>) -> Self {
        Self {
            topic: publication.topic.to_owned(),
            content: publication.content.message().clone(),
            origin: publication.origin,
            sender: publication.sender,
            verified: publication.verified.cloned(),
            time: publication.time,
        }
    }
}

impl WaitingPublication {
    /// Returns the publication, with its content as encodings need it.
    pub(crate) fn publication<'a, 'c>(&'a self, content: &'a PublishedContent<'c>) -> Publication<'a, 'c> {
        let publication = Publication::new(&self.topic, content).with_origin(self.origin);
        publication.with_sender(self.sender).by(self.verified.as_ref()).with_time(self.time)
    }
}

/// The content of a publication to one or more topics. Its other form is made once, when it is needed.
#[derive(Debug)]
pub(crate) enum PublishedContent<'a> {
    /// Any content, and its event.
    Message(&'a MessageContent, OnceCell<Event<'a>>),
    /// An event from an app's server, and its content.
    Event(Event<'a>, OnceCell<MessageContent>),
}

impl<'a> From<&'a MessageContent> for PublishedContent<'a> {
    fn from(message: &'a MessageContent) -> Self {
        Self::Message(message, OnceCell::new())
    }
}

impl<'a> PublishedContent<'a> {
    /// Creates an event from an app's server: its data is the JSON of a string, as received. With a user, its channel
    /// is the user's.
    pub(crate) fn from_server(
        name: &'a str,
        data: &'a str,
        socket_id: Option<&str>,
        user: Option<&'a str>,
    ) -> Self {
        let (socket_id, user) = (socket_id.and_then(parse_socket_id), user.map(Into::into));
        Self::Event(Event { socket_id, user, ..Event::new(name, data) }, OnceCell::new())
    }

    pub(crate) fn message(&self) -> &MessageContent {
        match self {
            Self::Message(message, _) => message,
            Self::Event(event, message) => message.get_or_init(|| event.to_content()),
        }
    }

    /// Returns the socket that does not receive an event from an app's server. Publications by other protocols exclude
    /// none, and are not parsed.
    pub(crate) fn excluded_socket(&self) -> Option<u128> {
        match self {
            Self::Message(MessageContent::Event(_), _) | Self::Event(..) => self.event().socket_id,
            Self::Message(..) => None,
        }
    }

    pub(crate) fn event(&self) -> &Event<'a> {
        match self {
            Self::Message(message, event) => event.get_or_init(|| Event::from_content(message)),
            Self::Event(event, _) => event,
        }
    }
}
