//! Rights of clients, and the answer to a denied action.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sinews_server::{KeyWrite, Refusal, Response, TopicPattern};

use crate::access::auth::fault::TokenFault;
use crate::access::auth::key_pattern::KeyPattern;
use crate::access::namespaces::{
    AmbiguousHook, ClientIdentity, ConnectionRates, LiveNamespaces, NamespaceTable, TopicAccess, TopicHook,
};
use crate::model::brief::{ECHO_MAX, brief};
use crate::model::problem::{Problem, code, problem};
use crate::model::stamp::VerifiedSender;
use crate::model::{Creator, HookKind};
use crate::uncached::UNCACHED;

/// Rights of one connection or request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rights {
    /// `None`: all rights.
    grant: Option<Arc<Grant>>,
    address: Option<IpAddr>,
    namespaces: Option<Arc<LiveNamespaces>>,
}

/// Topic patterns, by action.
#[derive(Clone, Debug, Default)]
pub(super) struct Grant {
    pub(super) publish: Vec<TopicPattern<'static>>,
    pub(super) subscribe: Vec<TopicPattern<'static>>,
    pub(super) delete: Vec<TopicPattern<'static>>,
    pub(super) keys: Vec<KeyPattern>,
    /// Topics and patterns to which the server subscribes the client.
    pub(super) topics: Box<[String]>,
    pub(super) subject: Option<Box<str>>,
    /// The claim `info`, in JSON.
    pub(super) info: Option<Arc<str>>,
    /// The id of a Pusher protocol app, for its server's rights.
    pub(super) app: Option<Box<str>>,
    /// Token id (`jti`).
    pub(super) token_id: Option<Box<str>>,
    /// Time at which the token was issued (`iat`), in seconds since 1970.
    pub(super) issued_at: Option<f64>,
    /// When the token that granted the rights expires.
    pub(super) until: Option<Instant>,
}

impl Grant {
    /// Whether a token, or claims with a `sub`, name the client.
    fn is_authenticated(&self) -> bool {
        self.until.is_some() || self.subject.is_some()
    }
}

/// An action on a topic, or on the stream with the same name, that requires a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Publish,
    Subscribe,
    /// Of a stream.
    Delete,
}

/// A denied action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    /// 401: a valid token may help; 403: this token lacks the right; 503: the same token may help later.
    pub(crate) status: u16,
    pub(crate) problem: String,
    /// The token itself is valid, or there is none.
    lacks_right: bool,
    /// The right and the topic or pattern, unless the name is too long to be repeated.
    needs: Option<(&'static str, String)>,
}

impl Rights {
    /// All rights, for servers without tokens.
    pub(crate) fn all() -> Self {
        Self::default()
    }

    /// No rights, for a connection whose client is not known yet.
    pub(crate) fn none() -> Self {
        static NONE: LazyLock<Arc<Grant>> = LazyLock::new(Arc::default);
        Self::granted(Arc::clone(&NONE))
    }

    pub(super) fn granted(grant: Arc<Grant>) -> Self {
        Self { grant: Some(grant), ..Self::default() }
    }

    /// The same rights for a client at this address.
    pub(crate) fn for_client(self, address: IpAddr) -> Self {
        Self { address: Some(address), ..self }
    }

    /// Returns the same rights, under the options of namespaces.
    pub(crate) fn under(self, namespaces: Arc<LiveNamespaces>) -> Self {
        Self { namespaces: Some(namespaces), ..self }
    }

    /// Whether a token or claims have granted the rights.
    pub(crate) fn is_granted(&self) -> bool {
        self.grant.is_some()
    }

    /// Returns the client that counts as the creator of streams.
    pub(crate) fn creator(&self) -> Creator {
        let grant = self.grant.as_deref();
        if let Some(subject) = grant.and_then(|grant| grant.subject.clone()) {
            return Creator::Subject(subject);
        }
        if let Some(app) = grant.and_then(|grant| grant.app.clone()) {
            return Creator::App(app);
        }
        self.address.map_or(Creator::Server, Creator::from_address)
    }

    /// Returns the token's id (`jti`).
    pub(crate) fn token_id(&self) -> Option<&str> {
        self.grant.as_ref()?.token_id.as_deref()
    }

