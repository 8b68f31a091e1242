//! Connections: their list, commands to them, and revocation of their tokens.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_channel::oneshot;
use futures_util::future::join_all;
use serde::Deserialize;
use serde_json::{Value, json};
use sinews_server::{Answer, CloseCode, Request};

use super::body::{bool_query, limit_of, read, text_query};
use super::context::{ApiContext, Executed, failure, problem_json, success};
use super::topics::{page, partial, yield_now};
use crate::auth::{ApiRight, ApiRights, Revocation, RevokedTokens};
use crate::brief::brief;
use crate::closing::{DISCONNECTED, REASON_MAX, TOKEN_EXPIRED};
use crate::cluster::commands::{NodeCommand, NodeResults};
use crate::connections::{
    ClientConnection, CommandReply, ConnectionCommand, ConnectionRegistry, ConnectionSelector, described,
    position_of,
};
use crate::problem::{Problem, code, problem};
use crate::topics;

/// Maximum number of connections in one answer.
const LISTED_MAX: usize = 1_000;

/// Maximum number of connections that a request subscribes or unsubscribes: it waits for all of them.
const SUBSCRIBED_MAX: usize = 1_000;

/// Connections that a disconnect commands at a time, so that other work of the thread is not delayed.
const STEP: usize = 256;

/// Longest revocation, and the default.
const REVOCATION_MAX: Duration = Duration::from_secs(366 * 86_400);
const REVOCATION_DEFAULT: Duration = Duration::from_secs(86_400);

/// The connections that a request names.
enum Addressees {
    User(String),
    Connection(String),
}

impl Addressees {
    fn of(user: Option<Cow<'_, str>>, connection: Option<Cow<'_, str>>) -> Result<Self, Problem> {
        match (user, connection) {
            (Some(user), None) => Ok(Self::User(user.into_owned())),
            (None, Some(connection)) => Ok(Self::Connection(connection.into_owned())),
            _ => Err(problem(code::MALFORMED, "either user or connection is required")),
        }
    }

