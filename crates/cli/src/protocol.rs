//! `WS /ws`: many topics on one WebSocket, in JSON. docs/book/src/server/protocol.md describes the messages.

mod incoming;

use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sinews_server::{
    Closed, Context, Handler, InvalidTopic, Joined, Kind, Missed, Payload, Position, Request, Start, Topics,
};

pub(crate) use self::incoming::given;
use self::incoming::{Incoming, Op};
use crate::admission::Rejection;
use crate::auth::{Denied, Rights, Want};
use crate::echo::brief;
use crate::hub::{self, Content, Form, Hub};
use crate::live::Live;
use crate::routes::{TOKEN_EXPIRED, close};
use crate::streams::Store;
use crate::streams::follow::Follow;
use crate::streams::json::{self as streams, Side};

/// The subprotocol, for clients that name one.
pub(crate) const NAME: &str = "sinews.v1";

/// The handler of one client of the protocol.
pub(crate) struct Client {
    hub: Arc<Hub>,
    rights: Rights,
    /// Checks renewed tokens.
    live: Live,
    /// Largest message in either direction, in bytes.
    max_message: usize,
    subscriptions: Vec<Subscription>,
    streams: Side,
}

/// A subscription to a topic or a pattern.
struct Subscription {
    topic: String,
    /// The client receives the number of subscribers, too.
    presence: bool,
    /// Position in the stream of a durable topic.
    follow: Option<Follow>,
}

/// An error of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) code: u16,
    pub(crate) text: String,
    /// The right that a token would have to grant.
    pub(crate) needs: Option<Value>,
}

/// Error codes. They are HTTP status codes where HTTP has a matching one.
pub(crate) mod code {
    /// Not a JSON object, or a field is missing, unknown or of another type.
    pub(crate) const MALFORMED: u16 = 400;
    /// An expired token.
    pub(crate) const TOKEN: u16 = 401;
    /// No such `op`.
    pub(crate) const UNKNOWN_OP: u16 = 404;
    /// Unknown stream or partition.
    pub(crate) const NO_STREAM: u16 = 404;
    /// No subscription to that name.
    pub(crate) const NOT_SUBSCRIBED: u16 = 409;
    /// The topic has no history, or the stream was deleted.
    pub(crate) const NOT_KEPT: u16 = 410;
    /// A message or batch exceeds a limit.
    pub(crate) const TOO_LARGE: u16 = 413;
    /// An invalid topic name or pattern, or a pattern where a topic name is required.
    pub(crate) const TOPIC: u16 = 422;
    /// More subscriptions than the limit of a connection.
    pub(crate) const TOO_MANY: u16 = 429;
    /// The log or the broker has failed, or its queue is full.
    pub(crate) const STORE: u16 = 503;
}

impl Problem {
    /// Encodes the error as a message.
    pub(crate) fn words(self) -> Value {
        let Self { code, text, needs } = self;
        let mut words = json!({ "op": "error", "code": code, "error": text });
        if let Some(needs) = needs {
            words["needs"] = needs;
        }
        words
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        Self { code: denied.status, needs: Some(denied.needs()), text: denied.problem }
    }
}

pub(crate) fn problem(code: u16, text: impl Into<String>) -> Problem {
    Problem { code, text: text.into(), needs: None }
}

impl Client {
    pub(crate) fn new(
        request: &Request<'_>,
        live: &Live,
        hub: Arc<Hub>,
        max_message: usize,
        streams: Side,
    ) -> Result<Self, Rejection> {
        let rights = live.policy().rights(request)?;
        Ok(Self { hub, rights, live: live.clone(), max_message, subscriptions: Vec::new(), streams })
    }

