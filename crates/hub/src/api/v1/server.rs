//! The server: information, and its cluster's nodes.

use std::sync::Arc;

use serde_json::{Value, json};
use sinews_server::Request;

use super::context::{ApiContext, Executed, success};
use crate::access::auth::ApiRights;
use crate::cluster::node::ClusterNode;

/// `GET /info`.
pub(super) fn info(context: &Arc<ApiContext>, _: &ApiRights, _: &mut Request<'_>) -> Executed {
    let metrics = context.monitor.metrics();
    Ok(success(&json!({
        "version": context.version,
        "commit": context.commit,
        "node": context.cluster.as_ref().map_or_else(crate::node::host_name, |cluster| cluster.name().to_owned()),
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
    let counts = context.hub.connections().counts();
    let nodes: Vec<Value> = match cluster {
        Some(cluster) => {
            let described = |(node, is_self): (ClusterNode, bool)| {
                let mut node = node.to_json();
                node["self"] = json!(is_self);
                node
            };
            cluster.nodes(counts).into_iter().map(described).collect()
        }
        None => {
            let (store, store_away) = context.hub.store_report();
            vec![json!({
                "id": "", "name": crate::node::host_name(), "version": context.version,
                "uptime": context.begin.elapsed().as_secs(), "connections": counts.connections,
                "users": counts.users, "topics": context.hub.subscribed().len(), "store": store,
                "store_away": store_away, "self": true,
            })]
        }
    };
    let is_connected = cluster.is_some_and(|cluster| cluster.check_broker().is_ok());
    Ok(success(&json!({ "connected": is_connected, "nodes": nodes })).into())
}
