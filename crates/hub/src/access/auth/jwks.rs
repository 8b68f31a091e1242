//! Keys of issuers, fetched from their URLs (JWKS, RFC 7517) and cached.
//!
//! One task for each URL fetches its keys: at the start, at an interval, and soon after a token with an unknown `kid`.
//! So there is at most one request at a time for each URL, and a minimum interval between two. The URLs are from the
//! options: a token only selects one by its issuer.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Method;
use parking_lot::{Mutex, MutexGuard, RwLock};
use tokio::sync::Notify;
use tokio::time::{sleep_until, timeout_at};

use crate::access::auth::claimed_names::ClaimedNames;
use crate::access::auth::fault::TokenFault;
use crate::access::auth::jwks_options::{JwksOptions, JwksUrl};
use crate::access::auth::keys::{KeySet, VerifyingKey, public_key_set};
use crate::background::Background;
use crate::error::{HubError, HubErrorKind};
use crate::model::brief::brief;
use crate::outgoing::http::HttpClient;
use crate::outgoing::options::HookUrl;

/// Time for an answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(5);

/// Minimum interval between two requests for an issuer's keys, whatever tokens arrive.
const INTERVAL_MIN: Duration = Duration::from_secs(5);

/// Delay after the first failure in a row, doubled with each further one.
const RETRY_MIN: Duration = Duration::from_millis(500);

/// Maximum delay after failures, unless the refresh interval is shorter.
const RETRY_MAX: Duration = Duration::from_secs(60);

/// Age from which keys are not used any more, if the issuer cannot be reached: a day, in which its operators notice.
const KEYS_AGE_MAX: Duration = Duration::from_secs(86_400);

/// Maximum unknown key ids that are remembered for an issuer.
const UNKNOWN_MAX: usize = 64;

/// Time for which an unknown id is remembered; then it is looked up again.
const UNKNOWN_TIME: Duration = Duration::from_secs(60);

/// Maximum length, in bytes, of a key id that is looked up.
const KEY_ID_MAX: usize = 256;

/// The keys of all issuers.
#[derive(Default)]
pub(crate) struct IssuerKeys {
    options: JwksOptions,
    sources: Vec<Arc<IssuerKeySource>>,
}

impl fmt::Debug for IssuerKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuerKeys").field("options", &self.options).finish_non_exhaustive()
    }
}

/// The keys of one issuer.
struct IssuerKeySource {
    /// `None`: all issuers.
    issuer: Option<String>,
    /// The URL for the log: the query may have a secret.
    shown_url: String,
    client: HttpClient,
    refresh: Duration,
    keys: RwLock<Option<FetchedKeys>>,
    state: Mutex<SourceState>,
    /// A token has an unknown key, or the source is not used any more.
    wanted: Notify,
    is_stopped: AtomicBool,
    fetched: AtomicU64,
    failed: AtomicU64,
}

#[derive(Clone)]
struct FetchedKeys {
    keys: Arc<[VerifyingKey]>,
    /// When the request for them began.
    at: Instant,
}

#[derive(Default)]
struct SourceState {
    /// Unknown key ids, and when they were first requested.
    unknown: HashMap<String, Instant>,
    /// Why the last request has failed.
    fault: Option<String>,
    /// Why members of the last set are not used.
    skipped: Option<String>,
}

impl IssuerKeys {
    /// Prepares the requests.
    ///
    /// # Errors
    /// The invalid option.
    pub(super) fn new(options: &JwksOptions) -> Result<Self, HubError> {
        options.check()?;
        let mut sources = Vec::with_capacity(options.urls.len());
        for JwksUrl { issuer, url } in &options.urls {
            let parsed = HookUrl::parse("the URL of a key set", url)?;
            sources.push(Arc::new(IssuerKeySource {
                issuer: issuer.clone(),
                shown_url: url.split('?').next().unwrap_or_default().to_owned(),
                client: HttpClient::trusting(parsed, options.roots.as_deref())?,
                refresh: options.refresh,
                keys: RwLock::default(),
                state: Mutex::default(),
                wanted: Notify::new(),
                is_stopped: AtomicBool::new(false),
                fetched: AtomicU64::new(0),
                failed: AtomicU64::new(0),
            }));
        }
        Ok(Self { options: options.clone(), sources })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sources.is_empty()
    }

