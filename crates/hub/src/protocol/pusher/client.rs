//! The handler for one client.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use sinews_server::{CloseCode, Closed, Context, Handler, Kind, Payload};

use super::client_events::ClientEventRate;
use super::code;
use super::durable::PendingRecovery;
use super::handshake::{AppHandshake, ConnectionRejection};
use super::incoming::{PusherMessage, SubscribeData, read_data};
use super::liveness::Liveness;
use super::services::PusherServices;
use super::subscriptions::FormerTopic;
use super::users::SignedInUser;
use crate::activity::{Activity, ActivityKind};
use crate::apps::app::PusherApp;
use crate::apps::channel::{DOT, PusherTopic, channel_of_topic, presence_of, topic_of};
use crate::apps::encode::{self, error};
use crate::apps::live::{LiveApp, LiveApps};
use crate::apps::metrics::PusherRejection;
use crate::apps::signature::AppKey;
use crate::closing::close;
use crate::connections::ConnectionCommand;
use crate::model::brief::brief;
use crate::model::event::CLIENT_EVENT;
use crate::model::json::read_object;
use crate::model::socket_id::socket_id_text;
use crate::topics::HubTopics;

/// The handler for one client.
pub(super) struct PusherClient {
    pub(super) services: Arc<PusherServices>,
    state: ClientState,
}

enum ClientState {
    Opening(Box<AppHandshake>),
    Open(PusherConnection),
    Closed,
}

/// An open connection. The server below has its channels: it is present in each
/// ([`presence_of`](super::channel::presence_of)).
pub(super) struct PusherConnection {
    pub(super) app: Arc<LiveApp>,
    /// The index of the key with which the client has connected, among the app's keys.
    key: Option<u8>,
    /// Channel count.
    pub(super) channels: u16,
    pub(super) liveness: Liveness,
    /// One pointer, since there are many idle connections.
    pub(super) rare: Option<Box<ConnectionExtension>>,
}

/// State that few connections have.
#[derive(Default)]
pub(super) struct ConnectionExtension {
    /// The name of the key with which the client has connected, if the app's present configuration lacks it: a later
    /// configuration may have it again.
    key: Option<Box<str>>,
    pub(super) user: Option<Box<SignedInUser>>,
    pub(super) client_events: ClientEventRate,
    /// Channels with the topics from a former configuration.
    pub(super) topics: Vec<FormerTopic>,
    /// Subscriptions that wait for the events that the client has missed: at most one for each channel.
    pub(super) recoveries: Vec<PendingRecovery>,
}

impl ConnectionExtension {
    fn is_empty(&self) -> bool {
        let Self { key, user, client_events, topics, recoveries } = self;
        let has_sent = *client_events != ClientEventRate::default();
        key.is_none() && user.is_none() && !has_sent && topics.is_empty() && recoveries.is_empty()
    }
}

impl PusherClient {
    pub(super) fn new(handshake: AppHandshake, services: Arc<PusherServices>) -> Self {
        Self { services, state: ClientState::Opening(Box::new(handshake)) }
    }

    pub(super) fn hub(&self) -> &HubTopics {
        &self.services.hub
    }

    pub(super) fn apps(&self) -> &LiveApps {
        &self.services.apps
    }

    /// The open connection's id. It is computed, and not stored: there are many idle connections.
    pub(super) fn socket_id(&self, cx: &Context<'_>) -> u128 {
        // No connection opens without random numbers.
        self.apps().socket_id(cx.subscriber_id()).unwrap_or_default()
    }

    /// Closes the connection with an error, and counts it.
    pub(super) fn reject(
        &self,
        app: Option<&LiveApp>,
        rejection: &ConnectionRejection,
        cx: &mut Context<'_>,
    ) {
        self.apps().counters.reject(PusherRejection::Connection);
        self.observe(None, cx, || Activity {
            kind: ActivityKind::Reject,
            op: Some("connect"),
            code: Some(rejection.code),
            reason: Some(&rejection.text),
            ..Activity::default()
        });
        if let Some(app) = app {
            app.count_rejection();
        }
        end(rejection, cx);
    }