    /// Executes a request; returns the fields of the acknowledgement besides the id.
    fn obey(&mut self, op: Op<'_>, id: &Option<Value>, cx: &mut Context<'_>) -> Result<Answer, Problem> {
        match op {
            Op::Subscribe { topic, presence, start } => self.subscribe(&topic, presence, start, id, cx),
            Op::History { topic, start } => self.history(&topic, start, id, cx),
            Op::Unsubscribe { topic } => self.unsubscribe(&topic, cx),
            Op::Publish { topic, data } => self.publish(&topic, &Content::json(data), id, cx),
            Op::PublishBinary { topic, b64 } => {
                let bytes = STANDARD
                    .decode(b64.as_bytes())
                    .map_err(|error| problem(code::MALFORMED, format!("b64: {error}")))?;
                self.publish(&topic, &Content::Binary(bytes.into()), id, cx)
            }
            Op::Presence { topic } => {
                hub::check_name(&topic).map_err(|text| problem(code::TOPIC, text))?;
                self.rights.check(Want::Subscribe(&topic))?;
                let (subscribers, at) = self.hub.presence(&topic);
                Ok(Answer::Own(
                    json!({ "op": "presence", "topic": topic, "subscribers": subscribers, "at": at }),
                ))
            }
            Op::Token { token } => self.renew(&token, cx),
            Op::Ping => Ok(Answer::Own(json!({ "op": "pong" }))),
            Op::Stream(stream, op) => {
                let answer = self.streams.obey((stream, op), id, &self.rights, cx)?;
                Ok(match answer {
                    streams::Answer::Ack(fields) => Answer::Ack(fields),
                    streams::Answer::Own(words) => Answer::Words(words),
                    streams::Answer::Later => Answer::Later,
                })
            }
        }
    }

    /// Executes a message and answers it.
    fn hear(&mut self, read: Result<Incoming<'_>, (Option<Value>, Problem)>, cx: &mut Context<'_>) {
        let (id, result) = match read {
            Ok(Incoming { id, op }) => {
                let result = self.obey(op, &id, cx);
                (id, result)
            }
            Err((id, problem)) => (id, Err(problem)),
        };
        let (result, ended) = match result {
            Ok(Answer::Renewed(ack, ended)) => (Ok(Answer::Ack(ack)), ended),
            result => (result, Vec::new()),
        };
        self.answer(result, id, cx);
        for error in &ended {
            say(cx, error);
        }
    }

    fn answer(&self, result: Result<Answer, Problem>, id: Option<Value>, cx: &mut Context<'_>) {
        let mut answer = match result {
            Ok(Answer::Ack(_) | Answer::Renewed(..)) if id.is_none() => return,
            Ok(Answer::Ack(mut fields) | Answer::Renewed(mut fields, _)) => {
                fields["op"] = json!("ack");
                fields
            }
            Ok(Answer::Own(answer)) => answer,
            // After a Close, the message is dropped.
            Ok(Answer::Words(words)) => {
                let _ = cx.send_text(&words);
                return;
            }
            Ok(Answer::Later) => return,
            Err(problem) => problem.words(),
        };
        if let Some(id) = id {
            answer["id"] = id;
        }
        say(cx, &answer);
    }

    /// Replaces the token. Subscriptions that the new token does not allow end.
    fn renew(&mut self, token: &str, cx: &mut Context<'_>) -> Result<Answer, Problem> {
        self.rights = self.live.policy().rights_of(Some(token), cx.peer().ip(), "/ws")?;
        // The deadline may be earlier than before: the server reads it after a wakeup.
        cx.waker().wake();
        let mut ack = json!({});
        if let Some(left) = self.rights.expires_in() {
            ack["expires_in"] = json!(left);
        }
        Ok(Answer::Renewed(ack, self.end_denied(cx)))
    }

    /// Ends the subscriptions that the rights do not cover; returns an error for each.
    fn end_denied(&mut self, cx: &mut Context<'_>) -> Vec<Value> {
        let mut ended = Vec::new();
        let mut place = 0;
        while let Some(known) = self.subscriptions.get(place) {
            let Err(denied) = self.rights.check(Want::Subscribe(&known.topic)) else {
                place += 1;
                continue;
            };
            let mut error = Problem::from(denied).words();
            if let Some(Follow::Opening { id: Some(id), .. }) = &known.follow {
                error["id"] = id.clone();
            }
            error["topic"] = json!(self.leave(place, cx));
            ended.push(error);
        }
        ended.extend(self.streams.end_denied(&self.rights));
        ended
    }

