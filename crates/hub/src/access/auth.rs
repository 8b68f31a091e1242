//! Tokens (JWT, RFC 7519), and the rights to publish and subscribe to topics that they grant.

mod api_keys;
mod claimed_names;
pub mod crypto;
mod fault;
mod jwks;
mod jwks_metrics;
mod jwks_options;
pub mod key_pattern;
pub(crate) mod keys;
pub(crate) mod options;
pub mod pem;
pub(crate) mod revocations;
mod rights;
mod rights_change;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Header, Validation, decode, decode_header};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};
use sinews_server::{Request, TopicName, TopicPattern, query_pairs};

pub use self::api_keys::ApiKeys;
pub(crate) use self::api_keys::{ApiCredential, ApiRight, ApiRights};
use self::claimed_names::ClaimedNames;

use self::fault::TokenFault;
pub(crate) use self::jwks::IssuerKeys;
pub(crate) use self::jwks_metrics::IssuerMetrics;
pub use self::jwks_options::JwksOptions;
use self::key_pattern::KeyPattern;
use self::keys::{TRIED_MAX, VerifyingKey};
pub use self::keys::{TokenKeys, hmac_algorithms, read_secret};
pub use self::options::{AuthError, AuthOptions};
pub(crate) use self::revocations::{
    Revocation, RevocationError, RevocationStored, Revocations, RevokedTokens,
};
use self::rights::Grant;
pub(crate) use self::rights::{Action, Denied, Rights};
pub(crate) use self::rights_change::RightsChange;
use crate::background::Background;
use crate::error::{HubError, HubErrorKind};
use crate::model::brief::{brief, brief_error};
use crate::model::stamp::VerifiedSender;
use crate::model::{check_pattern, check_subscription, parse_patterns};

/// Token claims that this server uses, besides the registered claims that the check covers. A claim that is `null` is
/// absent.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// In seconds since 1970.
    exp: f64,
    /// Topic patterns that the client may publish to.
    publish: ClaimedPatterns,
    /// Topic patterns that the client may subscribe to.
    subscribe: ClaimedPatterns,
    /// Stream patterns that the client may delete.
    delete: ClaimedPatterns,
    /// Keys that the client may write: patterns of a topic and of a key, such as `players/{sub}`.
    keys: ClaimedPatterns,
    /// Topics and patterns to which the server subscribes the client, whatever its rights.
    topics: ClaimedPatterns,
    /// The client that the token identifies.
    sub: Option<String>,
    /// The application's description for other clients, in JSON.
    info: Option<String>,
    /// Token id, by which the token can be revoked.
    jti: Option<String>,
    /// Time of issue in seconds since 1970.
    iat: Option<f64>,
    /// Time before which the token is not valid, in seconds since 1970.
    nbf: Option<f64>,
}

impl<'de> Deserialize<'de> for Claims {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut claims = Map::<String, Value>::deserialize(deserializer)?;
        let claims = &mut claims;
        Ok(Self {
            exp: take_claim(claims, "exp", NUMBER)?.unwrap_or_default(),
            publish: take_claim(claims, "publish", PATTERNS)?.unwrap_or_default(),
            subscribe: take_claim(claims, "subscribe", PATTERNS)?.unwrap_or_default(),
            delete: take_claim(claims, "delete", PATTERNS)?.unwrap_or_default(),
            keys: take_claim(claims, "keys", PATTERNS)?.unwrap_or_default(),
            topics: take_claim(claims, "topics", PATTERNS)?.unwrap_or_default(),
            sub: take_claim(claims, "sub", STRING)?,
            info: take_claim::<Value, _>(claims, "info", "JSON")?.map(|info| info.to_string()),
            jti: take_claim(claims, "jti", STRING)?,
            iat: take_claim(claims, "iat", NUMBER)?,
            nbf: take_claim(claims, "nbf", NUMBER)?,
        })
    }
}

const NUMBER: &str = "a number";
const STRING: &str = "a string";
const PATTERNS: &str = "a string or a list of strings";

