//! Every operation of the document answers as the document says, with valid and with invalid requests.

use serde_json::{Value, json};

use super::schema::fault;
use super::{ApiAnswer, KEY, call_with, serve};
use crate::protocol::Client;
use crate::support::Running;

/// An operation of the document.
struct DocumentedOperation<'a> {
    document: &'a Value,
    method: String,
    path: String,
    fields: &'a Value,
}

impl DocumentedOperation<'_> {
    /// The route, with the examples of the parameters in the path.
    fn route(&self) -> String {
        let mut path = self.path.clone();
        for parameter in self.fields["parameters"].as_array().unwrap() {
            if parameter["in"] == "path" {
                let name = format!("{{{}}}", parameter["name"].as_str().unwrap());
                path = path.replace(&name, parameter["example"].as_str().unwrap());
            }
        }
        format!("{} {path}", self.method)
    }

    fn body(&self) -> Option<&Value> {
        self.fields.pointer("/requestBody/content/application~1json")
    }

    fn example(&self) -> String {
        self.body().map_or_else(String::new, |body| body["example"].to_string())
    }

    /// Checks the body of an answer.
    fn check(&self, answer: &ApiAnswer, request: &str) {
        let name = if answer.status == 200 { "200" } else { "default" };
        let schema = &self.fields["responses"][name]["content"]["application/json"]["schema"];
        let fault = fault(self.document, schema, &answer.body, "answer");
        assert_eq!(fault, None, "{} {request}: {}", self.route(), answer.body);
        if answer.status != 200 {
            assert_eq!(answer.body["code"], answer.status);
        }
    }

    /// Bodies that the schema rejects.
    fn invalid_bodies(&self) -> Vec<Value> {
        let Some(body) = self.body() else { return Vec::new() };
        let (schema, example) = (&body["schema"], &body["example"]);
        assert_eq!(fault(self.document, schema, example, "example"), None);
        let mut bodies = vec![Value::Null, json!([]), json!("text"), json!({})];
        let mut changed = |name: &str, value: Option<Value>| {
            let mut body = example.clone();
            let fields = body.as_object_mut().unwrap();
            match value {
                Some(value) => drop(fields.insert(name.to_owned(), value)),
                None => drop(fields.remove(name)),
            }
            bodies.push(body);
        };
        for (name, field) in schema["properties"].as_object().unwrap() {
            changed(name, None);
            if field.get("type").is_some() {
                let values = [json!({}), json!(true), json!("text"), json!(-1), json!([{}])];
                values.into_iter().for_each(|value| changed(name, Some(value)));
            }
            if schema.get("oneOf").is_some() {
                changed(name, Some(json!("AP8=")));
            }
        }
        changed("unknown", Some(json!(1)));
        bodies.retain(|body| fault(self.document, schema, body, "body").is_some());
        bodies
    }
}

/// The schema for an operation that answers with a stream of events.
const EVENTS: &str = "/responses/200/content/text~1event-stream/schema";

/// A stream's first event.
fn first_event(server: &Running, path: &str) -> Value {
    let mut stream = server.stream(path, &format!("Authorization: Bearer {KEY}\r\n"));
    let event = stream.until("\n\n").expect("an event");
    serde_json::from_str(event.strip_prefix("data: ").expect("data").trim_end()).unwrap()
}

fn operations(document: &Value) -> Vec<DocumentedOperation<'_>> {
    let paths = document["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, methods)| {
        methods.as_object().unwrap().iter().map(move |(method, fields)| DocumentedOperation {
            document,
            method: method.to_uppercase(),
            path: path.clone(),
            fields,
        })
    });
    operations.collect()
}

fn document_of(server: &Running) -> Value {
    let answer = server.get("/api/v1/openapi.json");
    let document: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
    assert_eq!(document["openapi"], "3.1.0");
    document
}

#[test]
fn every_operation_of_the_document_answers_as_documented() {
    let secret = crate::auth::keys("secret");
    let arguments = ["--streams", "$DIR/streams", "--history", "chat.>=10", "--auth-secret-file", &secret];
    let server = serve(&arguments);
    let token = crate::auth::token(&secret, &["--subject", "anna", "--subscribe", ">", "--publish", ">"]);
    let mut client = Client::at(&server, &format!("/ws?token={token}"));
    client.subscribe_with("chat.room", &json!({}));
    let connection =
        super::call(&server, "GET /connections", &Value::Null)["connections"][0]["connection"].clone();
    client.request(
        json!({"op": "join", "id": 2, "topic": "chat.room", "member": {"id": "anna", "info": {"n": 1}}}),
    );
    let bearer = format!("POST /streams/orders HTTP/1.1\r\nAuthorization: Bearer {token}");
    assert!(server.request(&bearer, "one").starts_with("HTTP/1.1 200 "));
    let document = document_of(&server);
    let mut operations = operations(&document);
    // Deletions and disconnects last, and a key is set before it is read.
    let order = |operation: &DocumentedOperation<'_>| match (&*operation.method, &*operation.path) {
        ("PUT", _) => 0,
        ("GET", _) => 1,
        // A stream is deleted after its groups.
        ("DELETE", path) => {
            if path.ends_with("/streams/{stream}") {
                4
            } else {
                3
            }
        }
        (_, "/api/v1/disconnect" | "/api/v1/revoke") => 4,
        _ => 2,
    };
    operations.sort_by_key(order);
    assert!(operations.len() >= 15);
    for operation in &operations {
        // The example's connection is not at this server.
        let route = operation.route().replace("a1b2c3-1", connection.as_str().unwrap());
        let example = operation.example();
        if let Some(schema) = operation.fields.pointer(EVENTS) {
            let event = first_event(&server, &operation.path);
            assert_eq!(fault(&document, schema, &event, "event"), None, "{event}");
            continue;
        }
        let answer = call_with(&server, KEY, "", &route, &example);
        assert_eq!(answer.status, 200, "{route}: {}", answer.body);
        operation.check(&answer, &example);
    }
}

#[test]
fn every_operation_rejects_invalid_requests() {
    let server = serve(&[]);
    let document = document_of(&server);
    let mut count = 0;
    for operation in operations(&document) {
        let route = operation.route();
        if operation.fields["security"] != json!([]) {
            for (key, status) in [("", 401), ("f".repeat(32).as_str(), 401)] {
                let answer = call_with(&server, key, "", &route, &operation.example());
                assert_eq!(answer.status, status, "{route}");
                operation.check(&answer, "without a key");
            }
        }
        for body in operation.invalid_bodies() {
            let answer = call_with(&server, KEY, "", &route, &body.to_string());
            assert_eq!(answer.status, 400, "{route} {body}: {}", answer.body);
            operation.check(&answer, &body.to_string());
            count += 1;
        }
        if operation.body().is_some() {
            let answer = call_with(&server, KEY, "", &route, "{\"not JSON");
            assert_eq!(answer.status, 400, "{route}: {}", answer.body);
        }
        for parameter in operation.fields["parameters"].as_array().unwrap() {
            if parameter["in"] == "query" && parameter["schema"]["type"] == "integer" {
                let query = format!("{route}?{}=-1", parameter["name"].as_str().unwrap());
                let answer = call_with(&server, KEY, "", &query, "");
                assert_eq!(answer.status, 400, "{query}: {}", answer.body);
            }
        }
    }
    assert!(count > 50, "{count} invalid bodies");
}
