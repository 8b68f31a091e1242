//! One connection: requests, their answers, and its end.
//!
//! A connection is never continued. The client would send what it has queued on the next one, after its operations have
//! failed; so it finds no server to reconnect to, and ends.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use async_nats::{Client, Event, HeaderMap, Message, ServerError, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt;
use sinews_store::StoreError;
use tokio::sync::{mpsc, watch};

use super::settings::NatsStoreSettings;
use super::wire::{JetStreamAnswer, JetStreamError, status};
use crate::nats::denied::{DeniedSubjects, REMEDY, RequestedSubject};

/// Operation timeout.
pub(super) const DEADLINE: Duration = Duration::from_secs(3);
/// Timeout for a request to the API.
const API_TIMEOUT: Duration = Duration::from_secs(1);
/// Ping interval. The connection is closed at the third without an answer.
const PING_INTERVAL: Duration = Duration::from_secs(1);
/// Messages that wait in one subscription. Beyond, the client drops messages.
const SUBSCRIPTION_MESSAGES: usize = 65_536;
/// Commands that wait in the client.
const CLIENT_COMMANDS: usize = 4_096;
/// A server that accepts no connection.
const NO_SERVER: &str = "127.0.0.1:0";
/// FirstValue version with batched reads and with a time to live for each message.
const VERSION_MIN: (u64, u64) = (2, 11);

/// Requests for one operation that may have an effect.
#[derive(Debug, Default)]
pub(super) struct OperationState {
    effects: Cell<u32>,
}

impl OperationState {
    /// The error for an operation without an answer.
    pub(super) fn unanswered(&self, reason: &str) -> StoreError {
        if self.effects.get() > 0 {
            StoreError::Unknown(reason.into())
        } else {
            StoreError::Away(reason.into())
        }
    }

    /// Notes that one request had no effect.
    pub(super) fn had_no_effect(&self) {
        self.effects.set(self.effects.get().saturating_sub(1));
    }
}

/// An open connection.
pub(super) struct StoreConnection {
    pub(super) client: Client,
    inbox: String,
    answers: Rc<PendingAnswers>,
    denied: Arc<DeniedSubjects>,
    lost: watch::Receiver<Option<Arc<str>>>,
}

/// Requests that wait, by the token in their reply subject.
#[derive(Default)]
struct PendingAnswers {
    next: Cell<u64>,
    waiting: RefCell<HashMap<u64, mpsc::UnboundedSender<Message>>>,
}

/// Answers to one request.
pub(super) struct Answers {
    token: u64,
    messages: mpsc::UnboundedReceiver<Message>,
    pending: Rc<PendingAnswers>,
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.pending.waiting.borrow_mut().remove(&self.token);
    }
}

/// What a connection reports apart from answers.
pub(super) enum StoreConnectionEvent {
    Lost(Arc<str>),
    /// The server denies the subscription to this subject.
    SubscriptionDenied {
        subject: String,
        reason: Arc<str>,
    },
}

impl StoreConnection {
    /// Connects. Must be called on the local task set.
    pub(super) async fn open(
        settings: &NatsStoreSettings,
        events: mpsc::UnboundedSender<StoreConnectionEvent>,
    ) -> Result<Self, String> {
        let denied = Arc::new(DeniedSubjects::default());
        let (set_lost, lost) = watch::channel(None);
        let noted = Arc::clone(&denied);
        let options = settings
            .login
            .options(DEADLINE)
            .await?
            .ping_interval(PING_INTERVAL)
            .subscription_capacity(SUBSCRIPTION_MESSAGES)
            .client_capacity(CLIENT_COMMANDS)
            .ignore_discovered_servers()
            .reconnect_delay_callback(|_| Duration::ZERO)
            .max_reconnects(settings.login.servers.len())
            .event_callback(move |event| {
                match event {
                    Event::Disconnected | Event::Closed => {
                        let reason: Arc<str> = "the connection was lost".into();
                        set_lost.send_replace(Some(reason.clone()));
                        // Without a receiver the store is closed.
                        let _ = events.send(StoreConnectionEvent::Lost(reason));
                    }
                    Event::ServerError(error) if noted.note(&error) => {
                        if let Some((subject, reason)) = denied_subscription(&error) {
                            let _ = events.send(StoreConnectionEvent::SubscriptionDenied { subject, reason });
                        }
                    }
                    _ => {}
                }
                std::future::ready(())
            });
        let client = options.connect(&settings.login.servers).await.map_err(|error| error.to_string())?;
        client.set_server_pool(NO_SERVER).await.map_err(|error| error.to_string())?;
        check_server(&client)?;
        let inbox = client.new_inbox();
        let subscription = client.subscribe(format!("{inbox}.*")).await.map_err(|error| error.to_string())?;
        let answers = Rc::new(PendingAnswers::default());
        tokio::task::spawn_local(dispatch(subscription, Rc::downgrade(&answers)));
        Ok(Self { client, inbox, answers, denied, lost })
    }

