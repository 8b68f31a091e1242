//! `sinews sub` and `sinews pub`: a subscriber and a publisher of the protocol at `/ws`.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use sinews::blocking::{self, Stream, WebSocket};
use sinews::{Config, Message};
use sinews_bench::trust;
use sinews_bench::url::{shown_url, with_scheme};
use sinews_server::escape::{escape_json, escape_line};

use crate::output;

#[derive(Debug, Args)]
pub(crate) struct TopicServerArgs {
    /// URL of the server; without a path, of /ws
    #[arg(long, value_name = "URL", default_value = "ws://127.0.0.1:8080", env = "SINEWS_URL")]
    url: String,

    /// Token, if the server requires one
    #[arg(long, value_name = "TOKEN", env = "SINEWS_TOKEN", hide_env_values = true)]
    token: Option<String>,

    /// CA certificates (PEM) to trust in addition to the system's; repeatable
    #[arg(long, value_name = "FILE")]
    ca: Vec<PathBuf>,

    /// Accept any certificate of the server: only for tests
    #[arg(long)]
    insecure: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A message is one line: to a terminal its topic and its data, to a pipe its topic, a tab and its data in JSON. \
Bytes are the object {\"b64\":\"…\"}."
)]
pub(crate) struct SubArgs {
    /// Topics, or patterns such as `chat.>`
    #[arg(value_name = "PATTERN", required = true)]
    patterns: Vec<String>,

    /// Number of retained messages to begin with, of topics with a history
    #[arg(long, value_name = "N")]
    last: Option<u32>,

    /// Number of messages after which the program exits
    #[arg(long, value_name = "N")]
    count: Option<u64>,

    /// Write each message of the protocol as a line of JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    server: TopicServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct PubArgs {
    /// Topic to publish to
    topic: String,

    /// Message: JSON if it is valid JSON, otherwise a text [default: each line of standard input]
    #[arg(allow_hyphen_values = true)]
    data: Option<String>,

    /// Publish the message as a text, also if it is valid JSON
    #[arg(long)]
    text: bool,

    #[command(flatten)]
    server: TopicServerArgs,
}

/// Largest message in either direction, in bytes: the server's own limit is usually smaller.
const MESSAGE_MAX: usize = 64 << 20;

/// A connection after its welcome.
struct ProtocolClient {
    websocket: WebSocket<Stream>,
    url: String,
}

impl ProtocolClient {
    fn open(args: &TopicServerArgs) -> Result<Self, String> {
        let url = with_path(&with_scheme(&args.url));
        let fault = |error: String| format!("{}: {error}", shown_url(&url));
        let config =
            Config::default().with_max_message(MESSAGE_MAX as u64).with_max_frame(MESSAGE_MAX as u64);
        let config = config.with_max_outbound(MESSAGE_MAX);
        let mut connect = blocking::connect(url.clone()).config(config).subprotocol("sinews.v1");
        if url.starts_with("wss:") {
            connect = connect.tls(trust::client(args.insecure, &args.ca)?.with_no_client_auth());
        }
        if let Some(token) = &args.token {
            connect = connect.header("Authorization", format!("Bearer {token}"));
        }
        let (websocket, _) = connect.open().map_err(|error| fault(trust::explain(&error)))?;
        let mut client = Self { websocket, url };
        let welcome = client.receive()?;
        if welcome["op"] != "welcome" {
            return Err(format!("{}: not a server of the protocol sinews.v1", shown_url(&client.url)));
        }
        Ok(client)
    }

    fn send(&mut self, message: &Value) -> Result<(), String> {
        let text = message.to_string();
        self.websocket.send_text(&text).map_err(|error| self.fault(&error.to_string()))
    }

    /// The server's next message.
    fn receive(&mut self) -> Result<Value, String> {
        loop {
            match self.websocket.next() {
                Some(Ok(Message::Text(text))) => {
                    return serde_json::from_str(text.as_str())
                        .map_err(|error| self.fault(&error.to_string()));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(self.fault(&error.to_string())),
                None => return Err(self.fault("the connection has ended")),
            }
        }
    }

    fn fault(&self, text: &str) -> String {
        format!("{}: {}", shown_url(&self.url), escape_line(text))
    }
}

/// A URL without a path means `/ws`.
fn with_path(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("ws", url));
    let scheme = match scheme {
        "http" => "ws",
        "https" => "wss",
        other => other,
    };
    match rest.split_once('/') {
        Some((_, path)) if !path.is_empty() => format!("{scheme}://{rest}"),
        _ => format!("{scheme}://{}/ws", rest.trim_end_matches('/')),
    }
}

