//! The configuration: allowed hosts and origins, and tokens. It can change while the server runs.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;
use serde_json::{Map, Value};
use sinews_server::{
    CloseCode, Cors, Handler, KeyWrite, LogLimit, OriginPolicy, PresenceInterval, Refusal, Request, Response,
};

use crate::access::auth::{
    ApiCredential, ApiKeys, ApiRights, Auth, Denied, IssuerKeys, Revocations, Rights, RightsChange,
};
use crate::access::hosts::HostRules;
use crate::access::namespaces::{LiveNamespaces, NamespaceTable, Namespaces};
use crate::access::topic_description::describe_access;
use crate::admission::{HandshakeRejection, RejectedRequest, RejectionLog, RejectionReason, is_script};
#[cfg(feature = "pusher")]
use crate::apps::app::PusherApps;
#[cfg(feature = "pusher")]
use crate::apps::live::LiveApps;
use crate::background::Background;
use crate::closing::{EXPIRED, TOKEN_EXPIRED};
use crate::connections::REVOKED;
use crate::error::HubError;
use crate::hooks::UNANSWERED;
use crate::hooks::{HookClient, HookCollector, HookMetrics};
use crate::http::failure;
use crate::model::problem::Problem;
use crate::outgoing::options::HookOptions;
use crate::webhooks::{self, WebhookOptions, WebhookTarget, Webhooks};

/// The configuration for new connections and requests: this server's names, page origins, and tokens.
pub struct HubConfig {
    origin: OriginPolicy,
    /// The rules for plain requests from pages of the allowed origins.
    cors: Cors,
    hosts: HostRules,
    auth: Auth,
    /// `None`: the HTTP API is disabled.
    api_keys: Option<ApiKeys>,
    browser_rejection: BrowserRejection,
    namespaces: Namespaces,
    hook_options: HookOptions,
    #[cfg(feature = "pusher")]
    apps: PusherApps,
    #[cfg(feature = "pusher")]
    live_apps: Arc<LiveApps>,
    live_namespaces: Arc<LiveNamespaces>,
    /// Set when the configuration comes into force, if there are hooks.
    hooks: Option<Arc<HookClient>>,
    hook_metrics: Arc<HookMetrics>,
    webhook_options: Vec<WebhookOptions>,
    webhooks: Arc<Webhooks>,
    rejections: Arc<RejectionLog>,
    revocations: Arc<Revocations>,
    /// The hub's tasks.
    background: Background,
}

/// Time for which a browser caches the answer to a preflight. A change to the allowed origins takes effect then at the
/// latest.
const PREFLIGHT_MAX_AGE: Duration = Duration::from_secs(600);

/// The rules for plain requests from pages of these origins. All request headers are allowed: hooks may forward them.
fn cors_of(origin: OriginPolicy) -> Cors {
    Cors::new(origin)
        .with_methods(["GET", "HEAD", "POST", "PUT", "DELETE"])
        .with_exposed_headers(["ETag", "Retry-After", "WWW-Authenticate"])
        .with_max_age(PREFLIGHT_MAX_AGE)
}

/// The rejection of a WebSocket whose client is a browser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BrowserRejection {
    /// Accept the WebSocket and close it with 4000 plus the status. A page can read this code, and no status.
    #[default]
    Close,
    /// Answer the handshake with the status.
    Status,
}

/// Why an application's claims grant nothing.
#[derive(Debug)]
pub(crate) enum RejectedClaims {
    /// Their fault.
    Invalid(String),
    /// Their `exp` is in the past.
    Expired,
    /// A revocation applies to them, as to a token with these claims.
    Revoked(Denied),
}

impl fmt::Display for RejectedClaims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid(problem) => problem,
            Self::Expired => "exp is in the past",
            Self::Revoked(denied) => &denied.problem,
        })
    }
}

/// Limit for the log lines about rights that the application or the backend sends, and that are invalid here.
static RIGHTS_LINES: LogLimit = LogLimit::new();

/// Logs the fault of a hook's claims, or of the backend's rights: this node may differ from the one that has checked
/// them.
pub(crate) fn log_rights(source: &str, fault: &str) {
    if let Some(omitted) = RIGHTS_LINES.permit(Instant::now()) {
        tracing::warn!(omitted, "{source}: {fault}");
    }
}