/// Takes a claim, unless it is absent or `null`. The error names it, and does not repeat its content.
fn take_claim<T: DeserializeOwned, E: Error>(
    claims: &mut Map<String, Value>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, E> {
    let Some(value) = claims.remove(name).filter(|value| !value.is_null()) else { return Ok(None) };
    T::deserialize(value).map(Some).map_err(|_| E::custom(format_args!("{name} is not {expected}")))
}

/// Patterns in a claim: one pattern or a list.
#[derive(Clone, Debug, Default)]
struct ClaimedPatterns(Vec<String>);

impl<'de> Deserialize<'de> for ClaimedPatterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum PatternClaim {
            One(String),
            List(Vec<String>),
        }
        Ok(Self(match PatternClaim::deserialize(deserializer)? {
            PatternClaim::One(one) => vec![one],
            PatternClaim::List(list) => list,
        }))
    }
}

/// Maximum patterns in one claim.
const PATTERNS_MAX: usize = 256;

/// Maximum topics to which the server subscribes a client by one claim, one hook answer, or one setting.
pub(crate) const ASSIGNED_MAX: usize = 64;

/// Placeholder for the token's `sub`.
const SUBJECT: &str = "{sub}";

/// Checks tokens. Without keys, every client has all rights.
pub struct Auth {
    keys: Vec<VerifyingKey>,
    /// Keys that are fetched from URLs, instead of those.
    issuers: Arc<IssuerKeys>,
    audience: Option<Vec<String>>,
    issuer: Option<Vec<String>>,
    leeway: Duration,
    public: Arc<Grant>,
    /// Topics for each user, with a placeholder for its name.
    personal_topics: Vec<String>,
}

impl Auth {
    /// Reads the keys.
    ///
    /// # Errors
    /// The option at fault, and the fault in its key or pattern.
    pub fn new(options: &AuthOptions) -> Result<Self, AuthError> {
        let check = |patterns: &[String], error: fn(HubError) -> AuthError| {
            let fault = |bad: &String| Some(check_pattern(bad).err()?.at(format_args!("{bad:?}")));
            patterns.iter().find_map(fault).map_or(Ok(()), |fault| Err(error(fault)))
        };
        check(&options.public_subscribe, AuthError::PublicSubscribe)?;
        check(&options.public_publish, AuthError::PublicPublish)?;
        check_personal_topics(&options.personal_topics).map_err(AuthError::PersonalTopics)?;
        let keys = options.keys.as_ref().map(TokenKeys::read).transpose().map_err(AuthError::Keys)?;
        let issuers = match &options.keys {
            Some(TokenKeys::JwksUrls(urls)) if urls.names_issuers() && options.issuer.is_some() => {
                let fault = "the issuers are those of the key sets: without a second list of issuers";
                return Err(AuthError::Keys(HubError::setting(fault)));
            }
            Some(TokenKeys::JwksUrls(urls)) => IssuerKeys::new(urls).map_err(AuthError::Keys)?,
            _ => IssuerKeys::default(),
        };
        crypto::install();
        Ok(Self {
            keys: keys.unwrap_or_default(),
            issuers: Arc::new(issuers),
            audience: options.audience.clone(),
            issuer: options.issuer.clone(),
            leeway: options.leeway,
            public: Arc::new(Grant {
                publish: parse_patterns(options.public_publish.clone()),
                subscribe: parse_patterns(options.public_subscribe.clone()),
                ..Grant::default()
            }),
            personal_topics: options.personal_topics.clone(),
        })
    }

