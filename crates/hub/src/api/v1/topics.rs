//! Topics: their list, presence, histories and keys.

use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use sinews_server::{Answer, KeyWrite, Position, Publisher, Request, Response, Topics};

use super::body::{content_of, limit_of, number_query, read, text_query, topic_of};
use super::context::{ApiContext, Executed, failure, list_success, success, text_success};
use crate::access::auth::{ApiRight, ApiRights};
use crate::api::keys;
use crate::cluster::Cluster;
use crate::cluster::command::{NodeCommand, NodeResults};
use crate::model::Creator;
use crate::model::history::HistoryRange;
use crate::model::json::present;
use crate::model::json_list::JsonList;
use crate::model::opening::SharedOpening;
use crate::model::presence;
use crate::model::problem::{Problem, code, problem};
use crate::model::schema::requests;
use crate::streams::topic_history::{HISTORY_MAX, history_page, stored_history};
use crate::topics::keys::{key_json, key_problem, page_json};
use crate::topics::list::{TopicScan, TopicUse, TopicsInUse};

/// Maximum topics in one answer.
const LISTED_MAX: usize = 1_000;

/// Returns the message topics that match, in order; `None` if there are more than `most`. Yields between list parts.
async fn matching_topics(publisher: &Publisher, mut scan: TopicScan, most: usize) -> Option<Vec<String>> {
    let mut topics = Vec::new();
    loop {
        let names = scan.next(publisher);
        if names.is_empty() {
            return Some(topics);
        }
        let is_found = |name: &str, found: TopicUse| found.subscribers.is_some() && scan.matches(name);
        topics.extend(names.into_iter().filter(|(name, found)| is_found(name, *found)).map(|(name, _)| name));
        if topics.len() > most {
            return None;
        }
        yield_now().await;
    }
}

/// Returns the message topics of this node that match, those of other nodes, and the names of the nodes that have not
/// answered; `None` if there are more than `most`.
pub(super) async fn matching_topics_of_all_nodes(
    cluster: Option<&Arc<Cluster>>,
    publisher: &Publisher,
    scan: TopicScan,
    filter: &str,
    most: usize,
) -> Option<(Vec<String>, Vec<String>)> {
    let own = matching_topics(publisher, scan, most).await?;
    let Some(cluster) = cluster else { return Some((own, Vec::new())) };
    let mut topics: BTreeSet<String> = own.into_iter().collect();
    let (mut missing, mut after) = (BTreeSet::new(), None::<String>);
    loop {
        let filter = filter.to_owned();
        let command = NodeCommand::Topics { filter, after: after.clone(), limit: most + 1 };
        let NodeResults { results, missing: nodes, .. } = cluster.request(&command).await;
        missing.extend(nodes);
        let listed = results.iter().flat_map(|result| result["topics"].as_array().into_iter().flatten());
        let listed = listed.filter_map(TopicUse::read).filter(|(_, found)| found.subscribers.is_some());
        topics.extend(listed.map(|(name, _)| name.to_owned()));
        if topics.len() > most {
            return None;
        }
        match scanned_to(&results).filter(|scanned| after.as_ref().is_none_or(|after| scanned > after)) {
            Some(scanned) => after = Some(scanned),
            None => return Some((topics.into_iter().collect(), missing.into_iter().collect())),
        }
    }
}

/// Returns the name up to which all nodes have looked at their lists, if one of them has not looked at all names: of
/// very many names, it looks at a part at a time.
fn scanned_to(results: &[Value]) -> Option<String> {
    results.iter().filter_map(|result| result["scanned"].as_str()).min().map(str::to_owned)
}