    /// Returns the time at which the token was issued (`iat`), in seconds since 1970.
    pub(crate) fn issued_at(&self) -> Option<f64> {
        self.grant.as_ref()?.issued_at
    }

    /// Describes the claims for the HTTP API; `None`: all rights, without a token.
    pub(crate) fn describe(&self) -> Option<Value> {
        let grant = self.grant.as_deref()?;
        let patterns = |list: &[TopicPattern<'_>]| -> Value {
            list.iter().map(|pattern| json!(pattern.as_str())).collect()
        };
        let mut claims = json!({
            "publish": patterns(&grant.publish),
            "subscribe": patterns(&grant.subscribe),
            "delete": patterns(&grant.delete),
            "keys": grant.keys.iter().map(KeyPattern::text).collect::<Vec<_>>(),
            "topics": &grant.topics,
        });
        let texts = [("sub", &grant.subject), ("app", &grant.app), ("jti", &grant.token_id)];
        for (name, text) in texts {
            if let Some(text) = text {
                claims[name] = json!(text);
            }
        }
        if let Some(issued) = grant.issued_at {
            claims["iat"] = json!(issued);
        }
        if let Some(left) = self.expires_in() {
            claims["expires_in"] = json!(left);
        }
        Some(claims)
    }

    /// Returns the client's address.
    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// No rights, for a connection that a subject identifies.
    pub(crate) fn for_subject(subject: &str) -> Self {
        Self::granted(Arc::new(Grant { subject: Some(subject.into()), ..Grant::default() }))
    }

    /// Returns the right of an app's server to publish to all topics: its channels are checked before.
    pub(crate) fn for_app(id: &str) -> Self {
        let publish = TopicPattern::parse(">").into_iter().collect();
        Self::granted(Arc::new(Grant { app: Some(id.into()), publish, ..Grant::default() }))
    }

    #[cfg(test)]
    pub(crate) fn for_token(subject: &str, id: &str, issued_at: Option<f64>) -> Self {
        let (subject, token_id) = (Some(subject.into()), Some(id.into()));
        Self::granted(Arc::new(Grant { subject, token_id, issued_at, ..Grant::default() }))
    }

    /// The topics and patterns to which the server subscribes the client.
    pub(crate) fn assigned_topics(&self) -> &[String] {
        self.grant.as_ref().map_or(&[], |grant| &grant.topics)
    }

    /// Returns the `sub` of the client's token, if it has one.
    pub(crate) fn subject(&self) -> Option<&str> {
        self.grant.as_ref()?.subject.as_deref()
    }

    /// Returns the claim `info` of the client's token, in JSON.
    pub(crate) fn info(&self) -> Option<&str> {
        self.grant.as_ref()?.info.as_deref()
    }

    /// Returns the sender of the client's publications to a topic, if its messages name it.
    pub(crate) fn verified_sender(&self, topic: &str) -> Option<Arc<VerifiedSender>> {
        let grant = self.grant.as_ref()?;
        let user = grant.subject.as_ref().filter(|user| user.len() <= VerifiedSender::USER_MAX)?;
        if !self.in_namespace(|table| table.options_for(topic).has_sender)? {
            return None;
        }
        Some(Arc::new(VerifiedSender { user: user.clone(), info: grant.info.clone() }))
    }

