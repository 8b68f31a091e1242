//! Checks JSON against the schemas of the published documents: the keywords that they use.

use serde_json::{Map, Value};

/// Rejects unknown fields in all objects with named ones.
pub(crate) fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(close);
            if object.get("properties").is_some_and(Value::is_object) && object.contains_key("type") {
                object.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
        Value::Array(list) => list.iter_mut().for_each(close),
        _ => {}
    }
}

/// Returns the first fault of a value.
pub(crate) fn fault(document: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        return fault(document, document.pointer(&reference[1..]).unwrap(), value, at);
    }
    if let Some(constant) = schema.get("const").filter(|constant| *constant != value) {
        return Some(format!("{at} is {value}, and not {constant}"));
    }
    if let Some(choices) = schema["anyOf"].as_array() {
        let faults = || choices.iter().map(|choice| fault(document, choice, value, at));
        return if faults().any(|fault| fault.is_none()) { None } else { faults().next().flatten() };
    }
    let is_nullable = schema["type"].as_array().is_some_and(|types| types.contains(&Value::from("null")));
    let is_type = match schema["type"].as_str().or_else(|| schema["type"][0].as_str()) {
        None => true,
        Some(_) if is_nullable && value.is_null() => true,
        // An id.
        Some("number") => value.is_number() || value.is_string(),
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some(other) => panic!("unknown type {other}"),
    };
    if !is_type {
        return Some(format!("{at} is {value}, and not of the type {}", schema["type"]));
    }
    if let Some(list) = value.as_array().filter(|_| schema.get("items").is_some()) {
        return list
            .iter()
            .enumerate()
            .find_map(|(index, item)| fault(document, &schema["items"], item, &format!("{at}[{index}]")));
    }
    match (value.as_object(), schema["properties"].as_object()) {
        (Some(object), Some(properties)) => object_fault(document, schema, (object, properties), at),
        _ => None,
    }
}

fn object_fault(
    document: &Value,
    schema: &Value,
    (object, properties): (&Map<String, Value>, &Map<String, Value>),
    at: &str,
) -> Option<String> {
    let names = |list: &Value| -> Vec<String> {
        list.as_array().into_iter().flatten().map(|name| name.as_str().unwrap().to_owned()).collect()
    };
    if let Some(missing) = names(&schema["required"]).into_iter().find(|name| !object.contains_key(name)) {
        return Some(format!("{at} has no {missing}"));
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let given = choices
            .iter()
            .filter(|choice| names(&choice["required"]).iter().all(|name| object.contains_key(name)));
        if given.count() != 1 {
            return Some(format!("{at} does not have exactly one of {choices:?}"));
        }
    }
    object.iter().find_map(|(name, value)| match properties.get(name) {
        Some(property) => fault(document, property, value, &format!("{at}.{name}")),
        None if schema["additionalProperties"] == false => Some(format!("{at} has an unknown field {name}")),
        None => None,
    })
}
