//! The number of connections of an app.

use std::sync::Arc;

use serde_json::json;
use sinews_server::{Answer, Request, Response};

use super::{ApiAnswer, AppApi, success};
use crate::cluster::commands::NodeCommand;
use crate::protocol::pusher::live::LiveApp;

/// `GET /apps/{id}/connections`, over all nodes.
pub(super) fn count(context: &Arc<AppApi>, app: &LiveApp, _: &mut Request<'_>) -> ApiAnswer {
    let own = app.connections();
    let Some(cluster) = &context.cluster else { return Ok(success(&json!({ "connections": own }))) };
    let others = cluster.request(&NodeCommand::AppConnections { app: app.options.id.clone() });
    Ok(Answer::later(async move {
        // Connections of a node that does not answer are not counted.
        let others = others.await.results;
        let others = others.iter().filter_map(|result| result["connections"].as_u64());
        Response::json(json!({ "connections": own as u64 + others.sum::<u64>() }).to_string())
    }))
}
