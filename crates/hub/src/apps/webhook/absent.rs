//! An app's webhooks in a build without the feature `webhooks`: no value of this type exists.

pub(crate) use self::AbsentAppWebhook as PusherWebhook;
use crate::apps::signature::AppKey;
use crate::error::HubError;
use crate::webhooks::WebhookTarget;

/// An app's webhook.
#[derive(Clone, Debug)]
pub(crate) enum AbsentAppWebhook {}

impl AbsentAppWebhook {
    pub(crate) fn check(&self, _channel_name_max: usize) -> Result<(), HubError> {
        match *self {}
    }

    pub(crate) fn wants_counts(&self) -> bool {
        match *self {}
    }

    pub(crate) fn target(
        &self,
        _app: &str,
        _number: usize,
        _key: &AppKey,
        _has_counts: bool,
    ) -> Result<WebhookTarget, HubError> {
        match *self {}
    }
}