    /// Whether this server checks tokens.
    #[must_use]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty() || !self.issuers.is_empty()
    }

    /// Starts to fetch the keys of issuers, or continues with those of the former policy.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(&mut self, former: Option<&Self>, background: &Background) -> Result<(), HubError> {
        match former {
            Some(former) if former.issuers.is_same(&self.issuers) => {
                self.issuers = Arc::clone(&former.issuers);
                Ok(())
            }
            _ => self.issuers.start(background),
        }
    }

    /// The keys that are fetched from URLs, if there are any.
    pub(crate) fn issuers(&self) -> Option<&Arc<IssuerKeys>> {
        Some(&self.issuers).filter(|issuers| !issuers.is_empty())
    }

    /// Returns the rights of a request's sender.
    ///
    /// # Errors
    /// [`Denied`] if the token is invalid or expired.
    pub(crate) fn rights(&self, request: &Request<'_>) -> Result<Rights, Denied> {
        if !self.has_keys() {
            return Ok(Rights::all());
        }
        self.rights_of(token_of(request)?)
    }

    /// The rights that this token grants.
    ///
    /// # Errors
    /// As [`rights`](Self::rights).
    pub(crate) fn rights_of(&self, token: Option<&str>) -> Result<Rights, Denied> {
        if !self.has_keys() {
            return Ok(Rights::all());
        }
        let Some(token) = token else { return Ok(self.public_rights()) };
        let claims = self.check_token(token).map_err(Denied::from)?;
        let until = Some(instant(self.end_of(&claims)));
        self.grant(claims, until).map_err(Denied::token)
    }

    /// Returns the rights of a client without a token, if tokens decide.
    pub(crate) fn public_rights(&self) -> Rights {
        Rights::granted(Arc::clone(&self.public))
    }

    /// Returns the rights that the application's claims grant, as a token's claims do. Without `exp`, they do not
    /// expire.
    ///
    /// # Errors
    /// The fault of the claims.
    pub(crate) fn rights_of_claims(&self, claims: Map<String, Value>) -> Result<Rights, String> {
        let expires = claims.get("exp").is_some_and(|exp| !exp.is_null());
        let claims = Claims::deserialize(Value::Object(claims));
        let claims = check(claims.map_err(|error| error.to_string())?)?;
        let until = expires.then(|| instant(self.end_of(&claims)));
        self.grant(claims, until)
    }

    /// Returns the same rights, which expire at a time in seconds since 1970, as those from a token with this `exp` do.
    pub(crate) fn rights_until(&self, rights: &Rights, exp: f64) -> Rights {
        rights.until(instant(UNIX_EPOCH + seconds(exp) + self.leeway))
    }

    fn grant(&self, claims: Claims, until: Option<Instant>) -> Result<Rights, String> {
        let with_public = |claimed: ClaimedPatterns, public: &[TopicPattern<'static>]| {
            let mut patterns = parse_patterns(claimed.0);
            patterns.extend_from_slice(public);
            patterns
        };
        let keys = key_patterns(&claims)?;
        let mut topics = claims.topics.0;
        topics.extend(claims.sub.iter().flat_map(|user| self.personal_topics_of(user)));
        let grant = Grant {
            app: None,
            publish: with_public(claims.publish, &self.public.publish),
            subscribe: with_public(claims.subscribe, &self.public.subscribe),
            delete: parse_patterns(claims.delete.0),
            keys,
            topics: topics.into(),
            subject: claims.sub.map(Into::into),
            info: claims.info.map(Into::into),
            token_id: claims.jti.map(Into::into),
            issued_at: claims.iat,
            until,
        };
        Ok(Rights::granted(Arc::new(grant)))
    }

    /// Returns a user's topics. Its name must have no wildcard, so that a user cannot choose a name that covers others.
    fn personal_topics_of(&self, user: &str) -> impl Iterator<Item = String> {
        let is_name = TopicName::parse(user).is_ok();
        self.personal_topics.iter().filter(move |_| is_name).map(|topic| topic.replace(SUBJECT, user))
    }

    /// Whether a token with this `nbf` is not valid yet.
    fn begins_later(&self, nbf: f64) -> bool {
        UNIX_EPOCH + seconds(nbf) > SystemTime::now() + self.leeway
    }

    fn end_of(&self, claims: &Claims) -> SystemTime {
        UNIX_EPOCH + seconds(claims.exp) + self.leeway
    }

    /// Returns a token's claims after checking its signature, times, audience and issuer.
    ///
    /// # Errors
    /// [`HubErrorKind::Token`], with the reason for the rejection. [`HubErrorKind::KeysNotFetched`]: the same token may
    /// be accepted later.
    pub fn verify(&self, token: &str) -> Result<Claims, HubError> {
        self.check_token(token).map_err(|fault| {
            let kind = if fault.is_temporary { HubErrorKind::KeysNotFetched } else { HubErrorKind::Token };
            HubError::new(kind, fault.text)
        })
    }

    fn check_token(&self, token: &str) -> Result<Claims, TokenFault> {
        let header = decode_header(token).map_err(|_| TokenFault::invalid("the token is not a JWT"))?;
        if has_critical_extension(token) {
            let fault = "the token's header has crit; JWT extensions are not supported";
            return Err(TokenFault::invalid(fault));
        }
        if self.issuers.is_empty() {
            let issuers = self.issuer.as_deref();
            return self.check_with(token, &header, &self.keys, issuers).map_err(TokenFault::invalid);
        }
        let (keys, issuer) = self.issuers.keys_for(|| claimed_issuer(token), header.kid.as_deref())?;
        let issuer = issuer.map(ToOwned::to_owned);
        let issuers = issuer.as_ref().map(std::slice::from_ref).or(self.issuer.as_deref());
        self.check_with(token, &header, &keys, issuers).map_err(TokenFault::invalid)
    }

    /// Checks a token with some keys, and that its issuer is accepted.
    fn check_with(
        &self,
        token: &str,
        header: &Header,
        keys: &[VerifyingKey],
        issuers: Option<&[String]>,
    ) -> Result<Claims, String> {
        let mut refused = None;
        let may_verify = |key: &&VerifyingKey| {
            let is_other = key.id.is_some() && header.kid.is_some() && key.id != header.kid;
            !is_other && key.algorithms.contains(&header.alg)
        };
        for key in keys.iter().filter(may_verify).take(TRIED_MAX) {
            let mut validation = Validation::new(header.alg);
            validation.leeway = self.leeway.as_secs();
            validation.aud = self.audience.as_ref().map(|names| names.iter().cloned().collect());
            validation.iss = issuers.map(|names| names.iter().cloned().collect());
            let required = [("aud", self.audience.is_some()), ("iss", issuers.is_some())];
            let required = required.into_iter().filter(|(_, required)| *required);
            validation.required_spec_claims.extend(required.map(|(claim, _)| claim.to_owned()));
            match decode::<Claims>(token, &key.key, &validation) {
                // Compare fractions of a second, because connections end with that precision.
                Ok(data) if self.end_of(&data.claims) <= SystemTime::now() => {
                    return Err(message(&ErrorKind::ExpiredSignature));
                }
                Ok(data) if data.claims.nbf.is_some_and(|nbf| self.begins_later(nbf)) => {
                    return Err(message(&ErrorKind::ImmatureSignature));
                }
                Ok(data) => return check(data.claims),
                // Another key may have signed it.
                Err(error) if *error.kind() == ErrorKind::InvalidSignature => {
                    refused = Some("the token's signature matches no key of this server".to_owned());
                }
                Err(error) => return Err(self.describe(error.kind(), token, issuers)),
            }
        }
        Err(refused.unwrap_or_else(|| {
            let id = header.kid.as_ref().map_or_else(String::new, |id| format!(" and kid {:?}", brief(id)));
            format!("no key of this server matches the token's alg {:?}{id}", header.alg)
        }))
    }

    /// Describes why a token is rejected. The token may come from `issuers`.
    fn describe(&self, kind: &ErrorKind, token: &str, issuers: Option<&[String]>) -> String {
        let claimed = || ClaimedNames::read(token);
        match kind {
            ErrorKind::InvalidAudience => claimed().describe_audience(self.audience.as_deref()),
            ErrorKind::InvalidIssuer => {
                let is_of_set = !self.issuers.is_empty() && self.issuer.is_none();
                let setting = if is_of_set { "auth.jwks_url" } else { "auth.issuer" };
                claimed().describe_issuer(setting, issuers.unwrap_or_default())
            }
            kind => message(kind),
        }
    }
}

