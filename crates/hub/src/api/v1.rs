//! The HTTP API for backends: `/api/v1`.
//!
//! One table has all operations. It makes the routes and the OpenAPI document, so that they cannot differ.

mod activity;
pub(super) mod body;
mod connections;
mod context;
mod keys;
mod openapi;
mod operation;
mod parameters;
mod publish;
mod schemas;
mod server;
mod streams;
mod table;
mod topics;

use std::sync::Arc;
use std::time::Instant;

use sinews_server::{Answer, Request, Response, Router};

use self::context::{ApiContext, PREFIX, failure};
use self::operation::Operation;
use self::table::OPERATIONS;
use crate::config::ConfigHandle;
use crate::model::brief::brief;
use crate::model::problem::{code, problem};
use crate::node::ServerInfo;
use crate::query::unknown_parameter;
use crate::session::backends::Backends;
use crate::topics::HubTopics;

/// Adds the API's routes.
pub(crate) fn add_to(
    router: Router,
    live: &ConfigHandle,
    hub: &Arc<HubTopics>,
    services: &Backends,
    info: &ServerInfo,
) -> Router {
    let context = Arc::new(ApiContext {
        live: live.clone(),
        hub: Arc::clone(hub),
        store: services.store.clone(),
        cluster: services.cluster.clone(),
        monitor: router.monitor(),
        version: info.version.clone(),
        commit: info.commit.clone(),
        begin: Instant::now(),
    });
    let router = OPERATIONS.iter().fold(router, |router, operation| {
        let context = Arc::clone(&context);
        router.route(operation.method, &operation.route(), move |request: &mut Request<'_>| {
            execute(&context, operation, request)
        })
    });
    let mut paths: Vec<String> = OPERATIONS.iter().map(Operation::route).collect();
    paths.sort_unstable();
    paths.dedup();
    let router = paths.into_iter().fold(router, |router, path| {
        let methods = methods_of(&path);
        router.any(&path, move |request| other_method(request, &methods))
    });
    let unknown =
        |_: &mut Request<'_>| failure(&problem(code::UNKNOWN_OP, "no such path: see /api/v1/openapi.json"));
    let unknown_paths = [PREFIX, "/api/v1/", "/api/v1/{*path}"];
    unknown_paths.into_iter().fold(router, |router, path| router.any(path, unknown))
}

/// Returns a path's methods, for `Allow` (RFC 9110 section 10.2.1).
fn methods_of(path: &str) -> String {
    let mut methods = vec!["OPTIONS"];
    for operation in OPERATIONS.iter().filter(|operation| operation.route() == path) {
        methods.push(operation.method);
        if operation.method == "GET" {
            methods.push("HEAD");
        }
    }
    methods.sort_unstable();
    methods.join(", ")
}

fn other_method(request: &Request<'_>, allowed: &str) -> Response {
    let method = request.head().method();
    let response = match method {
        "OPTIONS" => Response::new(204),
        _ => failure(&problem(405, format!("the path has no method {}", brief(method)))),
    };
    response.with_header("Allow", allowed.to_owned())
}

/// Executes an operation with the rights of its request's key.
fn execute(context: &Arc<ApiContext>, operation: &Operation, request: &mut Request<'_>) -> Answer {
    let known = operation.parameters.iter().filter(|parameter| parameter.place == "query");
    let known: Vec<&str> = known.map(|parameter| parameter.name).collect();
    if let Some(unknown) = unknown_parameter(request.head().query().unwrap_or_default(), &known) {
        return failure(&problem(code::MALFORMED, unknown)).into();
    }
    let executed = match operation.right {
        None => operation.answer(context, None, request),
        Some(right) => context.live.config().api_rights(request).and_then(|rights| {
            rights.check(right)?;
            operation.answer(context, Some(&rights), request)
        }),
    };
    executed.unwrap_or_else(|problem| failure(&problem).into())
}
