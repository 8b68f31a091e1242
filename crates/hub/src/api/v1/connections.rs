//! Connections: their list, commands to them, and token revocation.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use sinews_server::{Answer, CloseCode, Request};

use super::body::{bool_query, limit_of, read, text_query};
use super::context::{ApiContext, Executed, failure, success};
use super::topics::{page, partial, yield_now};
use crate::access::auth::{
    ApiRight, ApiRights, Revocation, RevocationError, RevocationStored, RevokedTokens, Rights, RightsChange,
};
use crate::closing::{DISCONNECTED, REASON_MAX, TOKEN_EXPIRED};
use crate::cluster::command::{NodeCommand, NodeResults};
use crate::connections::subscribe::SubscriptionChange;
use crate::connections::{
    ClientConnection, ConnectionCommand, ConnectionRegistry, ConnectionSelector, REVOKED, described,
};
use crate::model;
use crate::model::brief::brief;
use crate::model::connection_id::ConnectionId;
use crate::model::problem::{Problem, code, problem};
use crate::model::schema::requests;

/// Maximum connections in one answer.
const LISTED_MAX: usize = 1_000;

/// Connections that a request commands at a time, so that the thread's other work is not delayed.
const STEP: usize = 256;

/// Longest revocation, and the default.
const REVOCATION_MAX: Duration = Duration::from_secs(366 * 86_400);
const REVOCATION_DEFAULT: Duration = Duration::from_secs(86_400);

/// The connections that a request names.
fn selector_of(
    user: Option<Cow<'_, str>>,
    connection: Option<Cow<'_, str>>,
) -> Result<ConnectionSelector, Problem> {
    match (user, connection) {
        (Some(user), None) => Ok(ConnectionSelector::User(user.into_owned())),
        (None, Some(connection)) => Ok(ConnectionSelector::Connection(connection.into_owned())),
        _ => Err(problem(code::MALFORMED, "either user or connection is required")),
    }
}