    /// The next connections after an id, at most `limit`.
    fn page(
        &self,
        registry: &ConnectionRegistry,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<Arc<ClientConnection>>, Problem> {
        match self {
            Self::User(user) => registry.page(Some(user), after, limit),
            Self::Connection(id) => Ok(registry.find(id).filter(|_| after.is_none()).into_iter().collect()),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SubscribeBody<'a> {
    #[serde(borrow)]
    topic: Cow<'a, str>,
    user: Option<Cow<'a, str>>,
    connection: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DisconnectBody<'a> {
    #[serde(borrow)]
    user: Option<Cow<'a, str>>,
    connection: Option<Cow<'a, str>>,
    code: Option<u64>,
    reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RevokeBody<'a> {
    #[serde(borrow)]
    user: Option<Cow<'a, str>>,
    token: Option<Cow<'a, str>>,
    until: Option<u64>,
}

/// `GET /connections`, on all nodes.
pub(super) fn list(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let registry = context.hub.connections();
    let (user, after) = (text_query(request, "user")?, text_query(request, "after")?);
    let limit = limit_of(request, LISTED_MAX)?;
    if bool_query(request, "slow")? {
        return list_slow(context, user.map(Cow::into_owned), limit);
    }
    let Some(cluster) = context.cluster.as_ref() else {
        let mut connections = registry.page(user.as_deref(), after.as_deref(), limit + 1)?;
        let has_more = connections.len() > limit;
        connections.truncate(limit);
        let next = connections.last().filter(|_| has_more).map(|last| registry.id_of(last));
        let listed: Vec<Value> =
            connections.iter().map(|connection| described(registry, connection)).collect();
        return Ok(success(&page(json!({ "connections": listed }), next.as_deref())).into());
    };
    if after.as_ref().is_some_and(|after| position_of(after).is_none()) {
        return Err(problem(code::MALFORMED, "after: no id of a connection"));
    }
    let own = registry.cluster_page(user.as_deref(), after.as_deref(), limit + 1);
    let mut listed: Vec<Value> = own.iter().map(|connection| described(registry, connection)).collect();
    let (user, after) = (user.map(Cow::into_owned), after.map(Cow::into_owned));
    let others = cluster.request(&NodeCommand::Connections { user, after, limit: limit + 1, slow: false });
    Ok(Answer::later(async move {
        let NodeResults { results, missing } = others.await;
        for result in &results {
            listed.extend(result["connections"].as_array().into_iter().flatten().cloned());
        }
        listed.sort_by_cached_key(|connection| {
            position_of(connection["connection"].as_str().unwrap_or_default())
        });
        let has_more = listed.len() > limit;
        listed.truncate(limit);
        let next = listed
            .last()
            .filter(|_| has_more)
            .and_then(|last| last["connection"].as_str())
            .map(str::to_owned);
        success(&partial(page(json!({ "connections": listed }), next.as_deref()), &missing))
    }))
}

/// `GET /connections?slow=true`: the longest queue first, on all nodes.
fn list_slow(context: &Arc<ApiContext>, user: Option<String>, limit: usize) -> Executed {
    let registry = context.hub.connections();
    let own = registry.slowest(user.as_deref(), limit);
    let mut listed: Vec<Value> = own.iter().map(|connection| described(registry, connection)).collect();
    let Some(cluster) = context.cluster.as_ref() else {
        return Ok(success(&json!({ "connections": listed })).into());
    };
    let others = cluster.request(&NodeCommand::Connections { user, after: None, limit, slow: true });
    Ok(Answer::later(async move {
        let NodeResults { results, missing } = others.await;
        for result in &results {
            listed.extend(result["connections"].as_array().into_iter().flatten().cloned());
        }
        listed.sort_by_key(|connection| Reverse(connection["queued"].as_u64()));
        listed.truncate(limit);
        success(&partial(json!({ "connections": listed }), &missing))
    }))
}

/// `POST /subscribe`.
pub(super) fn subscribe(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &mut Request<'_>,
) -> Executed {
    command_subscriptions(context, rights, request, |topic, reply| ConnectionCommand::Subscribe {
        topic,
        reply,
    })
}

/// `POST /unsubscribe`.
pub(super) fn unsubscribe(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &mut Request<'_>,
) -> Executed {
    command_subscriptions(context, rights, request, |topic, reply| ConnectionCommand::Unsubscribe {
        topic,
        reply,
    })
}

/// Sends a command to all connections of a request, and answers with their results.
fn command_subscriptions(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &Request<'_>,
    make: fn(Arc<str>, CommandReply) -> ConnectionCommand,
) -> Executed {
    let body: SubscribeBody<'_> = read(request)?;
    topics::check_subscription(&body.topic).map_err(|text| problem(code::TOPIC, text))?;
    rights.may(ApiRight::Subscribe, &body.topic)?;
    let registry = context.hub.connections();
    let connections = Addressees::of(body.user, body.connection)?.page(registry, None, SUBSCRIBED_MAX + 1)?;
    if connections.len() > SUBSCRIBED_MAX {
        let text = format!("the user has more than {SUBSCRIBED_MAX} connections");
        return Err(problem(code::TOO_LARGE, text));
    }
    let topic: Arc<str> = body.topic.into();
    let results = connections.into_iter().map(|connection| {
        let (reply, replied) = oneshot::channel();
        let sent = connection.send(make(Arc::clone(&topic), reply));
        let id = registry.id_of(&connection);
        // The connection may close before it executes the command; the reply is dropped then.
        async move {
            let result = match sent {
                Ok(()) => {
                    replied.await.unwrap_or_else(|_| Err(problem(code::GONE, "the connection has closed")))
                }
                Err(problem) => Err(problem),
            };
            let mut result = result.map_or_else(|problem| problem_json(&problem), |()| json!({}));
            result["connection"] = json!(id);
            result
        }
    });
    let results = join_all(results.collect::<Vec<_>>());
    Ok(Answer::later(async move { success(&json!({ "results": results.await })) }))
}

/// `POST /disconnect`.
pub(super) fn disconnect(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: DisconnectBody<'_> = read(request)?;
    let addressees = Addressees::of(body.user, body.connection)?;
    let close_code = match body.code {
        None => DISCONNECTED,
        Some(given) => u16::try_from(given)
            .ok()
            .filter(|code| (4_000..5_000).contains(code))
            .and_then(CloseCode::new)
            .ok_or_else(|| problem(code::TOPIC, "code must be from 4000 to 4999"))?,
    };
    let reason = body.reason.unwrap_or(Cow::Borrowed("disconnected by the server"));
    if reason.len() > REASON_MAX {
        return Err(problem(code::TOPIC, format!("reason exceeds {REASON_MAX} bytes")));
    }
    let selector = match &addressees {
        Addressees::User(user) => ConnectionSelector::User(user.clone()),
        Addressees::Connection(id) => ConnectionSelector::Connection(id.clone()),
    };
    let command =
        NodeCommand::Disconnect { selector, code: close_code.as_u16(), reason: (*reason).to_owned() };
    let others = context.cluster.as_ref().map(|cluster| cluster.request(&command));
    let (context, reason) = (Arc::clone(context), Arc::from(&*reason));
    Ok(Answer::later(async move {
        let closed = close_all(context.hub.connections(), &addressees, (close_code, reason), |_| true).await;
        let (count, missing) = with_others(others).await;
        let answer = |own| partial(json!({ "connections": own + count }), &missing);
        closed.map_or_else(|problem| failure(&problem), |own| success(&answer(own)))
    }))
}

/// The number of connections that other nodes have closed, and the names of the nodes that have not answered.
async fn with_others(others: Option<impl Future<Output = NodeResults>>) -> (usize, Vec<String>) {
    let Some(others) = others else { return (0, Vec::new()) };
    let NodeResults { results, missing } = others.await;
    let count: u64 = results.iter().filter_map(|result| result["connections"].as_u64()).sum();
    (usize::try_from(count).unwrap_or(usize::MAX), missing)
}

/// Closes connections in steps; returns their number.
async fn close_all(
    registry: &ConnectionRegistry,
    addressees: &Addressees,
    (code, reason): (CloseCode, Arc<str>),
    is_affected: impl Fn(&ClientConnection) -> bool,
) -> Result<usize, Problem> {
    close_pages(registry, |after| addressees.page(registry, after, STEP), (code, reason), is_affected).await
}

async fn close_pages(
    registry: &ConnectionRegistry,
    mut next_page: impl FnMut(Option<&str>) -> Result<Vec<Arc<ClientConnection>>, Problem>,
    (code, reason): (CloseCode, Arc<str>),
    is_affected: impl Fn(&ClientConnection) -> bool,
) -> Result<usize, Problem> {
    let (mut count, mut after) = (0, None::<String>);
    loop {
        let connections = next_page(after.as_deref())?;
        let Some(last) = connections.last() else { return Ok(count) };
        after = Some(registry.id_of(last));
        for connection in connections.iter().filter(|connection| is_affected(connection)) {
            connection.send(ConnectionCommand::Close { code, reason: Arc::clone(&reason) })?;
            count += 1;
        }
        yield_now().await;
    }
}

/// `POST /revoke`: also closes the connections of the tokens.
pub(super) fn revoke(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: RevokeBody<'_> = read(request)?;
    let tokens = match (body.user, body.token) {
        (Some(user), None) => RevokedTokens::OfUser((*user).into()),
        (None, Some(token)) => RevokedTokens::WithId((*token).into()),
        _ => return Err(problem(code::MALFORMED, "either user or token is required")),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let until = body.until.map_or(now + REVOCATION_DEFAULT, Duration::from_secs);
    if until <= now || until > now + REVOCATION_MAX {
        return Err(problem(code::TOPIC, "until must be in the future, and within 366 days"));
    }
    let (RevokedTokens::OfUser(name) | RevokedTokens::WithId(name)) = &tokens;
    if name.is_empty() || name.len() > topics::NAME_MAX {
        let text = format!("{} has not 1 to {} bytes", brief(name), topics::NAME_MAX);
        return Err(problem(code::TOPIC, text));
    }
    let revocation = Revocation::new(tokens.clone(), until.as_secs_f64());
    if !context.live.policy().revocations().insert(&revocation) {
        return Err(problem(code::TOO_MANY, "too many revocations are in effect"));
    }
    let others = context.cluster.as_ref().map(|cluster| cluster.request(&NodeCommand::Revoke { revocation }));
    let context = Arc::clone(context);
    Ok(Answer::later(async move {
        let registry = context.hub.connections();
        let close = (TOKEN_EXPIRED, Arc::from("the token has been revoked"));
        let closed = match &tokens {
            RevokedTokens::OfUser(user) => {
                close_all(registry, &Addressees::User(user.to_string()), close, |_| true).await
            }
            // Connections have no index by token.
            RevokedTokens::WithId(id) => {
                let has_token = |connection: &ClientConnection| connection.rights().token_id() == Some(id);
                close_pages(registry, |after| registry.page(None, after, STEP), close, has_token).await
            }
        };
        let (count, missing) = with_others(others).await;
        let answer = |own| partial(json!({ "connections": own + count, "until": until.as_secs() }), &missing);
        closed.map_or_else(|problem| failure(&problem), |own| success(&answer(own)))
    }))
}