    /// Registers the connection, and sends the first message.
    fn establish(&self, app: Arc<LiveApp>, key: &str, cx: &mut Context<'_>) -> ClientState {
        if !app.add_connection() {
            self.reject(
                Some(&app),
                &ConnectionRejection::new(code::CONNECTION_QUOTA, "the app has its maximum of connections"),
                cx,
            );
            return ClientState::Closed;
        }
        let Some(socket_id) = self.apps().socket_id(cx.subscriber_id()) else {
            app.remove_connection();
            self.reject(
                Some(&app),
                &ConnectionRejection::new(code::OVER_CAPACITY, "the server has no random numbers"),
                cx,
            );
            return ClientState::Closed;
        };
        self.apps().counters.open.fetch_add(1, Ordering::Relaxed);
        self.observe(None, cx, || Activity { kind: ActivityKind::Connect, ..Activity::default() });
        let data = json!({
            "socket_id": socket_id_text(socket_id),
            "activity_timeout": app.options.activity_timeout.as_secs(),
        });
        send(cx, &encode::nested("pusher:connection_established", None, &data));
        ClientState::Open(PusherConnection {
            key: app.options.key_index(key),
            app,
            channels: 0,
            rare: None,
            liveness: Liveness::new(self.apps().now()),
        })
    }

    /// Follows an app reload.
    fn follow_reload(
        &self,
        connection: &mut PusherConnection,
        cx: &Context<'_>,
    ) -> Result<(), ConnectionRejection> {
        if connection.app.generation == self.apps().generation() {
            return Ok(());
        }
        let app = self.apps().app(&connection.app.options.id);
        let app = app.ok_or_else(|| ConnectionRejection::new(code::UNKNOWN_APP, "the app was removed"))?;
        if !app.options.is_enabled {
            return Err(ConnectionRejection::new(code::DISABLED_APP, "the app is disabled"));
        }
        if app.options.topic_space() != connection.app.options.topic_space() {
            connection.keep_topics(cx);
        }
        connection.find_key(&app.options);
        connection.app = match Arc::ptr_eq(&app.state, &connection.app.state) {
            true => app,
            // The app was removed and added again: the connection stays counted where it was.
            false => Arc::new(LiveApp { state: Arc::clone(&connection.app.state), ..LiveApp::clone(&app) }),
        };
        Ok(())
    }

    /// Handles a message.
    fn handle(&self, connection: &mut PusherConnection, text: &[u8], cx: &mut Context<'_>) {
        let Ok(message) = read_object::<PusherMessage<'_>>(text) else {
            return self.reject_message(connection, "the message is not a JSON object with an event", cx);
        };
        let PusherMessage { event, data, channel } = message;
        match &*event {
            "pusher:ping" => send(cx, PONG),
            "pusher:pong" => {}
            "pusher:subscribe" => match read_data::<SubscribeData>(data) {
                Some(data) => self.subscribe(connection, &data, cx),
                None => self.reject_message(connection, "pusher:subscribe has no data with a channel", cx),
            },
            "pusher:unsubscribe" => match read_data::<SubscribeData>(data) {
                Some(data) => self.unsubscribe(connection, &data.channel, cx),
                None => self.reject_message(connection, "pusher:unsubscribe has no data with a channel", cx),
            },
            "pusher:signin" => self.sign_in(connection, read_data(data), cx),
            name if name.starts_with(CLIENT_EVENT) => {
                self.client_event(connection, name, channel.as_deref(), data, cx);
            }
            name => self.reject_message(connection, &format!("unknown event {}", brief(name)), cx),
        }
    }

    /// Reports a message that is not understood; the connection stays.
    fn reject_message(&self, connection: &PusherConnection, problem: &str, cx: &mut Context<'_>) {
        self.apps().counters.reject(PusherRejection::Message);
        connection.app.count_rejection();
        self.observe_rejection(connection, "message", None, 400, problem, cx);
        send(cx, &error(None, problem, None));
    }
}

impl PusherConnection {
    /// The user that has signed in.
    pub(super) fn user(&self) -> Option<&SignedInUser> {
        self.rare.as_ref()?.user.as_deref()
    }