impl RejectedClaims {
    /// The close code and the reason for a connection whose application has answered with these claims.
    pub(crate) fn into_close(self) -> (CloseCode, &'static str) {
        match self {
            Self::Invalid(problem) => {
                log_rights("claims of a hook", &problem);
                (CloseCode::TRY_AGAIN_LATER, UNANSWERED)
            }
            Self::Expired => (TOKEN_EXPIRED, EXPIRED),
            Self::Revoked(_) => (TOKEN_EXPIRED, REVOKED),
        }
    }
}

impl HubConfig {
    /// Creates a configuration. Pages of the same origin may connect, and all hosts that the rules accept are this
    /// server's names.
    #[must_use]
    pub fn new(auth: Auth, hosts: HostRules) -> Self {
        Self {
            origin: OriginPolicy::same_origin(),
            cors: cors_of(OriginPolicy::same_origin()),
            hosts,
            auth,
            api_keys: None,
            browser_rejection: BrowserRejection::default(),
            namespaces: Namespaces::default(),
            hook_options: HookOptions::new(),
            #[cfg(feature = "pusher")]
            apps: PusherApps::default(),
            #[cfg(feature = "pusher")]
            live_apps: Arc::default(),
            live_namespaces: Arc::default(),
            hooks: None,
            hook_metrics: Arc::default(),
            webhook_options: Vec::new(),
            webhooks: Arc::default(),
            rejections: Arc::default(),
            revocations: Arc::default(),
            background: Background::default(),
        }
    }

    /// Sets the origins whose pages may connect, and read answers to plain requests. Default: the same origin.
    #[must_use]
    pub fn with_origin(mut self, origin: OriginPolicy) -> Self {
        self.cors = cors_of(origin.clone());
        self.origin = origin;
        self
    }

    /// Sets how browsers are rejected. Default: a close code, because pages can read it.
    #[must_use]
    pub fn with_browser_rejection(mut self, rejection: BrowserRejection) -> Self {
        self.browser_rejection = rejection;
        self
    }

    /// Sets backends' keys for the HTTP API. Default: none, so that the API rejects all requests.
    #[must_use]
    pub fn with_api_keys(mut self, keys: ApiKeys) -> Self {
        self.api_keys = Some(keys);
        self
    }

    /// Sets topic options by pattern. Histories, durability and slow-consumer policies take effect when the hub is
    /// built; all connections follow the other options from the time when the configuration is in force. Default: none.
    #[must_use]
    pub fn with_namespaces(mut self, namespaces: Namespaces) -> Self {
        self.namespaces = namespaces;
        self
    }

    /// Sets the application's hooks. With a connection hook and without keys for tokens, a client has the rights that
    /// the application grants, and no others. Default: none.
    #[must_use]
    pub fn with_hooks(mut self, hooks: HookOptions) -> Self {
        self.hook_options = hooks;
        self
    }

    /// Sets the Pusher apps: `/app/{key}` and `/apps/{id}/…`. Open connections follow their app's options from the time
    /// when the configuration is in force. Default: none, so that these paths are answered with 404.
    #[cfg(feature = "pusher")]
    #[must_use]
    pub fn with_pusher(mut self, apps: PusherApps) -> Self {
        self.apps = apps;
        self
    }

    /// Sets the application's webhooks, at most 64 with different names. Default: none.
    #[cfg(feature = "webhooks")]
    #[must_use]
    pub fn with_webhooks(mut self, webhooks: impl IntoIterator<Item = WebhookOptions>) -> Self {
        self.webhook_options = webhooks.into_iter().collect();
        self
    }

    /// The webhooks, which all of a hub's policies share.
    pub(crate) fn webhooks(&self) -> &Arc<Webhooks> {
        &self.webhooks
    }

    /// The hub's tasks, which all its policies share.
    pub(crate) fn background(&self) -> &Background {
        &self.background
    }

    /// Where events go under this configuration.
    ///
    /// # Errors
    /// The invalid webhook.
    fn webhook_targets(&self) -> Result<Vec<WebhookTarget>, HubError> {
        let targets = webhooks::targets(&self.webhook_options)?;
        #[cfg(feature = "pusher")]
        let targets = targets.into_iter().chain(self.apps.webhook_targets()?).collect();
        Ok(targets)
    }

