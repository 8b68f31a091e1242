//! The binary messages, over WebSocket and over plain TCP.

mod wire;

use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes};
use sinews_server::{CloseCode, Closed, Context, Handler, Kind, Payload, Request, Sent};
use sinews_stream::record::Records;
use sinews_stream::{Appended, ReadResult, Stream};

use self::wire::{ANY, BinaryHead, BinaryRequest, HEAD, op};
use crate::access::auth::{Action, Rights};
use crate::admission::HandshakeRejection;
use crate::closing::{TOKEN_EXPIRED, close};
use crate::config::ConfigHandle;
use crate::connections::ConnectionPath;
use crate::model;
use crate::model::opening::SharedOpening;
use crate::model::problem::{Problem, code, problem};
use crate::session::client_session::ClientSession;
use crate::streams::connection::{
    ConnectionStreams, GroupOffset, RequestedAck, RequestedRecords, StreamInStore,
};
use crate::streams::errors::malformed;
use crate::streams::fetch::FetchedRecords;
use crate::streams::replies::{AssignedPartition, Replies, ReplyContext};
use crate::streams::request::AckLevel;
use crate::streams::service::StreamService;
use crate::topics::HubTopics;

/// The subprotocol.
pub(crate) const NAME: &str = "sinews.stream.v1";

/// A connection that exchanges binary messages about one stream.
pub(crate) struct BinaryClient {
    store: Arc<StreamService>,
    /// It is open from hello on, and has no rights before.
    session: ClientSession<()>,
    /// `None` until the client has sent hello.
    stream: Option<ClientStream>,
    max_message: usize,
    streams: ConnectionStreams<u32>,
}

/// A client's stream.
struct ClientStream {
    name: String,
    /// Set by the first publication.
    open: Option<Stream>,
}

impl BinaryClient {
    /// A WebSocket at the stream's path.
    pub(crate) fn websocket(
        request: &Request<'_>,
        live: &ConfigHandle,
        name: String,
        store: Arc<StreamService>,
        hub: Arc<HubTopics>,
        max_message: usize,
    ) -> Result<Self, HandshakeRejection> {
        let rights = live.config().rights(request)?;
        rights.may(Action::Publish, &name).or_else(|_| rights.may(Action::Subscribe, &name))?;
        let session = ClientSession::new(rights, live, hub);
        let stream = Some(ClientStream { name, open: None });
        let streams = ConnectionStreams::default();
        Ok(Self { store, session, stream, max_message, streams })
    }

    /// A plain TCP connection, which names its stream first.
    pub(crate) fn plain(
        live: &ConfigHandle,
        store: Arc<StreamService>,
        hub: Arc<HubTopics>,
        max_message: usize,
    ) -> Self {
        let session = ClientSession::new(Rights::none(), live, hub);
        let streams = ConnectionStreams::default();
        Self { store, session, stream: None, max_message, streams }
    }

    fn hello(
        &mut self,
        name: &str,
        token: Option<&str>,
        id: u32,
        cx: &mut Context<'_>,
    ) -> Result<Option<Bytes>, Problem> {
        if self.session.path() == Some(ConnectionPath::Stream) {
            return Err(problem(code::MALFORMED, "hello: the path already names the stream"));
        }
        if self.stream.is_some() {
            return Err(problem(code::MALFORMED, "hello was sent already"));
        }
        model::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        let rights = self.session.config().rights_of(token, cx.peer().ip(), "streams.listen")?;
        rights.may(Action::Publish, name).or_else(|_| rights.may(Action::Subscribe, name))?;
        self.session.set_rights(rights, cx);
        self.stream = Some(ClientStream { name: name.to_owned(), open: None });
        let welcome = self.welcome(id);
        self.session.open(ConnectionPath::PlainStream, cx);
        Ok(Some(welcome))
    }

