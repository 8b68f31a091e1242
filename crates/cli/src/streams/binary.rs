//! The binary messages, over WebSocket and over plain TCP.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bytes::{BufMut, Bytes};
use sinews_server::{CloseCode, Closed, Context, Handler, Kind, Payload, Request, Sent};
use sinews_stream::record::Records;
use sinews_stream::{Appended, Read, Stream};

use super::bridge::Opening;
use super::desk::{Assigned, Place};
use super::json::malformed;
use super::wire::{self, ANY, HEAD, Head, Wish, op};
use super::{Ack, Desk, Fetched, Store, Voice};
use crate::admission::Rejection;
use crate::auth::{Rights, Want};
use crate::live::Live;
use crate::protocol::{Problem, code, problem};
use crate::routes::{TOKEN_EXPIRED, close};

/// The subprotocol.
pub(crate) const NAME: &str = "sinews.stream.v1";

/// A connection that exchanges binary messages about one stream.
pub(crate) struct Binary {
    store: Arc<Store>,
    /// `None` until the client has sent hello.
    guest: Option<Guest>,
    /// A TCP connection, where no path names the stream.
    is_plain: bool,
    live: Live,
    max_message: usize,
    desk: Desk<u32>,
}

/// A client with its rights and its stream.
struct Guest {
    stream: String,
    rights: Rights,
    /// Set by the first publication.
    found: Option<Stream>,
}

impl Binary {
    /// A WebSocket at the stream's path.
    pub(crate) fn websocket(
        request: &Request<'_>,
        live: &Live,
        stream: String,
        store: Arc<Store>,
        max_message: usize,
    ) -> Result<Self, Rejection> {
        let rights = live.policy().rights(request)?;
        rights.check(Want::Publish(&stream)).or_else(|_| rights.check(Want::Subscribe(&stream)))?;
        let guest = Some(Guest { stream, rights, found: None });
        let (live, desk) = (live.clone(), Desk::default());
        Ok(Self { store, guest, is_plain: false, live, max_message, desk })
    }

    /// A plain TCP connection, which names its stream first.
    pub(crate) fn plain(live: Live, store: Arc<Store>, max_message: usize) -> Self {
        Self { store, guest: None, is_plain: true, live, max_message, desk: Desk::default() }
    }

    fn hello(
        &mut self,
        (stream, token): (&str, Option<&str>),
        id: u32,
        client: IpAddr,
    ) -> Result<Bytes, Problem> {
        if !self.is_plain {
            return Err(problem(code::MALFORMED, "hello: the path already names the stream"));
        }
        if self.guest.is_some() {
            return Err(problem(code::MALFORMED, "hello was sent already"));
        }
        crate::hub::check_name(stream).map_err(|text| problem(code::TOPIC, text))?;
        let rights = self.live.policy().rights_of(token, client, "streams.listen")?;
        rights.check(Want::Publish(stream)).or_else(|_| rights.check(Want::Subscribe(stream)))?;
        self.guest = Some(Guest { stream: stream.to_owned(), rights, found: None });
        Ok(self.welcome(id))
    }

    /// Replaces the token. Subscriptions that the new token does not allow end.
    fn renew(&mut self, token: &str, id: u32, cx: &mut Context<'_>) -> Result<Option<Bytes>, Problem> {
        let Some(guest) = &mut self.guest else { return Err(nobody()) };
        let rights = self.live.policy().rights_of(Some(token), cx.peer().ip(), "/streams")?;
        let left = rights.expires_in().map_or(u32::MAX, |left| u32::try_from(left).unwrap_or(u32::MAX));
        let ended = self.desk.end_denied(|stream| rights.check(Want::Subscribe(stream)).err());
        guest.rights = rights;
        // The deadline may be earlier than before: the server reads it after a wakeup.
        cx.waker().wake();
        // A closing connection accepts no messages.
        let _ = cx.send_bytes(wire::message(op::RENEWED, ANY, id, |body| body.put_u32_le(left)));
        for (id, _, denied) in ended {
            Wire.failed(&id, denied.into(), cx);
        }
        Ok(None)
    }

    /// The number of partitions, if the stream exists, and the largest message.
    fn welcome(&self, id: u32) -> Bytes {
        let stream = self.guest.as_ref().and_then(|guest| self.store.streams().ok()?.describe(&guest.stream));
        wire::message(op::WELCOME, ANY, id, |body| {
            body.put_u32_le(
                stream.map_or(0, |info| u32::try_from(info.partitions.len()).unwrap_or(u32::MAX)),
            );
            body.put_u32_le(u32::try_from(self.max_message).unwrap_or(u32::MAX));
        })
    }

