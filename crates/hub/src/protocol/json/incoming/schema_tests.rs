//! Compares the published schema with the messages that this server reads.

use std::collections::BTreeSet;

use serde::de::{Deserializer, Error, Visitor};
use serde::forward_to_deserialize_any;
use serde_json::{Map, Value, json};

use super::*;

fn schema() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/server/protocol.schema.json");
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn client_ops(schema: &Value) -> &Map<String, Value> {
    schema["$defs"]["client"].as_object().unwrap()
}

/// Fails with the names of the fields of a struct.
struct StructFieldNames;

impl<'de> Deserializer<'de> for StructFieldNames {
    type Error = serde_json::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        names: &'static [&'static str],
        _: V,
    ) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom(names.join(" ")))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Self::Error> {
        Err(Self::Error::custom("no struct"))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[test]
fn schema_has_the_fields_of_the_server_and_no_others() {
    let Err(names) = MessageFields::deserialize(StructFieldNames) else { panic!("fields") };
    let names = names.to_string();
    let known: BTreeSet<&str> = names.split(' ').collect();
    let schema = schema();
    let properties = client_ops(&schema).values().flat_map(|op| op["properties"].as_object().unwrap().keys());
    let listed: BTreeSet<&str> = properties.map(String::as_str).collect();
    assert_eq!(listed, known);
}

#[test]
fn schema_has_the_operations_of_the_server_and_no_others() {
    let is_op = |name: &str| match read(json!({ "op": name }).to_string().as_bytes()) {
        Err((_, problem)) => problem.code != code::UNKNOWN_OP,
        Ok(_) => true,
    };
    let schema = schema();
    let listed: BTreeSet<&str> = client_ops(&schema).keys().map(String::as_str).collect();
    for name in &listed {
        assert!(is_op(name), "the server does not know {name}");
    }
    // The name of an operation is a literal of the parser.
    let literals = include_str!("../incoming.rs").split('"').skip(1).step_by(2);
    let known: BTreeSet<&str> = literals.filter(|literal| is_op(literal)).collect();
    assert_eq!(known, listed);
}

/// A valid message of an operation that has a field.
fn example(op: &str, field: &str, schema: &Value) -> Value {
    let position = json!({ "epoch": 1, "seq": 2 });
    let mut message = json!({ "op": op });
    match op {
        "publish" if field != "b64" => message["data"] = json!(1),
        "set" if field != "b64" => message["data"] = json!(1),
        "append" if !matches!(field, "b64" | "records" | "data") => message["data"] = json!(1),
        "history" if field == "limit" => message["from"] = position.clone(),
        "history" if field != "from" => message["last"] = json!(1),
        "delete" if field != "stream" => (message["topic"], message["key"]) = (json!("a"), json!("k")),
        "subscribe" if matches!(field, "filter" | "interval") => message["keys"] = json!(true),
        _ => {}
    }
    if field == "epoch" {
        message["version"] = json!(1);
    }
    let required = schema["required"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    for name in required.chain([field]).filter(|name| *name != "op") {
        let property = &schema["properties"][name];
        message[name] = match (name, property["type"].as_str()) {
            ("from", _) if op == "consume" => json!("earliest"),
            ("from" | "before", _) => position.clone(),
            ("member", _) => json!({ "id": "anna" }),
            ("records", _) => json!([{ "data": 1 }]),
            ("ack", _) => json!("disk"),
            ("id", _) => json!(1),
            ("b64", _) => json!("YQ=="),
            (_, Some("boolean")) => json!(true),
            (_, Some("integer")) => json!(1),
            _ => json!("a"),
        };
    }
    message
}

#[test]
fn server_accepts_each_field_of_each_operation() {
    let schema = schema();
    for (op, of_op) in client_ops(&schema) {
        for field in of_op["properties"].as_object().unwrap().keys() {
            let message = example(op, field, of_op);
            let read = read(message.to_string().as_bytes()).map(|read| read.ignored);
            assert!(read.as_ref().is_ok_and(Vec::is_empty), "{message}: {read:?}");
        }
    }
}