/// Prints messages until the server ends the connection, or their number is reached.
///
/// # Errors
/// The server rejects a subscription, or the connection ends.
pub(crate) fn subscribe(args: &SubArgs) -> Result<(), String> {
    let mut client = ProtocolClient::open(&args.server)?;
    for pattern in &args.patterns {
        let mut request = json!({ "op": "subscribe", "id": pattern, "topic": pattern });
        if let Some(last) = args.last {
            request["last"] = json!(last);
        }
        client.send(&request)?;
    }
    let in_terminal = io::stdout().is_terminal();
    let mut left = args.count;
    while left != Some(0) {
        let message = client.receive()?;
        match message["op"].as_str() {
            Some("error") => return Err(rejection(&message)),
            Some("dropped" | "reset") => output::print_error(&escape_line(&message.to_string())),
            Some("message") => {
                let line = match args.json {
                    true => format!("{}\n", escape_json(&message.to_string())),
                    false => line(&message, in_terminal, output::has_colors()),
                };
                print(&line)?;
                left = left.map(|left| left - 1);
            }
            _ => {}
        }
    }
    Ok(())
}

/// A message as a line. A topic has no control characters, so a tab ends it.
fn line(message: &Value, in_terminal: bool, colors: bool) -> String {
    let topic = message["topic"].as_str().unwrap_or_default();
    let data = match message.get("b64") {
        Some(b64) => json!({ "b64": b64 }).to_string(),
        None => message["data"].to_string(),
    };
    match (in_terminal, colors) {
        (false, _) => format!("{topic}\t{}\n", escape_json(&data)),
        (true, false) => format!("{}  {}\n", escape_line(topic), escape_json(&data)),
        (true, true) => format!("\x1b[36m{}\x1b[0m  {}\n", escape_line(topic), escape_json(&data)),
    }
}

/// Publishes a message, or each line of standard input, and waits for each acknowledgement.
///
/// # Errors
/// The server rejects a publication, the connection ends, or the input cannot be read.
pub(crate) fn publish(args: &PubArgs) -> Result<(), String> {
    let mut client = ProtocolClient::open(&args.server)?;
    if let Some(data) = &args.data {
        return publish_one(&mut client, args, data);
    }
    for line in io::stdin().lock().lines() {
        let line = line.map_err(|error| format!("standard input: {error}"))?;
        publish_one(&mut client, args, &line)?;
    }
    Ok(())
}

fn publish_one(client: &mut ProtocolClient, args: &PubArgs, text: &str) -> Result<(), String> {
    let parsed = if args.text { None } else { serde_json::from_str(text).ok() };
    let data = parsed.unwrap_or_else(|| json!(text));
    client.send(&json!({ "op": "publish", "id": 1, "topic": args.topic, "data": data }))?;
    loop {
        let answer = client.receive()?;
        match answer["op"].as_str() {
            Some("error") => return Err(rejection(&answer)),
            Some("ack") if io::stdout().is_terminal() => {
                let reached = answer["reached"].as_u64();
                let state =
                    reached.map_or_else(|| "stored".to_owned(), |count| format!("{count} subscribers"));
                return print(&format!("{state}\n"));
            }
            Some("ack") => return Ok(()),
            _ => {}
        }
    }
}

/// An error's text, with the right that a token would need.
fn rejection(error: &Value) -> String {
    let text = error["error"].as_str().unwrap_or_default();
    let needs = error.get("needs").map_or_else(String::new, |needs| format!("; a token needs {needs}"));
    escape_line(&format!("{text} ({}){needs}", error["code"]))
}

fn print(text: &str) -> Result<(), String> {
    let mut stdout = io::stdout().lock();
    let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
    written.map_err(|error| format!("standard output: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_without_a_path_is_that_of_the_protocol() {
        assert_eq!(with_path("ws://a:1"), "ws://a:1/ws");
        assert_eq!(with_path("https://a/"), "wss://a/ws");
        assert_eq!(with_path("http://a/streams/s"), "ws://a/streams/s");
    }

    #[test]
    fn line_for_a_terminal_has_colors_and_controls_nothing() {
        let message = json!({ "topic": "a", "data": "\x1b[2J" });
        assert_eq!(line(&message, true, true), "\x1b[36ma\x1b[0m  \"\\u001b[2J\"\n");
        assert_eq!(line(&message, false, false), "a\t\"\\u001b[2J\"\n");
        let bytes = json!({ "topic": "a", "b64": "AP8=" });
        assert_eq!(line(&bytes, true, false), "a  {\"b64\":\"AP8=\"}\n");
    }
}