/// The issuer that a token claims, which is not verified.
fn claimed_issuer(token: &str) -> Option<String> {
    match ClaimedNames::read(token).iss {
        Some(Value::String(issuer)) => Some(issuer),
        _ => None,
    }
}

/// Whether the header has `crit`, with any value. A server must reject a token that lists an extension it does not know
/// (RFC 7515 section 4.1.11); this server knows none.
fn has_critical_extension(token: &str) -> bool {
    let header = URL_SAFE_NO_PAD.decode(token.split('.').next().unwrap_or_default()).unwrap_or_default();
    let header = serde_json::from_slice::<Map<String, Value>>(&header);
    header.is_ok_and(|header| header.contains_key("crit"))
}

/// Checks that the claimed rights are valid patterns.
fn check(claims: Claims) -> Result<Claims, String> {
    for (claim, ClaimedPatterns(patterns)) in
        [("publish", &claims.publish), ("subscribe", &claims.subscribe), ("delete", &claims.delete)]
    {
        if patterns.len() > PATTERNS_MAX {
            return Err(format!("the token's {claim} has more than {PATTERNS_MAX} patterns"));
        }
        if let Some(bad) = patterns.iter().find(|pattern| TopicPattern::parse(pattern.as_str()).is_err()) {
            return Err(format!("the token's {claim}: {:?} is not a topic pattern", brief(bad)));
        }
    }
    if let Some(bytes) = claims.info.as_ref().map(String::len).filter(|len| *len > VerifiedSender::INFO_MAX) {
        let limit = VerifiedSender::INFO_MAX;
        return Err(format!("the token's info of {bytes} bytes exceeds the limit of {limit} bytes"));
    }
    key_patterns(&claims)?;
    let ClaimedPatterns(topics) = &claims.topics;
    if topics.len() > ASSIGNED_MAX {
        return Err(format!("the token's topics has more than {ASSIGNED_MAX} topics"));
    }
    for topic in topics {
        let fault = |why: String| format!("the token's topics: {:?}: {why}", brief(topic));
        check_subscription(topic).map_err(fault)?;
    }
    Ok(claims)
}

