//! Authorization.

use std::error::Error;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use sinews_hub::auth::JwksOptions;

use crate::config::resolver::{SettingGroup, SettingResolver};
use crate::config::schema::settings;
use crate::config::units::{DurationSetting, PositiveDuration, Redacted};
use crate::config::value::scalar;

settings! {
    /// Authorization. Without a key, all clients may publish and subscribe: suitable only for local use.
    pub(crate) struct AuthKeys in "auth", "Authorization" {
        /// Secret of HMAC tokens (HS256, HS384, HS512), used literally: at least 32 bytes for HS256, 48 for HS384, 64
        /// for HS512. At most one of {auth.secret}, {auth.secret_file}, {auth.public_key_file}, {auth.jwks_file} and
        /// {auth.jwks_url} may be set. Other users of this machine can read a command line: prefer {auth.secret_file}.
        secret: Option<Redacted> {
            expected: "a string of at least 32 bytes",
            example: "at least 32 random bytes",
            together: KEY_SOURCES,
            reloads: true,
        }

        /// File with the secret of HMAC tokens (HS256, HS384, HS512); `openssl rand -hex 32` makes a secret. A line
        /// break at the end of the file is not part of the secret; tokens signed with it are accepted, too, since other
        /// programs sign with all bytes of the file.
        secret_file: Option<PathBuf> { example: "/etc/sinews/secret", together: KEY_SOURCES, reloads: true }

        /// File with a public key in PEM: RSA (RS256 to RS512, PS256 to PS512), EC on P-256 (ES256) or P-384 (ES384),
        /// or Ed25519 (EdDSA).
        public_key_file: Option<PathBuf> { example: "/etc/sinews/public.pem", together: KEY_SOURCES, reloads: true }

        /// File with a key set in JSON (JWKS, RFC 7517), as identity providers publish it. Tokens select a key by `kid`.
        jwks_file: Option<PathBuf> { example: "/etc/sinews/jwks.json", together: KEY_SOURCES, reloads: true }

        /// URL of a key set in JSON (JWKS, RFC 7517) with public keys. The keys are cached, and fetched again at an interval
        /// and after a token with an unknown `kid`. For several issuers, `ISSUER=URL` names the issuer (`iss`) of each URL;
        /// tokens of other issuers are rejected.
        jwks_url: Option<Vec<JwksUrlSetting>> {
            placeholder: "[ISSUER=]URL",
            example: "https://login.example.com/.well-known/jwks.json",
            together: KEY_SOURCES,
            reloads: true,
        }

        /// Interval at which the keys of {auth.jwks_url} are fetched, 1s to 12h.
        jwks_refresh: PositiveDuration { default: "5m", reloads: true }

        /// File with the certificates, in PEM, that the `https` URLs of {auth.jwks_url} must be signed by.
        jwks_ca_file: Option<PathBuf> {
            unset: "the certificates that the system trusts",
            example: "/etc/sinews/login-ca.pem",
            reloads: true,
        }

        /// Accepted audiences of tokens (`aud`). Without this setting, tokens with an audience are rejected.
        audience: Option<Vec<String>> { placeholder: "NAME", example: "sinews", reloads: true }

        /// Accepted issuers of tokens (`iss`).
        issuer: Option<Vec<String>> {
            placeholder: "NAME",
            unset: "any issuer",
            example: "https://login.example.com",
            reloads: true,
        }

        /// Tolerated clock difference between issuer and server.
        leeway: DurationSetting { default: "30s", reloads: true }

        /// Topics that all clients may subscribe to without a token, as patterns.
        public_subscribe: Vec<String> {
            placeholder: "PATTERN",
            expected: "a pattern of topics such as \"news.>\"",
            reloads: true,
        }

        /// Topics that all clients may publish to without a token, as patterns.
        public_publish: Vec<String> {
            placeholder: "PATTERN",
            expected: "a pattern of topics such as \"feedback.*\"",
            reloads: true,
        }

        /// Topics to which the server subscribes the clients of each user, whatever their rights, at most 64. The
        /// placeholder, sub in braces, stands for the `sub` of the token; a client whose `sub` is no topic name has none.
        personal_topics: Vec<String> {
            placeholder: "TOPIC",
            expected: "a topic with {sub} such as \"personal.{sub}\"",
            reloads: true,
        }
    }
}

/// A key on the command line replaces all keys in the file.
const KEY_SOURCES: &[&str] =
    &["auth.secret", "auth.secret_file", "auth.public_key_file", "auth.jwks_file", "auth.jwks_url"];

/// The URL of a key set, and its issuer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct JwksUrlSetting {
    pub(crate) issuer: Option<String>,
    pub(crate) url: String,
}

