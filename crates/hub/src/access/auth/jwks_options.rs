//! Options for key sets that are fetched from URLs.

use std::time::Duration;

use rustls::pki_types::CertificateDer;

use crate::error::HubError;
use crate::outgoing::http::trusted_certificates;
use crate::outgoing::options::HookUrl;

/// Maximum issuers: each has a task, and is a metrics label.
const ISSUERS_MAX: usize = 16;

/// Minimum refresh interval.
const REFRESH_MIN: Duration = Duration::from_secs(1);

/// Maximum refresh interval: keys are used for a day.
const REFRESH_MAX: Duration = Duration::from_secs(43_200);

/// Key set URLs (JWKS, RFC 7517) of token issuers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JwksOptions {
    pub(super) urls: Vec<JwksUrl>,
    pub(super) refresh: Duration,
    pub(super) roots: Option<Vec<CertificateDer<'static>>>,
}

/// The URL of a key set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JwksUrl {
    /// `None`: all issuers.
    pub(super) issuer: Option<String>,
    pub(super) url: String,
}

impl Default for JwksOptions {
    fn default() -> Self {
        Self { urls: Vec::new(), refresh: Duration::from_secs(300), roots: None }
    }
}

impl JwksOptions {
    /// No URL.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the URL of the key set for all tokens.
    #[must_use]
    pub fn with_url(mut self, url: impl Into<String>) -> Self {
        self.urls.push(JwksUrl { issuer: None, url: url.into() });
        self
    }

    /// Adds the key set URL for one issuer's tokens (claim `iss`); at most 16. Tokens from other issuers are rejected.
    #[must_use]
    pub fn with_issuer(mut self, issuer: impl Into<String>, url: impl Into<String>) -> Self {
        self.urls.push(JwksUrl { issuer: Some(issuer.into()), url: url.into() });
        self
    }

    /// Sets the interval at which the keys are fetched, 1 s to 12 h. Default: 5 minutes; issuers publish a key longer
    /// before they sign with it.
    #[must_use]
    pub fn with_refresh(mut self, interval: Duration) -> Self {
        self.refresh = interval;
        self
    }

    /// Trusts only these certificates, in PEM, for `https` URLs. Default: the certificates that the system trusts.
    ///
    /// # Errors
    /// [`HubErrorKind::Certificates`](crate::HubErrorKind::Certificates): the text has no certificate, or an invalid
    /// one.
    pub fn with_trusted_certificates(mut self, pem: &[u8]) -> Result<Self, HubError> {
        self.roots = Some(trusted_certificates(pem)?);
        Ok(self)
    }

    /// Returns whether issuers have their own URLs.
    pub(super) fn names_issuers(&self) -> bool {
        self.urls.iter().any(|url| url.issuer.is_some())
    }

    /// Checks the options.
    ///
    /// # Errors
    /// [`HubErrorKind::Url`](crate::HubErrorKind::Url): an invalid URL, which the error does not repeat.
    /// [`HubErrorKind::Setting`](crate::HubErrorKind::Setting): another invalid option, and its limit.
    pub fn check(&self) -> Result<(), HubError> {
        let invalid = |text: String| Err(HubError::setting(text));
        if self.urls.len() > ISSUERS_MAX {
            return invalid(format!("{} key sets exceed the limit of {ISSUERS_MAX}", self.urls.len()));
        }
        for (index, JwksUrl { issuer, url }) in self.urls.iter().enumerate() {
            HookUrl::parse("the URL of a key set", url)?;
            match issuer {
                None if self.urls.len() > 1 => {
                    return invalid("of several URLs, each needs its issuer: ISSUER=URL".to_owned());
                }
                Some(issuer) if issuer.is_empty() => return invalid("an issuer has no name".to_owned()),
                Some(issuer) if issuer.trim() != issuer => {
                    return invalid(format!(
                        "the issuer {issuer:?} has blanks around it: no token has such a name"
                    ));
                }
                Some(issuer) if self.urls[..index].iter().any(|url| url.issuer.as_ref() == Some(issuer)) => {
                    return invalid(format!("the issuer {issuer:?} has two URLs"));
                }
                _ => {}
            }
        }
        if self.refresh < REFRESH_MIN || self.refresh > REFRESH_MAX {
            return invalid(format!(
                "the refresh of {:?} must be from {REFRESH_MIN:?} to {REFRESH_MAX:?}",
                self.refresh
            ));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_reported() {
        let options = JwksOptions::new;
        let many = (0..17).fold(options(), |all, number| all.with_issuer(number.to_string(), "http://a/"));
        for (bad, expected) in [
            (options().with_url("ftp://a/"), "the URL of a key set must begin with"),
            (options().with_url("https://a/").with_issuer("b", "https://b/"), "of several URLs, each needs"),
            (options().with_issuer("", "https://a/"), "an issuer has no name"),
            (
                options().with_issuer("a", "https://a/").with_issuer("a", "https://b/"),
                "the issuer \"a\" has two",
            ),
            (many, "17 key sets exceed the limit of 16"),
            (options().with_refresh(Duration::ZERO), "the refresh of 0ns must be"),
        ] {
            let error = bad.check().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        let two = options().with_issuer("a", "https://a/").with_issuer("b", "https://b/");
        assert!(two.check().is_ok() && two.names_issuers());
    }
}