    fn publish(
        &mut self,
        topic: &str,
        content: &Content,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<Answer, Problem> {
        hub::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
        self.rights.check(Want::Publish(topic))?;
        if let Some(store) = self.streams.store_of(topic).cloned() {
            self.streams.publish_to_topic((&store, topic, content), id, &self.rights, cx)?;
            return Ok(Answer::Later);
        }
        let reached = self.hub.publish(cx, topic, content, true);
        Ok(Answer::Ack(json!({ "reached": reached })))
    }

    fn subscribe(
        &mut self,
        topic: &str,
        presence: bool,
        start: Option<Start>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<Answer, Problem> {
        let check = if presence { hub::check_name } else { hub::check_subscription };
        check(topic).map_err(|text| problem(code::TOPIC, text))?;
        self.rights.check(Want::Subscribe(topic))?;
        if let Some(store) = self.streams.store_of(topic).cloned() {
            return self.subscribe_to_stream((&store, topic), presence, start, id, cx);
        }
        let mut ack = json!({ "topic": topic });
        let place = self.subscriptions.iter().position(|known| known.topic == topic);
        if place.is_none() || start.is_some() {
            match join_from(topic, start, cx)? {
                Some(joined) => {
                    let Position { epoch, sequence } = joined.position;
                    ack["epoch"] = json!(epoch);
                    ack["seq"] = json!(sequence);
                    ack["replayed"] = json!(joined.replayed);
                    ack["complete"] = json!(joined.complete);
                }
                // The topic has no history, so earlier messages are unknown.
                None if start.is_some() => ack["complete"] = json!(false),
                None => {}
            }
        }
        let place = place.unwrap_or_else(|| self.join(topic, None, cx));
        self.tell_presence(place, presence, &mut ack, cx)?;
        Ok(Answer::Ack(ack))
    }

    /// Registers a new subscription.
    fn join(&mut self, topic: &str, follow: Option<Follow>, cx: &mut Context<'_>) -> usize {
        self.hub.joined(cx, Form::Framed, topic);
        self.subscriptions.push(Subscription { topic: topic.to_owned(), presence: false, follow });
        self.subscriptions.len() - 1
    }

    /// Subscribes to presence if requested, and adds the number of subscribers to the acknowledgement.
    fn tell_presence(
        &mut self,
        place: usize,
        presence: bool,
        ack: &mut Value,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let known = &mut self.subscriptions[place];
        let topic = &*known.topic;
        if presence && !known.presence {
            cx.subscribe(&Form::Presence.topic(topic)).map_err(refused)?;
            self.hub.joined(cx, Form::Presence, topic);
            known.presence = true;
        }
        if known.presence {
            let (subscribers, at) = self.hub.presence(topic);
            ack["subscribers"] = json!(subscribers);
            ack["at"] = json!(at);
        }
        Ok(())
    }

    /// Subscribes to a durable topic by its name.
    fn subscribe_to_stream(
        &mut self,
        (store, topic): (&Arc<Store>, &str),
        presence: bool,
        start: Option<Start>,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<Answer, Problem> {
        let mut ack = json!({ "topic": topic });
        let known = self.subscriptions.iter().position(|known| known.topic == topic);
        // Count the subscription first: it receives all later publications.
        let place = known.unwrap_or_else(|| self.join(topic, None, cx));
        if known.is_none() || start.is_some() {
            let mut follow = Follow::new(store, topic, start, id);
            match follow.open(store, topic, cx) {
                Ok(opened) => {
                    self.subscriptions[place].follow = Some(follow);
                    if let Poll::Ready(fields) = opened {
                        ack = fields;
                    }
                }
                Err(problem) => {
                    if known.is_none() {
                        self.leave(place, cx);
                    }
                    return Err(problem);
                }
            }
        }
        self.tell_presence(place, presence, &mut ack, cx)?;
        let waits = matches!(self.subscriptions[place].follow, Some(Follow::Opening { .. }));
        Ok(if waits { Answer::Later } else { Answer::Ack(ack) })
    }

    /// Starts subscriptions that were waiting, and feeds subscriptions that are catching up.
    fn follow(&mut self, cx: &mut Context<'_>) {
        let Some(store) = self.streams.store().cloned() else { return };
        let mut place = 0;
        while let Some(known) = self.subscriptions.get_mut(place) {
            let mut id = None;
            let result = match &mut known.follow {
                Some(Follow::Opening { id: asked, .. }) => {
                    id = asked.clone();
                    self.open_followed(place, &store, cx).map(|()| true)
                }
                Some(follow) => follow.feed(&known.topic, cx),
                None => Ok(true),
            };
            match result {
                Ok(true) => place += 1,
                Ok(false) => {
                    // Rotate: the next subscription is first the next time, so that a busy topic starves none.
                    self.subscriptions.rotate_left(place + 1);
                    return;
                }
                Err(problem) => {
                    let topic = self.leave(place, cx);
                    let mut words = problem.words();
                    words["topic"] = json!(topic);
                    if let Some(id) = id {
                        words["id"] = id;
                    }
                    say(cx, &words);
                }
            }
        }
    }

    /// Whether the dropped messages will be read from a stream instead.
    fn goes_back(&mut self, missed: &Missed, cx: &mut Context<'_>) -> bool {
        let topic = missed.topic().and_then(Form::name);
        let (Some(topic), Some(first)) = (topic, missed.first()) else { return false };
        let Some(store) = self.streams.store_of(topic).cloned() else { return false };
        let known = self.subscriptions.iter_mut().find(|known| known.topic == topic);
        let Some(follow) = known.and_then(|known| known.follow.as_mut()) else { return false };
        follow.go_back(&store, topic, first, cx).is_ok()
    }

    /// Acknowledges a subscription that had to wait for the streams.
    fn open_followed(&mut self, place: usize, store: &Store, cx: &mut Context<'_>) -> Result<(), Problem> {
        let known = &mut self.subscriptions[place];
        let Some(follow) = &mut known.follow else { return Ok(()) };
        let id = if let Follow::Opening { id, .. } = follow { id.clone() } else { None };
        let Poll::Ready(mut ack) = follow.open(store, &known.topic, cx)? else { return Ok(()) };
        self.tell_presence(place, false, &mut ack, cx)?;
        if let Some(id) = id {
            (ack["op"], ack["id"]) = (json!("ack"), id);
            say(cx, &ack);
        }
        Ok(())
    }

    fn history(
        &mut self,
        topic: &str,
        start: Start,
        id: &Option<Value>,
        cx: &mut Context<'_>,
    ) -> Result<Answer, Problem> {
        hub::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
        self.rights.check(Want::Subscribe(topic))?;
        if let Some(store) = self.streams.store_of(topic).cloned() {
            self.streams.history_of_topic((&store, topic, start), id, cx)?;
            return Ok(Answer::Later);
        }
        if !self.hub.keeps(topic) {
            return Err(problem(code::NOT_KEPT, format!("topic {} has no history", brief(topic))));
        }
        let start = match start {
            Start::Last(count) => Start::Last(count.min(HISTORY_MAX)),
            other => other,
        };
        let mut left = HISTORY_BYTES_MAX;
        let kept = cx.topics().history(&Form::Framed.topic(topic), start).into_iter().take(HISTORY_MAX);
        // At least one message, however large.
        let kept = kept.enumerate().take_while(|(at, (_, message))| {
            let len = message.payload().len();
            let fits = *at == 0 || len <= left;
            left = left.saturating_sub(len);
            fits
        });
        // They are valid messages of the protocol, so none fails.
        let messages: Vec<Value> =
            kept.filter_map(|(_, (_, message))| serde_json::from_slice(message.payload()).ok()).collect();
        Ok(Answer::Own(json!({ "op": "history", "topic": topic, "messages": messages })))
    }

    fn unsubscribe(&mut self, topic: &str, cx: &mut Context<'_>) -> Result<Answer, Problem> {
        let Some(place) = self.subscriptions.iter().position(|known| known.topic == topic) else {
            return Err(problem(code::NOT_SUBSCRIBED, format!("not subscribed to {}", brief(topic))));
        };
        self.leave(place, cx);
        Ok(Answer::Ack(json!({ "topic": topic })))
    }

    /// Ends a subscription; returns its topic.
    fn leave(&mut self, place: usize, cx: &mut Context<'_>) -> String {
        let gone = self.subscriptions.swap_remove(place);
        for form in gone.forms() {
            cx.unsubscribe(&form.topic(&gone.topic));
            self.hub.left(cx, form, &gone.topic);
        }
        gone.topic
    }
}

impl Subscription {
    /// The presence topic is left first: a client does not receive its own leave.
    fn forms(&self) -> impl Iterator<Item = Form> + use<> {
        let presence = self.presence.then_some(Form::Presence);
        presence.into_iter().chain([Form::Framed])
    }
}

/// Subscribes, from a position if one is given and the topic has a history; `None` if it has none.
fn join_from(topic: &str, start: Option<Start>, cx: &mut Context<'_>) -> Result<Option<Joined>, Problem> {
    let topic = Form::Framed.topic(topic);
    // A client that wants no history needs the current position, too: it resumes from there.
    match cx.subscribe_from(&topic, start.unwrap_or(Start::Last(0))) {
        Ok(joined) => Ok(Some(joined)),
        Err(InvalidTopic::NotKept) => cx.subscribe(&topic).map(|()| None).map_err(refused),
        Err(error) => Err(refused(error)),
    }
}

fn refused(error: InvalidTopic) -> Problem {
    let code = match error {
        InvalidTopic::TooMany | InvalidTopic::TooAmbiguous => code::TOO_MANY,
        _ => code::TOPIC,
    };
    problem(code, hub::subscription_fault(error))
}

/// Limits of one answer to `history`: messages and bytes.
pub(crate) const HISTORY_MAX: usize = 1_000;
pub(crate) const HISTORY_BYTES_MAX: usize = 1 << 20;

/// The answer to a request.
enum Answer {
    /// Fields of an acknowledgement, for requests with an id.
    Ack(Value),
    /// The same, and an error for each subscription that the new token ends.
    Renewed(Value, Vec<Value>),
    /// A message of its own kind.
    Own(Value),
    /// The same, encoded and with its id.
    Words(String),
    /// The answer follows later.
    Later,
}

impl Handler for Client {
    fn open(&mut self, cx: &mut Context<'_>) {
        let mut welcome = json!({
            "op": "welcome",
            "max_message": self.max_message,
            "max_subscriptions": Topics::SUBSCRIPTIONS_MAX,
            "max_topic": hub::NAME_MAX,
        });
        if let Some(left) = self.rights.expires_in() {
            welcome["expires_in"] = json!(left);
        }
        say(cx, &welcome);
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let read = incoming::read(if payload.kind() == Kind::Text { &payload } else { b"" });
        let opening = match &read {
            Ok(Incoming { op: Op::Stream(stream, op), .. }) => {
                self.streams.opening(stream.as_deref(), op, &self.rights)
            }
            Ok(Incoming { op: Op::Publish { topic, .. } | Op::PublishBinary { topic, .. }, .. }) => {
                self.streams.opening_of_topic(topic, Want::Publish(topic), &self.rights)
            }
            Ok(Incoming { op: Op::History { topic, .. }, .. }) => {
                self.streams.opening_of_topic(topic, Want::Subscribe(topic), &self.rights)
            }
            _ => None,
        };
        match opening {
            Some(opening) => {
                drop(read);
                self.streams.park(opening, payload.detach(), cx);
            }
            None => self.hear(read, cx),
        }
    }

    fn dropped(&mut self, missed: &Missed, cx: &mut Context<'_>) {
        if self.goes_back(missed, cx) {
            return;
        }
        let mut words = json!({ "op": "dropped", "messages": missed.messages() });
        if let Some(topic) = missed.topic().and_then(Form::name) {
            words["topic"] = json!(topic);
        }
        say(cx, &words);
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        if let Some((text, opened)) = self.streams.unpark(cx) {
            let read = match (incoming::read(&text), opened) {
                (Ok(Incoming { id, .. }), Err(problem)) => Err((id, problem)),
                (read, _) => read,
            };
            self.hear(read, cx);
        }
        self.streams.woken(cx);
        self.follow(cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.streams.drain(cx);
        self.follow(cx);
    }

    fn deadline(&self) -> Option<Instant> {
        self.rights.deadline()
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        close(cx, TOKEN_EXPIRED, "the token has expired");
    }

    fn close(&mut self, _: &Closed, cx: &mut Context<'_>) {
        self.streams.close();
        for subscription in std::mem::take(&mut self.subscriptions) {
            for form in subscription.forms() {
                self.hub.left(cx, form, &subscription.topic);
            }
        }
    }
}

fn say(cx: &mut Context<'_>, words: &Value) {
    // After a Close, the message is dropped.
    let _ = cx.send_text(&words.to_string());
}