    /// What a message that needs the stream has to wait for.
    fn opening(&self, op: u8) -> Option<Opening> {
        let Guest { stream, rights, found } = self.guest.as_ref()?;
        let want = match op {
            op::PUBLISH if found.is_none() => Want::Publish(stream),
            op::SUBSCRIBE | op::FETCH | op::COMMIT => Want::Subscribe(stream),
            _ => return None,
        };
        self.store.opening(stream, want, rights)
    }

    /// Executes a whole message with its head.
    fn hear(&mut self, message: Bytes, cx: &mut Context<'_>) {
        // Both callers have checked the head.
        let Some((head, body)) = Head::split(&message) else { return };
        let result = match head.read(body) {
            Ok(Wish::Publish(ack)) => self.publish(head, ack, message.slice(HEAD..), cx).map(|()| None),
            Ok(wish) => self.obey(head, wish, cx),
            Err(Some(words)) => Err(problem(code::MALFORMED, words)),
            Err(None) => Err(problem(code::UNKNOWN_OP, format!("unknown op {}", head.op))),
        };
        self.answer(head, result, cx);
    }

    fn answer(&self, head: Head, result: Result<Option<Bytes>, Problem>, cx: &mut Context<'_>) {
        match result {
            // After a Close, the message is dropped.
            Ok(Some(answer)) => {
                let _ = cx.send_bytes(answer);
            }
            Ok(None) => {}
            Err(problem) => {
                Wire.failed(&head.id, problem, cx);
                if self.guest.is_none() {
                    close(cx, CloseCode::POLICY, "hello must be the first message");
                }
            }
        }
    }

    /// Appends the records of a message.
    fn publish(&mut self, head: Head, ack: Ack, records: Bytes, cx: &mut Context<'_>) -> Result<(), Problem> {
        let Some(Guest { stream, rights, found }) = &mut self.guest else { return Err(nobody()) };
        rights.check(Want::Publish(stream))?;
        if found.is_none() {
            *found = Some(self.store.to_publish(stream, rights)?);
        }
        let Some(stream) = found.clone() else { return Err(nobody()) };
        let records = Records::check(records, self.store.limits()).map_err(malformed)?;
        let to = (&*self.store, stream);
        let result = self.desk.publish(to, head.which(), records, (head.id, ack), &Wire, cx);
        if result.as_ref().is_err_and(|problem| problem.code == code::NOT_KEPT) {
            // The stream was deleted. The next publication creates a new one.
            *found = None;
        }
        result
    }

    /// Executes a request; returns an immediate answer.
    fn obey(&mut self, head: Head, wish: Wish<'_>, cx: &mut Context<'_>) -> Result<Option<Bytes>, Problem> {
        match wish {
            Wish::Hello { stream, token } => {
                return self.hello((stream, token), head.id, cx.peer().ip()).map(Some);
            }
            Wish::Renew { token } => return self.renew(token, head.id, cx),
            _ => {}
        }
        let Some(Guest { stream, rights, .. }) = &self.guest else { return Err(nobody()) };
        let to_read = || self.store.to_read(stream, rights);
        match wish {
            Wish::Hello { .. } | Wish::Renew { .. } | Wish::Publish(_) => Ok(None),
            Wish::Subscribe(begin) => {
                if self.desk.has(|known, _| *known == head.id) {
                    return Err(problem(code::NOT_SUBSCRIBED, "this id has a subscription already"));
                }
                let from = (&*self.store, to_read()?);
                let places = self.desk.subscribe(from, head.which(), begin, head.id, cx)?;
                Ok(Some(wire::places(op::SUBSCRIBED, head.id, &places)))
            }
            Wish::Fetch { offset, max } => {
                let what = (head.partition.into(), offset, usize::try_from(max).unwrap_or(usize::MAX));
                self.desk.fetch((&self.store, to_read()?), what, head.id, &Wire, cx);
                Ok(None)
            }
            Wish::Commit { offset, group } => {
                let to = (group, u32::from(head.partition), offset);
                self.desk.commit((&self.store, to_read()?), to, head.id, &Wire, cx)?;
                Ok(None)
            }
            Wish::Unsubscribe(id) if self.desk.unsubscribe(|known, _| *known == id) => {
                Ok(Some(wire::message(op::UNSUBSCRIBED, ANY, head.id, |_| {})))
            }
            Wish::Unsubscribe(id) => {
                Err(problem(code::NOT_SUBSCRIBED, format!("subscription {id} does not exist")))
            }
            Wish::Delete => {
                let name = stream.clone();
                self.desk.delete((&self.store, &name), rights, head.id, &Wire, cx)?;
                Ok(None)
            }
            Wish::Ping => Ok(Some(wire::message(op::PONG, ANY, head.id, |_| {}))),
        }
    }
}