    /// Returns whether these keys have the same URLs.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.options == other.options
    }

    /// Starts the tasks that fetch the keys.
    ///
    /// # Errors
    /// The task thread cannot be started.
    pub(super) fn start(&self, background: &Background) -> Result<(), HubError> {
        for url in self.options.urls.iter().map(|url| &*url.url).filter(|url| url.starts_with("http:")) {
            let url = url.split('?').next().unwrap_or_default();
            tracing::warn!(
                url,
                "the keys of tokens are fetched without TLS: the network between must be trusted"
            );
        }
        let fault = |error| HubError::caused(HubErrorKind::System, error).at("thread of key sets");
        self.sources.iter().try_for_each(|source| {
            background.spawn("key-sets", fetch_all(Arc::clone(source))).map(drop).map_err(fault)
        })
    }

    /// Returns the keys for a token with this issuer and key id, and the issuer that it must have.
    ///
    /// # Errors
    /// The issuer is unknown, or its keys are not there yet.
    pub(super) fn keys_for(
        &self,
        issuer: impl FnOnce() -> Option<String>,
        id: Option<&str>,
    ) -> Result<(Arc<[VerifyingKey]>, Option<&str>), TokenFault> {
        let source = match &self.sources[..] {
            [source] if source.issuer.is_none() => source,
            sources => {
                let issuer = issuer().ok_or_else(|| TokenFault::invalid("the token has no iss"))?;
                let known = sources.iter().find(|source| source.issuer.as_ref() == Some(&issuer));
                known.ok_or_else(|| {
                    let accepted =
                        sources.iter().filter_map(|source| source.issuer.clone()).collect::<Vec<_>>();
                    let claimed = ClaimedNames { iss: Some(issuer.into()), aud: None };
                    TokenFault::invalid(claimed.describe_issuer("auth.jwks_url", &accepted))
                })?
            }
        };
        Ok((source.keys_with(id, Instant::now())?, source.issuer.as_deref()))
    }

    /// Returns each issuer's numbers: its name, successful and failed requests, keys, and their age in seconds.
    pub(crate) fn report(&self) -> impl Iterator<Item = KeyReport<'_>> {
        self.sources.iter().map(|source| {
            let keys = source.current();
            KeyReport {
                issuer: source.issuer.as_deref().unwrap_or("any"),
                fetched: source.fetched.load(Ordering::Relaxed),
                failed: source.failed.load(Ordering::Relaxed),
                keys: keys.as_ref().map_or(0, |fetched| fetched.keys.len()),
                age: keys.map(|fetched| fetched.at.elapsed()),
            }
        })
    }
}

/// Numbers about an issuer's keys.
pub(crate) struct KeyReport<'a> {
    pub(crate) issuer: &'a str,
    pub(crate) fetched: u64,
    pub(crate) failed: u64,
    pub(crate) keys: usize,
    pub(crate) age: Option<Duration>,
}

impl Drop for IssuerKeys {
    fn drop(&mut self) {
        for source in &self.sources {
            source.is_stopped.store(true, Ordering::Release);
            source.wanted.notify_one();
        }
    }
}

impl IssuerKeySource {
    /// The keys that are not too old.
    fn current(&self) -> Option<FetchedKeys> {
        let keys = self.keys.read();
        keys.clone().filter(|fetched| fetched.at.elapsed() < KEYS_AGE_MAX)
    }

