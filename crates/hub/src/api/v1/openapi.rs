//! The OpenAPI document, from the operation table and the body structs.

use std::sync::LazyLock;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use sinews_server::Response;

use super::context::Executed;
use super::operation::{Operation, OperationHandler, Parameter};
use super::table::OPERATIONS;
use crate::model::schema::{Field, Schema};

/// `GET /api/v1/openapi.json`.
pub(super) fn get() -> Executed {
    Ok(Response::json(body()).into())
}

/// The document as text. The first request formats it: anyone may request it, without a key.
fn body() -> Bytes {
    static BODY: LazyLock<Bytes> = LazyLock::new(|| format!("{}\n", document()).into());
    BODY.clone()
}

/// The document, in OpenAPI 3.1.
pub(super) fn document() -> Value {
    let mut paths = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.route()).or_insert_with(|| json!({}));
        path[operation.method.to_ascii_lowercase()] = described(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Sinews",
            "description": "HTTP API for backends: publish, presence, history, keys of topics, and the server.",
            "version": "1",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [{ "bearer": [] }, { "header": [] }],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": { "type": "http", "scheme": "bearer" },
                "header": { "type": "apiKey", "in": "header", "name": "X-API-Key" },
            },
            "schemas": { "Error": error_schema() },
        },
    })
}

fn error_schema() -> Value {
    json!({
        "type": "object",
        "required": ["code", "error"],
        "properties": {
            "code": { "type": "integer", "description": "The status, also in results within an answer" },
            "error": { "type": "string", "description": "What failed" },
            "needs": { "type": "object", "description": "The right that the key lacks" },
        },
    })
}

fn described(operation: &Operation) -> Value {
    let media_type = match operation.execute {
        OperationHandler::Events(_) => "text/event-stream",
        OperationHandler::Open(_) | OperationHandler::WithRights(_) => "application/json",
    };
    let mut described = json!({
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": operation.parameters.iter().map(parameter).collect::<Vec<_>>(),
        "responses": {
            "200": {
                "description": "Done",
                "content": { media_type: { "schema": schema(operation.answer) } },
            },
            "default": {
                "description": "The request failed",
                "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
            },
        },
    });
    match operation.right {
        Some(right) => described["description"] = json!(format!("Needs the right `{}`.", right.name())),
        None => described["security"] = json!([]),
    }
    if let Some(body) = &operation.body {
        // The examples are constants that a test parses.
        let example: Value = serde_json::from_str(body.example).unwrap_or_default();
        described["requestBody"] = json!({
            "required": true,
            "content": { "application/json": { "schema": schema(&body.schema), "example": example } },
        });
    }
    described
}

fn parameter(parameter: &Parameter) -> Value {
    let mut described = json!({
        "name": parameter.name,
        "in": parameter.place,
        "required": parameter.place == "path",
        "description": parameter.help,
        "schema": schema(&parameter.schema),
    });
    if !parameter.example.is_empty() {
        described["example"] = json!(parameter.example);
    }
    described
}

fn schema(of: &Schema) -> Value {
    match of {
        Schema::Text => json!({ "type": "string" }),
        Schema::Integer => json!({ "type": "integer", "minimum": 0 }),
        Schema::Boolean => json!({ "type": "boolean" }),
        Schema::Any => json!({}),
        Schema::OrNull(other) => {
            let mut either = schema(other);
            either["type"] = json!([either["type"], "null"]);
            either
        }
        Schema::List(item) => json!({ "type": "array", "items": schema(item) }),
        Schema::Object(fields) => object(fields, &[]),
        Schema::OneOf(fields, names) => object(fields, names),
        Schema::Extended(base, fields) => {
            let mut extended = schema(base);
            extended["properties"].as_object_mut().into_iter().for_each(|all| all.extend(properties(fields)));
            extended
        }
    }
}

fn properties(fields: &[Field]) -> Map<String, Value> {
    let property = |field: &Field| {
        let mut described = schema(&field.schema);
        described["description"] = json!(field.help.trim_start());
        (field.name.to_owned(), described)
    };
    fields.iter().map(property).collect()
}

fn object(fields: &[Field], one_of: &[&str]) -> Value {
    let required: Vec<&str> =
        fields.iter().filter(|field| field.is_required).map(|field| field.name).collect();
    let mut object =
        json!({ "type": "object", "properties": properties(fields), "additionalProperties": false });
    if !required.is_empty() {
        object["required"] = json!(required);
    }
    if !one_of.is_empty() {
        object["oneOf"] = one_of.iter().map(|name| json!({ "required": [name] })).collect();
    }
    object
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::context::PREFIX;
    use super::*;

    #[test]
    fn operations_are_complete_and_unique() {
        let (mut names, mut routes) = (HashSet::new(), HashSet::new());
        assert_eq!(PREFIX, "/api/v1");
        for operation in OPERATIONS {
            assert!(names.insert(operation.name), "{} is used twice", operation.name);
            assert!(
                routes.insert((operation.method, operation.path)),
                "{} has its route twice",
                operation.name
            );
            assert!(!operation.summary.is_empty() && !operation.summary.ends_with('.'), "{}", operation.name);
            let in_path: HashSet<&str> = operation.path.split(['{', '}']).skip(1).step_by(2).collect();
            let parameters = operation.parameters.iter().filter(|parameter| parameter.place == "path");
            let parameters: HashSet<&str> = parameters
                .inspect(|parameter| assert!(!parameter.example.is_empty(), "{}", parameter.name))
                .map(|parameter| parameter.name)
                .collect();
            assert_eq!(in_path, parameters, "{}", operation.name);
            if let Some(body) = &operation.body {
                serde_json::from_str::<Value>(body.example).unwrap();
            }
        }
    }

    #[test]
    fn requests_share_one_body() {
        assert_eq!(body().as_ptr(), body().as_ptr());
    }

    #[test]
    fn document_has_every_operation_once() {
        let document = document();
        let paths = document["paths"].as_object().unwrap();
        let listed: usize = paths.values().map(|path| path.as_object().unwrap().len()).sum();
        assert_eq!(listed, OPERATIONS.len());
        for operation in OPERATIONS {
            let method = operation.method.to_ascii_lowercase();
            assert_eq!(paths[&operation.route()][method]["operationId"], operation.name);
        }
    }
}
