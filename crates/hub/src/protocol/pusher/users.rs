//! Users that have signed in: their events, their termination and their watchlists.

use std::collections::BTreeSet;

use serde_json::json;
use sinews_server::{Context, Member};

use super::client::{PusherClient, PusherConnection, send};
use super::code;
use super::handshake::ConnectionRejection;
use super::incoming::{SignInData, read_user};
use crate::access::auth::Rights;
use crate::apps::channel::{RESERVED_USER, is_user_id, topic_of_user};
use crate::apps::encode::{self, error, object, user_channel, watchlist_events};
use crate::apps::encoding::EVENTS;
use crate::apps::metrics::PusherRejection;
use crate::apps::signature::verifies_auth;
use crate::connections::{ConnectionPath, RegisteredConnection};
use crate::model::json::{TOO_DEEP, exceeds_depth};
use crate::model::socket_id::socket_id_text;

/// A user that has signed in.
pub(super) struct SignedInUser {
    pub(super) id: String,
    /// [`UserId::info`](super::user_id::UserId::info).
    pub(super) info: String,
    /// The connection receives the user's events.
    pub(super) is_subscribed: bool,
    /// Receives the command to close.
    pub(super) connection: RegisteredConnection,
}

/// A user's name among the users of all apps and protocols.
pub(super) fn subject(app: &str, user: &str) -> String {
    format!("{RESERVED_USER}{app}:{user}")
}

impl PusherClient {
    /// Signs a user in; closes the connection otherwise.
    pub(super) fn sign_in(
        &self,
        connection: &mut PusherConnection,
        data: Option<SignInData>,
        cx: &mut Context<'_>,
    ) {
        if let Err(text) = self.try_sign_in(connection, data, cx) {
            self.apps().counters.reject(PusherRejection::SignIn);
            self.reject(Some(&connection.app), &ConnectionRejection::new(code::UNAUTHORIZED, text), cx);
        }
    }

    fn try_sign_in(
        &self,
        connection: &mut PusherConnection,
        data: Option<SignInData>,
        cx: &mut Context<'_>,
    ) -> Result<(), &'static str> {
        if !connection.app.options.features.users {
            return Err("the app has no users that sign in");
        }
        let SignInData { auth, user_data } = data.ok_or("pusher:signin needs auth and user_data")?;
        let text = format!("{}::user::{user_data}", socket_id_text(self.socket_id(cx)));
        if !connection.key().is_some_and(|key| verifies_auth(key, &auth, &text)) {
            return Err("the signature of the user is invalid");
        }
        if exceeds_depth(user_data.as_bytes()) {
            return Err(TOO_DEEP);
        }
        let user = read_user(&user_data).filter(|user| is_user_id(&user.member.id));
        let user = user.ok_or("user_data is not an object with an id of 1 to 128 characters")?;
        let success = object("pusher:signin_success", None, &json!({ "user_data": user_data }));
        match connection.user() {
            Some(known) if known.id != user.member.id => {
                return Err("another user has signed in on this connection");
            }
            Some(_) => {
                send(cx, &success);
                return Ok(());
            }
            None => {}
        }
        let app = &connection.app.options;
        let topic = topic_of_user(&app.id, &user.member.id);
        // As a member, since member messages have versions: a watcher misses none and receives none twice.
        cx.join(&topic, Member::new(&*user.member.id))
            .map_err(|_| "the server has no memory for more users")?;
        let rights = Rights::for_subject(&subject(&app.id, &user.member.id)).for_client(cx.peer().ip());
        let registered =
            self.hub().connections().register(ConnectionPath::App, &rights, cx.subscriber_id(), cx.waker());
        let most = app.limits.watchlist;
        send(cx, &success);
        connection.liveness.is_authorized = true;
        connection.rare.get_or_insert_default().user = Some(Box::new(SignedInUser {
            id: user.member.id,
            info: user.member.info,
            is_subscribed: false,
            connection: registered,
        }));
        if connection.app.options.features.watchlists {
            self.watch(connection, user.watchlist, most, cx);
        }
        Ok(())
    }

    /// Sends the states of a watchlist's users, and their changes from now on.
    fn watch(
        &self,
        connection: &PusherConnection,
        mut watchlist: Vec<String>,
        most: usize,
        cx: &mut Context<'_>,
    ) {
        if watchlist.len() > most {
            let text = format!("watchlist of {} users exceeds the limit of {most}", watchlist.len());
            send(cx, &error(Some(code::WATCHLIST), &text, None));
            watchlist.truncate(most);
        }
        let app = &connection.app.options.id;
        let watched: BTreeSet<String> = watchlist.into_iter().filter(|id| is_user_id(id)).collect();
        let (mut online, mut offline) = (Vec::new(), Vec::new());
        for id in watched {
            // Without a subscription that is left, the present state is all that the client learns.
            let topic = topic_of_user(app, &id);
            let watched = cx.watch_members(&topic).map(|(count, _)| count);
            let count = watched.unwrap_or_else(|_| cx.topics().presence(&topic));
            if count.connections > 0 { online.push(id) } else { offline.push(id) }
        }
        let events = [("online", online), ("offline", offline)];
        let events: Vec<_> = events.into_iter().filter(|(_, ids)| !ids.is_empty()).collect();
        if !events.is_empty() {
            send(cx, &watchlist_events(&events));
        }
    }

    /// Subscribes to the signed-in user's events. Returns whether it is this user.
    pub(super) fn subscribe_to_user(
        &self,
        connection: &mut PusherConnection,
        user: &str,
        cx: &mut Context<'_>,
    ) -> bool {
        let app = &connection.app.options.id;
        let known = connection.rare.as_mut().and_then(|rare| rare.user.as_mut());
        let Some(known) = known.filter(|known| known.id == user) else { return false };
        if !known.is_subscribed {
            if cx.subscribe(&EVENTS.topic(&topic_of_user(app, user))).is_err() {
                return false;
            }
            known.is_subscribed = true;
            self.hub().count_subscriber(EVENTS);
        }
        send(cx, &encode::subscription_succeeded(&user_channel(user), None));
        true
    }
}