impl std::str::FromStr for JwksUrlSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Issuers and URLs may have the sign, too.
        let at = ["=http://", "=https://"].iter().filter_map(|separator| text.find(separator)).min();
        let (issuer, url) = match at {
            Some(at) => (Some(text[..at].to_owned()), text[at + 1..].to_owned()),
            None => (None, text.to_owned()),
        };
        let options = match &issuer {
            Some(issuer) => JwksOptions::new().with_issuer(issuer, &url),
            None => JwksOptions::new().with_url(&url),
        };
        options.check().map(|()| Self { issuer, url }).map_err(|error| error.to_string())
    }
}

scalar!(
    secret JwksUrlSetting => Self, "URL",
    "a string such as \"https://login.example.com/jwks.json\" or \"ISSUER=https://login.example.com/jwks.json\"",
    |setting| setting
);

impl AuthSettings {
    /// Returns the options for key-set URLs; reads the file that they name.
    ///
    /// # Errors
    /// The invalid key's name, and the reason.
    pub(crate) fn jwks_options(
        &self,
        urls: &[JwksUrlSetting],
    ) -> Result<JwksOptions, (&'static str, String)> {
        let mut options = JwksOptions::new().with_refresh(self.jwks_refresh);
        for JwksUrlSetting { issuer, url } in urls {
            options = match issuer {
                Some(issuer) => options.with_issuer(issuer, url),
                None => options.with_url(url),
            };
        }
        if let Some(path) = &self.jwks_ca_file {
            let fault = |why: &dyn Error| ("auth.jwks_ca_file", format!("{}: {why}", path.display()));
            let pem = fs::read(path).map_err(|error| fault(&error))?;
            options = options.with_trusted_certificates(&pem).map_err(|error| fault(&error))?;
        }
        options.check().map_err(|error| ("auth.jwks_url", error.to_string()))?;
        Ok(options)
    }
}

/// Authorization settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthSettings {
    pub(crate) keys: KeySource,
    pub(crate) jwks_refresh: Duration,
    pub(crate) jwks_ca_file: Option<PathBuf>,
    pub(crate) audience: Option<Vec<String>>,
    pub(crate) issuer: Option<Vec<String>>,
    pub(crate) leeway: Duration,
    pub(crate) public_subscribe: Vec<String>,
    pub(crate) public_publish: Vec<String>,
    pub(crate) personal_topics: Vec<String>,
}

/// Where the keys for checking tokens come from.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// No tokens: all clients may publish and subscribe.
    None,
    Secret(String),
    SecretFile(PathBuf),
    PublicKeyFile(PathBuf),
    JwksFile(PathBuf),
    JwksUrls(Vec<JwksUrlSetting>),
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Settings may be logged; secrets must not.
        match self {
            Self::None => f.write_str("None"),
            Self::Secret(_) => f.write_str("Secret"),
            Self::SecretFile(path) | Self::PublicKeyFile(path) | Self::JwksFile(path) => path.fmt(f),
            Self::JwksUrls(urls) => urls.fmt(f),
        }
    }
}

impl SettingGroup for AuthSettings {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        let keys = AuthKeys::resolve(resolver)?;
        let sources = [
            keys.secret.map(|Redacted(secret)| KeySource::Secret(secret)),
            keys.secret_file.map(KeySource::SecretFile),
            keys.public_key_file.map(KeySource::PublicKeyFile),
            keys.jwks_file.map(KeySource::JwksFile),
            keys.jwks_url.map(KeySource::JwksUrls),
        ];
        let source = match <[KeySource; 1]>::try_from(sources.into_iter().flatten().collect::<Vec<_>>()) {
            Ok([source]) => source,
            Err(none) if none.is_empty() => KeySource::None,
            Err(several) => {
                let names: Vec<&str> =
                    several.iter().map(|source| resolver.names.resolve(source.key())).collect();
                return Err(format!("{}: only one of these may be set", names.join(", ")));
            }
        };
        Ok(Self {
            keys: source,
            jwks_refresh: keys.jwks_refresh,
            jwks_ca_file: keys.jwks_ca_file,
            audience: keys.audience,
            issuer: keys.issuer,
            leeway: keys.leeway,
            public_subscribe: keys.public_subscribe,
            public_publish: keys.public_publish,
            personal_topics: keys.personal_topics,
        })
    }

    /// Every key takes effect on reload.
    fn list_restarts(&self, _: &Self, _: &mut Vec<&'static str>) {}
}

impl KeySource {
    /// Returns the key setting's name in the file.
    pub(crate) fn key(&self) -> &'static str {
        match self {
            Self::None => "auth",
            Self::Secret(_) => "auth.secret",
            Self::SecretFile(_) => "auth.secret_file",
            Self::PublicKeyFile(_) => "auth.public_key_file",
            Self::JwksFile(_) => "auth.jwks_file",
            Self::JwksUrls(_) => "auth.jwks_url",
        }
    }
}