    /// Replaces the token. Subscriptions that the new token does not allow end.
    fn renew(&mut self, token: &str, id: u32, cx: &mut Context<'_>) -> Result<Option<Bytes>, Problem> {
        if self.stream.is_none() {
            return Err(hello_missing());
        }
        self.session.renew(token, "/streams", cx)?;
        self.announce_rights(id, cx);
        Ok(None)
    }

    /// Sends the time until the new rights expire. Subscriptions that they do not allow end.
    fn announce_rights(&mut self, id: u32, cx: &mut Context<'_>) {
        let left = self.session.rights().expires_in();
        let left = left.map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
        let ended = self.streams.end_denied(|stream| self.session.may(Action::Subscribe, stream).err());
        // A closing connection accepts no messages.
        let _ = cx.send_bytes(wire::message(op::RENEWED, ANY, id, |body| body.put_u32_le(left)));
        for (id, _, denied) in ended {
            BinaryReplies.failed(&id, denied.into(), cx);
        }
    }

    /// The partition count, if the stream exists, and the largest message.
    fn welcome(&self, id: u32) -> Bytes {
        let stream =
            self.stream.as_ref().and_then(|stream| self.store.streams().ok()?.describe(&stream.name));
        wire::message(op::WELCOME, ANY, id, |body| {
            body.put_u32_le(
                stream.map_or(0, |info| u32::try_from(info.partitions.len()).unwrap_or(u32::MAX)),
            );
            body.put_u32_le(u32::try_from(self.max_message).unwrap_or(u32::MAX));
        })
    }

    /// The step that a message with the stream has to wait for.
    fn opening(&self, op: u8) -> Option<SharedOpening> {
        let ClientStream { name, open } = self.stream.as_ref()?;
        let action = match op {
            op::PUBLISH if open.is_none() => Action::Publish,
            op::SUBSCRIBE | op::FETCH | op::COMMIT => Action::Subscribe,
            _ => return None,
        };
        self.store.opening(name, action, self.session.rights())
    }

    /// The index that a subscription from a time has to wait for.
    fn opening_of_start(&self, head: BinaryHead, request: &BinaryRequest<'_>) -> Option<SharedOpening> {
        let name = &self.stream.as_ref()?.name;
        match request {
            BinaryRequest::Subscribe(begin) if self.session.may(Action::Subscribe, name).is_ok() => {
                self.store.opening_of_start(name, head.choice(), begin.start)
            }
            _ => None,
        }
    }

    /// Executes a whole message with its head.
    fn handle_message(&mut self, message: Bytes, cx: &mut Context<'_>) {
        // Both callers have checked the head.
        let Some((head, body)) = BinaryHead::split(&message) else { return };
        let result = match head.read(body) {
            Ok(BinaryRequest::Publish(ack)) => {
                self.append(head, ack, message.slice(HEAD..), cx).map(|()| None)
            }
            Ok(request) => self.execute(head, request, cx),
            Err(Some(text)) => Err(problem(code::MALFORMED, text)),
            Err(None) => Err(problem(code::UNKNOWN_OP, format!("unknown op {}", head.op))),
        };
        self.send_result(head, result, cx);
    }

    fn send_result(&self, head: BinaryHead, result: Result<Option<Bytes>, Problem>, cx: &mut Context<'_>) {
        match result {
            // After a Close, the message is dropped.
            Ok(Some(answer)) => {
                let _ = cx.send_bytes(answer);
            }
            Ok(None) => {}
            Err(problem) => {
                BinaryReplies.failed(&head.id, problem, cx);
                if self.stream.is_none() {
                    close(cx, CloseCode::POLICY, "hello must be the first message");
                }
            }
        }
    }

