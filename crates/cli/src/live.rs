//! What can change while the server runs: from where, and by whom it may be used.

use std::sync::{Arc, PoisonError, RwLock};

use sinews_server::{OriginPolicy, Request};

use crate::auth::{Auth, Denied, Rights};
use crate::settings::Settings;

/// What holds for new connections and requests.
pub(crate) struct Policy {
    pub(crate) origin: OriginPolicy,
    auth: Option<Auth>,
}

impl Policy {
    /// Reads the keys that the settings name.
    ///
    /// # Errors
    /// Which setting is wrong, and why.
    pub(crate) fn new(settings: &Settings) -> Result<Self, String> {
        let named = |(key, problem)| format!("{}: {problem}", settings.name(key));
        Ok(Self { origin: settings.origin_policy()?, auth: Auth::new(&settings.auth).map_err(named)? })
    }

    /// Whether tokens are asked for.
    pub(crate) fn has_auth(&self) -> bool {
        self.auth.is_some()
    }

    /// What the sender of a request may do.
    ///
    /// # Errors
    /// [`Denied`] if it has a token that is none, or is over.
    pub(crate) fn rights(&self, request: &Request<'_>) -> Result<Rights, Denied> {
        let rights = self.auth.as_ref().map_or_else(|| Ok(Rights::all()), |auth| auth.rights(request));
        rights.map(|rights| rights.of_client(request.client()))
    }

    /// What whoever has this token may do, if it is one.
    ///
    /// # Errors
    /// As [`rights`](Self::rights).
    pub(crate) fn rights_of(&self, token: Option<&str>) -> Result<Rights, Denied> {
        self.auth.as_ref().map_or_else(|| Ok(Rights::all()), |auth| auth.rights_of(token))
    }
}

/// The policy of the moment.
#[derive(Clone)]
pub(crate) struct Live(Arc<RwLock<Arc<Policy>>>);

impl Live {
    pub(crate) fn new(policy: Policy) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(policy))))
    }

    pub(crate) fn policy(&self) -> Arc<Policy> {
        Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Connections that are open keep what they were given.
    pub(crate) fn replace(&self, policy: Policy) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(policy);
    }
}
