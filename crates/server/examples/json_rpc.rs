//! JSON-RPC 2.0, one call per message: `cargo run -p sinews-server --example json_rpc -- [PORT] [auto|poll|uring]`.
//!
//! Requests, notifications, batches and errors follow <https://www.jsonrpc.org/specification>. Try `{"jsonrpc":
//! "2.0", "method": "subtract", "params": [42, 23], "id": 1}` with `python3 -m websockets ws://127.0.0.1:8080/`.

use std::error::Error;

use serde_json::{Value, json};
use sinews_server::{
    CloseCode, Config, Context, EngineConfig, Handler, Payload, Router, Server, WebSocketRoute,
};

/// An error of the specification's section 5.1.
struct Fault(i32, &'static str);

const PARSE_ERROR: Fault = Fault(-32700, "Parse error");
const INVALID_REQUEST: Fault = Fault(-32600, "Invalid Request");
const METHOD_NOT_FOUND: Fault = Fault(-32601, "Method not found");
const INVALID_PARAMS: Fault = Fault(-32602, "Invalid params");

/// Executes a method of the server.
fn call(method: &str, params: &Value) -> Result<Value, Fault> {
    let number = |at: usize, name: &str| {
        params.get(at).or_else(|| params.get(name)).and_then(Value::as_i64).ok_or(INVALID_PARAMS)
    };
    match method {
        "subtract" => {
            let difference = number(0, "minuend")?.checked_sub(number(1, "subtrahend")?);
            difference.map(Value::from).ok_or(INVALID_PARAMS)
        }
        "sum" => {
            let mut numbers = params.as_array().ok_or(INVALID_PARAMS)?.iter().map(Value::as_i64);
            let sum = numbers.try_fold(0_i64, |sum, number| sum.checked_add(number?));
            sum.map(Value::from).ok_or(INVALID_PARAMS)
        }
        "get_data" => Ok(json!(["hello", 5])),
        "update" | "notify_hello" => Ok(Value::Null),
        _ => Err(METHOD_NOT_FOUND),
    }
}

/// Answers the calls of a message, except notifications.
fn answer(message: &[u8]) -> Option<Value> {
    match serde_json::from_slice(message) {
        Ok(Value::Array(batch)) if !batch.is_empty() => {
            let answers: Vec<Value> = batch.iter().filter_map(answer_one).collect();
            (!answers.is_empty()).then_some(Value::Array(answers))
        }
        Ok(request) => answer_one(&request),
        Err(_) => Some(response(&Value::Null, Err(PARSE_ERROR))),
    }
}

fn answer_one(request: &Value) -> Option<Value> {
    let id = request.get("id");
    let params = request.get("params").unwrap_or(&Value::Null);
    let sound = request.get("jsonrpc") == Some(&json!("2.0"))
        && matches!(id, None | Some(Value::Null | Value::String(_) | Value::Number(_)))
        && (request.get("params").is_none() || params.is_array() || params.is_object());
    match request.get("method").and_then(Value::as_str) {
        Some(method) if sound => {
            let result = call(method, params);
            // A request without an id is a notification: its result is not sent.
            id.map(|id| response(id, result))
        }
        _ => Some(response(&Value::Null, Err(INVALID_REQUEST))),
    }
}

fn response(id: &Value, result: Result<Value, Fault>) -> Value {
    match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "result": result, "id": id }),
        Err(Fault(code, message)) => {
            json!({ "jsonrpc": "2.0", "error": { "code": code, "message": message }, "id": id })
        }
    }
}

struct Caller;

impl Handler for Caller {
    fn message(&mut self, payload: Payload<'_>, cx: &mut Context<'_>) {
        // Both fail only after a Close.
        if payload.text().is_none() {
            let _ = cx.close(CloseCode::UNSUPPORTED, "JSON is text");
        } else if let Some(answer) = answer(&payload) {
            let _ = cx.send_text(&answer.to_string());
        }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let argument = |at, default: &str| std::env::args().nth(at).unwrap_or_else(|| default.to_owned());
    // This bounds a batch, too.
    let config = Config::default().with_max_message(64 << 10);
    let router = Router::new().websocket("/", WebSocketRoute::new(|_| Ok(Caller)).with_config(config));
    let server = Server::new(router)
        .listen(format!("127.0.0.1:{}", argument(1, "8080")).parse()?)
        .engine(EngineConfig::default().with_backend(argument(2, "auto").parse()?))
        .bind()?;
    println!("ws://{}/", server.addresses()[0]);
    server.run()?;
    Ok(())
}
