//! Hooks to the application.

use std::fs;
use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;

use clap::ValueEnum;
use sinews_hub::{HookFailure, HookOptions, HookTarget};

use super::ServeSettings;
use crate::config::schema::settings;
use crate::config::units::{PositiveDuration, Redacted};
use crate::config::value::{choice, scalar};

settings! {
    /// Hooks: HTTP requests to the application, which decides about connections, requests, subscriptions and
    /// publications of clients, and answers their calls. Namespaces may have hooks of their own.
    pub(crate) struct HookSettings in "hooks", "Hooks" {
        /// URL that decides about new connections to `/ws` and below `/topics`, and about each request for topics and keys.
        /// Without keys for tokens, clients have only the rights that its answers grant.
        connect: Option<HookUrlSetting> { example: "https://app.example.com/hooks", reloads: true }

        /// URL that extends connections whose token or claims expire.
        refresh: Option<HookUrlSetting> {
            unset: "they are closed with 4401",
            example: "https://app.example.com/hooks",
            reloads: true,
        }

        /// URL that decides about subscriptions.
        subscribe: Option<HookUrlSetting> { example: "https://app.example.com/hooks", reloads: true }

        /// URL that decides about publications and writes of keys, and may change them.
        publish: Option<HookUrlSetting> { example: "https://app.example.com/hooks", reloads: true }

        /// URL that answers calls of clients (`rpc`).
        rpc: Option<HookUrlSetting> { example: "https://app.example.com/rpc", reloads: true }

        /// Secret key that signs requests (HMAC-SHA256, header `Sinews-Signature`). Other users of this machine can read a
        /// command line: prefer {hooks.signing_key_file}.
        signing_key: Option<Redacted> {
            expected: "a string of at least 32 bytes",
            example: "at least 32 random bytes",
            together: SIGNING_KEYS,
            reloads: true,
        }

        /// File with the secret key that signs requests; one line break at its end is ignored.
        signing_key_file: Option<PathBuf> { example: "/etc/sinews/hooks", together: SIGNING_KEYS, reloads: true }

        /// Time for an answer, with the time in the queue and retries; at most 30s.
        timeout: PositiveDuration { default: "5s", reloads: true }

        /// Maximum number of concurrent requests of one hook to one URL; at most 4,096. Calls, for example, have their own:
        /// slow answers to them delay no connection.
        concurrency: NonZeroUsize { default: "64", reloads: true }

        /// Maximum number of queued requests of one hook to one URL. Further requests fail, as do requests with which those
        /// that wait or are in progress would exceed 64 MiB.
        queue: NonZeroUsize { default: "1024", reloads: true }

        /// Decision if the application does not answer: `closed` rejects, `open` accepts as if there were no hook. A status
        /// from 400 to 499, except 408, 425 and 429, is an answer and rejects in both cases. Calls fail in both cases.
        failure: HookFailureSetting { default: "closed", placeholder: "POLICY", reloads: true }

        /// Retries of a failed request within {hooks.timeout}. Requests about publications and calls are repeated only if
        /// the application has not received them.
        retries: u64 { default: "1", reloads: true }

        /// Headers of the client's handshake to forward in requests; at most 32.
        headers: Vec<String> {
            placeholder: "NAME",
            expected: "a header's name such as \"cookie\"",
            reloads: true,
        }

        /// Number of consecutive failures of a URL after which its requests fail at once, for {hooks.circuit_open_time}.
        /// Statuses from 400 to 499 do not count, except 408, 425 and 429; neither does a timeout while the URL answers other
        /// requests.
        circuit_failures: NonZeroU32 { default: "10", reloads: true }

        /// Time for which no request is sent to a URL after {hooks.circuit_failures} failures. One request is tried
        /// afterwards.
        circuit_open_time: PositiveDuration { default: "10s", reloads: true }

        /// Maximum rate of one connection: calls (`rpc`) per second without a topic, or with a topic whose namespace has no
        /// `calls_per_second`, and as many at once after an idle time. Excess is rejected with 429. The plain HTTP
        /// calls of a user share one rate of this size.
        calls_per_second: NonZeroU32 { default: "200", reloads: true }

        /// Maximum rate of one user on this node: the same calls per second over all connections and HTTP requests. A user is
        /// the `sub` of the token, or else the address of the client (of IPv6: its /64).
        user_calls_per_second: NonZeroU32 { default: "1000", reloads: true }

        /// File with the certificates, in PEM, of the authorities that sign the certificates of `https` URLs.
        ca_file: Option<PathBuf> {
            unset: "the certificates that the system trusts",
            example: "/etc/sinews/app-ca.pem",
            reloads: true,
        }
    }
}

const SIGNING_KEYS: &[&str] = &["hooks.signing_key", "hooks.signing_key_file"];

/// An application URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookUrlSetting(pub(crate) String);

/// An application URL, or `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HookUrlOrOff(pub(crate) HookTarget);

impl std::str::FromStr for HookUrlSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let checked = HookOptions::new().with_connect(text).check();
        checked.map(|()| Self(text.to_owned())).map_err(|error| error.to_string())
    }
}

impl std::str::FromStr for HookUrlOrOff {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self(HookTarget::Off)),
            url => url.parse().map(|HookUrlSetting(url)| Self(HookTarget::Url(url))),
        }
    }
}

/// Decision without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum HookFailureSetting {
    Closed,
    Open,
}

