//! The server: information, and administration of streams.

use std::sync::Arc;

use serde_json::{Value, json};
use sinews_server::{Answer, Request};

use super::context::{ApiContext, Executed, failure, success};
use crate::auth::{ApiRight, ApiRights, Rights};
use crate::cluster::observe::ClusterNode;
use crate::problem::{code, problem};
use crate::streams::errors::STREAMS_DISABLED;
use crate::streams::json::listed;
use crate::streams::service::StreamService;

/// `GET /info`.
pub(super) fn info(context: &Arc<ApiContext>, _: &ApiRights, _: &mut Request<'_>) -> Executed {
    let metrics = context.monitor.metrics();
    Ok(success(&json!({
        "version": context.version,
        "commit": context.commit,
        "node": context.cluster.as_ref().map_or_else(crate::dashboard::node, |cluster| cluster.name().to_owned()),
        "uptime": context.begin.elapsed().as_secs(),
        "threads": metrics.loops.len(),
        "connections": metrics.connections(),
        "websockets": metrics.websockets(),
        "messages_sent": metrics.messages_sent,
        "messages_received": metrics.messages_received,
        "resident_bytes": metrics.process.resident_bytes,
        "streams": context.store.is_some(),
    }))
    .into())
}

/// `GET /nodes`.
pub(super) fn nodes(context: &Arc<ApiContext>, _: &ApiRights, _: &mut Request<'_>) -> Executed {
    let cluster = context.cluster.as_ref();
    let connections = context.hub.connections().len();
    let nodes: Vec<Value> = match cluster {
        Some(cluster) => {
            let described = |(node, is_self): (ClusterNode, bool)| {
                let mut node = node.to_json();
                node["self"] = json!(is_self);
                node
            };
            cluster.nodes(connections).into_iter().map(described).collect()
        }
        None => vec![json!({
            "id": "", "name": crate::dashboard::node(), "version": context.version,
            "uptime": context.begin.elapsed().as_secs(), "connections": connections,
            "topics": 0, "self": true,
        })],
    };
    let is_connected = cluster.is_some_and(|cluster| cluster.ready().is_ok());
    Ok(success(&json!({ "connected": is_connected, "nodes": nodes })).into())
}

fn store_of(context: &ApiContext) -> Result<&Arc<StreamService>, crate::problem::Problem> {
    context.store.as_ref().ok_or_else(|| problem(code::NO_STREAM, STREAMS_DISABLED))
}

/// `GET /streams`.
pub(super) fn streams(context: &Arc<ApiContext>, rights: &ApiRights, _: &mut Request<'_>) -> Executed {
    let store = store_of(context)?;
    let streams = store.list(&Rights::all())?;
    let readable = streams.iter().filter(|info| rights.covers(ApiRight::Read, &info.name));
    let streams: Vec<Value> = readable.map(|info| listed(store, info)).collect();
    Ok(success(&json!({ "streams": streams })).into())
}

/// `DELETE /streams/{stream}`: answers when the stream is deleted.
pub(super) fn delete_stream(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let store = store_of(context)?;
    let name =
        request.param("stream").ok_or_else(|| problem(code::TOPIC, "the stream's name is not UTF-8"))?;
    let name = name.into_owned();
    store.check_delete(&name, &Rights::all())?;
    let deletion = store.delete(&name)?;
    Ok(Answer::later(async move {
        match deletion.await {
            Ok(()) => success(&json!({ "stream": name, "deleted": true })),
            Err(problem) => failure(&problem),
        }
    }))
}
