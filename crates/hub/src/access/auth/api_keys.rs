//! Keys of the HTTP API for backends, and their rights.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use serde_json::json;
use sinews_server::{Request, TopicPattern};
use subtle::ConstantTimeEq as _;

use crate::access::auth::keys::read_text;
use crate::access::auth::{bearer_of, offered, same_credential};
use crate::error::HubError;
use crate::model::brief::brief;
use crate::model::check_pattern;
use crate::model::problem::{Problem, problem};

/// Maximum keys: each request is compared with all.
const KEYS_MAX: usize = 64;

/// Minimum key length in bytes, so that a key cannot be guessed.
const SECRET_MIN: usize = 32;

/// Maximum patterns for one right.
const PATTERNS_MAX: usize = 256;

/// Prefix of a hash that replaces a key in the file.
const HASH_PREFIX: &str = "sha256:";

/// The keys of the HTTP API for backends, for [`HubConfig::with_api_keys`](crate::HubConfig::with_api_keys).
#[derive(Default)]
pub struct ApiKeys {
    keys: Vec<ApiKey>,
}

struct ApiKey {
    /// SHA-256 hash of the key.
    hash: Vec<u8>,
    rights: Arc<ApiRights>,
}

/// A right of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiRight {
    /// Publish messages.
    Publish,
    /// Read histories and keys, and list topics and streams.
    Read,
    /// Read presence and members.
    Presence,
    /// Write keys of topics.
    Keys,
    /// Subscribe and unsubscribe connections.
    Subscribe,
    /// List and close connections, and revoke tokens.
    Disconnect,
    /// Change the rights of connections.
    Refresh,
    /// Server information and stream administration. Grants all other rights, too.
    Admin,
}

impl ApiRight {
    const ALL: [Self; 8] = [
        Self::Publish,
        Self::Read,
        Self::Presence,
        Self::Keys,
        Self::Subscribe,
        Self::Disconnect,
        Self::Refresh,
        Self::Admin,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Publish => "publish",
            Self::Read => "read",
            Self::Presence => "presence",
            Self::Keys => "keys",
            Self::Subscribe => "subscribe",
            Self::Disconnect => "disconnect",
            Self::Refresh => "refresh",
            Self::Admin => "admin",
        }
    }

    /// Returns whether topic patterns may restrict the right.
    const fn has_topics(self) -> bool {
        !matches!(self, Self::Disconnect | Self::Refresh | Self::Admin)
    }
}

/// Rights of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiRights {
    name: String,
    /// Rights and their topic patterns; no patterns: all topics.
    granted: Vec<(ApiRight, Vec<TopicPattern<'static>>)>,
}

impl ApiRights {
    /// Parses the words after a line's key: `publish:chat.>,news read`.
    fn parse<'a>(name: &str, words: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut granted: Vec<(ApiRight, Vec<TopicPattern<'static>>)> = Vec::new();
        for word in words {
            let (right, patterns) =
                word.split_once(':').map_or((word, None), |(right, list)| (right, Some(list)));
            let right = ApiRight::ALL.into_iter().find(|known| known.name() == right).ok_or_else(|| {
                let known: Vec<_> = ApiRight::ALL.iter().map(|right| right.name()).collect();
                // A line in another order has the key here.
                format!("a word after the key is not a right; rights are {}", known.join(", "))
            })?;
            if granted.iter().any(|(known, _)| *known == right) {
                return Err(format!(
                    "the right {} is given twice; list its patterns with commas",
                    right.name()
                ));
            }
            let texts: Vec<&str> = patterns.map_or_else(Vec::new, |list| list.split(',').collect());
            if !texts.is_empty() && !right.has_topics() {
                return Err(format!("the right {} has no patterns", right.name()));
            }
            if texts.len() > PATTERNS_MAX {
                return Err(format!("the right {} has more than {PATTERNS_MAX} patterns", right.name()));
            }
            let parse = |text: &str| {
                let parsed = TopicPattern::parse(text.to_owned());
                let parsed = parsed.ok().filter(|_| check_pattern(text).is_ok());
                parsed
                    .ok_or_else(|| format!("a pattern of the right {} is not a topic pattern", right.name()))
            };
            let patterns = texts.into_iter().map(parse).collect::<Result<_, _>>()?;
            granted.push((right, patterns));
        }
        if granted.is_empty() {
            return Err("the key has no rights".to_owned());
        }
        Ok(Self { name: name.to_owned(), granted })
    }

    /// Checks that the key has a right, for some topics at least.
    pub(crate) fn check(&self, right: ApiRight) -> Result<(), Problem> {
        let is_granted = |known: &ApiRight| *known == right || *known == ApiRight::Admin;
        if self.granted.iter().any(|(known, _)| is_granted(known)) {
            return Ok(());
        }
        let text = format!("the key {} has no right {}", brief(&self.name), right.name());
        Err(Problem { needs: Some(json!({ "right": right.name() })), ..problem(403, text) })
    }

    /// Checks that the key has a right for a topic, or for all topics that a pattern matches.
    pub(crate) fn may(&self, right: ApiRight, topic: &str) -> Result<(), Problem> {
        if self.covers(right, topic) {
            return Ok(());
        }
        let text =
            format!("the key {} has no right {} for {}", brief(&self.name), right.name(), brief(topic));
        Err(Problem {
            needs: Some(json!({ "right": right.name(), "topic": brief(topic) })),
            ..problem(403, text)
        })
    }

    /// Whether the key has a right for a topic, or for all topics that a pattern matches.
    pub(crate) fn covers(&self, right: ApiRight, topic: &str) -> bool {
        let Ok(topic) = TopicPattern::parse(topic) else { return false };
        self.granted.iter().any(|(known, patterns)| {
            *known == ApiRight::Admin
                || *known == right
                    && (patterns.is_empty() || patterns.iter().any(|granted| granted.covers(&topic)))
        })
    }
}

