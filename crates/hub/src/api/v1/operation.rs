//! API operations: their routes, their documentation and their execution.

use std::sync::Arc;

use sinews_server::Request;

use super::context::{ApiContext, Executed, PREFIX};
use crate::access::auth::{ApiRight, ApiRights};
use crate::model::schema::Schema;

/// An operation: a method and a path.
pub(super) struct Operation {
    pub(super) method: &'static str,
    /// Path below [`PREFIX`], with parameters in braces.
    pub(super) path: &'static str,
    /// Name in the document (`operationId`), from which generators make function names.
    pub(super) name: &'static str,
    pub(super) summary: &'static str,
    /// The right that a key needs; `None`: no key.
    pub(super) right: Option<ApiRight>,
    pub(super) parameters: &'static [Parameter],
    pub(super) body: Option<RequestBody>,
    /// Body of a successful answer.
    pub(super) answer: &'static Schema,
    pub(super) execute: OperationHandler,
}

/// Execution of an operation, with the key's rights if it needs one.
pub(super) enum OperationHandler {
    Open(fn() -> Executed),
    WithRights(fn(&Arc<ApiContext>, &ApiRights, &mut Request<'_>) -> Executed),
    /// The same; the answer is a stream of events, each of them as the operation's answer.
    Events(fn(&Arc<ApiContext>, &ApiRights, &mut Request<'_>) -> Executed),
}

/// A parameter of the path, the query or the head.
pub(super) struct Parameter {
    pub(super) name: &'static str,
    pub(super) place: &'static str,
    pub(super) schema: Schema,
    pub(super) help: &'static str,
    /// A valid value; empty: none, for an optional parameter.
    pub(super) example: &'static str,
}

/// Body of a request.
pub(super) struct RequestBody {
    pub(super) schema: Schema,
    /// A valid body.
    pub(super) example: &'static str,
}

pub(super) const fn in_path(name: &'static str, help: &'static str, example: &'static str) -> Parameter {
    Parameter { name, place: "path", schema: Schema::Text, help, example }
}

pub(super) const fn in_query(name: &'static str, schema: Schema, help: &'static str) -> Parameter {
    Parameter { name, place: "query", schema, help, example: "" }
}

pub(super) const fn in_head(name: &'static str, help: &'static str) -> Parameter {
    Parameter { name, place: "header", schema: Schema::Text, help, example: "" }
}

impl Operation {
    /// Returns the route's path.
    pub(super) fn route(&self) -> String {
        format!("{PREFIX}{}", self.path)
    }

    pub(super) fn answer(
        &self,
        context: &Arc<ApiContext>,
        rights: Option<&ApiRights>,
        request: &mut Request<'_>,
    ) -> Executed {
        match (&self.execute, rights) {
            (OperationHandler::Open(execute), _) => execute(),
            (OperationHandler::WithRights(execute) | OperationHandler::Events(execute), Some(rights)) => {
                execute(context, rights, request)
            }
            (OperationHandler::WithRights(_) | OperationHandler::Events(_), None) => {
                Err(crate::access::auth::ApiKeys::disabled())
            }
        }
    }
}
