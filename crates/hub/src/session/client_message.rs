//! Reports about clients' messages to the application.

use std::sync::Arc;

use crate::access::auth::Rights;
use crate::activity::Activity;
use crate::connections::RegisteredConnection;
use crate::model::MessageContent;
use crate::model::events::{EventDetail, WebhookEventKind};
use crate::topics::HubTopics;

/// Reports a client's publication, if anything wants to know it.
pub(crate) fn report(
    hub: &HubTopics,
    topic: &str,
    content: &MessageContent,
    rights: &Rights,
    connection: Option<&RegisteredConnection>,
) {
    hub.activity().observe(|| Activity {
        path: connection.map_or("/topics/{name}", |connection| connection.path().as_str()),
        connection: connection.map(RegisteredConnection::id),
        user: rights.subject(),
        address: rights.address(),
        ..Activity::publication(topic, content)
    });
    let Some(events) = hub.events().filter(|events| events.wants(WebhookEventKind::ClientMessage)) else {
        return;
    };
    events.emit(EventDetail::ClientMessage {
        topic: topic.into(),
        content: content.as_event(),
        user: rights.subject().map(Arc::from),
        connection: connection.map(RegisteredConnection::id),
    });
}