    /// Returns the client's user and address.
    pub(crate) fn client(&self) -> ClientIdentity<'_> {
        ClientIdentity { subject: self.subject(), address: self.address }
    }

    /// Whether a client with these rights may do the action on a topic or pattern. All protocols ask this question.
    ///
    /// # Errors
    /// [`Denied`] names the missing right.
    pub(crate) fn may(&self, action: Action, topic: &str) -> Result<(), Denied> {
        let requested = RequestedRight::Topic(action, topic);
        let check = |access| self.check(access, requested, || self.may_by_token(action, topic));
        let checked = match action {
            Action::Publish => self.in_namespace(|table| check(table.options_for(topic).publish)),
            Action::Subscribe => {
                self.in_namespace(|table| table.subscribe_access(topic).into_iter().try_for_each(check))
            }
            Action::Delete => None,
        };
        checked.unwrap_or_else(|| self.may_by_token(action, topic))
    }

    /// Calls a function with the namespaces; `None` without any.
    fn in_namespace<R>(&self, read: impl FnOnce(&NamespaceTable) -> R) -> Option<R> {
        self.namespaces.as_ref()?.with(read)
    }

    /// Whether the token grants the action, whatever the namespace permits.
    ///
    /// # Errors
    /// As [`may`](Self::may).
    pub(crate) fn may_by_token(&self, action: Action, topic: &str) -> Result<(), Denied> {
        let Some(grant) = &self.grant else { return Ok(()) };
        let patterns = match action {
            Action::Publish => &grant.publish,
            Action::Subscribe => &grant.subscribe,
            Action::Delete => &grant.delete,
        };
        // An invalid name is not granted.
        let requested = TopicPattern::parse(topic);
        if requested.is_ok_and(|requested| patterns.iter().any(|granted| granted.covers(&requested))) {
            return Ok(());
        }
        Err(RequestedRight::Topic(action, topic).denied(grant.is_authenticated()))
    }

    /// Returns whether a client with these rights may write a topic's key.
    ///
    /// # Errors
    /// As [`may`](Self::may).
    pub(crate) fn may_write_key(&self, topic: &str, key: &str) -> Result<(), Denied> {
        let requested = RequestedRight::Key { topic, key };
        let by_token = || {
            let Some(grant) = &self.grant else { return Ok(()) };
            if grant.keys.iter().any(|granted| granted.covers(topic, key)) {
                return Ok(());
            }
            Err(requested.denied(grant.is_authenticated()))
        };
        match self.in_namespace(|table| table.options_for(topic).write_keys) {
            Some(access) => self.check(access, requested, by_token),
            None => by_token(),
        }
    }

    /// Returns a topic's hook, if its namespace has one.
    pub(crate) fn topic_hook(&self, kind: HookKind, topic: &str) -> Option<Arc<TopicHook>> {
        self.in_namespace(|table| table.options_for(topic).hook(kind).cloned())?
    }

    /// Returns the hook for subscriptions to a topic or pattern.
    ///
    /// # Errors
    /// The pattern matches topics with different hooks.
    pub(crate) fn subscribe_hook(&self, topic: &str) -> Result<Option<Arc<TopicHook>>, Denied> {
        let hook = self.in_namespace(|table| table.subscribe_hook(topic)).unwrap_or(Ok(None));
        hook.map_err(|AmbiguousHook| {
            let problem =
                format!("{} matches topics with different hooks: use a narrower pattern", brief(topic));
            Denied { status: 403, problem, lacks_right: true, needs: None }
        })
    }

    /// Checks that no hook decides about an action, for requests that cannot wait for one.
    ///
    /// # Errors
    /// A hook decides.
    pub(crate) fn check_without_hooks(&self, action: Action, topic: &str) -> Result<(), Denied> {
        let has_hook = match action {
            Action::Publish => self.topic_hook(HookKind::Publish, topic).is_some(),
            Action::Subscribe => self.subscribe_hook(topic)?.is_some(),
            Action::Delete => false,
        };
        if !has_hook {
            return Ok(());
        }
        let (what, instead) = match action {
            Action::Publish => ("publications to", "publish"),
            Action::Subscribe | Action::Delete => ("subscriptions to", "subscribe"),
        };
        let topic = brief(topic);
        let problem = format!("a hook decides about {what} {topic}: {instead} at /ws or at /topics/{topic}");
        Err(Denied { status: 403, problem, lacks_right: true, needs: None })
    }

    /// The same rights with another expiry.
    pub(crate) fn until(&self, until: Instant) -> Self {
        let grant =
            self.grant.as_ref().map(|grant| Arc::new(Grant { until: Some(until), ..Grant::clone(grant) }));
        Self { grant, ..self.clone() }
    }

    /// Checks a namespace's rule.
    fn check(
        &self,
        access: TopicAccess,
        requested: RequestedRight<'_>,
        by_token: impl FnOnce() -> Result<(), Denied>,
    ) -> Result<(), Denied> {
        let is_authenticated = || self.grant.as_ref().is_some_and(|grant| grant.is_authenticated());
        match access {
            TopicAccess::Anonymous => Ok(()),
            TopicAccess::Token => by_token(),
            TopicAccess::Authenticated if is_authenticated() => Ok(()),
            TopicAccess::Authenticated => Err(requested.denied(false)),
            TopicAccess::Nobody => Err(requested.denied_to_all()),
        }
    }

    /// Checks the size of a publication or key value, and the rates of the connection and the user.
    ///
    /// # Errors
    /// The exceeded limit of the topic's namespace.
    pub(crate) fn check_publication(
        &self,
        topic: &str,
        bytes: usize,
        rates: &mut ConnectionRates,
    ) -> Result<(), Problem> {
        let check = |table: &NamespaceTable| table.check_publication(topic, bytes, self.client(), rates);
        self.in_namespace(check).unwrap_or(Ok(()))
    }

    /// Takes a subscription from the connection's rate.
    ///
    /// # Errors
    /// The exceeded limit of a namespace.
    pub(crate) fn check_subscribe_rate(
        &self,
        topic: &str,
        rates: &mut ConnectionRates,
    ) -> Result<(), Problem> {
        self.in_namespace(|table| table.check_subscription(topic, rates)).unwrap_or(Ok(()))
    }

    /// Takes a call, with a topic or without one, from the rates of the connection and the user.
    ///
    /// # Errors
    /// The exceeded limit of the topic's namespace, or of all calls.
    pub(crate) fn check_call_rate(
        &self,
        topic: Option<&str>,
        rates: Option<&mut ConnectionRates>,
    ) -> Result<(), Problem> {
        self.in_namespace(|table| table.check_call(topic, self.client(), rates)).unwrap_or(Ok(()))
    }

    /// Checks that publications to a topic have no limits.
    ///
    /// # Errors
    /// The topic's namespace limits their size or rate.
    pub(crate) fn check_without_limits(&self, topic: &str) -> Result<(), Problem> {
        if !self.in_namespace(|table| table.options_for(topic).has_limits()).unwrap_or(false) {
            return Ok(());
        }
        let topic = brief(topic);
        let text = format!(
            "a namespace limits publications to {topic}: use the op `publish` at /ws or POST /topics/{topic}"
        );
        Err(problem(code::NOT_SUBJECT, text))
    }

    /// Checks a publication's size.
    ///
    /// # Errors
    /// It exceeds the limit of the topic's namespace.
    pub(crate) fn check_size(&self, topic: &str, bytes: usize) -> Result<(), Problem> {
        self.in_namespace(|table| table.options_for(topic).check_size(topic, bytes)).unwrap_or(Ok(()))
    }

    /// Checks that clients may use a topic's keys. Returns the shortest interval between key updates.
    ///
    /// # Errors
    /// The topic's namespace has no keys.
    pub(crate) fn check_keyed(&self, topic: &str) -> Result<Option<Duration>, Problem> {
        let Some(options) = self.in_namespace(|table| table.options_for(topic)) else { return Ok(None) };
        if options.has_no_keys {
            return Err(problem(code::TOPIC, format!("topic {} has no keys for clients", brief(topic))));
        }
        Ok(options.key_interval)
    }

    /// Adds the limits of a topic's namespace to a key write, and the client whose memory share it counts toward.
    pub(crate) fn limit_key(&self, topic: &str, write: KeyWrite) -> KeyWrite {
        let write = match self.creator().share() {
            Some(client) => write.with_client(client),
            None => write,
        };
        match self.in_namespace(|table| table.options_for(topic)) {
            Some(options) => options.limit_key(write),
            None => write,
        }
    }

    /// Checks that clients may use a topic's presence.
    ///
    /// # Errors
    /// The topic's namespace has no presence.
    pub(crate) fn check_presence(&self, topic: &str) -> Result<(), Problem> {
        if self.in_namespace(|table| table.options_for(topic).has_no_presence) == Some(true) {
            return Err(problem(code::TOPIC, format!("topic {} has no presence for clients", brief(topic))));
        }
        Ok(())
    }

    /// When the rights expire.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.grant.as_ref()?.until
    }

    /// Whether the rights have expired.
    pub(crate) fn has_expired(&self) -> bool {
        self.deadline().is_some_and(|until| until <= Instant::now())
    }

    /// Whole seconds until the rights expire, if the token has an expiry.
    pub(crate) fn expires_in(&self) -> Option<u64> {
        self.deadline().map(|until| until.saturating_duration_since(Instant::now()).as_secs())
    }
}

