//! Checks the layers in ARCHITECTURE.md as each crate's forbidden words and paths.

use crate::tidy::Violation;
use crate::tidy::tree::Tree;

struct Layer {
    folder: &'static str,
    /// Paths that must not occur, as any segments in a row; separated by spaces.
    paths: &'static str,
    /// Words that no name may contain, separated by spaces.
    words: &'static str,
    why: &'static str,
}

const fn layer(folder: &'static str, paths: &'static str, words: &'static str, why: &'static str) -> Layer {
    Layer { folder, paths, words, why }
}

const DRIVER: &str = "a driver moves bytes; the protocol is the link's";

#[rustfmt::skip]
const LAYERS: &[Layer] = &[
    layer("crates/http/src/", "std::io std::net Instant::now SystemTime::now rand getrandom tokio mio", "",
        "HTTP takes bytes and time as arguments"),
    layer("crates/proto/src/", "std::time std::io std::net Instant::now SystemTime rand getrandom tokio mio", "",
        "the protocol takes bytes, time and randomness as arguments"),
    layer("crates/session/src/", "std::net std::thread tokio mio", "",
        "the session has no runtime and no socket"),
    // "Opcode" is a word of io_uring, too.
    layer("crates/engine/src/", "", "close_code ping pong websocket web_socket",
        "the engine moves bytes and does not know the protocol"),
    layer("crates/stream/src/", "std::net tokio mio sinews_brokers", "kafka redis nats",
        "the streams have no network client: clients of brokers are in crates/brokers, behind the trait Broker"),
    layer("crates/store/src/", "std::net std::thread Instant::now SystemTime tokio mio", "redis nats",
        "the contract has no network client, no thread and no clock: stores are in crates/brokers"),
    layer("crates/stream/src/partition", "std::fs std::time::Instant std::time::SystemTime std::thread", "",
        "a partition has no socket and no thread, and is given its disk and its clock, so that tests can fail both"),
    layer("crates/hub/src/", "clap toml signal_hook sd_notify tracing_subscriber", "",
        "a program embeds the hub and gives it typed options; arguments, files and signals are the program's"),
    layer("crates/sinews/src/tokio/driver", "", "opcode close_code ping pong", DRIVER),
    layer("crates/sinews/src/compio/driver", "", "opcode close_code ping pong", DRIVER),
];

pub(super) fn layers(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for layer in LAYERS {
        for source in tree.sources.iter().filter(|source| source.path.starts_with(layer.folder)) {
            let mut add = |line, what: &str| {
                found.push(Violation::new(&source.path, line, format!("{what}: {}", layer.why)));
            };
            for (path, line) in source.paths() {
                let is_in = |banned: &&str| has_run(&path, &banned.split("::").collect::<Vec<_>>());
                if let Some(banned) = layer.paths.split_whitespace().find(is_in) {
                    add(line, banned);
                }
            }
            for token in source.code().map(|place| &source.tokens[place]) {
                let Some(name) = token.name() else { continue };
                if layer.words.split_whitespace().any(|banned| has_run(&words(name), &words(banned))) {
                    add(token.line, name);
                }
            }
        }
    }
    found
}

fn has_run<T: PartialEq>(segments: &[T], run: &[T]) -> bool {
    segments.windows(run.len()).any(|window| window == run)
}

/// Returns a name's words in either case style, in lower case and without a plural's `s`: `PingsSent` and `pings_sent`
/// are `ping`, `sent`; `mapping` is one word.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut previous = '_';
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && previous.is_lowercase()) {
            words.push(String::new());
        }
        if c != '_' {
            let last = words.len() - 1;
            words[last].extend(c.to_lowercase());
        }
        previous = c;
    }
    words.retain(|word| !word.is_empty());
    for word in &mut words {
        if word.len() > 1 && word.ends_with('s') {
            word.pop();
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tidy::tree::tests::tree;

    #[test]
    fn each_layer_rejects_what_is_above_it() {
        for (path, planted, count) in [
            ("proto/src/a.rs", "use std::time::Instant;", 1),
            ("proto/src/a.rs", "use std::{fmt, io::Read};", 1),
            ("proto/src/a.rs", "use std::{fmt, net};", 1),
            ("proto/src/a.rs", "fn a() { Instant::now(); }", 1),
            ("proto/src/a.rs", "fn a(b: SystemTime) {}", 1),
            ("proto/src/a.rs", "fn a() { rand::random(); }", 1),
            ("proto/src/a.rs", "use getrandom::fill;", 1),
            ("proto/src/a.rs", "use tokio as runtime;", 1),
            ("proto/src/a.rs", "macro_rules! a { () => { std::time::Instant } }", 1),
            ("proto/src/a.rs", "use core::time::Duration; fn a(now: Instant) {}", 0),
            ("proto/src/a.rs", "// std::time\n#[cfg(test)] mod tests { use std::time; }", 0),
            ("server/src/a.rs", "use std::time::Instant;", 0),
            ("session/src/a.rs", "use std::net::TcpStream;", 1),
            ("session/src/a.rs", "use mio::Token; fn a() { std::thread::spawn(b); }", 2),
            ("session/src/a.rs", "use std::collections::VecDeque;", 0),
            ("stream/src/broker/a.rs", "use std::net::TcpStream;", 1),
            ("stream/src/broker/a.rs", "use tokio::sync::Notify;", 1),
            ("stream/src/broker/a.rs", "fn a() { sinews_brokers::connect(); }", 1),
            ("stream/src/broker/a.rs", "#[cfg(a)] mod kafka;", 1),
            ("stream/src/broker/a.rs", "struct RedisBroker;", 1),
            ("stream/src/broker/a.rs", "// Kafka\nstruct Broker;", 0),
            ("brokers/src/redis.rs", "use tokio::sync::Notify; struct Redis;", 0),
            ("hub/src/a.rs", "use clap::Parser;", 1),
            ("hub/src/a.rs", "use serde::Deserialize; fn a() { std::env::var(b); }", 0),
            ("stream/src/partition/a.rs", "use std::fs::File;", 1),
            ("stream/src/partition.rs", "use std::{net, time::{Duration, Instant}};", 2),
            ("stream/src/disk/real.rs", "use std::fs::File;", 0),
            ("engine/src/a.rs", "use a::{close_code, CloseCode, pings, send_ping, Pong, WebSocket};", 6),
            ("engine/src/a.rs", "fn mapping(stopping: Wrapping, code: u8, close: u8) {}", 0),
            ("engine/src/a.rs", "// ping\n#[cfg(test)] mod tests { fn ping() {} }", 0),
            ("sinews/src/tokio/driver.rs", "fn a(b: Opcode) {}", 1),
        ] {
            let path = format!("crates/{path}");
            assert_eq!(layers(&tree(&[(&path, planted)])).len(), count, "{path}: {planted}");
        }
    }
}