    /// Prepares the configuration to come into force.
    ///
    /// # Errors
    /// The fault in the hooks, or in the issuers' keys.
    fn start(mut self, former: Option<&Self>) -> Result<Self, HubError> {
        self.auth.start(former.map(|former| &former.auth), &self.background)?;
        let urls: Vec<&str> = self.hook_options.urls().chain(self.namespaces.urls()).collect();
        let has_hooks = !urls.is_empty();
        let metrics = Arc::clone(&self.hook_metrics);
        let start = || HookClient::start(&self.hook_options, urls, metrics, &self.background);
        let hooks = has_hooks.then(start).transpose()?;
        self.hooks = hooks;
        Ok(self)
    }

    /// Adds the limits of a topic's namespace to a write of a key.
    pub(crate) fn limit_key(&self, topic: &str, write: KeyWrite) -> KeyWrite {
        match self.live_namespaces.with(|table| table.options_for(topic)) {
            Some(options) => options.limit_key(write),
            None => write,
        }
    }

    /// The rights to a topic, and its limits, for the HTTP API.
    pub(crate) fn describe_topic(&self, topic: &str) -> Map<String, Value> {
        let described = self.live_namespaces.with(|table| describe_access(Some(table), topic));
        described.unwrap_or_else(|| describe_access(None, topic))
    }

    /// The interval between a topic's presence updates.
    pub(crate) fn presence_interval(&self, topic: &str) -> PresenceInterval {
        self.live_namespaces.with(|table| table.options_for(topic).presence_interval).unwrap_or_default()
    }

    /// Makes the namespaces and the apps apply to all connections.
    fn apply_namespaces(&self) {
        #[cfg(feature = "pusher")]
        self.live_apps.replace(&self.apps);
        self.live_namespaces.replace(NamespaceTable::new(&self.namespaces, &self.hook_options));
    }

    /// The apps in force.
    #[cfg(feature = "pusher")]
    pub(crate) fn live_apps(&self) -> &Arc<LiveApps> {
        &self.live_apps
    }

    /// The hook client, if there are hooks.
    pub(crate) fn hooks(&self) -> Option<&Arc<HookClient>> {
        self.hooks.as_ref()
    }

    /// The hook metrics, if there are hooks.
    pub(crate) fn hook_metrics(&self) -> Option<HookCollector> {
        let client = self.hooks.as_ref()?;
        Some(HookCollector { metrics: Arc::clone(&self.hook_metrics), client: Arc::downgrade(client) })
    }

    /// Whether only the application grants rights.
    fn has_granting_hook(&self) -> bool {
        self.hook_options.connect.is_some() && !self.auth.has_keys()
    }

    /// The rights that the application's claims grant on an open connection.
    ///
    /// # Errors
    /// The claims are invalid, expired or revoked.
    pub(crate) fn rights_of_claims(
        &self,
        claims: Map<String, Value>,
        client: IpAddr,
    ) -> Result<Rights, RejectedClaims> {
        let rights = self.auth.rights_of_claims(claims).map_err(RejectedClaims::Invalid)?;
        if rights.has_expired() {
            return Err(RejectedClaims::Expired);
        }
        self.revocations.check(&rights).map_err(RejectedClaims::Revoked)?;
        Ok(rights.for_client(client).under(Arc::clone(&self.live_namespaces)))
    }

    /// An open connection's rights after a change by the backend.
    ///
    /// # Errors
    /// The fault of the change.
    pub(crate) fn changed_rights(&self, change: &RightsChange, rights: &Rights) -> Result<Rights, String> {
        let changed = match change {
            RightsChange::Claims(claims) => {
                let address = rights.address().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
                self.rights_of_claims(claims.clone(), address).map_err(|rejected| rejected.to_string())?
            }
            RightsChange::Expiry(exp) => self.auth.rights_until(rights, *exp),
        };
        if changed.has_expired() { Err(RejectedClaims::Expired.to_string()) } else { Ok(changed) }
    }

    /// The issuers' keys that are fetched from URLs, if there are any.
    pub(crate) fn issuers(&self) -> Option<&Arc<IssuerKeys>> {
        self.auth.issuers()
    }

    /// The topic options.
    pub(crate) fn namespaces(&self) -> &Namespaces {
        &self.namespaces
    }

    /// Whether tokens are required.
    #[must_use]
    pub fn has_auth(&self) -> bool {
        self.auth.has_keys()
    }

    /// Whether a browser's WebSocket is rejected by a Close, which its page can read, and not by a status.
    pub(crate) fn closes_browsers(&self) -> bool {
        self.browser_rejection == BrowserRejection::Close
    }

