//! State of a worker that its connections share. The worker lends it to one connection at a time.

use std::num::NonZeroU16;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_http::h2::FieldBuffer;
use sinews_proto::Time;
use sinews_session::Resources;

use crate::client::TrustedProxies;
use crate::date::Date;
use crate::http::HttpConfig;
use crate::limits::Gate;
use crate::metrics::ShardCounters;
use crate::metrics::limit::Limit;
use crate::request::HandlerResources;
use crate::router::Router;
use crate::tasks::Tasks;
use crate::topics::Topics;

/// Routes, buffers and services of a thread. A session borrows the buffers while its callbacks borrow the services.
pub(crate) struct WorkerShared {
    /// A clone takes no atomic operation: exchanges borrow their routes from one.
    #[expect(
        clippy::redundant_allocation,
        reason = "`Arc` shares the routes between threads, `Rc` within one"
    )]
    pub(crate) router: Rc<Arc<Router>>,
    pub(crate) resources: Resources,
    /// Fields of the header block that is being decoded.
    pub(crate) fields: FieldBuffer,
    /// Sockets beyond the limits, which hold no slot: at most [`REJECTING_MAX`](crate::limits::REJECTING_MAX).
    pub(crate) rejected_sockets: usize,
    pub(crate) services: Services,
}

/// Services that exchanges and sockets use.
pub(crate) struct Services {
    pub(crate) http: Arc<HttpConfig>,
    pub(crate) topics: Topics,
    pub(crate) tasks: Tasks,
    pub(crate) counters: Arc<ShardCounters>,
    pub(crate) gate: Arc<Gate>,
    pub(crate) proxies: Arc<TrustedProxies>,
    pub(crate) date: Date,
    /// The turn's time on the clock of the sessions.
    pub(crate) now: Time,
    /// Zero of that clock.
    pub(crate) epoch: Instant,
    /// Since then no connections are accepted, and each answer is the last of its connection.
    pub(crate) stopping_since: Option<Time>,
    /// Whether the connection that was lent last uses TLS.
    pub(crate) encrypted: bool,
    /// Tag of the listener of that connection.
    pub(crate) tag: u8,
    /// Port of HTTP/3 beside the connection with TLS that was lent last.
    pub(crate) http3_port: Option<NonZeroU16>,
}

impl Services {
    /// Returns the part that a handler of requests may use.
    pub(crate) fn handler_resources(&mut self, elapsed: Duration) -> HandlerResources<'_> {
        let Self { topics, tasks, proxies, encrypted, tag, .. } = self;
        HandlerResources { topics, pool: tasks.pool(), elapsed, proxies, encrypted: *encrypted, tag: *tag }
    }

    /// Returns whether the server stops.
    pub(crate) const fn is_stopping(&self) -> bool {
        self.stopping_since.is_some()
    }

    /// Admits a valid handshake, or counts the limit that rejects it.
    pub(crate) fn admit_handshake(&self) -> Result<(), Limit> {
        self.gate.handshake().inspect_err(|limit| self.count_limit(*limit))
    }

    /// Counts and reports an exceeded limit.
    pub(crate) fn count_limit(&self, limit: Limit) {
        self.counters.limited.add(limit);
        self.gate.report(limit);
    }
}