    /// Appends a message's records.
    fn append(
        &mut self,
        head: BinaryHead,
        ack: AckLevel,
        records: Bytes,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let Some(ClientStream { name, open }) = &mut self.stream else { return Err(hello_missing()) };
        let rights = self.session.rights();
        rights.may(Action::Publish, name)?;
        // A reload may have added a hook or a limit since the stream was opened.
        self.store.check_append(name, rights)?;
        if open.is_none() {
            *open = Some(self.store.stream_to_publish(name, rights)?);
        }
        let Some(stream) = open.clone() else { return Err(hello_missing()) };
        let records = Records::check(records, self.store.limits()).map_err(malformed)?;
        let (to, ack) =
            (StreamInStore { store: &self.store, stream }, RequestedAck { id: head.id, level: ack });
        let result = self.streams.append(to, head.choice(), records, ack, &BinaryReplies, cx);
        if result.as_ref().is_err_and(|problem| problem.code == code::GONE) {
            // The stream was deleted. The next publication creates a new one.
            *open = None;
        }
        result
    }

    /// Executes a request; returns an immediate answer.
    fn execute(
        &mut self,
        head: BinaryHead,
        request: BinaryRequest<'_>,
        cx: &mut Context<'_>,
    ) -> Result<Option<Bytes>, Problem> {
        match request {
            BinaryRequest::Hello { stream, token } => return self.hello(stream, token, head.id, cx),
            BinaryRequest::Renew { token } => return self.renew(token, head.id, cx),
            _ => {}
        }
        let Some(ClientStream { name, .. }) = &self.stream else { return Err(hello_missing()) };
        let rights = self.session.rights();
        let stream_to_read = || self.store.stream_to_read(name, rights);
        match request {
            BinaryRequest::Hello { .. } | BinaryRequest::Renew { .. } | BinaryRequest::Publish(_) => Ok(None),
            BinaryRequest::Subscribe(begin) => {
                if self.streams.has(|known, _| *known == head.id) {
                    return Err(problem(code::NOT_SUBSCRIBED, "this id has a subscription already"));
                }
                let (stream, choice) = (stream_to_read()?, head.choice());
                let assignments = self.streams.subscribe(&self.store, stream, choice, begin, head.id, cx)?;
                Ok(Some(wire::assignments(op::SUBSCRIBED, head.id, &assignments)))
            }
            BinaryRequest::Fetch { offset, max } => {
                let most = usize::try_from(max).unwrap_or(usize::MAX);
                let what = RequestedRecords { partition: head.partition.into(), offset, most };
                self.streams.fetch(&self.store, stream_to_read()?, what, head.id, &BinaryReplies, cx);
                Ok(None)
            }
            BinaryRequest::Commit { offset, group } => {
                let to = GroupOffset { group, partition: head.partition.into(), offset };
                self.streams.commit(&self.store, stream_to_read()?, to, head.id, &BinaryReplies, cx)?;
                Ok(None)
            }
            BinaryRequest::Unsubscribe(id) if self.streams.unsubscribe(|known, _| *known == id) => {
                Ok(Some(wire::message(op::UNSUBSCRIBED, ANY, head.id, |_| {})))
            }
            BinaryRequest::Unsubscribe(id) => {
                Err(problem(code::NOT_SUBSCRIBED, format!("subscription {id} does not exist")))
            }
            BinaryRequest::Delete => {
                self.streams.delete(&self.store, name, rights, head.id, &BinaryReplies, cx)?;
                Ok(None)
            }
            BinaryRequest::Ping => Ok(Some(wire::message(op::PONG, ANY, head.id, |_| {}))),
        }
    }
}

fn hello_missing() -> Problem {
    problem(code::MALFORMED, "hello must be the first message")
}