/// A client's action.
#[derive(Clone, Copy)]
enum RequestedRight<'a> {
    /// An action on a topic or pattern.
    Topic(Action, &'a str),
    /// A write to a topic's key.
    Key { topic: &'a str, key: &'a str },
}

impl RequestedRight<'_> {
    /// The right that is missing.
    fn denied(self, has_token: bool) -> Denied {
        match self {
            Self::Topic(action, topic) => {
                let right = match action {
                    Action::Publish => "publish",
                    Action::Subscribe => "subscribe",
                    Action::Delete => "delete",
                };
                Denied::missing(action.verb(), right, topic, has_token)
            }
            Self::Key { topic, key } => {
                Denied::missing("write", "keys", &format!("{topic}/{key}"), has_token)
            }
        }
    }

    /// No token grants it.
    fn denied_to_all(self) -> Denied {
        let (verb, topic) = match self {
            Self::Topic(action, topic) => (action.verb(), topic),
            Self::Key { topic, .. } => ("write keys of", topic),
        };
        let problem = format!("clients may not {verb} {}", brief(topic));
        Denied { status: 403, problem, lacks_right: true, needs: None }
    }
}

impl Action {
    fn verb(self) -> &'static str {
        match self {
            Self::Publish => "publish to",
            Self::Subscribe => "subscribe to",
            Self::Delete => "delete",
        }
    }
}