    /// The counters and the log of rejections.
    pub(crate) fn rejections(&self) -> &Arc<RejectionLog> {
        &self.rejections
    }

    /// The revoked tokens.
    pub(crate) fn revocations(&self) -> &Arc<Revocations> {
        &self.revocations
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
        self.rejections.note(RejectionReason::Host, &RejectedRequest::from_request(request), &text);
        Some(failure(421, &text))
    }

    /// The rules for plain requests from pages.
    pub(crate) fn cors(&self) -> &Cors {
        &self.cors
    }

    /// Makes the handler for a WebSocket whose page may connect, or rejects it in the way that its client can read.
    ///
    /// # Errors
    /// The answer to a client that is not a browser.
    pub(crate) fn admit<H: Handler + 'static>(
        &self,
        request: &Request<'_>,
        make: impl FnOnce() -> Result<H, HandshakeRejection>,
    ) -> Result<Box<dyn Handler>, Refusal> {
        let rejection = match self.check_origin(request).and_then(|()| make()) {
            Ok(handler) => return Ok(Box::new(handler)),
            Err(rejection) => rejection,
        };
        // Other rejections are counted where they are detected.
        if matches!(rejection.reason, RejectionReason::Rights | RejectionReason::Request) {
            self.rejections().note(
                rejection.reason,
                &RejectedRequest::from_request(request),
                rejection.text(),
            );
        }
        if self.closes_browsers() && is_script(request) {
            self.rejections().note_closed();
            return Ok(Box::new(rejection.handler()));
        }
        Err(rejection.refusal)
    }

    /// Checks a request's `Origin`.
    ///
    /// # Errors
    /// The origin is not allowed.
    pub(crate) fn check_origin(&self, request: &Request<'_>) -> Result<(), HandshakeRejection> {
        self.origin.check(request.head()).map_err(|_| {
            let origin = request.head().header("origin").next().unwrap_or_default();
            let rejection = HandshakeRejection::origin(&String::from_utf8_lossy(origin));
            self.rejections.note(
                RejectionReason::Origin,
                &RejectedRequest::from_request(request),
                rejection.text(),
            );
            rejection
        })
    }

    /// The rights of a request's sender.
    ///
    /// # Errors
    /// [`Denied`] if the token is invalid, expired or revoked.
    pub(crate) fn rights(&self, request: &Request<'_>) -> Result<Rights, Denied> {
        let rights = match self.has_granting_hook() {
            true => Ok(self.auth.public_rights()),
            false => self.auth.rights(request),
        };
        let rights = rights.and_then(|rights| {
            self.revocations.check(&rights)?;
            Ok(rights.for_client(request.client()).under(Arc::clone(&self.live_namespaces)))
        });
        rights.inspect_err(|denied| {
            self.rejections.note(
                RejectionReason::Token,
                &RejectedRequest::from_request(request),
                &denied.problem,
            );
        })
    }

    /// The rights of the key of a request to the HTTP API.
    ///
    /// # Errors
    /// The API is disabled, or the request has no valid key.
    pub(crate) fn api_rights(&self, request: &Request<'_>) -> Result<Arc<ApiRights>, Problem> {
        let keys = self.api_keys.as_ref();
        let rights = keys.map_or_else(|| Err(ApiKeys::disabled()), |keys| keys.rights(request));
        rights.inspect_err(|problem| {
            self.rejections.note(
                RejectionReason::Token,
                &RejectedRequest::from_request(request),
                &problem.text,
            );
        })
    }

    /// The rights of a key that was valid before, if it still is.
    pub(crate) fn api_rights_of(&self, credential: &ApiCredential) -> Option<Arc<ApiRights>> {
        self.api_keys.as_ref()?.rights_of(credential)
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
        let rights = match self.has_granting_hook() {
            true => Ok(self.auth.public_rights()),
            false => self.auth.rights_of(token),
        };
        let rights = rights.and_then(|rights| {
            self.revocations.check(&rights)?;
            Ok(rights.for_client(client).under(Arc::clone(&self.live_namespaces)))
        });
        rights.inspect_err(|denied| {
            self.rejections.note(
                RejectionReason::Token,
                &RejectedRequest::connection(client, protocol),
                &denied.problem,
            );
        })
    }
}

/// A hub's current configuration, which can be replaced while the hub runs. Clones share the configuration.
#[derive(Clone)]
pub struct ConfigHandle(Arc<RwLock<Arc<HubConfig>>>);