/// Lets the thread do other work.
pub(super) async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut has_yielded, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// `GET /topics`: topics with subscribers by name, a history or keys, on all nodes.
pub(super) fn list(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let limit = limit_of(request, LISTED_MAX)?;
    let filter = text_query(request, "filter")?.map_or_else(|| ">".to_owned(), std::borrow::Cow::into_owned);
    let mut scan = TopicScan::new(&filter, context.hub.encodings())?;
    let after = text_query(request, "after")?.map(std::borrow::Cow::into_owned);
    scan.set_after(after.clone());
    let (publisher, rights) = (request.publisher(), rights.clone());
    let command = NodeCommand::Topics { filter, after, limit: limit + 1 };
    let others = context.cluster.as_ref().map(|cluster| cluster.request(&command));
    Ok(Answer::later(async move {
        let mut found = Vec::new();
        loop {
            let names = scan.next(&publisher);
            if names.is_empty() {
                break;
            }
            let is_listed = |name: &str| scan.matches(name) && rights.covers(ApiRight::Read, name);
            found.extend(names.into_iter().filter(|(name, used)| used.is_any() && is_listed(name)));
            if found.len() > limit {
                break;
            }
            yield_now().await;
        }
        let (mut missing, mut scanned) = (Vec::new(), None);
        if let Some(others) = others {
            let NodeResults { results, missing: nodes, .. } = others.await;
            missing = nodes;
            found = merged(found, &results, |name| rights.covers(ApiRight::Read, name));
            scanned = scanned_to(&results);
        }
        let next = end_page(&mut found, scanned, limit);
        let listed: Vec<Value> = found.iter().map(|(topic, found)| listed_topic(topic, *found)).collect();
        success(&partial(page(json!({ "topics": listed }), next.as_deref()), &missing))
    }))
}

fn listed_topic(topic: &str, found: TopicUse) -> Value {
    json!({
        "topic": topic, "subscribers": found.subscribers.unwrap_or(0), "keys": found.keys,
        "key_subscribers": found.key_subscribers,
    })
}

/// Reduces a list to a page; returns its last name, if there may be more. Names behind `scanned` are not complete.
fn end_page(found: &mut TopicsInUse, scanned: Option<String>, limit: usize) -> Option<String> {
    if let Some(scanned) = &scanned {
        found.retain(|(name, _)| name <= scanned);
    }
    let has_more = found.len() > limit;
    found.truncate(limit);
    if has_more { found.last().map(|(name, _)| name.clone()) } else { scanned }
}

/// Adds other nodes' topics, in name order: a topic on several nodes has the sum of its subscribers.
fn merged(own: TopicsInUse, results: &[Value], is_listed: impl Fn(&str) -> bool) -> TopicsInUse {
    let mut all: BTreeMap<String, TopicUse> = own.into_iter().collect();
    let listed = results.iter().flat_map(|result| result["topics"].as_array().into_iter().flatten());
    for (name, found) in listed.filter_map(TopicUse::read).filter(|(name, _)| is_listed(name)) {
        all.entry(name.to_owned()).or_default().add_node(found);
    }
    all.into_iter().collect()
}

/// Adds the names of nodes whose part is missing.
pub(super) fn partial(mut answer: Value, missing: &[String]) -> Value {
    if !missing.is_empty() {
        answer["missing_nodes"] = json!(missing);
    }
    answer
}

/// Adds the start of the next page, if there is one.
pub(super) fn page(mut answer: Value, next: Option<&str>) -> Value {
    if let Some(next) = next {
        answer["next"] = json!(next);
    }
    answer
}

/// `GET /topics/{topic}`: the options in force.
pub(super) fn options(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let topic = topic_of(request)?;
    rights.may(ApiRight::Read, &topic)?;
    let mut fields = context.live.config().describe_topic(&topic);
    fields.extend(context.hub.describe_topic(&topic));
    fields.insert("topic".to_owned(), json!(topic));
    Ok(success(&Value::Object(fields)).into())
}

/// `GET /topics/{topic}/presence`.
pub(super) fn presence(_: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let topic = topic_of(request)?;
    rights.may(ApiRight::Presence, &topic)?;
    let count = request.topics().presence(&topic);
    Ok(success(&json!({
        "topic": topic, "subscribers": count.connections, "members": count.members, "at": count.version,
    }))
    .into())
}