impl ApiKeys {
    /// No keys: all requests are rejected.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key with all rights.
    ///
    /// # Errors
    /// [`HubErrorKind::Key`](crate::HubErrorKind::Key): the key is shorter than 32 bytes, contains a space or a control
    /// character, or is one of too many.
    pub fn with_key(mut self, key: &str) -> Result<Self, HubError> {
        let rights = ApiRights::parse("api.key", std::iter::once(ApiRight::Admin.name()));
        rights.and_then(|rights| self.add(key, rights)).map_err(HubError::key)?;
        Ok(self)
    }

    /// Adds a file's keys: one a line, with a name, the key or `sha256:` and its hash in hexadecimal digits, and its
    /// rights. A right may be followed by a colon and patterns of topics, with commas between. Empty lines and lines
    /// that begin with `#` are ignored.
    ///
    /// # Errors
    /// [`HubErrorKind::File`](crate::HubErrorKind::File): the file cannot be read.
    /// [`HubErrorKind::Key`](crate::HubErrorKind::Key): it has no key, or an invalid line, which the error names by its
    /// number.
    pub fn with_file(mut self, path: &Path) -> Result<Self, HubError> {
        let text = read_text(path)?;
        let before = self.keys.len();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let place = || format!("{}:{}", path.display(), number + 1);
            self.add_line(line).map_err(|fault| HubError::key(fault).at(place()))?;
        }
        if self.keys.len() == before {
            return Err(HubError::key("the file has no key").at(path.display()));
        }
        Ok(self)
    }

    fn add_line(&mut self, line: &str) -> Result<(), String> {
        let mut words = line.split_whitespace();
        let (Some(name), Some(key)) = (words.next(), words.next()) else {
            return Err("expected a name, a key and rights".to_owned());
        };
        self.add(key, ApiRights::parse(name, words)?)
    }

    fn add(&mut self, key: &str, rights: ApiRights) -> Result<(), String> {
        if self.keys.len() >= KEYS_MAX {
            return Err(format!("more than {KEYS_MAX} keys"));
        }
        let hash = match key.strip_prefix(HASH_PREFIX) {
            Some(hash) => decode_hash(hash).ok_or("sha256: must be followed by 64 hexadecimal digits")?,
            None if key.len() < SECRET_MIN => {
                return Err(format!(
                    "the key has {} bytes; {SECRET_MIN} are required (create one with `openssl rand -hex 32`)",
                    key.len()
                ));
            }
            None if key.chars().any(|char| char.is_whitespace() || char.is_control()) => {
                return Err("the key contains a space or a control character".to_owned());
            }
            None => hash_of(key).as_ref().to_vec(),
        };
        self.keys.push(ApiKey { hash, rights: Arc::new(rights) });
        Ok(())
    }

    /// Returns the error that a server without keys answers.
    pub(crate) fn disabled() -> Problem {
        problem(403, "the HTTP API is disabled: set api.key or api.keys_file")
    }

    /// Returns the rights of a request's sender.
    ///
    /// # Errors
    /// The request has no key for this server.
    pub(crate) fn rights(&self, request: &Request<'_>) -> Result<Arc<ApiRights>, Problem> {
        let presented = ApiCredential::from_request(request)?;
        let known = self.rights_of(&presented);
        known.ok_or_else(|| problem(401, "the key of the request is not a key of this server"))
    }

    /// Returns the rights of a key, which is compared with all keys, each in constant time.
    pub(crate) fn rights_of(&self, presented: &ApiCredential) -> Option<Arc<ApiRights>> {
        let mut found = None;
        for key in &self.keys {
            if key.hash.ct_eq(presented.0.as_ref()).into() {
                found = Some(&key.rights);
            }
        }
        found.cloned()
    }
}

/// Prefix of the subprotocol in which a browser passes an API key.
const KEY_PROTOCOL: &str = "sinews.key.";

/// A key that a client has presented, as its hash.
pub(crate) struct ApiCredential(digest::Digest);

