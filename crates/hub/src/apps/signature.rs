//! Signatures: HMAC-SHA256 in lower-case hexadecimal, compared in constant time.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use ring::hmac;

use crate::model::brief::brief;

/// An app's key, with its secret.
#[derive(Clone)]
pub(crate) struct AppKey {
    pub(crate) name: String,
    secret: Option<hmac::Key>,
    /// Seals events in streams. Derived from the secret by a text that no library has signed.
    events: Option<hmac::Key>,
}

/// From it and a secret, the seal key is derived.
const EVENTS_LABEL: &[u8] = b"\0sinews-channel-event";

impl AppKey {
    pub(crate) fn new(name: String, secret: &str) -> Self {
        let secret = (!secret.is_empty()).then(|| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()));
        let derive = |secret| hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(secret, EVENTS_LABEL).as_ref());
        Self { name, events: secret.as_ref().map(derive), secret }
    }

    /// Whether the key has a name that can stand before a colon, and a secret.
    pub(crate) fn is_valid(&self) -> bool {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        (1..=64).contains(&self.name.len()) && self.name.bytes().all(is_name) && self.secret.is_some()
    }

    /// Whether a signature matches a text.
    pub(crate) fn verifies(&self, text: &[u8], signature: &str) -> bool {
        let (Some(secret), Some(signature)) = (&self.secret, from_hex::<SIGNATURE_LEN>(signature)) else {
            return false;
        };
        hmac::verify(secret, text, &signature).is_ok()
    }

    /// Signs a text. Without a secret, the signature is empty; the check of an app excludes this.
    pub(crate) fn sign(&self, text: &[u8]) -> String {
        self.secret.as_ref().map_or_else(String::new, |secret| to_hex(hmac::sign(secret, text).as_ref()))
    }
}

impl AppKey {
    /// Seals a topic's event.
    pub(crate) fn seal(&self, topic: &str, event: &[u8]) -> String {
        let seal = |key| to_hex(hmac::sign(key, &sealed_text(topic, event)).as_ref());
        self.events.as_ref().map_or_else(String::new, seal)
    }

    /// Whether this key has sealed the topic's event.
    pub(crate) fn has_sealed(&self, topic: &str, event: &[u8], seal: &str) -> bool {
        let (Some(key), Some(seal)) = (&self.events, from_hex::<SIGNATURE_LEN>(seal)) else { return false };
        hmac::verify(key, &sealed_text(topic, event), &seal).is_ok()
    }
}

fn sealed_text(topic: &str, event: &[u8]) -> Vec<u8> {
    // No topic has a zero.
    [topic.as_bytes(), b"\0", event].concat()
}

/// Signature length in bytes.
const SIGNATURE_LEN: usize = 32;

/// Decodes lower-case hexadecimal digits. A signature's digits cannot be predicted, so no digit is a branch.
fn from_hex<const LEN: usize>(text: &str) -> Option<[u8; LEN]> {
    if text.len() != 2 * LEN {
        return None;
    }
    let (mut bytes, mut all) = ([0; LEN], 0);
    for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let [high, low] = [pair[0], pair[1]].map(|digit| HEX_VALUES[usize::from(digit)]);
        all |= high | low;
        *byte = high << 4 | low;
    }
    (all < 16).then_some(bytes)
}

fn to_hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 * bytes.len());
    for digit in bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]) {
        text.push(char::from(HEX_DIGITS[usize::from(digit)]));
    }
    text
}

const HEX_DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Each byte's value as a digit; more than 15 if it is none.
const HEX_VALUES: [u8; 256] = {
    let (mut values, mut digit) = ([u8::MAX; 256], 0);
    while digit < HEX_DIGITS.len() {
        values[HEX_DIGITS[digit] as usize] = digit as u8;
        digit += 1;
    }
    values
};

/// Checks `auth`, which is `KEY:SIGNATURE`, with the connection's key.
pub(crate) fn verifies_auth(key: &AppKey, auth: &str, text: &str) -> bool {
    match auth.split_once(':') {
        Some((name, signature)) => name == key.name && key.verifies(text.as_bytes(), signature),
        None => false,
    }
}