fn nobody() -> Problem {
    problem(code::MALFORMED, "hello must be the first message")
}

impl Handler for Binary {
    fn open(&mut self, cx: &mut Context<'_>) {
        if self.guest.is_some() {
            let _ = cx.send_bytes(self.welcome(0));
        }
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let Some((head, body)) = Head::split(&payload).filter(|_| payload.kind() == Kind::Binary) else {
            return close(cx, CloseCode::POLICY, "invalid message: at least 8 bytes of binary are required");
        };
        if let Some(opening) = self.opening(head.op) {
            return self.desk.park(opening, payload.detach(), cx);
        }
        if head.op == op::PUBLISH {
            // The log retains publications; other messages are read in place.
            return self.hear(payload.detach(), cx);
        }
        let result = match head.read(body) {
            Ok(wish) => self.obey(head, wish, cx),
            Err(Some(words)) => Err(problem(code::MALFORMED, words)),
            Err(None) => Err(problem(code::UNKNOWN_OP, format!("unknown op {}", head.op))),
        };
        self.answer(head, result, cx);
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        if let Some((message, opened)) = self.desk.unpark(cx) {
            match (opened, Head::split(&message)) {
                (Err(problem), Some((head, _))) => Wire.failed(&head.id, problem, cx),
                _ => self.hear(message, cx),
            }
        }
        self.desk.woken(Some(&self.store), &Wire, cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.desk.drained(Some(&self.store), &Wire, cx);
    }

    fn deadline(&self) -> Option<Instant> {
        self.guest.as_ref()?.rights.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        Wire.failed(&0, problem(code::TOKEN, "the token has expired"), cx);
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }

    fn close(&mut self, _: &Closed, _: &mut Context<'_>) {
        // Leaves groups and drops pending answers.
        self.desk = Desk::default();
    }
}

/// Encodes replies as binary messages.
struct Wire;

impl Voice for Wire {
    type Id = u32;

    fn published(&self, at: &Place<'_, u32>, appended: Appended, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::published(number(at.partition), *at.id, appended));
    }

    fn committed(&self, at: &Place<'_, u32>, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::message(op::COMMITTED, number(at.partition), *at.id, |_| {}));
    }

    fn deleted(&self, at: &Place<'_, u32>, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::message(op::DELETED, ANY, *at.id, |_| {}));
    }

    fn failed(&self, id: &u32, problem: Problem, cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::error(*id, problem.code, &problem.text));
    }

    fn records(
        &self,
        at: &Place<'_, u32>,
        from: u64,
        end: u64,
        read: &Read,
        cx: &mut Context<'_>,
    ) -> (Sent, u64) {
        let head = wire::batches(number(at.partition), *at.id, from, read.next, end);
        // Readers of batches check their records.
        let sent = cx.send_pieces(Kind::Binary, &[head, read.batches.clone()]);
        (sent.unwrap_or(Sent::Dropped), read.next)
    }

    fn fetched(&self, at: &Place<'_, u32>, fetched: &Fetched, cx: &mut Context<'_>) {
        let Fetched { from, end, read } = fetched;
        let (next, batches) = read.as_ref().map_or((*from, Bytes::new()), |it| (it.next, it.batches.clone()));
        let head = wire::batches(number(at.partition), *at.id, *from, next, *end);
        let _ = cx.send_pieces(Kind::Binary, &[head, batches]);
    }

    fn gap(&self, at: &Place<'_, u32>, from: u64, to: u64, cx: &mut Context<'_>) -> Sent {
        let words = wire::gap(number(at.partition), *at.id, from, to);
        cx.send_binary(&words).unwrap_or(Sent::Dropped)
    }

    fn assigned(&self, id: &u32, _: &str, assigned: &[Assigned], cx: &mut Context<'_>) {
        let _ = cx.send_binary(&wire::places(op::ASSIGNED, *id, assigned));
    }
}

/// The partition number of a head; partitions are fewer than its range.
fn number(partition: u32) -> u16 {
    u16::try_from(partition).unwrap_or(ANY)
}