choice!(HookFailureSetting);
scalar!(
    secret HookUrlSetting => String, "URL",
    "a string such as \"https://app.example.com/hooks\"",
    |HookUrlSetting(url)| url
);
scalar!(
    secret HookUrlOrOff => HookTarget, "URL",
    "a string such as \"https://app.example.com/hooks\", or \"off\"",
    |HookUrlOrOff(target)| target
);

/// The decision for the hub.
pub(super) fn failure(setting: HookFailureSetting) -> HookFailure {
    match setting {
        HookFailureSetting::Closed => HookFailure::Closed,
        HookFailureSetting::Open => HookFailure::Open,
    }
}

/// Sets a URL.
type UrlSetter = fn(HookOptions, String) -> HookOptions;

impl ServeSettings {
    /// Returns the hub's hook options; reads the files that they name.
    ///
    /// # Errors
    /// The invalid setting, and the reason.
    pub(crate) fn hook_options(&self) -> Result<HookOptions, String> {
        let hooks = &self.hooks;
        let fault = |key, fault: String| format!("{}: {fault}", self.name(key));
        let read = |key, path: &PathBuf| {
            fs::read(path).map_err(|error| fault(key, format!("{}: {error}", path.display())))
        };
        let mut options = HookOptions::new()
            .with_timeout(hooks.timeout)
            .with_concurrency(hooks.concurrency.get())
            .with_queue(hooks.queue.get())
            .with_failure(failure(hooks.failure))
            .with_retries(u32::try_from(hooks.retries).unwrap_or(u32::MAX))
            .with_circuit(hooks.circuit_failures.get(), hooks.circuit_open_time)
            .with_call_rates(hooks.calls_per_second.get(), hooks.user_calls_per_second.get());
        for (url, with) in [
            (&hooks.connect, HookOptions::with_connect as UrlSetter),
            (&hooks.refresh, HookOptions::with_refresh as UrlSetter),
            (&hooks.subscribe, HookOptions::with_subscribe as UrlSetter),
            (&hooks.publish, HookOptions::with_publish as UrlSetter),
            (&hooks.rpc, HookOptions::with_rpc as UrlSetter),
        ] {
            if let Some(url) = url {
                options = with(options, url.clone());
            }
        }
        let headers = hooks.headers.iter().map(String::as_str);
        options = options.with_headers(headers).map_err(|error| fault("hooks.headers", error.to_string()))?;
        if let Some(path) = &hooks.ca_file {
            let trusted = options.with_trusted_certificates(&read("hooks.ca_file", path)?);
            options =
                trusted.map_err(|error| fault("hooks.ca_file", format!("{}: {error}", path.display())))?;
        }
        options.check().map_err(|error| fault("hooks", error.to_string()))?;
        let (key, secret) = match (&hooks.signing_key, &hooks.signing_key_file) {
            (Some(_), Some(_)) => {
                let given: Vec<&str> = SIGNING_KEYS.iter().map(|key| self.name(key)).collect();
                let given = given.join(", ");
                return Err(format!("{given}: only one of these may be set"));
            }
            (Some(Redacted(key)), None) => ("hooks.signing_key", key.clone().into_bytes()),
            (None, Some(path)) => {
                let mut secret = read("hooks.signing_key_file", path)?;
                for end in [b'\n', b'\r'] {
                    secret.pop_if(|byte| *byte == end);
                }
                ("hooks.signing_key_file", secret)
            }
            (None, None) => return Ok(options),
        };
        let options = options.with_signing_key(secret);
        options.check().map_err(|error| fault(key, error.to_string()))?;
        Ok(options)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;

    #[test]
    fn invalid_hooks_are_reported_with_their_source() {
        for (file, expected) in [
            ("[hooks]\nconnect = \"app\"", "sinews.toml:2: hooks.connect must be a string such as"),
            (
                "[hooks]\npublish = \"http://u:p@app/\"",
                "sinews.toml:2: hooks.publish must be a string such as",
            ),
            (
                "[namespace.a]\nrpc_hook = \"on\"",
                "sinews.toml:2: namespace.\"a\".rpc_hook must be a string such as",
            ),
        ] {
            let error = settings(&[], file).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        for (file, expected) in [
            (
                "[hooks]\nsigning_key = \"short\"",
                "sinews.toml:2: hooks.signing_key: the signing key of 5 bytes is too short",
            ),
            (
                "[hooks]\nsigning_key_file = \"/nowhere/a\"",
                "sinews.toml:2: hooks.signing_key_file: /nowhere/a: ",
            ),
            ("[hooks]\nca_file = \"/nowhere/a\"", "sinews.toml:2: hooks.ca_file: /nowhere/a: "),
            (
                "[hooks]\nheaders = \"host\"",
                "sinews.toml:2: hooks.headers: host is a header of the request itself",
            ),
            ("[hooks]\ntimeout = \"31s\"", "hooks: timeout must be"),
            (
                "[hooks]\nsigning_key = \"a\"\nsigning_key_file = \"b\"",
                "sinews.toml:2: hooks.signing_key, sinews.toml:3: hooks",
            ),
        ] {
            let error = settings(&[], file).unwrap().hook_options().unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
        let shown = format!("{:?}", settings(&[], "[hooks]\nsigning_key = \"not shown\"").unwrap());
        assert!(!shown.contains("not shown"), "secrets are not shown");
    }
}