/// Checks each user's topics.
fn check_personal_topics(topics: &[String]) -> Result<(), HubError> {
    if topics.len() > ASSIGNED_MAX {
        let count = topics.len();
        return Err(HubError::setting(format!("{count} personal topics exceed the limit of {ASSIGNED_MAX}")));
    }
    for topic in topics {
        if !topic.contains(SUBJECT) {
            let fault = format!("{topic:?} has no {SUBJECT}: it would be the same topic for all users");
            return Err(HubError::setting(fault));
        }
        let example = topic.replace(SUBJECT, "user");
        let checked = check_subscription(&example);
        let checked = checked.map_err(|fault| HubError::new(HubErrorKind::Pattern, fault));
        let checked = checked.and_then(|()| check_pattern(&example));
        checked.map_err(|error| error.at(format_args!("{topic:?}")))?;
    }
    Ok(())
}

/// Reads the key claim.
fn key_patterns(claims: &Claims) -> Result<Vec<KeyPattern>, String> {
    let ClaimedPatterns(patterns) = &claims.keys;
    if patterns.len() > PATTERNS_MAX {
        return Err(format!("the token's keys has more than {PATTERNS_MAX} patterns"));
    }
    let parse = |text: &String| {
        let parsed = KeyPattern::parse(text, claims.sub.as_deref());
        parsed.map_err(|fault| format!("the token's keys: {:?}: {fault}", brief(text)))
    };
    patterns.iter().map(parse).collect()
}