impl ConfigHandle {
    /// # Errors
    /// The fault of the configuration's hooks.
    pub(crate) fn new(config: HubConfig) -> Result<Self, HubError> {
        let targets = config.webhook_targets()?;
        let config = config.start(None)?;
        config.apply_namespaces();
        config.webhooks.replace(targets);
        Ok(Self(Arc::new(RwLock::new(Arc::new(config)))))
    }

    /// The configuration at this moment.
    #[must_use]
    pub fn config(&self) -> Arc<HubConfig> {
        Arc::clone(&self.0.read())
    }

    /// Replaces the configuration. Open connections retain their rights. If its hooks cannot be started, the log has
    /// the reason and the former configuration remains.
    pub fn replace(&self, config: HubConfig) {
        let former = self.config();
        // Counters and revocations continue.
        let (rejections, revocations) = (Arc::clone(&former.rejections), Arc::clone(&former.revocations));
        let hook_metrics = Arc::clone(&former.hook_metrics);
        let live_namespaces = Arc::clone(&former.live_namespaces);
        let webhooks = Arc::clone(&former.webhooks);
        let background = former.background.clone();
        let config = HubConfig {
            rejections,
            revocations,
            hook_metrics,
            #[cfg(feature = "pusher")]
            live_apps: Arc::clone(&former.live_apps),
            live_namespaces,
            webhooks,
            background,
            ..config
        };
        let started =
            config.webhook_targets().and_then(|targets| Ok((config.start(Some(&former))?, targets)));
        match started {
            Ok((config, targets)) => {
                let config = Arc::new(config);
                // A namespace in force that names a hook has a hook client: the client comes first and goes last.
                if config.hooks.is_none() {
                    config.apply_namespaces();
                }
                *self.0.write() = Arc::clone(&config);
                if config.hooks.is_some() {
                    config.apply_namespaces();
                }
                config.webhooks.replace(targets);
            }
            Err(error) => tracing::error!("the configuration was not replaced: {error}"),
        }
    }

    /// Replaces only the Pusher apps. Open connections follow as with [`with_pusher`](HubConfig::with_pusher). The
    /// configuration keeps these apps until the next [`replace`](Self::replace).
    ///
    /// # Errors
    /// [`HubErrorKind::Certificates`](crate::HubErrorKind::Certificates): no certificate for a webhook is trusted. The
    /// former apps remain.
    #[cfg(feature = "pusher")]
    pub fn replace_pusher(&self, apps: &PusherApps) -> Result<(), HubError> {
        let config = self.config();
        let mut targets = webhooks::targets(&config.webhook_options)?;
        targets.extend(apps.webhook_targets()?);
        config.live_apps.replace(apps);
        config.webhooks.replace(targets);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use super::*;
    use crate::access::auth::AuthOptions;
    use crate::access::namespaces::Namespace;
    use crate::model::HookKind;

    fn config(has_hooks: bool) -> HubConfig {
        let auth = Auth::new(&AuthOptions::new()).expect("the options are valid");
        let config = HubConfig::new(auth, HostRules::default())
            .with_namespaces(Namespaces::new([Namespace::new("a")]).expect("the namespace is valid"));
        match has_hooks {
            true => config.with_hooks(HookOptions::new().with_publish("http://127.0.0.1:9/")),
            false => config,
        }
    }

    #[test]
    fn namespaces_in_force_name_no_hook_without_a_client_of_hooks() {
        let live = ConfigHandle::new(config(true)).expect("the hooks start");
        let is_over = AtomicBool::new(false);
        // Odd while, and after, a replacement removes the client.
        let replacements = AtomicUsize::new(0);
        thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let names_hook = || {
                    let namespaces = Arc::clone(&live.config().live_namespaces);
                    namespaces.with(|table| table.options_for("a").hook(HookKind::Publish).is_some())
                        == Some(true)
                };
                // A hook that was looked up before the client was removed is not found again.
                let mut faults = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let before = replacements.load(Ordering::SeqCst);
                    let fault = names_hook() && live.config().hooks().is_none() && names_hook();
                    let is_removal = before % 2 == 1 && replacements.load(Ordering::SeqCst) == before;
                    faults += usize::from(fault && is_removal);
                }
                faults
            });
            for has_hooks in [false, true].repeat(1000) {
                replacements.fetch_add(1, Ordering::SeqCst);
                live.replace(config(has_hooks));
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(reader.join().expect("the reader does not panic"), 0);
        });
    }
}
