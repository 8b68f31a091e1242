//! Users and connections: their number, and how a user's connections end.

use std::sync::Arc;

use serde_json::json;
use sinews_server::{Answer, CloseCode, Request, Response};

use super::{ApiAnswer, ApiError, AppApi, success};
use crate::apps::channel::{USER_RULE, is_user_id};
use crate::apps::live::LiveApp;
use crate::cluster::command::NodeCommand;
use crate::connections::ConnectionSelector;
use crate::protocol::pusher::client::{RECONNECT, TERMINATED};
use crate::protocol::pusher::users::subject;

/// `GET /apps/{id}/connections`, over all nodes.
pub(super) fn connections(context: &Arc<AppApi>, app: &Arc<LiveApp>, _: &mut Request<'_>) -> ApiAnswer {
    let own = app.connections();
    let Some(cluster) = &context.cluster else { return Ok(success(&json!({ "connections": own })).into()) };
    let others = cluster.request(&NodeCommand::AppConnections { app: app.options.id.clone() });
    Ok(Answer::later(async move {
        // Connections of a node that does not answer are not counted.
        let others = others.await.results;
        let others = others.iter().filter_map(|result| result["connections"].as_u64());
        Response::json(json!({ "connections": own as u64 + others.sum::<u64>() }).to_string())
    }))
}

/// `POST /apps/{id}/users/{user}/terminate_connections`, on all nodes.
pub(super) fn terminate(context: &Arc<AppApi>, app: &Arc<LiveApp>, request: &mut Request<'_>) -> ApiAnswer {
    close_all(context, app, request, TERMINATED, "the app has terminated the connections of the user")
}

/// `POST /apps/{id}/users/{user}/force_reconnect`, on all nodes: clients connect again at once, as at Sockudo.
pub(super) fn reconnect(context: &Arc<AppApi>, app: &Arc<LiveApp>, request: &mut Request<'_>) -> ApiAnswer {
    close_all(context, app, request, RECONNECT, "the app has asked the user to reconnect")
}

/// Closes the connections of the user that the path names.
fn close_all(
    context: &Arc<AppApi>,
    app: &LiveApp,
    request: &Request<'_>,
    code: CloseCode,
    reason: &str,
) -> ApiAnswer {
    let user = request.param("user").filter(|user| is_user_id(user));
    let user = user.ok_or_else(|| ApiError::bad(USER_RULE))?;
    let selector = ConnectionSelector::User(subject(&app.options.id, &user));
    context.services.hub.connections().close_all(&selector, code, reason);
    let Some(cluster) = &context.cluster else { return Ok(success(&json!({})).into()) };
    let (code, reason) = (code.as_u16(), reason.to_owned());
    let away = cluster.check_broker().err();
    let others = cluster.request(&NodeCommand::Disconnect { selector, code, reason });
    Ok(Answer::later(async move {
        let missing = others.await.missing;
        let why = match away {
            Some(why) => why,
            None if missing.is_empty() => return success(&json!({})),
            None => format!("no answer of {}", missing.join(", ")),
        };
        let text = format!("connections of the user at other nodes may be open, retry: {why}\n");
        Response::text(text).with_status(503)
    }))
}
