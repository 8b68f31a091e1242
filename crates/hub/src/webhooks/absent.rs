//! Webhooks in a build without the feature `webhooks`: they want no event, and no webhook exists.

use std::fmt;
use std::io;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use serde_json::Value;
use sinews_server::Publisher;

use crate::background::Background;
use crate::error::HubError;
use crate::model::events::{EventDetail, EventSink, WebhookEventKind};
use crate::model::nodes::OtherNodes;

pub(crate) use self::{
    AbsentBacklog as WebhookBacklog, AbsentCollector as WebhookCollector, AbsentTarget as WebhookTarget,
    AbsentWebhook as WebhookOptions, AbsentWebhooks as Webhooks,
};

/// A hub's webhooks: none.
#[derive(Debug, Default)]
pub(crate) struct AbsentWebhooks;

impl AbsentWebhooks {
    pub(crate) fn replace(&self, _targets: Vec<AbsentTarget>) {}

    pub(crate) fn start(
        &self,
        _publisher: Publisher,
        _nodes: Option<Arc<dyn OtherNodes>>,
        _background: &Background,
        _has_predecessor: bool,
    ) -> io::Result<()> {
        Ok(())
    }

    pub(crate) fn take_over(&self) {}

    pub(crate) fn stop(&self) {}

    pub(crate) fn collector(&self) -> Option<AbsentCollector> {
        None
    }
}

impl EventSink for AbsentWebhooks {
    fn wants(&self, _kind: WebhookEventKind) -> bool {
        false
    }

    fn emit(&self, _detail: EventDetail) {}

    fn hand_over(&self) {}
}

/// A webhook of the application.
pub(crate) enum AbsentWebhook {}

/// Where a webhook's events go.
pub(crate) enum AbsentTarget {}

pub(crate) fn targets(_options: &[AbsentWebhook]) -> Result<Vec<AbsentTarget>, HubError> {
    Ok(Vec::new())
}

/// The metrics of webhooks.
#[derive(Debug)]
pub(crate) enum AbsentCollector {}

impl AbsentCollector {
    pub(crate) fn backlog(&self, _prefix: &str) -> AbsentBacklog {
        match *self {}
    }

    pub(crate) fn report(&self) -> Value {
        match *self {}
    }
}

impl Collector for AbsentCollector {
    fn encode(&self, _encoder: DescriptorEncoder<'_>) -> fmt::Result {
        match *self {}
    }
}

/// Events that wait, and events that were lost.
#[derive(Default)]
pub(crate) struct AbsentBacklog {
    pub(crate) queued: usize,
    pub(crate) failed: u64,
    pub(crate) dropped: u64,
}
