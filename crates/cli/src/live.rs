//! Settings that can change while the server runs: allowed hosts and origins, and tokens.

use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use sinews_server::{OriginPolicy, Request, Response};

use crate::admission::{Reason, Rejection, Rejections, Source};
use crate::args::RejectBrowsers;
use crate::auth::{Auth, Denied, Rights};
use crate::hosts::Hosts;
use crate::routes::failure;
use crate::settings::Settings;

/// The settings for new connections and requests.
pub(crate) struct Policy {
    origin: OriginPolicy,
    hosts: Hosts,
    auth: Option<Auth>,
    reject_browsers: RejectBrowsers,
    rejections: Arc<Rejections>,
}

impl Policy {
    /// Reads the keys that the settings name.
    ///
    /// # Errors
    /// The invalid setting, and the reason.
    pub(crate) fn new(settings: &Settings) -> Result<Self, String> {
        let named = |(key, problem)| format!("{}: {problem}", settings.name(key));
        Ok(Self {
            origin: settings.origin_policy()?,
            hosts: settings.host_policy()?,
            auth: Auth::new(&settings.auth).map_err(named)?,
            reject_browsers: settings.reject_browsers,
            rejections: Arc::default(),
        })
    }

    /// Whether tokens are required.
    pub(crate) fn has_auth(&self) -> bool {
        self.auth.is_some()
    }

    /// Whether a WebSocket of a browser is rejected by a Close, which its page can read, and not by a status.
    pub(crate) fn closes_browsers(&self) -> bool {
        self.reject_browsers == RejectBrowsers::Close
    }

    /// The counters and the log of rejections.
    pub(crate) fn rejections(&self) -> &Arc<Rejections> {
        &self.rejections
    }

    /// The answer to a request whose `Host` is not a name of this server.
    pub(crate) fn check_host(&self, request: &Request<'_>) -> Option<Response> {
        // These paths reveal no secret, and load balancers request them by any name.
        if matches!(request.head().path(), "/healthz" | "/readyz") {
            return None;
        }
        let host = self.hosts.check(request).err()?;
        let host = host.escape_debug();
        let text = format!("{host} is not a name of this server: see `hosts`");
        self.rejections.note(Reason::Host, &Source::of(request), &text);
        Some(failure(421, &text))
    }

    /// Checks the `Origin` of a request.
    ///
    /// # Errors
    /// The origin is not allowed.
    pub(crate) fn check_origin(&self, request: &Request<'_>) -> Result<(), Rejection> {
        self.origin.check(request.head()).map_err(|_| {
            let origin = request.head().header("origin").next().unwrap_or_default();
            let rejection = Rejection::origin(&String::from_utf8_lossy(origin));
            self.rejections.note(Reason::Origin, &Source::of(request), rejection.text());
            rejection
        })
    }

    /// The rights of the sender of a request.
    ///
    /// # Errors
    /// [`Denied`] if the token is invalid or expired.
    pub(crate) fn rights(&self, request: &Request<'_>) -> Result<Rights, Denied> {
        let rights = self.auth.as_ref().map_or_else(|| Ok(Rights::all()), |auth| auth.rights(request));
        let rights = rights.map(|rights| rights.of_client(request.client()));
        rights.inspect_err(|denied| {
            self.rejections.note(Reason::Token, &Source::of(request), &denied.problem);
        })
    }

    /// The rights that a token grants on an open connection.
    ///
    /// # Errors
    /// As [`rights`](Self::rights).
    pub(crate) fn rights_of(
        &self,
        token: Option<&str>,
        client: IpAddr,
        protocol: &str,
    ) -> Result<Rights, Denied> {
        let rights = self.auth.as_ref().map_or_else(|| Ok(Rights::all()), |auth| auth.rights_of(token));
        rights.map(|rights| rights.of_client(client)).inspect_err(|denied| {
            self.rejections.note(Reason::Token, &Source::connection(client, protocol), &denied.problem);
        })
    }
}

/// The current policy.
#[derive(Clone)]
pub(crate) struct Live(Arc<RwLock<Arc<Policy>>>);

impl Live {
    pub(crate) fn new(policy: Policy) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(policy))))
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the policy. Open connections retain their rights.
    pub(crate) fn replace(&self, policy: Policy) {
        // Counters continue.
        let rejections = Arc::clone(&self.policy().rejections);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(Policy { rejections, ..policy });
    }
}