    /// Whether it has a cluster of servers.
    pub(super) fn is_clustered(&self) -> bool {
        self.client.server_info().cluster.is_some()
    }

    /// The reason of its end, if it has ended.
    fn lost_reason(&self) -> Option<Arc<str>> {
        self.lost.borrow().clone()
    }

    /// Sends a request.
    pub(super) async fn send(
        &self,
        operation: &OperationState,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<Answers, StoreError> {
        if let Some(reason) = self.lost_reason() {
            return Err(operation.unanswered(&reason));
        }
        let token = self.answers.next.get();
        self.answers.next.set(token + 1);
        let (sender, messages) = mpsc::unbounded_channel();
        self.answers.waiting.borrow_mut().insert(token, sender);
        let answers = Answers { token, messages, pending: self.answers.clone() };
        let reply = format!("{}.{token}", self.inbox);
        operation.effects.set(operation.effects.get() + 1);
        let sent = match headers {
            None => self.client.publish_with_reply(subject, reply, payload).await,
            Some(headers) => {
                self.client.publish_with_reply_and_headers(subject, reply, headers, payload).await
            }
        };
        sent.map_err(|error| operation.unanswered(&error.to_string()))?;
        Ok(answers)
    }

    /// The next answer.
    pub(super) async fn next(
        &self,
        operation: &OperationState,
        answers: &mut Answers,
        wanted: RequestedSubject<'_>,
    ) -> Result<Message, StoreError> {
        let mut lost = self.lost.clone();
        let message = async {
            tokio::select! {
                biased;
                message = answers.messages.recv() => message.ok_or_else(|| "the connection was lost".to_owned()),
                reason = lost.wait_for(Option::is_some) => {
                    Err(reason.ok().and_then(|reason| reason.as_deref().map(str::to_owned)).unwrap_or_default())
                }
            }
        };
        match self.denied.request(wanted, message).await {
            // The server has ignored the request.
            Err(reason) => Err(StoreError::Rejected(reason.into())),
            Ok(Err(reason)) => Err(operation.unanswered(&reason)),
            Ok(Ok(message)) if status(&message) == 503 => {
                operation.had_no_effect();
                Err(StoreError::Away("NATS has no leader for the stream, or no such stream".into()))
            }
            Ok(Ok(message)) => Ok(message),
        }
    }

    /// Sends a request with one answer.
    pub(super) async fn request(
        &self,
        operation: &OperationState,
        subject: String,
        headers: Option<HeaderMap>,
        payload: Bytes,
    ) -> Result<Message, StoreError> {
        let mut answers = self.send(operation, subject.clone(), headers, payload).await?;
        self.next(operation, &mut answers, RequestedSubject::Exact(&subject)).await
    }

    /// Asks the API of JetStream.
    pub(super) async fn api<T: serde::de::DeserializeOwned>(
        &self,
        subject: &str,
        body: &serde_json::Value,
    ) -> Result<Result<T, JetStreamError>, StoreError> {
        let payload = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let operation = OperationState::default();
        let message = self.request(&operation, format!("$JS.API.{subject}"), None, payload);
        // Without a leader, no server answers.
        let message = tokio::time::timeout(API_TIMEOUT, message)
            .await
            .unwrap_or_else(|_| Err(operation.unanswered("NATS did not answer in time")))?;
        Ok(JetStreamAnswer::parse(&message.payload))
    }
}

/// Passes answers to their requests, until the connection is dropped.
async fn dispatch(mut subscription: Subscriber, answers: std::rc::Weak<PendingAnswers>) {
    while let Some(message) = subscription.next().await {
        let Some(answers) = answers.upgrade() else { return };
        let token = message.subject.as_str().rsplit('.').next().and_then(|token| token.parse::<u64>().ok());
        let sender = token.and_then(|token| answers.waiting.borrow().get(&token).cloned());
        if let Some(sender) = sender {
            // The request may have timed out.
            let _ = sender.send(message);
        }
    }
}

fn check_server(client: &Client) -> Result<(), String> {
    let info = client.server_info();
    let mut parts = info.version.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    let version = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if version < VERSION_MIN {
        return Err(format!(
            "the NATS server has version {}; topic stores need {}.{} or later",
            info.version, VERSION_MIN.0, VERSION_MIN.1
        ));
    }
    Ok(())
}

/// The subject of a denied subscription.
fn denied_subscription(error: &ServerError) -> Option<(String, Arc<str>)> {
    let ServerError::Other(text) = error else { return None };
    let (_, rest) = text.split_once("ermissions Violation for Subscription to ")?;
    let subject = rest.split('"').nth(1)?;
    Some((subject.to_owned(), format!("NATS: {text}. {REMEDY}").into()))
}