/// Time for which a signed request is valid, before and after its timestamp, in seconds.
const REQUEST_VALID: u64 = 600;

/// A request to the HTTP API, as far as its signature is concerned.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SignedRequest<'a> {
    pub(crate) method: &'a str,
    /// The path as received.
    pub(crate) path: &'a str,
    /// The query as received.
    pub(crate) query: &'a str,
    pub(crate) body: &'a [u8],
    /// The server's path prefix, which a proxy may have removed, and which a library may not know; empty for none.
    pub(crate) prefix: &'a str,
}

/// The query fields that sign a request.
#[derive(Clone, Copy, Debug, Default)]
struct RequestCredentials<'a> {
    key: Option<&'a str>,
    timestamp: Option<&'a str>,
    version: Option<&'a str>,
    body_md5: Option<&'a str>,
    signature: Option<&'a str>,
}

impl<'a> RequestCredentials<'a> {
    fn set(&mut self, field: &str, value: &'a str) {
        let known = match field {
            "auth_key" => &mut self.key,
            "auth_timestamp" => &mut self.timestamp,
            "auth_version" => &mut self.version,
            "body_md5" => &mut self.body_md5,
            SIGNATURE => &mut self.signature,
            _ => return,
        };
        *known = Some(value);
    }
}

/// The field with the signature, which does not sign itself.
const SIGNATURE: &str = "auth_signature";

fn required<'a>(value: Option<&'a str>, field: &str) -> Result<&'a str, String> {
    value.ok_or_else(|| format!("the query has no {field}, which signs the request"))
}

