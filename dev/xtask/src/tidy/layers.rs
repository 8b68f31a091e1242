//! Checks the layers of ARCHITECTURE.md as forbidden words and paths of each crate.

use crate::tidy::Violation;
use crate::tidy::tree::Tree;

struct Layer {
    dir: &'static str,
    /// Paths that must not occur, as any run of segments.
    paths: &'static [&'static str],
    /// Words that no name may contain.
    words: &'static [&'static str],
    why: &'static str,
}

const LAYERS: &[Layer] = &[
    Layer {
        dir: "crates/http/src/",
        paths: &[
            "std::io",
            "std::net",
            "Instant::now",
            "SystemTime::now",
            "rand",
            "getrandom",
            "tokio",
            "mio",
        ],
        words: &[],
        why: "HTTP takes bytes and time as arguments",
    },
    Layer {
        dir: "crates/proto/src/",
        paths: &[
            "std::time",
            "std::io",
            "std::net",
            "Instant::now",
            "SystemTime",
            "rand",
            "getrandom",
            "tokio",
            "mio",
        ],
        words: &[],
        why: "the protocol takes bytes, time and randomness as arguments",
    },
    Layer {
        dir: "crates/session/src/",
        paths: &["std::net", "std::thread", "tokio", "mio"],
        words: &[],
        why: "the session has no runtime and no socket",
    },
    Layer {
        dir: "crates/engine/src/",
        paths: &[],
        // "Opcode" is a word of io_uring, too.
        words: &["close_code", "ping", "pong", "websocket", "web_socket"],
        why: "the engine moves bytes and does not know the protocol",
    },
    Layer {
        dir: "crates/stream/src/",
        paths: &["std::net", "tokio", "mio", "sinews_brokers"],
        words: &["kafka", "redis", "nats"],
        why: "the streams have no network client: clients of brokers are in crates/brokers, behind the trait Broker",
    },
    Layer {
        dir: "crates/stream/src/partition",
        paths: &["std::fs", "std::time::Instant", "std::time::SystemTime", "std::thread"],
        words: &[],
        why: "a partition has no socket and no thread, and is given its disk and its clock, so that tests can fail both",
    },
    Layer {
        dir: "crates/hub/src/",
        paths: &["clap", "toml", "signal_hook", "sd_notify", "tracing_subscriber"],
        words: &[],
        why: "a program embeds the hub and gives it typed options; arguments, files and signals are the program's",
    },
    Layer {
        dir: "crates/sinews/src/tokio/driver",
        paths: &[],
        words: &["opcode", "close_code", "ping", "pong"],
        why: "a driver moves bytes; the protocol is the link's",
    },
    Layer {
        dir: "crates/sinews/src/compio/driver",
        paths: &[],
        words: &["opcode", "close_code", "ping", "pong"],
        why: "a driver moves bytes; the protocol is the link's",
    },
];

pub(super) fn layers(tree: &Tree) -> Vec<Violation> {
    let mut found = Vec::new();
    for layer in LAYERS {
        for source in tree.sources.iter().filter(|source| source.path.starts_with(layer.dir)) {
            for (path, line) in source.paths() {
                if let Some(banned) = layer.paths.iter().find(|banned| has_run(&path, banned.split("::"))) {
                    found.push(Violation::new(&source.path, line, format!("{banned}: {}", layer.why)));
                }
            }
            for token in source.code().map(|place| &source.tokens[place]) {
                let Some(name) = token.name() else { continue };
                let named = words(name);
                let named: Vec<&str> = named.iter().map(String::as_str).collect();
                let is_banned = |banned: &&str| has_run(&named, words(banned).iter().map(String::as_str));
                if layer.words.iter().any(is_banned) {
                    found.push(Violation::new(&source.path, token.line, format!("{name}: {}", layer.why)));
                }
            }
        }
    }
    found
}

fn has_run<'a>(segments: &[&str], run: impl Iterator<Item = &'a str>) -> bool {
    let run: Vec<&str> = run.collect();
    segments.windows(run.len()).any(|window| window == run)
}

/// The words of a name in either case style, in lower case and without a plural's `s`:
/// `PingsSent` and `pings_sent` are `ping`, `sent`; `mapping` is one word.
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

    fn found(path: &str, text: &str) -> usize {
        layers(&tree(&[(path, text)])).len()
    }

    #[test]
    fn the_protocol_has_no_clock_randomness_or_socket() {
        for planted in [
            "use std::time::Instant;",
            "use std::{fmt, io::Read};",
            "use std::{fmt, net};",
            "fn a() { Instant::now(); }",
            "fn a(b: SystemTime) {}",
            "fn a() { rand::random(); }",
            "use getrandom::fill;",
            "use tokio as runtime;",
            "macro_rules! a { () => { std::time::Instant } }",
        ] {
            assert_eq!(found("crates/proto/src/a.rs", planted), 1, "{planted}");
        }
        assert_eq!(found("crates/proto/src/a.rs", "use core::time::Duration; fn a(now: Instant) {}"), 0);
        assert_eq!(
            found("crates/proto/src/a.rs", "// std::time\n#[cfg(test)] mod tests { use std::time; }"),
            0
        );
        assert_eq!(found("crates/server/src/a.rs", "use std::time::Instant;"), 0);
    }

    #[test]
    fn the_session_has_no_runtime_and_no_socket() {
        assert_eq!(found("crates/session/src/a.rs", "use std::net::TcpStream;"), 1);
        assert_eq!(found("crates/session/src/a.rs", "use mio::Token; fn a() { std::thread::spawn(b); }"), 2);
        assert_eq!(found("crates/session/src/a.rs", "use std::collections::VecDeque;"), 0);
    }

    #[test]
    fn the_streams_have_no_network_client() {
        for planted in [
            "use std::net::TcpStream;",
            "use tokio::sync::Notify;",
            "fn a() { sinews_brokers::connect(); }",
            "#[cfg(a)] mod kafka;",
            "struct RedisBroker;",
        ] {
            assert_eq!(found("crates/stream/src/broker/a.rs", planted), 1, "{planted}");
        }
        assert_eq!(found("crates/stream/src/broker/a.rs", "// Kafka\nstruct Broker;"), 0);
        assert_eq!(found("crates/brokers/src/redis.rs", "use tokio::sync::Notify; struct Redis;"), 0);
    }

    #[test]
    fn the_hub_reads_no_arguments_files_or_signals() {
        assert_eq!(found("crates/hub/src/a.rs", "use clap::Parser;"), 1);
        assert_eq!(found("crates/hub/src/a.rs", "use serde::Deserialize; fn a() { std::env::var(b); }"), 0);
    }

    #[test]
    fn a_partition_is_given_its_disk_and_its_clock() {
        assert_eq!(found("crates/stream/src/partition/a.rs", "use std::fs::File;"), 1);
        assert_eq!(found("crates/stream/src/partition.rs", "use std::{net, time::{Duration, Instant}};"), 2);
        assert_eq!(found("crates/stream/src/disk/real.rs", "use std::fs::File;"), 0);
    }

    #[test]
    fn the_engine_names_nothing_of_the_protocol() {
        for planted in ["close_code", "CloseCode", "pings", "send_ping", "Pong", "WebSocket"] {
            assert_eq!(found("crates/engine/src/a.rs", &format!("use a::{planted};")), 1, "{planted}");
        }
        assert_eq!(
            found("crates/engine/src/a.rs", "fn mapping(stopping: Wrapping, code: u8, close: u8) {}"),
            0
        );
        assert_eq!(found("crates/engine/src/a.rs", "// ping\n#[cfg(test)] mod tests { fn ping() {} }"), 0);
    }
}