impl Handler for BinaryClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        if self.stream.is_some() {
            self.session.open(ConnectionPath::Stream, cx);
            let _ = cx.send_bytes(self.welcome(0));
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let Some((head, body)) = BinaryHead::split(&payload).filter(|_| payload.kind() == Kind::Binary)
        else {
            return close(cx, CloseCode::POLICY, "invalid message: at least 8 bytes of binary are required");
        };
        if let Some(opening) = self.opening(head.op) {
            return self.streams.defer(opening, payload.detach(), cx);
        }
        if head.op == op::PUBLISH {
            // The log retains publications; other messages are read in place.
            return self.handle_message(payload.detach(), cx);
        }
        let result = match head.read(body) {
            Ok(request) => match self.opening_of_start(head, &request) {
                Some(opening) => return self.streams.defer(opening, payload.detach(), cx),
                None => self.execute(head, request, cx),
            },
            Err(Some(text)) => Err(problem(code::MALFORMED, text)),
            Err(None) => Err(problem(code::UNKNOWN_OP, format!("unknown op {}", head.op))),
        };
        self.send_result(head, result, cx);
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        for change in self.session.execute_commands(None, cx) {
            if self.session.change_rights(&change, cx) {
                self.announce_rights(0, cx);
            }
        }
        if let Some((message, opened)) = self.streams.take_deferred(cx) {
            match (opened, BinaryHead::split(&message)) {
                (Err(problem), Some((head, _))) => BinaryReplies.failed(&head.id, problem, cx),
                _ => self.handle_message(message, cx),
            }
        }
        self.streams.woken(Some(&self.store), &BinaryReplies, cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.streams.drained(Some(&self.store), &BinaryReplies, cx);
    }

    fn deadline(&self) -> Option<Instant> {
        self.session.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        BinaryReplies.failed(&0, problem(code::TOKEN, "the token has expired"), cx);
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }

    fn queued(&mut self, bytes: usize) {
        self.session.set_queued(bytes);
    }

    fn close(&mut self, closed: &Closed, _: &mut Context<'_>) {
        self.session.end(closed);
        // Leaves groups and drops pending answers.
        self.streams = ConnectionStreams::default();
    }
}

/// Encodes replies as binary messages.
struct BinaryReplies;

impl Replies for BinaryReplies {
    type Id = u32;

    fn appended(&self, at: &ReplyContext<'_, u32>, appended: Appended, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::appended(number(at.partition), *at.id, appended));
    }

    fn committed(&self, at: &ReplyContext<'_, u32>, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::message(op::COMMITTED, number(at.partition), *at.id, |_| {}));
    }

    fn deleted(&self, at: &ReplyContext<'_, u32>, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::message(op::DELETED, ANY, *at.id, |_| {}));
    }

    fn failed(&self, id: &u32, problem: Problem, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::error(*id, problem.code, &problem.text));
    }

    fn records(
        &self,
        at: &ReplyContext<'_, u32>,
        from: u64,
        end: u64,
        read: &ReadResult,
        cx: &mut Context<'_>,
    ) -> (Sent, u64) {
        let head = wire::batches(number(at.partition), *at.id, from, read.next, end);
        // Batch readers check their records.
        let sent = cx.send_pieces(Kind::Binary, &[head, read.batches.clone()]);
        (sent.unwrap_or(Sent::Dropped), read.next)
    }

    fn fetched(&self, at: &ReplyContext<'_, u32>, fetched: &FetchedRecords, cx: &mut Context<'_>) {
        let FetchedRecords { from, end, read } = fetched;
        let (next, batches) = read.as_ref().map_or((*from, Bytes::new()), |it| (it.next, it.batches.clone()));
        let head = wire::batches(number(at.partition), *at.id, *from, next, *end);
        let _ = cx.send_pieces(Kind::Binary, &[head, batches]);
    }

    fn gap(&self, at: &ReplyContext<'_, u32>, from: u64, to: u64, cx: &mut Context<'_>) -> Sent {
        let text = wire::gap(number(at.partition), *at.id, from, to);
        cx.send_binary(&text).unwrap_or(Sent::Dropped)
    }

    fn assigned(&self, id: &u32, _: &str, assigned: &[AssignedPartition], cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::assignments(op::ASSIGNED, *id, assigned));
    }
}

/// A head's partition number; partitions are fewer than its range.
fn number(partition: u32) -> u16 {
    u16::try_from(partition).unwrap_or(ANY)
}
