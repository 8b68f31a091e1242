//! `GET /metrics`: server, rejection and stream metrics.

use std::sync::Arc;

use prometheus_client::encoding::text;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::registry::Registry;
use sinews_server::{Metrics, Response, Router};

use crate::access::auth::IssuerMetrics;
use crate::admission::RejectionMetrics;
#[cfg(feature = "pusher")]
use crate::apps::metrics::PusherMetrics;
use crate::config::ConfigHandle;
use crate::hub::health::BrokerMetrics;
use crate::session::backends::Backends;
use crate::streams::report::StreamMetrics;
use crate::topics::stored::StoredMetrics;

const DROPPED_LOG_LINES_HELP: &str = "Lines of the log that were dropped, since its reader stalled";

/// Serves `/metrics`: server and stream metrics.
pub(crate) fn add_to(
    router: Router,
    services: &Backends,
    live: &ConfigHandle,
    dropped_log_lines: Option<fn() -> u64>,
) -> Router {
    let (monitor, Backends { store, cluster, stored }, live) =
        (router.monitor(), services.clone(), live.clone());
    router.get("/metrics", move |request| {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(monitor.metrics()));
        if let Some(count) = dropped_log_lines {
            let counter = ConstCounter::new(count());
            registry.register("sinews_log_lines_dropped", DROPPED_LOG_LINES_HELP, counter);
        }
        registry.register_collector(Box::new(RejectionMetrics(Arc::clone(live.config().rejections()))));
        if let Some(hooks) = live.config().hook_metrics() {
            registry.register_collector(Box::new(hooks));
        }
        if let Some(issuers) = live.config().issuers() {
            registry.register_collector(Box::new(IssuerMetrics(Arc::clone(issuers))));
        }
        if let Some(webhooks) = live.config().webhooks().collector() {
            registry.register_collector(Box::new(webhooks));
        }
        #[cfg(feature = "pusher")]
        registry.register_collector(Box::new(PusherMetrics(Arc::clone(live.config().live_apps()))));
        if let Some(store) = &store {
            registry.register_collector(Box::new(StreamMetrics::new(store)));
            if let Some(keys) = store.for_keys().key_storage_metrics() {
                registry.register_collector(Box::new(keys));
            }
            if let Some(broker) = BrokerMetrics::for_store(store) {
                registry.register_collector(Box::new(broker));
            }
        }
        if let Some(cluster) = &cluster {
            registry.register_collector(cluster.collector());
        }
        if let Some(stored) = &stored {
            registry.register_collector(Box::new(StoredMetrics::new(stored)));
        }
        let mut body = String::new();
        // Writing to a string never fails.
        let _ = text::encode(&mut body, &registry);
        Response::new(200).with_header("Content-Type", Metrics::content_type(request)).with_body(body)
    })
}
