//! The live view: actions of this node's clients, as Server-Sent Events.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sinews_server::{
    Answer, CloseCode, Closed, Context, Handler, Payload, Request, StreamingResponse, TopicPattern,
};

use super::body::text_query;
use super::context::{ApiContext, Executed};
use crate::access::auth::{ApiCredential, ApiRight, ApiRights};
use crate::activity::{ActivityFilter, ActivityWatcher, PREVIEW_MAX, RATE, WATCHERS_MAX};
use crate::closing::{TOKEN_EXPIRED, close};
use crate::config::ConfigHandle;
use crate::model::brief::brief;
use crate::model::check_subscription;
use crate::model::problem::{Problem, code, problem};
use crate::topics::HubTopics;

/// Interval of reports about omitted actions, and of checks of the key.
const INTERVAL: Duration = Duration::from_secs(1);

/// `GET /activity`.
pub(super) fn watch(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let feed = ActivityFeed {
        live: context.live.clone(),
        hub: Arc::clone(&context.hub),
        credential: ApiCredential::from_request(request)?,
        filter: filter_of(request)?,
        first: first_line(context),
        watcher: None,
        next: Instant::now() + INTERVAL,
    };
    Ok(Answer::from(StreamingResponse::events(feed)))
}

fn filter_of(request: &Request<'_>) -> Result<ActivityFilter, Problem> {
    let mut filter = ActivityFilter::default();
    if let Some(topic) = text_query(request, "topic")? {
        check_subscription(&topic).map_err(|text| problem(code::TOPIC, text))?;
        let parsed = TopicPattern::parse(topic.into_owned());
        filter.topic = Some(parsed.map_err(|error| problem(code::TOPIC, error.to_string()))?);
    }
    filter.user = text_query(request, "user")?.map(|user| user.into_owned());
    filter.connection = text_query(request, "connection")?.map(|connection| connection.into_owned());
    for kind in text_query(request, "kinds")?.iter().flat_map(|kinds| kinds.split(',')) {
        if !filter.add_kind(kind) {
            return Err(problem(code::MALFORMED, format!("kinds: unknown kind {:?}", brief(kind))));
        }
    }
    Ok(filter)
}

/// The first line says what the feed contains.
fn first_line(context: &ApiContext) -> Value {
    let (node, nodes) = match &context.cluster {
        Some(cluster) => (cluster.name().to_owned(), cluster.nodes(context.hub.connections().counts()).len()),
        None => (crate::node::host_name(), 1),
    };
    json!({ "kind": "start", "node": node, "nodes": nodes, "rate": RATE, "preview": PREVIEW_MAX })
}

/// A viewer's response.
struct ActivityFeed {
    live: ConfigHandle,
    hub: Arc<HubTopics>,
    credential: ApiCredential,
    filter: ActivityFilter,
    first: Value,
    /// Set while the response is open.
    watcher: Option<Arc<ActivityWatcher>>,
    /// When the next report is due.
    next: Instant,
}

impl ActivityFeed {
    /// Sends the lines that wait, as far as the client takes them.
    fn send_lines(&self, cx: &mut Context<'_>) {
        let Some(watcher) = &self.watcher else { return };
        while cx.has_capacity()
            && let Some(line) = watcher.take_line()
        {
            let _ = cx.send_text(&line);
        }
    }
}

impl Handler for ActivityFeed {
    fn open(&mut self, cx: &mut Context<'_>) {
        let watcher = Arc::new(ActivityWatcher::new(std::mem::take(&mut self.filter), cx.waker()));
        if !self.hub.activity().add(&watcher) {
            let text = format!("the server has {WATCHERS_MAX} live views already");
            return close(cx, CloseCode::TRY_AGAIN_LATER, &text);
        }
        self.watcher = Some(watcher);
        let _ = cx.send_text(&self.first.to_string());
    }

    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}

    fn woken(&mut self, cx: &mut Context<'_>) {
        self.send_lines(cx);
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        self.send_lines(cx);
    }

    fn deadline(&self) -> Option<Instant> {
        Some(self.next)
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        self.next = Instant::now() + INTERVAL;
        let rights = self.live.config().api_rights_of(&self.credential);
        if rights.is_none_or(|rights| rights.check(ApiRight::Admin).is_err()) {
            return close(cx, TOKEN_EXPIRED, "the API key is no longer valid");
        }
        self.send_lines(cx);
        if !cx.has_capacity() {
            return;
        }
        if let Some(omitted) = self.watcher.as_ref().and_then(|watcher| watcher.take_omitted()) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let at = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
            let _ = cx.send_text(&json!({ "kind": "omitted", "at": at, "counts": omitted }).to_string());
        }
    }

    fn close(&mut self, _: &Closed, _: &mut Context<'_>) {
        if let Some(watcher) = self.watcher.take() {
            self.hub.activity().remove(&watcher);
        }
    }
}
