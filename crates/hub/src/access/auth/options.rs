//! Authorization options.

use std::fmt;
use std::time::Duration;

use crate::access::auth::keys::TokenKeys;
use crate::error::HubError;

/// Tolerance for clocks that differ between the issuer of tokens and this server.
const LEEWAY: Duration = Duration::from_secs(30);

/// Authorization options: the keys that verify tokens, and the rights of clients without a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthOptions {
    pub(super) keys: Option<TokenKeys>,
    pub(super) audience: Option<Vec<String>>,
    pub(super) issuer: Option<Vec<String>>,
    pub(super) leeway: Duration,
    pub(super) public_subscribe: Vec<String>,
    pub(super) public_publish: Vec<String>,
    pub(super) personal_topics: Vec<String>,
}

impl AuthOptions {
    /// No keys: every client may publish and subscribe to all topics.
    #[must_use]
    pub fn new() -> Self {
        Self {
            keys: None,
            audience: None,
            issuer: None,
            leeway: LEEWAY,
            public_subscribe: Vec::new(),
            public_publish: Vec::new(),
            personal_topics: Vec::new(),
        }
    }

    /// Sets the keys that verify tokens. Clients then have the rights that their token grants.
    #[must_use]
    pub fn with_keys(mut self, keys: TokenKeys) -> Self {
        self.keys = Some(keys);
        self
    }

    /// Sets the accepted audiences: a token must name one (claim `aud`). Default: the claim is not checked.
    #[must_use]
    pub fn with_audience(mut self, audience: impl IntoIterator<Item = String>) -> Self {
        self.audience = Some(audience.into_iter().collect());
        self
    }

    /// Sets the accepted issuers: a token must name one (claim `iss`). Default: the claim is not checked.
    #[must_use]
    pub fn with_issuer(mut self, issuer: impl IntoIterator<Item = String>) -> Self {
        self.issuer = Some(issuer.into_iter().collect());
        self
    }

    /// Sets the tolerance for token times. Default: 30 s, for clocks that are not synchronized exactly.
    #[must_use]
    pub fn with_leeway(mut self, leeway: Duration) -> Self {
        self.leeway = leeway;
        self
    }

    /// Sets the topics and patterns to which clients may subscribe without a token. Default: none.
    #[must_use]
    pub fn with_public_subscribe(mut self, patterns: impl IntoIterator<Item = String>) -> Self {
        self.public_subscribe = patterns.into_iter().collect();
        self
    }

    /// Sets the topics and patterns to which clients may publish without a token. Default: none.
    #[must_use]
    pub fn with_public_publish(mut self, patterns: impl IntoIterator<Item = String>) -> Self {
        self.public_publish = patterns.into_iter().collect();
        self
    }

    /// Sets topics for each user, at most 64: the server subscribes a user's clients to them, whatever their rights.
    /// `{sub}` stands for the token's `sub`, as in `personal.{sub}`. Default: none.
    #[must_use]
    pub fn with_personal_topics(mut self, topics: impl IntoIterator<Item = String>) -> Self {
        self.personal_topics = topics.into_iter().collect();
        self
    }
}

impl Default for AuthOptions {
    fn default() -> Self {
        Self::new()
    }
}

/// An invalid authorization option.
#[derive(Debug)]
#[non_exhaustive]
pub enum AuthError {
    /// The keys cannot be read or used.
    Keys(HubError),
    /// A pattern in [`AuthOptions::with_public_subscribe`] is invalid.
    PublicSubscribe(HubError),
    /// A pattern in [`AuthOptions::with_public_publish`] is invalid.
    PublicPublish(HubError),
    /// A topic in [`AuthOptions::with_personal_topics`] is invalid.
    PersonalTopics(HubError),
}

impl AuthError {
    /// Returns the option's fault.
    fn fault(&self) -> &HubError {
        let (Self::Keys(fault)
        | Self::PublicSubscribe(fault)
        | Self::PublicPublish(fault)
        | Self::PersonalTopics(fault)) = self;
        fault
    }
}

impl fmt::Display for AuthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault().fmt(f)
    }
}

impl std::error::Error for AuthError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.fault().source()
    }
}
