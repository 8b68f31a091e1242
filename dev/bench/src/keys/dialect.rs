//! Keyed topics of Sinews, and map subscriptions of Centrifugo: what clients send.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::process::{SERVER_CORE, Server};

/// What clients send to a server.
pub(super) struct Dialect {
    /// Path of the WebSocket.
    pub(super) path: &'static str,
    /// First message of a client.
    pub(super) first: Option<&'static str>,
    /// Sets a key to a value.
    pub(super) set: fn(&str, &str) -> String,
    /// Subscribes to all keys, with an interval in milliseconds.
    pub(super) subscribe: fn(u32) -> String,
    /// Whether the server reports queued bytes.
    pub(super) has_metrics: bool,
}

pub(super) static SINEWS: Dialect = Dialect {
    path: "/ws",
    first: None,
    set: |key, data| format!(r#"{{"op":"set","topic":"prices","key":"{key}","data":{data}}}"#),
    subscribe: |interval| {
        let interval = if interval > 0 { format!(r#","interval":{interval}"#) } else { String::new() };
        format!(r#"{{"op":"subscribe","id":1,"topic":"prices","keys":true{interval}}}"#)
    },
    has_metrics: true,
};

/// Centrifugo has no interval.
pub(super) static CENTRIFUGO: Dialect = Dialect {
    path: "/connection/websocket",
    first: Some(r#"{"id":1,"connect":{}}"#),
    set: |key, data| {
        format!(r#"{{"id":3,"publish":{{"channel":"keyed:prices","type":1,"key":"{key}","data":{data}}}}}"#)
    },
    subscribe: |_| {
        r#"{"id":2,"subscribe":{"channel":"keyed:prices","type":1,"phase":2,"limit":1000}}"#.to_owned()
    },
    has_metrics: false,
};

/// A directory that is removed when it is dropped.
pub(super) struct Configuration(PathBuf);

impl Drop for Configuration {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts Centrifugo with a namespace of map subscriptions. Subscribers of the load send no pongs, so pings are rare.
pub(super) fn start_centrifugo(program: &Path) -> Result<(Server, Configuration), Error> {
    let address = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?.local_addr()?;
    let configuration =
        Configuration(std::env::temp_dir().join(format!("sinews-keys-{}", std::process::id())));
    fs::create_dir_all(&configuration.0)?;
    let file = configuration.0.join("config.json");
    let port = address.port();
    fs::write(
        &file,
        format!(
            r#"{{"http_server":{{"address":"127.0.0.1","port":"{port}"}},"log":{{"level":"error"}},
            "client":{{"allowed_origins":["*"],"allow_anonymous_connect_without_token":true,"ping_interval":"600s"}},
            "channel":{{"namespaces":[{{"name":"keyed","subscription_type":"map",
            "allow_subscribe_for_client":true,"allow_subscribe_for_anonymous":true,
            "map":{{"mode":"persistent","allow_publish_for_client":true,"allow_publish_for_anonymous":true}}}}]}}}}"#
        ),
    )?;
    let arguments = ["--config".into(), file.into_os_string()];
    Ok((Server::start_at(program, &arguments, SERVER_CORE, address)?, configuration))
}