requests! {
    one_of[user, connection]
    struct SubscribeBody<'a> {
        /// Topic or pattern
        #[serde(borrow)]
        topic: Cow<'a, str>,
        /// All connections of the user: the `sub` of their tokens
        user: Option<Cow<'a, str>>,
        /// One connection by its id
        connection: Option<Cow<'a, str>>,
    }

    one_of[user, connection]
    struct DisconnectBody<'a> {
        /// All connections of the user: the `sub` of their tokens
        #[serde(borrow)]
        user: Option<Cow<'a, str>>,
        /// One connection by its id
        connection: Option<Cow<'a, str>>,
        /// Close code from 4000 to 4999; default: 4410
        code: Option<u64>,
        /// Reason of the Close, at most 123 bytes
        reason: Option<Cow<'a, str>>,
    }

    one_of[user, token]
    struct RevokeBody<'a> {
        /// The user's tokens (`sub`) that were issued (`iat`) until now
        #[serde(borrow)]
        user: Option<Cow<'a, str>>,
        /// The token with this id (`jti`)
        token: Option<Cow<'a, str>>,
        /// End of the revocation in seconds since 1970, within 366 days; default: in 24 hours
        until: Option<u64>,
    }

    one_of[user, connection, token]
    struct RefreshBody<'a> {
        /// All connections of the user: the `sub` of their tokens
        #[serde(borrow)]
        user: Option<Cow<'a, str>>,
        /// One connection by its id
        connection: Option<Cow<'a, str>>,
        /// The connections of the token with this id (`jti`)
        token: Option<Cow<'a, str>>,
        /// Claims, as of a token, that replace the rights; either claims or exp
        claims: Option<Map<String, Value>>,
        /// New expiry of the rights in seconds since 1970; either claims or exp
        exp: Option<f64>,
    }
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
    if after.as_ref().is_some_and(|after| ConnectionId::parse(after).is_none()) {
        return Err(problem(code::MALFORMED, "after: no id of a connection"));
    }
    let own = registry.cluster_page(user.as_deref(), after.as_deref(), limit + 1);
    let mut listed: Vec<Value> = own.iter().map(|connection| described(registry, connection)).collect();
    let (user, after) = (user.map(Cow::into_owned), after.map(Cow::into_owned));
    let others = cluster.request(&NodeCommand::Connections { user, after, limit: limit + 1, slow: false });
    Ok(Answer::later(async move {
        let NodeResults { results, missing, .. } = others.await;
        for result in &results {
            listed.extend(result["connections"].as_array().into_iter().flatten().cloned());
        }
        listed.sort_by_cached_key(|connection| {
            ConnectionId::parse(connection["connection"].as_str().unwrap_or_default())
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
        let NodeResults { results, missing, .. } = others.await;
        for result in &results {
            listed.extend(result["connections"].as_array().into_iter().flatten().cloned());
        }
        listed.sort_by_key(|connection| Reverse(connection["queued"].as_u64()));
        listed.truncate(limit);
        success(&partial(json!({ "connections": listed }), &missing))
    }))
}

/// `GET /connections/{connection}`, on the node that has it.
pub(super) fn get(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let id = request.param("connection").filter(|id| ConnectionId::parse(id).is_some());
    let id = id.ok_or_else(|| problem(code::MALFORMED, "no id of a connection"))?.into_owned();
    let missing = || problem(code::NO_STREAM, "no such connection is open");
    if let Some(described) = context.hub.connections().describe(&id) {
        return Ok(Answer::later(async move {
            described.await.map_or_else(|| failure(&missing()), |described| success(&described))
        }));
    }
    let cluster = context.cluster.as_ref().ok_or_else(missing)?;
    let others = cluster.request(&NodeCommand::Connection { connection: id });
    Ok(Answer::later(async move {
        let NodeResults { results, missing: nodes, .. } = others.await;
        match results.into_iter().find(Value::is_object) {
            Some(described) => success(&described),
            None if nodes.is_empty() => failure(&missing()),
            None => {
                let text = format!("these nodes have not answered: {}", nodes.join(", "));
                failure(&problem(code::STORE, text))
            }
        }
    }))
}

/// `POST /subscribe`, on all nodes.
pub(super) fn subscribe(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &mut Request<'_>,
) -> Executed {
    change_subscriptions(context, rights, request, false)
}

/// `POST /unsubscribe`, on all nodes.
pub(super) fn unsubscribe(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &mut Request<'_>,
) -> Executed {
    change_subscriptions(context, rights, request, true)
}

/// Starts or ends the subscription of all connections in a request, and answers with their results.
fn change_subscriptions(
    context: &Arc<ApiContext>,
    rights: &ApiRights,
    request: &Request<'_>,
    ends: bool,
) -> Executed {
    let body: SubscribeBody<'_> = read(request)?;
    model::check_subscription(&body.topic).map_err(|text| problem(code::TOPIC, text))?;
    rights.may(ApiRight::Subscribe, &body.topic)?;
    let selector = selector_of(body.user, body.connection)?;
    let registry = context.hub.connections();
    let is_here = matches!(&selector, ConnectionSelector::Connection(id) if registry.find(id).is_some());
    let change = SubscriptionChange { selector, topic: body.topic.into_owned(), ends };
    let own = registry.change_subscriptions(&change)?;
    // A connection is open at one node.
    let cluster = context.cluster.as_ref().filter(|_| !is_here);
    let others = cluster.map(|cluster| cluster.request(&NodeCommand::ChangeSubscriptions { change }));
    Ok(Answer::later(async move {
        let mut results = own.await;
        let NodeResults { results: of_nodes, missing, .. } = match others {
            Some(others) => others.await,
            None => NodeResults::default(),
        };
        for of_node in of_nodes {
            let Some(more) = of_node["results"].as_array() else {
                return failure(&rejected_elsewhere(&of_node));
            };
            results.extend(more.iter().cloned());
        }
        success(&partial(json!({ "results": results }), &missing))
    }))
}

/// Returns another node's error.
fn rejected_elsewhere(result: &Value) -> Problem {
    let code = result["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(code::STORE);
    let text = result["error"].as_str().unwrap_or("another node has failed");
    problem(code, format!("{text}; connections of other nodes have executed the command"))
}

/// `POST /disconnect`.
pub(super) fn disconnect(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: DisconnectBody<'_> = read(request)?;
    let selector = selector_of(body.user, body.connection)?;
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
    let reason: Arc<str> = (*reason).into();
    let command = NodeCommand::Disconnect {
        selector: selector.clone(),
        code: close_code.as_u16(),
        reason: reason.to_string(),
    };
    Ok(command_nodes(context, selector, command, move |_| {
        Some(ConnectionCommand::Close { code: close_code, reason: Arc::clone(&reason) })
    }))
}

/// Commands the selected connections on this node and on the other nodes; answers with their number.
fn command_nodes(
    context: &Arc<ApiContext>,
    selector: ConnectionSelector,
    command: NodeCommand,
    make: impl Fn(&ClientConnection) -> Option<ConnectionCommand> + 'static,
) -> Answer {
    let others = context.cluster.as_ref().map(|cluster| cluster.request(&command));
    let context = Arc::clone(context);
    Answer::later(async move {
        let own = command_all(context.hub.connections(), &selector, make).await;
        let (count, missing) = with_others(others).await;
        let answer = |own| partial(json!({ "connections": own + count }), &missing);
        own.map_or_else(|problem| failure(&problem), |own| success(&answer(own)))
    })
}

/// Returns the number of connections that other nodes have commanded, and the names of the nodes that have not
/// answered.
async fn with_others(others: Option<impl Future<Output = NodeResults>>) -> (usize, Vec<String>) {
    let Some(others) = others else { return (0, Vec::new()) };
    let NodeResults { results, missing, .. } = others.await;
    let count: u64 = results.iter().filter_map(|result| result["connections"].as_u64()).sum();
    (usize::try_from(count).unwrap_or(usize::MAX), missing)
}

/// Sends a command to each selected connection that needs one, in steps; returns their number. A connection whose
/// command queue is full is left out, and the request fails after the others have their command.
async fn command_all(
    registry: &ConnectionRegistry,
    selector: &ConnectionSelector,
    make: impl Fn(&ClientConnection) -> Option<ConnectionCommand>,
) -> Result<usize, Problem> {
    let (mut count, mut after, mut fault) = (0, None::<String>, None);
    loop {
        let connections = registry.candidates(selector, after.as_deref(), STEP)?;
        let Some(last) = connections.last() else { return fault.map_or(Ok(count), Err) };
        after = Some(registry.id_of(last));
        for connection in connections.iter().filter(|connection| selector.names(connection)) {
            let Some(command) = make(connection) else { continue };
            match connection.send(command) {
                Ok(()) => count += 1,
                Err(problem) => fault = Some(problem),
            }
        }
        yield_now().await;
    }
}

/// `POST /refresh`: changes the rights of open connections.
pub(super) fn refresh(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: RefreshBody<'_> = read(request)?;
    let selector = match (body.user, body.connection, body.token) {
        (user, connection, None) => selector_of(user, connection)
            .map_err(|_| problem(code::MALFORMED, "one of user, connection and token is required"))?,
        (None, None, Some(token)) => ConnectionSelector::Token(token.into_owned()),
        _ => return Err(problem(code::MALFORMED, "one of user, connection and token is required")),
    };
    let change = match (body.claims, body.exp) {
        (Some(claims), None) => RightsChange::Claims(claims),
        (None, Some(exp)) => RightsChange::Expiry(exp),
        _ => return Err(problem(code::MALFORMED, "either claims or exp is required")),
    };
    // The claims have the same faults for all clients.
    let checked = context.live.config().changed_rights(&change, &Rights::for_subject(""));
    checked.map_err(|fault| problem(code::TOPIC, fault))?;
    let command = NodeCommand::Refresh { selector: selector.clone(), change: change.clone() };
    let change = Arc::new(change);
    Ok(command_nodes(context, selector, command, move |connection| {
        connection.may_refresh(&change).then(|| ConnectionCommand::Refresh(Arc::clone(&change)))
    }))
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
    if name.is_empty() || name.len() > model::NAME_MAX {
        let text = format!("{} has not 1 to {} bytes", brief(name), model::NAME_MAX);
        return Err(problem(code::TOPIC, text));
    }
    let revocation = Revocation::new(tokens.clone(), until.as_secs_f64());
    let selector = ConnectionSelector::from_tokens(&tokens);
    let all = [revocation];
    let stored = match context.live.config().revocations().revoke_all(&all).1 {
        Err(RevocationError::Full) => {
            return Err(problem(code::TOO_MANY, "too many revocations are in effect"));
        }
        Err(RevocationError::NotStored(why)) => Err(why),
        Ok(stored) => Ok(stored),
    };
    context.hub.share_revocations(&all);
    let shared = context.hub.all_stored().cloned();
    let [revocation] = all;
    let shared = shared.map(|shared| (shared, vec![revocation.clone()]));
    let others = context.cluster.as_ref().map(|cluster| cluster.request(&NodeCommand::Revoke { revocation }));
    let context = Arc::clone(context);
    Ok(Answer::later(async move {
        let reason: Arc<str> = REVOKED.into();
        let close = |_: &ClientConnection| {
            Some(ConnectionCommand::Close { code: TOKEN_EXPIRED, reason: Arc::clone(&reason) })
        };
        let closed = command_all(context.hub.connections(), &selector, close).await;
        let (count, missing) = with_others(others).await;
        if let Err(why) = when_stored(stored).await {
            let text = format!("the revocation is in effect, and a restart forgets it: {why}");
            return failure(&problem(code::STORE, text));
        }
        if let Some((shared, all)) = shared
            && let Err(why) = shared.store_revocations(all).await
        {
            let text =
                format!("the revocation is in effect at the connected nodes, and not stored yet: {why}");
            return failure(&problem(code::STORE, text));
        }
        let answer = |own| partial(json!({ "connections": own + count, "until": until.as_secs() }), &missing);
        closed.map_or_else(|problem| failure(&problem), |own| success(&answer(own)))
    }))
}

/// Waits until a revocation is on disk, if revocations are stored.
async fn when_stored(stored: Result<Option<RevocationStored>, String>) -> Result<(), String> {
    match stored? {
        Some(stored) => stored.await.unwrap_or_else(|_| Err("the server is shutting down".to_owned())),
        None => Ok(()),
    }
}