impl ApiCredential {
    /// Returns a request's key.
    ///
    /// # Errors
    /// The request has none, or two.
    pub(crate) fn from_request(request: &Request<'_>) -> Result<Self, Problem> {
        key_of(request).map(Self::new)
    }

    /// Returns the key in the subprotocols of a browser's WebSocket: `sinews.key.` and the key in base64url, since a
    /// key may have characters that no subprotocol has.
    pub(crate) fn from_subprotocols(request: &Request<'_>) -> Option<Self> {
        let key = offered(request, KEY_PROTOCOL).next()?;
        let key = String::from_utf8(URL_SAFE_NO_PAD.decode(key).ok()?).ok()?;
        Some(Self::new(&key))
    }

    fn new(key: &str) -> Self {
        Self(hash_of(key))
    }
}

/// Returns a request's key: from `Authorization` or `X-API-Key`. All keys in a request must be the same.
fn key_of<'a>(request: &Request<'a>) -> Result<&'a str, Problem> {
    let head = request.head();
    let authorization = head.header("authorization").map(|value| {
        bearer_of(value).ok_or_else(|| problem(401, "Authorization must be `Bearer` and a key"))
    });
    let text = |value: &'a [u8]| Ok(std::str::from_utf8(value).unwrap_or_default().trim());
    let differ = || problem(401, "Authorization and X-API-Key have different keys: send one");
    let key = same_credential(authorization.chain(head.header("x-api-key").map(text)), differ)?;
    key.ok_or_else(|| problem(401, "a key is needed: send `Authorization: Bearer` and the key"))
}

fn hash_of(key: &str) -> digest::Digest {
    digest::digest(&digest::SHA256, key.as_bytes())
}

fn decode_hash(text: &str) -> Option<Vec<u8>> {
    if text.len() != 2 * digest::SHA256_OUTPUT_LEN || !text.is_ascii() {
        return None;
    }
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "0123456789abcdef0123456789abcdef";

    fn keys(lines: &str) -> Result<ApiKeys, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), lines).unwrap();
        let path = file.path().display().to_string();
        ApiKeys::new().with_file(file.path()).map_err(|error| error.to_string().replace(&path, "keys"))
    }

    #[test]
    fn keys_have_the_rights_of_their_line() {
        let other = "f".repeat(32);
        let hash: String = hash_of(&other).as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
        let lines = format!("# comment\n\n a {KEY}  publish:chat.>,news read\nb sha256:{hash} admin\r\n");
        let keys = keys(&lines).unwrap();
        let find = |key: &str| keys.rights_of(&ApiCredential::new(key));
        let rights = find(KEY).unwrap();
        assert!(rights.covers(ApiRight::Publish, "chat.a") && rights.covers(ApiRight::Publish, "news"));
        assert!(!rights.covers(ApiRight::Publish, "news.a") && !rights.covers(ApiRight::Publish, ">"));
        assert!(rights.covers(ApiRight::Read, ">") && !rights.covers(ApiRight::Keys, "chat.a"));
        assert!(rights.check(ApiRight::Publish).is_ok());
        assert_eq!(rights.check(ApiRight::Admin).unwrap_err().text, "the key a has no right admin");
        let denied = rights.may(ApiRight::Publish, "news.a").unwrap_err();
        assert_eq!((denied.code, &*denied.text), (403, "the key a has no right publish for news.a"));
        let rights = find(&other).unwrap();
        assert!(rights.covers(ApiRight::Publish, ">") && rights.check(ApiRight::Admin).is_ok());
        assert!(find(&KEY[1..]).is_none() && find("").is_none() && find(&hash).is_none());
    }

    #[test]
    fn invalid_lines_are_named() {
        let of = |lines: &str| keys(lines).map(drop).unwrap_err();
        assert_eq!(of(""), "keys: the file has no key");
        assert_eq!(of("\na"), "keys:2: expected a name, a key and rights");
        assert_eq!(of(&format!("a {KEY}")), "keys:1: the key has no rights");
        assert!(of("a short admin").starts_with("keys:1: the key has 5 bytes; 32 are required"));
        assert!(
            of(&format!("a {KEY} write"))
                .starts_with("keys:1: a word after the key is not a right; rights are publish,")
        );
        assert!(of(&format!("a {KEY} read read:a")).contains("given twice"));
        assert!(of(&format!("a {KEY} admin:a")).contains("the right admin has no patterns"));
        assert!(
            of(&format!("a {KEY} read:a..b")).contains("a pattern of the right read is not a topic pattern")
        );
        for swapped in
            [format!("{KEY} a publish"), format!("a publish {KEY}"), format!("a {KEY} read:{KEY}..")]
        {
            assert!(!of(&swapped).contains(KEY), "no key is repeated");
        }
        assert!(of("a sha256:12 admin").contains("64 hexadecimal digits"));
        let many: String = (0..65).map(|at| format!("a{at} {KEY} admin\n")).collect();
        assert_eq!(of(&many), "keys:65: more than 64 keys");
        assert!(ApiKeys::new().with_key("short").is_err());
    }
}