/// `GET /topics/{topic}/members`.
pub(super) fn members(_: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let topic = topic_of(request)?;
    rights.may(ApiRight::Presence, &topic)?;
    let (after, limit) = (text_query(request, "after")?, limit_of(request, presence::PAGE_MAX)?);
    let members = request.topics().members(&topic, after.as_deref(), limit + 1);
    let next = (members.len() > limit).then(|| members[limit - 1].0.id());
    let answer = page(json!({ "topic": topic }), next);
    let members = presence::encode_members(&members[..members.len().min(limit)]);
    Ok(text_success(presence::with_members(&answer, Some(&members)) + "\n").into())
}

/// `GET /topics/{topic}/history`.
pub(super) fn history(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let topic = topic_of(request)?;
    rights.may(ApiRight::Read, &topic)?;
    let range = range_of(request)?;
    let store = context.store.as_ref().filter(|store| store.topics().is_durable(&topic));
    let head = format!("{{\"topic\":{},\"messages\":[", json!(topic));
    let Some(store) = store else {
        let (hub, publisher) = (Arc::clone(&context.hub), request.publisher());
        let opening = hub.opening_of_history(&topic, Some(range.start()));
        let read = move || {
            let page = history_page(&hub, &topic, range, |name, query| publisher.history_page(name, query))?;
            let tail = page.tail() + "\n";
            Ok(list_success(JsonList::new(head, page.messages, tail)))
        };
        return when_open(opening, read);
    };
    let read = stored_history(Arc::clone(store), topic, range);
    Ok(Answer::later(async move {
        match read.await {
            Ok(page) => text_success(format!("{head}{}{}\n", page.messages, page.tail())),
            Err(problem) => failure(&problem),
        }
    }))
}

/// The part of a history that a request names.
fn range_of(request: &Request<'_>) -> Result<HistoryRange, Problem> {
    let position = |epoch: &str, sequence: &str| {
        let fault = || problem(code::MALFORMED, format!("{epoch} and {sequence} are given together"));
        match (number_query(request, epoch)?, number_query(request, sequence)?) {
            (None, None) => Ok(None),
            (Some(epoch), Some(sequence)) => Ok(Some(Position { epoch, sequence })),
            _ => Err(fault()),
        }
    };
    let count = |name| {
        let number = number_query(request, name)?;
        Ok::<_, Problem>(number.map(|count| usize::try_from(count).unwrap_or(HISTORY_MAX)))
    };
    let (from, before) = (position("epoch", "seq")?, position("before_epoch", "before_seq")?);
    match (count("last")?, from, before, count("limit")?) {
        (last, None, before, None) => Ok(HistoryRange::Last { count: last.unwrap_or(HISTORY_MAX), before }),
        (None, Some(position), None, limit) => {
            Ok(HistoryRange::After { position, limit: limit.unwrap_or(HISTORY_MAX) })
        }
        _ => {
            let text =
                "either last, perhaps with before_epoch and before_seq, or epoch and seq, perhaps with limit";
            Err(problem(code::MALFORMED, text))
        }
    }
}

/// Reads a topic when its copy is here.
fn when_open(
    opening: Option<SharedOpening>,
    read: impl FnOnce() -> Result<Response, Problem> + Send + 'static,
) -> Executed {
    let Some(opening) = opening else { return Ok(read()?.into()) };
    Ok(Answer::later(async move {
        opening.await.and_then(|()| read()).unwrap_or_else(|problem| failure(&problem))
    }))
}

requests! {
    one_of[data, b64]
    struct KeyBody<'a> {
        /// The value as JSON; either data or b64
        // `null` is a valid value.
        #[serde(borrow, default, deserialize_with = "present")]
        data: Option<&'a RawValue>,
        /// The value as bytes in base64; either data or b64
        b64: Option<String>,
        /// Milliseconds until the key expires
        ttl: Option<u64>,
    }
}