    /// Returns the keys, if one may have this id.
    fn keys_with(&self, id: Option<&str>, now: Instant) -> Result<Arc<[VerifyingKey]>, TokenFault> {
        let Some(FetchedKeys { keys, at }) = self.current() else {
            let reason = self.lock().fault.clone().map_or_else(String::new, |fault| format!(": {fault}"));
            return Err(TokenFault::temporary(format!("the keys of the issuer are not there yet{reason}")));
        };
        let Some(id) = id.filter(|id| keys.iter().all(|key| key.id.as_deref().is_some_and(|key| key != *id)))
        else {
            return Ok(keys);
        };
        let unknown = || TokenFault::invalid(format!("the issuer has no key with kid {:?}", brief(id)));
        if id.len() > KEY_ID_MAX {
            return Err(unknown());
        }
        let mut state = self.lock();
        state.unknown.retain(|_, since| now.saturating_duration_since(*since) < UNKNOWN_TIME);
        match state.unknown.get(id) {
            // The keys were fetched since.
            Some(since) if *since < at => return Err(unknown()),
            Some(_) => {}
            // Anybody can send tokens with unknown ids: a key that has just been added must not fail for them.
            None if state.unknown.len() >= UNKNOWN_MAX => {}
            None => drop(state.unknown.insert(id.to_owned(), now)),
        }
        drop(state);
        self.wanted.notify_one();
        Err(TokenFault::temporary(format!("kid {:?} is unknown; the keys are fetched again", brief(id))))
    }

    /// Fetches the keys once. Returns whether it has succeeded.
    async fn fetch(&self) -> bool {
        let at = Instant::now();
        let url = &*self.shown_url;
        match self.request().await {
            Ok(KeySet { keys, skipped }) => {
                let count = keys.len();
                let former = std::mem::replace(&mut self.lock().skipped, skipped.clone());
                if let Some(skipped) = skipped.filter(|skipped| former.as_ref() != Some(skipped)) {
                    tracing::warn!(url, "members of the key set are not used: {skipped}");
                }
                let fetched = FetchedKeys { keys: keys.into(), at };
                let former = self.keys.write().replace(fetched);
                self.fetched.fetch_add(1, Ordering::Relaxed);
                let had_failed = self.lock().fault.take().is_some();
                if had_failed || former.is_none() {
                    tracing::info!(url, count, "the keys of an issuer have been fetched");
                }
                true
            }
            Err(fault) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                let is_first = self.lock().fault.replace(fault.clone()).is_none();
                if is_first {
                    tracing::warn!(
                        url,
                        "the keys of an issuer cannot be fetched, and are requested again: {fault}"
                    );
                }
                false
            }
        }
    }

    async fn request(&self) -> Result<KeySet, String> {
        match self.client.send_within(FETCH_TIMEOUT, Method::GET, Bytes::new(), |builder| builder).await {
            Ok((200, body)) => public_key_set(&body),
            Ok((status @ 300..400, _)) => Err(format!("status {status}: redirects are not followed")),
            Ok((status, _)) => Err(format!("status {status}")),
            Err(error) => Err(error.text),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SourceState> {
        self.state.lock()
    }
}

/// Fetches an issuer's keys until they are not used any more.
async fn fetch_all(source: Arc<IssuerKeySource>) {
    let mut failures = 0;
    while !source.is_stopped.load(Ordering::Acquire) {
        let begin = Instant::now();
        if source.fetch().await {
            failures = 0;
            // Tokens with unknown keys bring the next request forward, but not below the minimum.
            let _ = timeout_at((begin + source.refresh).into(), source.wanted.notified()).await;
            let earliest = begin + INTERVAL_MIN.min(source.refresh);
            if !source.is_stopped.load(Ordering::Acquire) {
                sleep_until(earliest.into()).await;
            }
        } else {
            let delay = RETRY_MIN.saturating_mul(1 << failures.min(16)).min(RETRY_MAX);
            failures += 1;
            let end = Instant::now() + delay;
            loop {
                // Tokens wake the task, too: the delay goes on.
                let woken = timeout_at(end.into(), source.wanted.notified()).await;
                if woken.is_err() || source.is_stopped.load(Ordering::Acquire) {
                    break;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outgoing::dial::answer_behind_silent_address;

    /// A public key (RFC 8037 appendix A.2).
    const KEYS: &str =
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

    /// A name with several addresses, whose first one never answers.
    #[test]
    fn silent_address_of_the_name_does_not_delay_a_key_set_to_its_timeout() {
        let (_silent, answering) = answer_behind_silent_address("keys.invalid:80", KEYS);
        let keys = IssuerKeys::new(&JwksOptions::new().with_url("http://keys.invalid/")).unwrap();
        let [source] = &keys.sources[..] else { panic!("one URL") };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(source.fetch()), "{:?}", source.lock().fault);
        drop((runtime, keys));
        answering.join().unwrap();
    }
}
