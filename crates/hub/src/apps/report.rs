//! The apps, for the dashboard.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_server::Publisher;

use crate::apps::channel::{PusherTopic, channel_of_topic};
use crate::apps::live::{AppLoad, LiveApps};
use crate::model::RESERVED;
use crate::webhooks::{WebhookBacklog, WebhookCollector};

/// Maximum number of apps in a report: those with the most connections.
const APPS_MAX: usize = 20;

/// Interval between channel counts, since each looks at all channels.
const COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Channels that are counted while presence is locked.
const COUNTED_TOGETHER: usize = 1_000;

/// The apps of this node, with the channels that were counted last.
#[derive(Debug, Default)]
pub(crate) struct AppsReport {
    counted: Option<Instant>,
    channels: HashMap<String, usize>,
}

impl AppsReport {
    /// The apps with the most connections, and the app count; `None` without apps. Keys are secrets, and not included.
    pub(crate) fn next(
        &mut self,
        apps: &LiveApps,
        publisher: &Publisher,
        webhooks: Option<&WebhookCollector>,
    ) -> Option<Value> {
        let (listed, count) = apps.busiest(APPS_MAX);
        if count == 0 {
            return None;
        }
        if self.counted.is_none_or(|at| at.elapsed() >= COUNT_INTERVAL) {
            self.channels = occupied_channels(publisher);
            self.counted = Some(Instant::now());
        }
        let apps = listed.into_iter().map(|AppLoad { id, name, connections, rejected }| {
            let channels = self.channels.get(&id).copied().unwrap_or_default();
            let backlog = webhooks.map(|all| all.backlog(&format!("pusher:{id}:"))).unwrap_or_default();
            let WebhookBacklog { queued, failed, dropped } = backlog;
            json!({
                "id": id, "name": name, "connections": connections, "channels": channels, "rejected": rejected,
                "webhooks": { "queued": queued, "failed": failed, "dropped": dropped },
            })
        });
        Some(json!({ "apps": apps.collect::<Vec<_>>(), "count": count }))
    }
}

/// Each app's channels with subscribers, counted over all nodes.
fn occupied_channels(publisher: &Publisher) -> HashMap<String, usize> {
    let (mut channels, mut last) = (HashMap::new(), None);
    loop {
        let page = publisher.presence_counts(RESERVED, last.as_deref(), COUNTED_TOGETHER);
        for (topic, _) in page.iter().filter(|(_, count)| count.connections > 0) {
            if let Some(PusherTopic::Channel { app, .. }) = channel_of_topic(topic) {
                *channels.entry(app.to_owned()).or_default() += 1;
            }
        }
        last = page.into_iter().nth(COUNTED_TOGETHER - 1).map(|(topic, _)| topic);
        if last.is_none() {
            return channels;
        }
    }
}
