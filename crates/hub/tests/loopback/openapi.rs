//! The OpenAPI document of the HTTP API, as it is served.

use serde_json::{Value, json};
use sinews_hub::auth::{ApiKeys, Auth, AuthOptions};
use sinews_hub::{HostRules, Hub, HubConfig};

use crate::support::{TestHub, parse};

/// The expected document, indented and with sorted keys. A change of the API changes it too.
const EXPECTED: &str = include_str!("openapi.json");

/// Returns the path and the values of the first difference.
fn first_difference(expected: &Value, served: &Value, path: &str) -> Option<String> {
    match (expected, served) {
        (Value::Object(fields), Value::Object(others)) => {
            let names = fields.keys().chain(others.keys().filter(|name| !fields.contains_key(*name)));
            names.into_iter().find_map(|name| {
                let at = format!("{path}/{}", name.replace('~', "~0").replace('/', "~1"));
                match (fields.get(name), others.get(name)) {
                    (Some(expected), Some(served)) => first_difference(expected, served, &at),
                    (Some(expected), None) => Some(format!("{at} is missing, and not {expected}")),
                    (None, served) => Some(format!("{at} is unexpected: {}", json!(served))),
                }
            })
        }
        (Value::Array(items), Value::Array(others)) if items.len() == others.len() => {
            let mut pairs = items.iter().zip(others).enumerate();
            pairs.find_map(|(at, (expected, served))| {
                first_difference(expected, served, &format!("{path}/{at}"))
            })
        }
        _ => (expected != served).then(|| format!("{path} is {served}, and not {expected}")),
    }
}

#[test]
fn served_document_equals_the_expected_one_field_by_field() {
    let policy = HubConfig::new(Auth::new(&AuthOptions::new()).unwrap(), HostRules::default());
    let keys = ApiKeys::new().with_key("a-key-for-tests-of-at-least-32-bytes").unwrap();
    let hub = TestHub::built(Hub::builder().config(policy.with_api_keys(keys)));
    let mut answer = hub.ask("/api/v1/openapi.json", "Connection: close\r\n");
    assert_eq!(answer.status(), 200);
    let served = answer.rest();
    let difference = first_difference(&parse(EXPECTED), &parse(&served), "");
    assert_eq!(difference, None, "the document: {served}");
}

#[test]
fn first_difference_names_its_path() {
    let expected = json!({ "a/b": [1, { "c": "x" }], "d": null });
    for (served, difference) in [
        (json!({ "d": null, "a/b": [1, { "c": "x" }] }), None),
        (json!({ "a/b": [1, { "c": "y" }], "d": null }), Some("/a~1b/1/c is \"y\", and not \"x\"")),
        (json!({ "a/b": [1, {}], "d": null }), Some("/a~1b/1/c is missing, and not \"x\"")),
        (json!({ "a/b": [1, { "c": "x" }], "d": null, "e": 1 }), Some("/e is unexpected: 1")),
        (json!({ "a/b": [1], "d": null }), Some("/a~1b is [1], and not [1,{\"c\":\"x\"}]")),
        (json!({ "a/b": [1, { "c": "x" }], "d": 0 }), Some("/d is 0, and not null")),
    ] {
        assert_eq!(first_difference(&expected, &served, "").as_deref(), difference);
    }
}