impl<'a> SignedRequest<'a> {
    /// Checks the signature at a time in seconds since 1970; `find` returns the key for a name.
    ///
    /// # Errors
    /// The fault of the signature.
    pub(crate) fn verify<'k>(
        &self,
        find: impl Fn(&str) -> Option<&'k AppKey>,
        now: u64,
    ) -> Result<(), String> {
        let is_signed = match SortedQuery::from_query(self.query) {
            Some(query) => {
                let (key, signature) = self.check(&query.credentials, find, now)?;
                self.is_signed(key, &query.signed, signature)
            }
            None => {
                let fields = self.fields(false)?;
                let (key, signature) = self.check(&fields.credentials(), find, now)?;
                let with_spaces = || {
                    let fields = self.fields(true);
                    fields.is_ok_and(|fields| self.is_signed(key, &fields.signed(), signature))
                };
                // Some libraries write spaces as `+`.
                self.is_signed(key, &fields.signed(), signature) || self.query.contains('+') && with_spaces()
            }
        };
        match is_signed {
            true => Ok(()),
            false => Err("auth_signature is not the signature of this request".to_owned()),
        }
    }

    /// Checks everything but the signature. Returns the key and the signature.
    fn check<'k, 'c>(
        &self,
        credentials: &RequestCredentials<'c>,
        find: impl Fn(&str) -> Option<&'k AppKey>,
        now: u64,
    ) -> Result<(&'k AppKey, &'c str), String> {
        let key = required(credentials.key, "auth_key")?;
        let key = find(key).ok_or("auth_key is not a key of this app")?;
        if required(credentials.version, "auth_version")? != "1.0" {
            return Err("auth_version must be 1.0".to_owned());
        }
        let timestamp = required(credentials.timestamp, "auth_timestamp")?.parse();
        let timestamp: u64 = timestamp.map_err(|_| "auth_timestamp is not a number of seconds")?;
        if now.abs_diff(timestamp) > REQUEST_VALID {
            return Err(format!(
                "auth_timestamp {timestamp} differs from the time of the server, {now}, by more than {REQUEST_VALID} seconds"
            ));
        }
        match credentials.body_md5 {
            Some(digest) if from_hex(digest) != Some(md5::compute(self.body).0) => {
                return Err("body_md5 is not the MD5 of the body".to_owned());
            }
            None if !self.body.is_empty() => return Err("the query has no body_md5".to_owned()),
            _ => {}
        }
        Ok((key, required(credentials.signature, SIGNATURE)?))
    }

    /// Whether a signature matches the request with this query's parts. A library may have signed the path as received,
    /// or before it was escaped, and with or without the prefix.
    fn is_signed(&self, key: &AppKey, query: &[&str], signature: &str) -> bool {
        let mut text = String::with_capacity(
            self.method.len() + self.path.len() + self.query.len() + 2 + self.prefix.len(),
        );
        let mut signs = |prefix: &str, path: &str| {
            text.clear();
            [self.method, "\n", prefix, path, "\n"].iter().chain(query).for_each(|part| text.push_str(part));
            key.verifies(text.as_bytes(), signature)
        };
        let mut signs_path = |path: &str| {
            signs("", path)
                || !self.prefix.is_empty()
                    && match path.strip_prefix(self.prefix) {
                        Some(rest) if rest.starts_with('/') => signs("", rest),
                        _ => signs(self.prefix, path),
                    }
        };
        signs_path(self.path) || self.path.contains('%') && signs_path(&decoded(self.path, false))
    }

    /// The decoded fields. Array elements, `a[]` or `a[0]`, are joined with a comma.
    ///
    /// # Errors
    /// A field is repeated, also in another case: the signature would cover one value, and the request could use the
    /// other one.
    fn fields(&self, plus_is_space: bool) -> Result<QueryFields<'a>, String> {
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
            match fields.0.binary_search_by(|(known, _)| (**known).cmp(&*key)) {
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

/// A query as most libraries send it: its fields have no escapes and are in order, but for the signature. The signed
/// text is the query without the signature.
#[derive(Debug)]
struct SortedQuery<'a> {
    credentials: RequestCredentials<'a>,
    /// The query before and after the signature.
    signed: [&'a str; 2],
}

impl<'a> SortedQuery<'a> {
    /// `None` for another query.
    fn from_query(query: &'a str) -> Option<Self> {
        let (mut credentials, mut signed) = (RequestCredentials::default(), [query, ""]);
        let (mut previous, mut begin) = ("", 0);
        for count in 0.. {
            let name = before(&query[begin..], ends_name);
            let value_begin = begin + name.len() + 1;
            if query.as_bytes().get(value_begin - 1) != Some(&b'=') {
                return None;
            }
            let value = before(&query[value_begin..], ends_value);
            let end = value_begin + value.len();
            let next = match query.as_bytes().get(end) {
                Some(b'&') => Some(end + 1),
                None => None,
                Some(_) => return None,
            };
            if name == SIGNATURE {
                if credentials.signature.is_some() {
                    return None;
                }
                // One separator remains.
                signed = match next {
                    Some(next) => [&query[..begin], &query[next..]],
                    None => [query[..begin].strip_suffix('&').unwrap_or_default(), ""],
                };
            } else if name <= previous || count == FIELDS_MAX {
                return None;
            } else {
                previous = name;
            }
            credentials.set(name, value);
            match next {
                Some(next) => begin = next,
                None => break,
            }
        }
        Some(Self { credentials, signed })
    }
}

/// The text before the first byte that ends it.
#[inline]
fn before(text: &str, ends: impl Fn(u8) -> bool) -> &str {
    &text[..text.bytes().position(ends).unwrap_or(text.len())]
}

/// Whether a byte ends a name, or is in no name of a [`SortedQuery`]. Such a byte begins a character.
const fn ends_name(byte: u8) -> bool {
    matches!(byte, b'=' | b'&' | b'%' | b'+' | b'[' | b']' | b'A'..=b'Z') || !byte.is_ascii()
}

/// Whether a byte ends a value, or belongs to an escape.
const fn ends_value(byte: u8) -> bool {
    matches!(byte, b'&' | b'%' | b'+')
}

/// Maximum fields in a query; an array's elements count as one.
const FIELDS_MAX: usize = 100;

/// A query's decoded fields, in order.
struct QueryFields<'a>(Vec<(Cow<'a, str>, Cow<'a, str>)>);

impl QueryFields<'_> {
    fn credentials(&self) -> RequestCredentials<'_> {
        let mut credentials = RequestCredentials::default();
        self.0.iter().for_each(|(name, value)| credentials.set(name, value));
        credentials
    }

    /// The signed text's parts, whose values have no escapes.
    fn signed(&self) -> Vec<&str> {
        let fields = self.0.iter().filter(|(name, _)| *name != SIGNATURE);
        fields.flat_map(|(name, value)| ["&", &**name, "=", &**value]).skip(1).collect()
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
    fn queries_in_order_have_the_same_text_and_credentials_as_their_decoded_fields() {
        let in_order = [
            "auth_key=k&auth_timestamp=1&auth_version=1.0&body_md5=m&auth_signature=s",
            "auth_key=k&auth_signature=s&auth_timestamp=1&auth_version=1.0&info=a,b",
            "auth_signature=s&b=1",
            "auth_signature=s",
            "a=&b==1&c=[A]",
            "a=\u{e9}&b==",
            "a=1",
        ];
        for query in in_order {
            let request = SignedRequest { method: "GET", path: "/", query, body: b"", prefix: "" };
            let (sorted, fields) = (SortedQuery::from_query(query).unwrap(), request.fields(false).unwrap());
            assert_eq!(sorted.signed.concat(), fields.signed().concat(), "{query}");
            let (sorted, fields) = (sorted.credentials, fields.credentials());
            assert_eq!(format!("{sorted:?}"), format!("{fields:?}"), "{query}");
        }
        let long = (0..=FIELDS_MAX).map(|at| format!("f{at:03}=1")).collect::<Vec<_>>().join("&");
        let others = [
            "b=1&a=1",
            "a=1&a=2",
            "a=1&auth_signature=s&auth_signature=t",
            "a=%41",
            "a=1+2",
            "A=1",
            "a[]=1",
            "a]=1",
            "\u{e9}=1",
            "a",
            "a=1&&b=2",
            "a=1&",
            "a&b=1",
            "a%=1",
            "a+=1",
            "=1",
            "",
            &long,
        ];
        for query in others {
            assert!(SortedQuery::from_query(query).is_none(), "{query}");
        }
    }

    #[test]
    fn only_lower_case_hexadecimal_digits_are_read() {
        for byte in (0..=u8::MAX).filter(u8::is_ascii) {
            let digit = "0123456789abcdef".find(char::from(byte));
            let [first, second] = [[byte, b'0'], [b'0', byte]].map(|text| {
                std::str::from_utf8(&text).ok().and_then(from_hex::<1>).map(|[value]| usize::from(value))
            });
            assert_eq!((first, second), (digit.map(|digit| digit << 4), digit), "{byte}");
        }
        assert_eq!(from_hex::<1>("\u{e9}"), None);
        let digits: Vec<String> = (0..=u8::MAX).map(|byte| to_hex(&[byte])).collect();
        assert!(digits.iter().zip(0..=u8::MAX).all(|(text, byte)| from_hex(text) == Some([byte])));
        assert_eq!(
            (from_hex::<2>("00ff"), from_hex::<2>("00f"), from_hex::<2>("00fff")),
            (Some([0, 255]), None, None)
        );
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
        // Of two credentials, also equal ones, neither is chosen.
        let signature = query.rsplit_once('=').unwrap().1;
        let known = "278d425bdf160c739803";
        for (field, right) in [("auth_key", known), ("auth_signature", signature)] {
            for value in [right, "", "0"] {
                for name in [field.to_owned(), field.to_uppercase(), field.replace('_', "%5F")] {
                    for forged in [format!("{query}&{name}={value}"), format!("{name}={value}&{query}")] {
                        assert_eq!(check(&forged), Err(format!("the query repeats {field}")), "{forged}");
                    }
                }
                // An array's elements are one value.
                for name in [format!("{field}[]"), format!("{field}[0]")] {
                    for forged in [format!("{query}&{name}={value}"), format!("{name}={value}&{query}")] {
                        assert!(check(&forged).is_err(), "{forged}");
                    }
                }
            }
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