/// `GET /topics/{topic}/keys`.
pub(super) fn keys(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let topic = topic_of(request)?;
    rights.may(ApiRight::Read, &topic)?;
    context.key_store().check_ready(&topic)?;
    let text = |name| text_query(request, name).map(|text| text.map(|text| text.to_string()));
    let (after, filter) = (text("after")?, text("filter")?);
    let limit = limit_of(request, Topics::KEYS_MAX)?;
    let publisher = request.publisher();
    when_open(context.hub.opening_of_keys(&topic), move || {
        let page = publisher.keys(&topic, after.as_deref(), filter.as_deref(), limit).map_err(key_problem)?;
        Ok(list_success(page_json(&topic, page)))
    })
}

/// `GET /topics/{topic}/keys/{key}`.
pub(super) fn key(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let (topic, key) = (topic_of(request)?, key_of(request)?);
    rights.may(ApiRight::Read, &topic)?;
    context.key_store().check_ready(&topic)?;
    let publisher = request.publisher();
    when_open(context.hub.opening_of_keys(&topic), move || {
        let Some((change, position)) = publisher.key(&topic, &key) else {
            return Err(problem(code::NO_STREAM, "the key does not exist"));
        };
        let version = Position { sequence: change.version(), ..position };
        let answer = text_success(key_json(&topic, &change, position));
        Ok(answer.with_header("ETag", keys::entity_tag(version)))
    })
}

/// `PUT /topics/{topic}/keys/{key}`.
pub(super) fn set_key(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let (topic, key) = (topic_of(request)?, key_of(request)?);
    rights.may(ApiRight::Keys, &topic)?;
    let body: KeyBody<'_> = read(request)?;
    let content = content_of(body.data, body.b64.as_deref())?;
    let mut write = KeyWrite::set(&*key, content.into_key_value());
    if let Some(ttl) = body.ttl {
        write = write.with_ttl(std::time::Duration::from_millis(ttl));
    }
    write_key(context, request, &topic, write)
}

/// `DELETE /topics/{topic}/keys/{key}`.
pub(super) fn delete_key(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &mut Request<'_>,
) -> Executed {
    let (topic, key) = (topic_of(request)?, key_of(request)?);
    rights.may(ApiRight::Keys, &topic)?;
    write_key(context, request, &topic, KeyWrite::delete(&*key))
}

fn write_key(context: &ApiContext, request: &Request<'_>, topic: &str, write: KeyWrite) -> Executed {
    let write = context.live.config().limit_key(topic, write);
    keys::execute(request, topic, write, context.key_store(), Creator::Server, failure)
}

fn key_of(request: &Request<'_>) -> Result<String, Problem> {
    let key = request.param("key").ok_or_else(|| problem(code::TOPIC, "the key is not UTF-8"))?;
    Ok(key.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_end_where_all_nodes_have_looked() {
        let results =
            [json!({ "topics": [["c", 2]], "scanned": "d" }), json!({ "topics": [["b", 1], ["e", 1]] })];
        let subscribed =
            |name: &str| (name.to_owned(), TopicUse { subscribers: Some(1), ..TopicUse::default() });
        let page = |limit| {
            let mut found = merged(vec![subscribed("a"), subscribed("c")], &results, |_| true);
            let next = end_page(&mut found, scanned_to(&results), limit);
            let names = found.iter().map(|(name, found)| format!("{name}{}", found.subscribers.unwrap()));
            (names.collect::<Vec<_>>().join(" "), next)
        };
        // Of `e`, the first node may have subscribers.
        assert_eq!(page(9), ("a1 b1 c3".to_owned(), Some("d".to_owned())));
        assert_eq!(page(2), ("a1 b1".to_owned(), Some("b".to_owned())));
        assert_eq!(end_page(&mut vec![subscribed("a")], None, 1), None);
    }
}
