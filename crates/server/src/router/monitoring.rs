//! Routes for monitoring: metrics and health checks.

use super::Router;
use crate::metrics::Metrics;
use crate::request::{Request, Response};

impl Router {
    /// Answers GET at `path` with the server's metrics in the format of Prometheus ([`Metrics::to_text`]). Metrics
    /// reveal the load of the server and errors of its clients, but no message contents: on a public server, use a
    /// path that its proxy does not forward.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn metrics(self, path: &str) -> Self {
        let monitor = self.monitor();
        self.get(path, move |request| {
            let text = monitor.metrics().to_text();
            Response::new(200).with_header("Content-Type", Metrics::content_type(request)).with_body(text)
        })
    }

    /// Answers GET at `path` with 200 while the connection's thread runs: a liveness check, which decides about a
    /// restart of the process.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn healthz(self, path: &str) -> Self {
        self.fixed(path, Response::text("ok\n").with_header("Cache-Control", "no-store"))
    }

    /// Answers GET at `path` with 200 if the server accepts new clients, else with 503 and the reason
    /// ([`Monitor::ready`](crate::Monitor::ready)): for the health checks of load balancers. Checks by OPTIONS get the
    /// same status.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn readyz(self, path: &str) -> Self {
        let monitor = self.monitor();
        self.health_check(path, move |_| {
            let response = match monitor.ready() {
                Ok(()) => Response::text("ready\n"),
                Err(why) => Response::text(format!("{why}\n")).with_status(503),
            };
            response.with_header("Cache-Control", "no-store")
        })
    }

    /// Answers GET at `path` by the state of the server. Some load balancers check by OPTIONS, which gets the same
    /// answer with `Allow`.
    ///
    /// # Panics
    /// As [`get`](Self::get).
    #[must_use]
    pub fn health_check(
        self,
        path: &str,
        check: impl Fn(&mut Request<'_>) -> Response + Clone + Send + Sync + 'static,
    ) -> Self {
        let answer = check.clone();
        let router = self.get(path, answer);
        router.options(path, move |request| check(request).with_header("Allow", "GET, HEAD, OPTIONS"))
    }
}
