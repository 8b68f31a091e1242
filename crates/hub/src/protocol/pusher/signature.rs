//! Signatures: HMAC-SHA256 in lower-case hexadecimal, compared in constant time.

use std::borrow::Cow;

use md5::{Digest, Md5};
use percent_encoding::percent_decode_str;
use ring::hmac;

use crate::brief::brief;

/// A key of an app, with its secret.
#[derive(Clone)]
pub(super) struct AppKey {
    pub(super) name: String,
    secret: Option<hmac::Key>,
}

impl AppKey {
    pub(super) fn new(name: String, secret: &str) -> Self {
        let secret = (!secret.is_empty()).then(|| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        Self { name, secret }
    }

    /// Whether the key has a name that can stand before a colon, and a secret.
    pub(super) fn is_valid(&self) -> bool {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=64).contains(&self.name.len()) && self.name.bytes().all(is_name) && self.secret.is_some()
    }

    /// Whether a signature is that of a text.
    pub(super) fn verifies(&self, text: &[u8], signature: &str) -> bool {
        let (Some(secret), Some(signature)) = (&self.secret, of_hex(signature)) else { return false };
        hmac::verify(secret, text, &signature).is_ok()
    }

    /// Signs a text. Without a secret, the signature is empty; the check of an app excludes this.
    pub(super) fn sign(&self, text: &[u8]) -> String {
        self.secret.as_ref().map_or_else(String::new, |secret| to_hex(hmac::sign(secret, text).as_ref()))
    }
}

/// Length of a signature in bytes.
const SIGNATURE_LEN: usize = 32;

fn of_hex(text: &str) -> Option<[u8; SIGNATURE_LEN]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; SIGNATURE_LEN];
    if text.len() != 2 * SIGNATURE_LEN {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for digit in bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        text.push(char::from(DIGITS[usize::from(digit)]));
    }
    text
}

/// Checks `auth`, which is `KEY:SIGNATURE`, with the key of the connection.
pub(super) fn verifies_auth(key: &AppKey, auth: &str, text: &str) -> bool {
    match auth.split_once(':') {
        Some((name, signature)) => name == key.name && key.verifies(text.as_bytes(), signature),
        None => false,
    }
}

/// Time for which a signed request is valid, before and after its timestamp, in seconds.
const REQUEST_VALID: u64 = 600;

/// A request to the HTTP API, as far as its signature is concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedRequest<'a> {
    pub(super) method: &'a str,
    /// The path as received.
    pub(super) path: &'a str,
    /// The query as received.
    pub(super) query: &'a str,
    pub(super) body: &'a [u8],
    /// The prefix of paths of the server, which a proxy may have removed, and which a library may not know; empty for none.
    pub(super) prefix: &'a str,
}

impl SignedRequest<'_> {
    /// Checks the signature at a time in seconds since 1970; `find` has the key of a name.
    ///
    /// # Errors
    /// The fault of the signature.
    pub(super) fn verify<'k>(
        &self,
        find: impl Fn(&str) -> Option<&'k AppKey>,
        now: u64,
    ) -> Result<(), String> {
        let fields = self.fields(false)?;
        let field = |name: &str| {
            fields.get(name).ok_or_else(|| format!("the query has no {name}, which signs the request"))
        };
        let key = field("auth_key")?;
        let key = find(key).ok_or("auth_key is not a key of this app")?;
        if field("auth_version")? != "1.0" {
            return Err("auth_version must be 1.0".to_owned());
        }
        let timestamp: u64 =
            field("auth_timestamp")?.parse().map_err(|_| "auth_timestamp is not a number of seconds")?;
        if now.abs_diff(timestamp) > REQUEST_VALID {
            return Err(format!(
                "auth_timestamp {timestamp} differs from the time of the server, {now}, by more than {REQUEST_VALID} seconds"
            ));
        }
        match fields.get("body_md5") {
            Some(digest) if digest != to_hex(&Md5::digest(self.body)) => {
                return Err("body_md5 is not the MD5 of the body".to_owned());
            }
            None if !self.body.is_empty() => return Err("the query has no body_md5".to_owned()),
            _ => {}
        }
        let signature = field("auth_signature")?;
        // Some libraries write spaces as `+`.
        let is_signed = self.signs(key, &fields, signature)
            || self.query.contains('+')
                && self.fields(true).is_ok_and(|fields| self.signs(key, &fields, signature));
        match is_signed {
            true => Ok(()),
            false => Err("auth_signature is not the signature of this request".to_owned()),
        }
    }

    /// Whether a signature is that of the request with these fields.
    fn signs(&self, key: &AppKey, fields: &QueryFields<'_>, signature: &str) -> bool {
        self.paths().iter().any(|path| key.verifies(self.text(path, fields).as_bytes(), signature))
    }

    /// The text that is signed. The signature is not part of it, and values are not escaped.
    fn text(&self, path: &str, fields: &QueryFields<'_>) -> String {
        let mut text = String::with_capacity(self.method.len() + path.len() + self.query.len() + 2);
        for part in [self.method, "\n", path, "\n"] {
            text.push_str(part);
        }
        let mut separator = "";
        for (key, value) in fields.0.iter().filter(|(key, _)| *key != "auth_signature") {
            for part in [separator, key, "=", value] {
                text.push_str(part);
            }
            separator = "&";
        }
        text
    }

    /// The paths that a library may have signed: as received, or before it was escaped, and with or without the prefix.
    fn paths(&self) -> Vec<Cow<'_, str>> {
        let decoded = decoded(self.path, false);
        let is_escaped = decoded != self.path;
        let mut paths = vec![Cow::Borrowed(self.path)];
        paths.extend(Some(decoded).filter(|_| is_escaped));
        if !self.prefix.is_empty() {
            let other = |path: &Cow<'_, str>| match path.strip_prefix(self.prefix) {
                Some(rest) if rest.starts_with('/') => rest.to_owned().into(),
                _ => format!("{}{path}", self.prefix).into(),
            };
            let others: Vec<Cow<'_, str>> = paths.iter().map(other).collect();
            paths.extend(others);
        }
        paths
    }

    /// The decoded fields. The elements of an array, `a[]` or `a[0]`, are joined with a comma.
    ///
    /// # Errors
    /// A field is repeated, also in another case: the signature would cover one of the values, and the request could use
    /// the other one.
    fn fields(&self, plus_is_space: bool) -> Result<QueryFields<'_>, String> {
        let mut fields = QueryFields(Vec::with_capacity(6));
        for pair in self.query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let (mut key, value) = (decoded(key, plus_is_space), decoded(value, plus_is_space));
            if key.bytes().any(|byte| byte.is_ascii_uppercase() || !byte.is_ascii()) {
                key = key.to_lowercase().into();
            }
            let is_array = key.ends_with(']');
            if let Some(begin) = key.find('[').filter(|_| is_array) {
                key = key[..begin].to_owned().into();
            }
            match fields.find(&key) {
                Ok(at) if is_array => {
                    let known = &mut fields.0[at].1;
                    *known = [&**known, ",", &value].concat().into();
                }
                Ok(_) => return Err(format!("the query repeats {}", brief(&key))),
                Err(_) if fields.0.len() == FIELDS_MAX => {
                    return Err(format!("the query has more than {FIELDS_MAX} fields"));
                }
                Err(at) => fields.0.insert(at, (key, value)),
            }
        }
        Ok(fields)
    }
}