impl Denied {
    pub(crate) fn token(problem: String) -> Self {
        Self { status: 401, problem, lacks_right: false, needs: None }
    }

    /// The token cannot be checked now.
    fn unavailable(problem: String) -> Self {
        Self { status: 503, problem, lacks_right: false, needs: None }
    }

    /// A missing right, by its verb and its claim.
    fn missing(verb: &str, right: &'static str, name: &str, has_token: bool) -> Self {
        // A partial name would be another name.
        let needs = (name.len() <= ECHO_MAX).then(|| (right, name.to_owned()));
        let name = brief(name);
        if has_token {
            let problem = format!("this token may not {verb} {name}");
            Self { status: 403, problem, lacks_right: true, needs }
        } else {
            let problem = format!("a token is needed to {verb} {name}");
            Self { status: 401, problem, lacks_right: true, needs }
        }
    }

    /// Whether a right is missing, rather than the token invalid.
    pub(crate) fn lacks_right(&self) -> bool {
        self.lacks_right
    }

    /// The right that a token would have to grant, as JSON.
    pub(crate) fn needs(&self) -> Value {
        self.needs.as_ref().map_or_else(|| json!({}), |(right, name)| json!({ *right: [name] }))
    }

    fn body(&self) -> String {
        format!("{}\n", json!({ "error": self.problem, "needs": self.needs() }))
    }

    /// Returns the challenge for `WWW-Authenticate` (RFC 6750 section 3).
    fn challenge(&self) -> &'static str {
        match (self.status, self.lacks_right) {
            (401, true) => "Bearer realm=\"sinews\"",
            (401, false) => "Bearer realm=\"sinews\", error=\"invalid_token\"",
            _ => "Bearer realm=\"sinews\", error=\"insufficient_scope\"",
        }
    }

    /// The header for the client's next step.
    fn advice(&self) -> (&'static str, &'static str) {
        if self.status == 503 { ("Retry-After", "1") } else { ("WWW-Authenticate", self.challenge()) }
    }

    pub(crate) fn response(&self) -> Response {
        let (name, value) = self.advice();
        Response::json(self.body())
            .with_status(self.status)
            .with_header(name, value)
            .with_header("Cache-Control", UNCACHED)
    }

    pub(crate) fn refusal(&self) -> Refusal {
        let refusal = || {
            let (name, value) = self.advice();
            Refusal::new(self.status)?
                .with_header(name, value)?
                .with_header("Content-Type", "application/json")?
                .with_header("Cache-Control", UNCACHED)
        };
        // The status is 401, 403 or 503, and the headers are constants.
        refusal().expect("401, 403 and 503 with constant headers").with_body(self.body())
    }
}

impl From<TokenFault> for Denied {
    fn from(fault: TokenFault) -> Self {
        if fault.is_temporary { Self::unavailable(fault.text) } else { Self::token(fault.text) }
    }
}

impl From<Denied> for Problem {
    fn from(denied: Denied) -> Self {
        Self { needs: Some(denied.needs()), ..problem(denied.status, denied.problem) }
    }
}
