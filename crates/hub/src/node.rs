//! This node's identity.

use std::time::Instant;

use serde_json::{Value, json};
use sinews_server::{BackendChoice, BoundServer};

/// The host name, which identifies the node.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Facts about the server that do not change while it runs.
#[derive(Debug)]
pub(crate) struct ServerInfo {
    pub(crate) version: String,
    pub(crate) commit: String,
    threads: usize,
    /// `io_uring` or `readiness`.
    backend: &'static str,
    /// `a directory` or the broker's scheme; `None` without streams.
    pub(crate) store: Option<String>,
}

impl Default for ServerInfo {
    fn default() -> Self {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { version, commit: String::new(), threads: 0, backend: "", store: None }
    }
}

impl ServerInfo {
    /// Completes the facts when the server is bound.
    pub(crate) fn with_bound(self, server: &BoundServer) -> Self {
        let backend = if server.backend() == BackendChoice::Uring { "io_uring" } else { "readiness" };
        Self { threads: server.monitor().metrics().loops.len(), backend, ..self }
    }

    pub(crate) fn to_json(&self, begin: Instant) -> Value {
        json!({
            "version": self.version,
            "commit": self.commit,
            "node": host_name(),
            "threads": self.threads,
            "backend": self.backend,
            "store": self.store,
            "uptime": begin.elapsed().as_secs(),
        })
    }
}