    /// The key with which the client has connected, unless it was removed.
    pub(super) fn key(&self) -> Option<&AppKey> {
        self.app.options.keys.get(usize::from(self.key?))
    }

    /// Finds the client's key in a new app configuration.
    fn find_key(&mut self, app: &PusherApp) {
        let former = self.rare.as_mut().and_then(|rare| rare.key.take());
        let name = former.or_else(|| self.key().map(|key| (*key.name).into()));
        self.key = name.as_ref().and_then(|name| app.key_index(name));
        if self.key.is_none() {
            self.rare.get_or_insert_default().key = name;
        }
    }

    /// Frees the rare state if there is none.
    pub(super) fn prune_rare(&mut self) {
        self.rare = self.rare.take().filter(|rare| !rare.is_empty());
    }

    /// The presence of a channel with a subscription, and the id of this client as its member.
    pub(super) fn subscribed<'c>(
        &self,
        channel: &str,
        cx: &'c Context<'_>,
    ) -> Option<(String, Option<&'c str>)> {
        // In a presence's name, this character stands for a dot.
        if channel.contains(DOT) {
            return None;
        }
        let presence = presence_of(&self.app.options.id, channel);
        let (_, member) = cx.joined().find(|(topic, _)| *topic == presence)?;
        Some((presence, member))
    }

    /// Notes its channels' topics before the app's configuration changes them.
    fn keep_topics(&mut self, cx: &Context<'_>) {
        let mut topics = self.rare.as_mut().map(|rare| std::mem::take(&mut rare.topics)).unwrap_or_default();
        for (presence, _) in cx.joined() {
            let Some(PusherTopic::Channel { channel, .. }) = channel_of_topic(presence) else { continue };
            if topics.iter().all(|known| *known.channel != *channel) {
                let topic = topic_of(self.app.options.topic_space(), &channel).into();
                topics.push(FormerTopic { channel: channel.into(), topic });
            }
        }
        if !topics.is_empty() {
            self.rare.get_or_insert_default().topics = topics;
        }
    }
}

const PING: &str = r#"{"event":"pusher:ping","data":"{}"}"#;
const PONG: &str = r#"{"event":"pusher:pong","data":"{}"}"#;

