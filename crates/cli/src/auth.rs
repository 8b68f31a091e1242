//! Rights to publish and subscribe to topics: tokens (JWT, RFC 7519) that grant patterns.

pub(crate) mod crypto;
pub(crate) mod keys;
pub(crate) mod pattern;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use serde::Deserialize;
use serde_json::json;
use sinews_server::{Refusal, Request, Response};

use self::keys::Key;
use crate::config::units::OneOrMore;
use crate::echo::{ECHO_MAX, brief, brief_error};
use crate::settings::AuthSettings;
use crate::streams::Creator;

/// Claims of a token that this server uses, besides the registered claims that the check covers.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Claims {
    /// In seconds since 1970.
    exp: f64,
    /// Patterns of topics that the client may publish to.
    #[serde(default)]
    publish: OneOrMore<String>,
    /// Patterns of topics that the client may subscribe to.
    #[serde(default)]
    subscribe: OneOrMore<String>,
    /// Patterns of streams that the client may delete.
    #[serde(default)]
    delete: OneOrMore<String>,
    /// The client that the token identifies.
    #[serde(default)]
    sub: Option<String>,
}

/// Limit of patterns in one claim.
const PATTERNS_MAX: usize = 256;

/// Checks tokens.
pub(crate) struct Auth {
    keys: Vec<Key>,
    audience: Option<Vec<String>>,
    issuer: Option<Vec<String>>,
    leeway: Duration,
    public: Arc<Grant>,
}

/// The rights of one connection or request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rights(Option<Arc<Grant>>, Option<IpAddr>);

#[derive(Clone, Debug, Default)]
struct Grant {
    publish: Vec<String>,
    subscribe: Vec<String>,
    delete: Vec<String>,
    subject: Option<Box<str>>,
    /// When the token that granted the rights expires.
    until: Option<Instant>,
}

/// An action that requires a right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want<'a> {
    Publish(&'a str),
    Subscribe(&'a str),
    /// The name of a stream.
    Delete(&'a str),
}

/// A denied action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    /// 401: a valid token may help; 403: this token lacks the right.
    pub(crate) status: u16,
    pub(crate) problem: String,
    /// The token itself is valid, or there is none.
    lacks_right: bool,
    /// The right and the topic or pattern, unless the name is too long to be repeated.
    needs: Option<(&'static str, String)>,
}

impl Auth {
    /// Reads the keys; `None` without a source of keys, so that every client has all rights.
    ///
    /// # Errors
    /// The configuration key and the fault of a key or pattern.
    pub(crate) fn new(settings: &AuthSettings) -> Result<Option<Self>, (&'static str, String)> {
        for (key, patterns) in [
            ("auth.public_subscribe", &settings.public_subscribe),
            ("auth.public_publish", &settings.public_publish),
        ] {
            if let Some(bad) = patterns.iter().find(|pattern| !pattern::is_valid(pattern)) {
                return Err((key, format!("{bad:?} is not a topic pattern")));
            }
        }
        let keys = settings.keys.read().map_err(|error| (settings.keys.key(), error))?;
        if keys.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            keys,
            audience: settings.audience.clone(),
            issuer: settings.issuer.clone(),
            leeway: settings.leeway,
            public: Arc::new(Grant {
                publish: settings.public_publish.clone(),
                subscribe: settings.public_subscribe.clone(),
                ..Grant::default()
            }),
        }))
    }

    /// The rights of the sender of a request.
    ///
    /// # Errors
    /// [`Denied`] if the token is invalid or expired.
    pub(crate) fn rights(&self, request: &Request<'_>) -> Result<Rights, Denied> {
        self.rights_of(token_of(request)?)
    }

    /// The rights that this token grants.
    ///
    /// # Errors
    /// As [`rights`](Self::rights).
    pub(crate) fn rights_of(&self, token: Option<&str>) -> Result<Rights, Denied> {
        let Some(token) = token else { return Ok(Rights(Some(Arc::clone(&self.public)), None)) };
        let claims = self.verify(token).map_err(Denied::token)?;
        let until = Some(instant(self.end_of(&claims)));
        let with_public = |claimed: OneOrMore<String>, public: &[String]| {
            let mut patterns = claimed.0;
            patterns.extend_from_slice(public);
            patterns
        };
        let grant = Grant {
            publish: with_public(claims.publish, &self.public.publish),
            subscribe: with_public(claims.subscribe, &self.public.subscribe),
            delete: claims.delete.0,
            subject: claims.sub.map(Into::into),
            until,
        };
        Ok(Rights(Some(Arc::new(grant)), None))
    }

    fn end_of(&self, claims: &Claims) -> SystemTime {
        UNIX_EPOCH + seconds(claims.exp) + self.leeway
    }

    /// Returns the claims of a token after checking its signature, times, audience and issuer.
    ///
    /// # Errors
    /// Why the token is rejected.
    pub(crate) fn verify(&self, token: &str) -> Result<Claims, String> {
        let header = decode_header(token).map_err(|_| "the token is not a JWT".to_owned())?;
        if has_critical_extension(token) {
            return Err("the token's header has crit; JWT extensions are not supported".to_owned());
        }
        let mut refused = None;
        for key in &self.keys {
            let is_other = key.id.is_some() && header.kid.is_some() && key.id != header.kid;
            if is_other || !key.algorithms.contains(&header.alg) {
                continue;
            }
            let mut validation = Validation::new(header.alg);
            validation.leeway = self.leeway.as_secs();
            validation.validate_nbf = true;
            validation.aud = self.audience.as_ref().map(|names| names.iter().cloned().collect());
            validation.iss = self.issuer.as_ref().map(|names| names.iter().cloned().collect());
            let required = [("aud", self.audience.is_some()), ("iss", self.issuer.is_some())];
            let required = required.into_iter().filter(|(_, required)| *required);
            validation.required_spec_claims.extend(required.map(|(claim, _)| claim.to_owned()));
            match decode::<Claims>(token, &key.key, &validation) {
                // Compare fractions of a second, because connections end with that precision.
                Ok(data) if self.end_of(&data.claims) <= SystemTime::now() => {
                    return Err(words(&ErrorKind::ExpiredSignature));
                }
                Ok(data) => return check(data.claims),
                // Another key may have signed it.
                Err(error) if *error.kind() == ErrorKind::InvalidSignature => {
                    refused = Some("the token's signature matches no key of this server".to_owned());
                }
                Err(error) => return Err(words(error.kind())),
            }
        }
        Err(refused.unwrap_or_else(|| {
            let id = header.kid.map_or_else(String::new, |id| format!(" and kid {:?}", brief(&id)));
            format!("no key of this server matches the token's alg {:?}{id}", header.alg)
        }))
    }
}