fn message(kind: &ErrorKind) -> String {
    match kind {
        ErrorKind::ExpiredSignature => "the token has expired".to_owned(),
        ErrorKind::ImmatureSignature => "the token is not valid yet (nbf)".to_owned(),
        ErrorKind::MissingRequiredClaim(claim) => format!("the token has no {claim}"),
        ErrorKind::InvalidClaimFormat(claim) => format!("the token's {claim} has an invalid format"),
        ErrorKind::Json(error) if error.is_data() => {
            let text = error.to_string();
            // The position is in the text that the token encodes.
            format!("the token's {}", text.split(" at line ").next().unwrap_or_default())
        }
        ErrorKind::Json(error) => format!("the token's claims: {}", brief_error(error)),
        _ => "the token is not a JWT".to_owned(),
    }
}

/// Converts seconds since 1970 as a claim states them. Values beyond the clock's range become its end.
#[must_use]
pub fn seconds(claim: f64) -> Duration {
    const YEAR_9999: f64 = 253_402_300_799.0;
    Duration::from_secs_f64(if claim.is_finite() { claim.clamp(0.0, YEAR_9999) } else { YEAR_9999 })
}

/// Prefix of the subprotocol in which a browser passes its token, because it cannot set WebSocket headers.
const BEARER_PROTOCOL: &str = "sinews.bearer.";

/// Returns a request's token: from `Authorization`, the subprotocol list, or the query. All tokens in a request must be
/// the same: an unchecked token must not look like a credential.
fn token_of<'a>(request: &Request<'a>) -> Result<Option<&'a str>, Denied> {
    let authorization = request.head().header("authorization").map(|value| {
        let fault = || Denied::token("Authorization must be `Bearer` and a token".to_owned());
        bearer_of(value).ok_or_else(fault)
    });
    let query = query_pairs(request.head().query().unwrap_or_default());
    let query = query.filter(|(name, _)| name == "token").map(|(_, token)| token);
    let others = offered_tokens(request).chain(query).map(Ok);
    let differ = "the request has different tokens, in Authorization, subprotocols or query: send one";
    same_credential(authorization.chain(others), || Denied::token(differ.to_owned()))
}

/// Returns a request's credential, which may be in several places.
///
/// # Errors
/// That of a credential; `differ` if two credentials differ. The second one would not be checked.
pub(crate) fn same_credential<'a, E>(
    mut all: impl Iterator<Item = Result<&'a str, E>>,
    differ: impl FnOnce() -> E,
) -> Result<Option<&'a str>, E> {
    let first = all.next().transpose()?;
    for other in all {
        if Some(other?) != first {
            return Err(differ());
        }
    }
    Ok(first)
}

/// Returns the credential from an `Authorization` header with the scheme `Bearer`.
pub(crate) fn bearer_of(value: &[u8]) -> Option<&str> {
    let (scheme, token) = std::str::from_utf8(value).ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// Returns the tokens in the subprotocol list.
fn offered_tokens<'a>(request: &Request<'a>) -> impl Iterator<Item = &'a str> {
    offered(request, BEARER_PROTOCOL)
}

/// Returns the values in the subprotocol list that follow a prefix.
fn offered<'a>(request: &Request<'a>, prefix: &'static str) -> impl Iterator<Item = &'a str> {
    let offers =
        request.head().header("sec-websocket-protocol").filter_map(|value| std::str::from_utf8(value).ok());
    let offers = offers.flat_map(|value| value.split(','));
    offers.filter_map(move |offer| offer.trim().strip_prefix(prefix))
}

/// Returns whether the subprotocol list has a token.
pub(crate) fn offers_token(request: &Request<'_>) -> bool {
    offered_tokens(request).next().is_some()
}

/// The same time on the monotonic clock.
fn instant(time: SystemTime) -> Instant {
    /// Some clocks cannot represent times in the far future; no process runs for so long.
    const YEARS_100: Duration = Duration::from_secs(100 * 365 * 86_400);
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    Instant::now() + left.min(YEARS_100)
}

#[cfg(test)]
mod tests;