impl Handler for PusherClient {
    fn open(&mut self, cx: &mut Context<'_>) {
        self.apps().counters.connections.fetch_add(1, Ordering::Relaxed);
        self.state = match std::mem::replace(&mut self.state, ClientState::Closed) {
            ClientState::Opening(handshake) => match *handshake {
                AppHandshake::Accepted { app, key } => self.establish(app, &key, cx),
                AppHandshake::Rejected(rejection) => {
                    // The handshake has counted it for its app.
                    self.reject(None, &rejection, cx);
                    ClientState::Closed
                }
            },
            state => state,
        };
    }

    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        let ClientState::Open(mut connection) = std::mem::replace(&mut self.state, ClientState::Closed)
        else {
            return;
        };
        connection.liveness.note_input(self.apps().now());
        match self.follow_reload(&mut connection, cx) {
            Ok(()) if payload.kind() == Kind::Text => self.handle(&mut connection, &payload, cx),
            Ok(()) => self.reject_message(&connection, "messages of the protocol are text", cx),
            Err(rejection) => self.reject(Some(&connection.app), &rejection, cx),
        }
        self.state = ClientState::Open(connection);
    }

    fn pong(&mut self, _: &[u8], _: Option<Duration>, _: &mut Context<'_>) {
        let now = self.apps().now();
        if let ClientState::Open(connection) = &mut self.state {
            connection.liveness.note_input(now);
        }
    }

    fn woken(&mut self, cx: &mut Context<'_>) {
        let ClientState::Open(mut connection) = std::mem::replace(&mut self.state, ClientState::Closed)
        else {
            return;
        };
        self.continue_recoveries(&mut connection, cx);
        let user = connection.user();
        for command in user.map_or_else(Vec::new, |user| user.connection.take_commands()) {
            match command {
                ConnectionCommand::Close { code, reason } => {
                    let text = reason.to_string();
                    end(&ConnectionRejection { code: code.as_u16(), text }, cx);
                }
                ConnectionCommand::Describe { reply } => {
                    let _ = reply.send(connection.describe(cx));
                }
                ConnectionCommand::ReportCluster { .. }
                | ConnectionCommand::ReportRejected(_)
                | ConnectionCommand::Refresh(_) => {}
                ConnectionCommand::Subscribe { reply, .. } | ConnectionCommand::Unsubscribe { reply, .. } => {
                    use crate::model::problem;
                    let text = "a connection of an app subscribes by itself";
                    // The caller may have gone.
                    let _ = reply.send(Err(problem::problem(problem::code::NOT_SUBSCRIBED, text)));
                }
            }
        }
        self.state = ClientState::Open(connection);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        let ClientState::Open(mut connection) = std::mem::replace(&mut self.state, ClientState::Closed)
        else {
            return;
        };
        self.continue_recoveries(&mut connection, cx);
        self.state = ClientState::Open(connection);
    }

    fn deadline(&self) -> Option<Instant> {
        match &self.state {
            ClientState::Open(connection) => {
                let liveness = connection.liveness.deadline(&connection.app.options);
                let recoveries = connection.rare.iter().flat_map(|rare| &rare.recoveries);
                let deadline = recoveries.filter_map(|pending| pending.deadline).fold(liveness, u64::min);
                Some(self.apps().instant(deadline))
            }
            _ => None,
        }
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        let ClientState::Open(mut connection) = std::mem::replace(&mut self.state, ClientState::Closed)
        else {
            return;
        };
        let reloaded = self.follow_reload(&mut connection, cx);
        let app = &connection.app.options;
        match reloaded.and_then(|()| connection.liveness.check(app, self.apps().now())) {
            Ok(true) => send(cx, PING),
            Ok(false) => {}
            Err(rejection) => self.reject(Some(&connection.app), &rejection, cx),
        }
        self.continue_recoveries(&mut connection, cx);
        self.state = ClientState::Open(connection);
    }

    fn stop_code(&self) -> (CloseCode, &'static str) {
        (RECONNECT, "server stops")
    }

    fn queued(&mut self, bytes: usize) {
        if let ClientState::Open(connection) = &self.state
            && let Some(user) = connection.user()
        {
            user.connection.set_queued(bytes);
        }
    }

    fn close(&mut self, closed: &Closed, cx: &mut Context<'_>) {
        let ClientState::Open(mut connection) = std::mem::replace(&mut self.state, ClientState::Closed)
        else {
            return;
        };
        let code = Some(closed.status()).filter(|code| *code > 0);
        self.observe(Some(&connection), cx, || Activity {
            kind: ActivityKind::Close,
            code,
            ..Activity::default()
        });
        let user = connection.rare.take().and_then(|rare| rare.user);
        let is_subscribed = user.as_ref().is_some_and(|user| user.is_subscribed);
        if let Some(user) = user {
            user.connection.end(closed);
        }
        self.end_subscriptions(&connection, is_subscribed);
        self.apps().counters.open.fetch_sub(1, Ordering::Relaxed);
        connection.app.remove_connection();
    }
}

/// Sends a rejection's error, and closes the connection with it.
fn end(rejection: &ConnectionRejection, cx: &mut Context<'_>) {
    send(cx, &error(Some(rejection.code), &rejection.text, None));
    close(cx, rejection.close_code(), &rejection.text);
}

pub(super) fn send(cx: &mut Context<'_>, message: &str) {
    // After a Close, the message is dropped.
    let _ = cx.send_text(message);
}

/// The close code upon which clients connect again at once, such as that of a server that stops.
pub(super) const RECONNECT: CloseCode = match CloseCode::new(code::RECONNECT) {
    Some(code) => code,
    None => CloseCode::GOING_AWAY,
};

/// The close code for a terminated user.
pub(super) const TERMINATED: CloseCode = match CloseCode::new(code::UNAUTHORIZED) {
    Some(code) => code,
    None => CloseCode::POLICY,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_client_is_small() {
        // glibc's allocator adds 8 bytes and rounds to 16.
        assert!(size_of::<PusherClient>() <= 64 - 8);
    }
}