/// Whether the header has `crit`, with any value. A server must reject a token that lists an extension it does not know
/// (RFC 7515 section 4.1.11); this server knows none.
fn has_critical_extension(token: &str) -> bool {
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap_or_default()).unwrap_or_default();
    let header = serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(&header);
    header.is_ok_and(|header| header.contains_key("crit"))
}

/// Checks that the claimed rights are valid patterns.
fn check(claims: Claims) -> Result<Claims, String> {
    for (claim, OneOrMore(patterns)) in
        [("publish", &claims.publish), ("subscribe", &claims.subscribe), ("delete", &claims.delete)]
    {
        if patterns.len() > PATTERNS_MAX {
            return Err(format!("the token's {claim} has more than {PATTERNS_MAX} patterns"));
        }
        if let Some(bad) = patterns.iter().find(|pattern| !pattern::is_valid(pattern)) {
            return Err(format!("the token's {claim}: {:?} is not a topic pattern", brief(bad)));
        }
    }
    Ok(claims)
}

fn words(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired".to_owned(),
        ErrorKind::ImmatureSignature => "the token is not valid yet (nbf)".to_owned(),
        ErrorKind::InvalidAudience => "the token is meant for another audience (aud)".to_owned(),
        ErrorKind::InvalidIssuer => "the token comes from another issuer (iss)".to_owned(),
        ErrorKind::MissingRequiredClaim(claim) => format!("the token has no {claim}"),
        ErrorKind::InvalidClaimFormat(claim) => format!("the token's {claim} has an invalid format"),
        ErrorKind::Json(error) => format!("the token's claims: {}", brief_error(error)),
        _ => "the token is not a JWT".to_owned(),
    }
}

/// Seconds since 1970 as a claim states them. Values beyond the range of the clock become its end.
pub(crate) fn seconds(claim: f64) -> Duration {
    const YEAR_9999: f64 = 253_402_300_799.0;
    Duration::from_secs_f64(if claim.is_finite() { claim.clamp(0.0, YEAR_9999) } else { YEAR_9999 })
}

/// Prefix of the subprotocol in which a browser passes its token, because it cannot set headers of a WebSocket.
pub(crate) const BEARER_PROTOCOL: &str = "sinews.bearer.";