/// Maximum number of fields of a query; the elements of an array are one.
const FIELDS_MAX: usize = 100;

/// The decoded fields of a query, in order.
struct QueryFields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl QueryFields<'_> {
    fn find(&self, key: &str) -> Result<usize, usize> {
        self.0.binary_search_by(|(known, _)| (**known).cmp(key))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.find(key).ok().map(|at| &*self.0[at].1)
    }
}

/// Decodes a part of a target.
fn decoded(text: &str, plus_is_space: bool) -> Cow<'_, str> {
    if !text.bytes().any(|byte| matches!(byte, b'%' | b'+')) {
        return text.into();
    }
    if plus_is_space && text.contains('+') {
        let spaced = text.replace('+', " ");
        return percent_decode_str(&spaced).decode_utf8_lossy().into_owned().into();
    }
    percent_decode_str(text).decode_utf8_lossy()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_query_are_limited_and_arrays_are_one() {
        let verify = |query: &str| {
            let request = SignedRequest { method: "GET", path: "/", query, body: b"", prefix: "" };
            request.verify(|_| None, 0).unwrap_err()
        };
        let fields = |name: fn(usize) -> String, count| (0..count).map(name).collect::<Vec<_>>().join("&");
        let missing = "the query has no auth_key, which signs the request";
        assert_eq!(verify(&fields(|at| format!("f{at}=1"), 100)), missing);
        assert_eq!(verify(&fields(|at| format!("f{at}=1"), 101)), "the query has more than 100 fields");
        assert_eq!(verify(&fields(|at| format!("a[{at}]=1"), 1_000)), missing);
    }

    fn key() -> AppKey {
        AppKey::new("278d425bdf160c739803".to_owned(), "7ad3773142a6692b25b8")
    }

    #[test]
    fn pusher_5_12_to_5_18_signatures_of_channels_and_users() {
        for (text, signature) in [
            ("1234.1234:private-foobar", "58df8b0c36d6982b82c3ecf6b4662e34fe8c25bba48f5369f135bf843651c3a4"),
            (
                r#"1234.1234:presence-foobar:{"user_id":10,"user_info":{"name":"Mr. Channels"}}"#,
                "31935e7d86dba64c2a90aed31fdc61869f9b22ba9d8863bba239c03ca481bc80",
            ),
            (
                r#"1234.1234:presence-foobar:{"user_id":10,"user_info":{"name":"Mr. Pusher"}}"#,
                "afaed3695da2ffd16931f457e338e6c9f2921fa133ce7dac49f529792be6304c",
            ),
            (
                r#"1234.1234::user::{"id":"12345"}"#,
                "4708d583dada6a56435fb8bc611c77c359a31eebde13337c16ab43aa6de336ba",
            ),
        ] {
            let auth = format!("278d425bdf160c739803:{signature}");
            assert!(verifies_auth(&key(), &auth, text), "{text}");
            assert!(!verifies_auth(&key(), &auth, &format!("{text} ")), "other bytes");
            assert!(!verifies_auth(&key(), &auth.to_uppercase(), text));
            assert!(!verifies_auth(&key(), &format!("other:{signature}"), text), "the key of the connection");
            assert!(!verifies_auth(&key(), signature, text));
        }
    }

    const BODY: &[u8] = br#"{"name":"foo","channels":["project-3"],"data":"{\"some\":\"data\"}"}"#;
    const QUERY: &str = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0&\
                         body_md5=ec365a775a4cd0599faeb73354201b6f&\
                         auth_signature=da454824c97ba181a32ccc17a72625ba02771f50b50e1e7430e47a1f3f457e6c";
    const NOW: u64 = 1_353_088_179;

    fn verify(request: SignedRequest<'_>, now: u64) -> Result<(), String> {
        let key = key();
        request.verify(|name| (name == key.name).then_some(&key), now)
    }

    #[test]
    fn pusher_9_13_to_9_19_signatures_of_requests() {
        let request =
            SignedRequest { method: "POST", path: "/apps/3/events", query: QUERY, body: BODY, prefix: "" };
        assert_eq!(verify(request, NOW), Ok(()));
        fn error(request: SignedRequest<'_>, now: u64) -> String {
            verify(request, now).unwrap_err()
        }
        assert!(error(request, NOW + 601).starts_with("auth_timestamp"), "9.17");
        assert!(verify(request, NOW - 600).is_ok());
        assert!(error(SignedRequest { body: b"", ..request }, NOW).contains("MD5"), "9.18");
        assert!(error(SignedRequest { body: b"{}", ..request }, NOW).contains("MD5"), "9.18");
        let without = QUERY.replace("body_md5=ec365a775a4cd0599faeb73354201b6f&", "");
        assert!(error(SignedRequest { query: &without, ..request }, NOW).contains("body_md5"));
        for (from, to, expected) in [
            ("278d", "178d", "not a key"),
            ("=1.0", "=2.0", "auth_version"),
            ("=1353088179", "=x", "auth_timestamp"),
            ("=da", "=db", "not the signature"),
            ("auth_signature=", "a=", "no auth_signature"),
        ] {
            let query = QUERY.replacen(from, to, 1);
            let problem = error(SignedRequest { query: &query, ..request }, NOW);
            assert!(problem.contains(expected), "{problem}");
        }
        for changed in
            [SignedRequest { method: "GET", ..request }, SignedRequest { path: "/apps/4/events", ..request }]
        {
            assert!(error(changed, NOW).contains("not the signature"));
        }
    }

    #[test]
    fn pusher_9_13_repeated_fields_are_rejected() {
        let auth = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0";
        let query = signed(
            &format!("POST\n/apps/3/events\n{auth}&channel=a&name=e"),
            &format!("{auth}&channel=a&name=e"),
        );
        let check = |query: &str| {
            verify(
                SignedRequest { method: "POST", path: "/apps/3/events", query, body: b"", prefix: "" },
                NOW,
            )
        };
        assert_eq!(check(&query), Ok(()));
        // The first of two fields would be signed, and a handler could read the second one.
        for (added, field) in
            [("name=forged", "name"), ("Name=e&name=forged", "name"), ("auth_KEY=x", "auth_key")]
        {
            let forged = query.replacen("name=e", added, 1) + "&name=e";
            let forged = if added.starts_with("auth") { format!("{query}&{added}") } else { forged };
            assert_eq!(check(&forged), Err(format!("the query repeats {field}")), "{forged}");
        }
    }

    fn signed(text: &str, query: &str) -> String {
        format!("{query}&auth_signature={}", key().sign(text.as_bytes()))
    }

    #[test]
    fn pusher_9_14_and_9_16_values_and_paths_are_signed_without_escapes() {
        let auth = "auth_key=278d425bdf160c739803&auth_timestamp=1353088179&auth_version=1.0";
        let text = format!("GET\n/apps/3/users/a b/x\n{auth}&channels=a,b&filter_by_prefix=p q");
        for query in [
            format!("{auth}&channels[]=a&channels%5B%5D=b&filter_by_prefix=p%20q"),
            format!("filter_by_prefix=p+q&{auth}&channels[0]=a&channels[1]=b"),
        ] {
            let query = signed(&text, &query);
            let request = SignedRequest {
                method: "GET",
                path: "/apps/3/users/a%20b/x",
                query: &query,
                body: b"",
                prefix: "",
            };
            assert_eq!(verify(request, NOW), Ok(()), "{query}");
        }
        let text = text.replace("a b", "a%20b");
        let query = signed(&text, &format!("{auth}&channels[]=a&channels[]=b&filter_by_prefix=p%20q"));
        let request = SignedRequest {
            method: "GET",
            path: "/apps/3/users/a%20b/x",
            query: &query,
            body: b"",
            prefix: "",
        };
        assert_eq!(verify(request, NOW), Ok(()), "the path as received");
    }
}