/// The token of a request: from `Authorization`, the list of subprotocols, or the query.
fn token_of<'a>(request: &Request<'a>) -> Result<Option<&'a str>, Denied> {
    let head = request.head();
    if let Some(value) = head.header("authorization").next() {
        let value = std::str::from_utf8(value).unwrap_or_default();
        return match value.split_once(' ') {
            Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") => Ok(Some(token.trim())),
            _ => Err(Denied::token("Authorization must be `Bearer` and a token".to_owned())),
        };
    }
    let offers = head.header("sec-websocket-protocol").filter_map(|value| std::str::from_utf8(value).ok());
    let mut offers = offers.flat_map(|value| value.split(','));
    if let Some(token) = offers.find_map(|offer| offer.trim().strip_prefix(BEARER_PROTOCOL)) {
        return Ok(Some(token));
    }
    Ok(request.query("token"))
}

impl Rights {
    /// All rights, for servers without tokens.
    pub(crate) fn all() -> Self {
        Self(None, None)
    }

    /// The same rights for a client at this address.
    pub(crate) fn of_client(self, address: IpAddr) -> Self {
        Self(self.0, Some(address))
    }

    /// The client that counts as the creator of streams.
    pub(crate) fn creator(&self) -> Creator {
        match (self.0.as_ref().and_then(|grant| grant.subject.clone()), self.1) {
            (Some(subject), _) => Creator::Subject(subject),
            (None, Some(address)) => Creator::of_address(address),
            (None, None) => Creator::Server,
        }
    }

    /// Checks whether the rights cover an action.
    ///
    /// # Errors
    /// [`Denied`] names the missing right.
    pub(crate) fn check(&self, want: Want<'_>) -> Result<(), Denied> {
        let Some(grant) = &self.0 else { return Ok(()) };
        let (patterns, name) = match want {
            Want::Publish(name) => (&grant.publish, name),
            Want::Subscribe(name) => (&grant.subscribe, name),
            Want::Delete(name) => (&grant.delete, name),
        };
        if patterns.iter().any(|granted| pattern::covers(granted, name)) {
            return Ok(());
        }
        Err(Denied::rights(want, grant.until.is_some()))
    }

    /// When the rights expire.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.0.as_ref()?.until
    }

    /// Whole seconds until the rights expire, if the token has an expiry.
    pub(crate) fn expires_in(&self) -> Option<u64> {
        self.deadline().map(|until| until.saturating_duration_since(Instant::now()).as_secs())
    }
}

/// The same time on the monotonic clock.
fn instant(time: SystemTime) -> Instant {
    /// Some clocks cannot represent times in the far future; no process runs for so long.
    const YEARS_100: Duration = Duration::from_secs(100 * 365 * 86_400);
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    Instant::now() + left.min(YEARS_100)
}

impl Denied {
    fn token(problem: String) -> Self {
        Self { status: 401, problem, lacks_right: false, needs: None }
    }

    fn rights(want: Want<'_>, has_token: bool) -> Self {
        let (verb, right, name) = match want {
            Want::Publish(name) => ("publish to", "publish", name),
            Want::Subscribe(name) => ("subscribe to", "subscribe", name),
            Want::Delete(name) => ("delete", "delete", name),
        };
        // Part of a name would be another name.
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
    pub(crate) fn needs(&self) -> serde_json::Value {
        self.needs.as_ref().map_or_else(|| json!({}), |(right, name)| json!({ *right: [name] }))
    }

    fn body(&self) -> String {
        format!("{}\n", json!({ "error": self.problem, "needs": self.needs() }))
    }

    /// The challenge of `WWW-Authenticate` (RFC 6750 section 3).
    fn challenge(&self) -> &'static str {
        match (self.status, self.lacks_right) {
            (401, true) => "Bearer realm=\"sinews\"",
            (401, false) => "Bearer realm=\"sinews\", error=\"invalid_token\"",
            _ => "Bearer realm=\"sinews\", error=\"insufficient_scope\"",
        }
    }

    pub(crate) fn response(&self) -> Response {
        Response::json(self.body())
            .with_status(self.status)
            .with_header("WWW-Authenticate", self.challenge())
            .with_header("Cache-Control", "no-store")
    }

    pub(crate) fn refusal(&self) -> Refusal {
        let refusal = || {
            Refusal::new(self.status)?
                .with_header("WWW-Authenticate", self.challenge())?
                .with_header("Content-Type", "application/json")?
                .with_header("Cache-Control", "no-store")
        };
        // The status is 401 or 403, and the headers are constants.
        refusal().expect("401 and 403 with constant headers").with_body(self.body())
    }
}
