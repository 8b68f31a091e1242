//! The keys that verify tokens, and their files.

use std::fs;
use std::path::{Path, PathBuf};

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::access::auth::crypto;
use crate::access::auth::jwks_options::JwksOptions;
use crate::access::auth::pem::{self, RSA};
use crate::error::HubError;
use crate::model::brief::describe_json_error;

/// A key and its algorithms.
#[derive(Clone)]
pub(crate) struct VerifyingKey {
    /// The key's `kid`.
    pub(crate) id: Option<String>,
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) key: DecodingKey,
}

/// Source of the keys that verify tokens.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenKeys {
    /// A secret for HS256, HS384 and HS512, as long as the algorithm's hash at least.
    Secret(String),
    /// A file with a secret. A final line break is accepted both as a part of the secret and as none.
    SecretFile(PathBuf),
    /// A file with a public key in PEM: RSA, EC on P-256 or P-384, or Ed25519.
    PublicKeyFile(PathBuf),
    /// A file with a key set (RFC 7517): the first 1,024. A token without `kid` is tried with 64 keys.
    JwksFile(PathBuf),
    /// Public key sets at URLs, with the same limits. They are fetched while a hub has the policy.
    JwksUrls(JwksOptions),
}

impl std::fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Options may be logged; secrets must not.
        match self {
            Self::Secret(_) => f.write_str("Secret"),
            Self::SecretFile(path) | Self::PublicKeyFile(path) | Self::JwksFile(path) => path.fmt(f),
            Self::JwksUrls(urls) => urls.fmt(f),
        }
    }
}

impl TokenKeys {
    /// Returns the final line break in the secret's file, in hexadecimal digits, if there is one.
    #[must_use]
    pub fn line_break(&self) -> Option<&'static str> {
        let Self::SecretFile(path) = self else { return None };
        let file = read(path).ok()?;
        match &file[without_line_break(&file).len()..] {
            b"" => None,
            b"\n" => Some("0x0a"),
            _ => Some("0x0d 0x0a"),
        }
    }

    /// Reads the keys, at least one; none if they are fetched from URLs.
    ///
    /// # Errors
    /// The fault in the file or the secret.
    pub(crate) fn read(&self) -> Result<Vec<VerifyingKey>, HubError> {
        let keys = match self {
            Self::Secret(secret) => vec![secret_key(secret.as_bytes(), None)?],
            Self::SecretFile(path) => {
                secret_file_keys(&read(path)?).map_err(|error| error.at(path.display()))?
            }
            Self::PublicKeyFile(path) => vec![pem_key(path)?],
            Self::JwksFile(path) => read_key_set(path)?,
            Self::JwksUrls(_) => Vec::new(),
        };
        Ok(keys)
    }
}

/// Reads a secret file's bytes, without the final line break that editors add.
///
/// # Errors
/// [`HubErrorKind::File`](crate::HubErrorKind::File), with the file's name and the read error.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, HubError> {
    let mut secret = read(path)?;
    secret.truncate(without_line_break(&secret).len());
    Ok(secret)
}

/// Reads the text of a file.
///
/// # Errors
/// The file's name, and the read error.
pub(super) fn read_text(path: &Path) -> Result<String, HubError> {
    fs::read_to_string(path).map_err(|error| HubError::file(path, error))
}

/// The bytes without one LF or CR LF at the end.
fn without_line_break(secret: &[u8]) -> &[u8] {
    let line = secret.strip_suffix(b"\n");
    line.map_or(secret, |line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// Returns the key without its file's final line break, and a second key with it, if there is one: other programs sign
/// with all the file's bytes.
fn secret_file_keys(file: &[u8]) -> Result<Vec<VerifyingKey>, HubError> {
    let secret = without_line_break(file);
    let key = secret_key(secret, None)?;
    if secret.len() == file.len() {
        return Ok(vec![key]);
    }
    let whole = VerifyingKey { key: DecodingKey::from_secret(file), ..key.clone() };
    Ok(vec![key, whole])
}

fn read(path: &Path) -> Result<Vec<u8>, HubError> {
    fs::read(path).map_err(|error| HubError::file(path, error))
}

/// The algorithms for which a secret is long enough (RFC 7518 section 3.2).
///
/// # Errors
/// [`HubErrorKind::Key`](crate::HubErrorKind::Key): the secret is too short for HS256.
pub fn hmac_algorithms(secret: &[u8]) -> Result<Vec<Algorithm>, HubError> {
    let all = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
    let good: Vec<_> = all.into_iter().filter(|one| secret.len() >= crypto::secret_min(*one)).collect();
    if good.is_empty() {
        return Err(HubError::key(format!(
            "the secret has {} bytes; HS256 requires 32 (create one with `openssl rand -hex 32`)",
            secret.len()
        )));
    }
    Ok(good)
}

fn secret_key(secret: &[u8], id: Option<String>) -> Result<VerifyingKey, HubError> {
    Ok(VerifyingKey { id, algorithms: hmac_algorithms(secret)?, key: DecodingKey::from_secret(secret) })
}

fn pem_key(path: &Path) -> Result<VerifyingKey, HubError> {
    let (key, algorithms) = pem::verifying_key(&read(path)?).ok_or_else(|| {
        let fault = "not a PEM public key of RSA, EC on P-256 or P-384, or Ed25519";
        HubError::key(fault).at(path.display())
    })?;
    Ok(VerifyingKey { id: None, algorithms, key })
}

/// Maximum keys in a set: the first ones are used. No issuer is known to have as many.
pub(super) const SET_MAX: usize = 1_024;

/// Maximum keys that a token is tried with: each is a signature to verify. With a `kid`, the other keys do not count.
pub(super) const TRIED_MAX: usize = 64;

/// Reads the keys in a set that anybody can read: HMAC secrets in it are ignored.
pub(super) fn public_key_set(json: &[u8]) -> Result<KeySet, String> {
    let mut set = key_set(json)?;
    let secret = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
    set.keys.retain(|key| !key.algorithms.iter().any(|algorithm| secret.contains(algorithm)));
    if set.keys.is_empty() {
        return Err("the key set has no public key for RS*, PS*, ES256, ES384 or EdDSA".to_owned());
    }
    Ok(set)
}

/// Keys in a set.
pub(super) struct KeySet {
    pub(super) keys: Vec<VerifyingKey>,
    /// Why the keys lack members of the set, other than those that verify no tokens.
    pub(super) skipped: Option<String>,
}

fn key_set(json: &[u8]) -> Result<KeySet, String> {
    #[derive(Deserialize)]
    struct Members<'a> {
        #[serde(borrow)]
        keys: Vec<&'a RawValue>,
    }
    let fault = |error| format!("no JSON object with a list keys: {}", describe_json_error(&error));
    let members = serde_json::from_slice::<Members<'_>>(json).map_err(fault)?.keys;
    let (mut keys, mut odd) = (Vec::new(), Vec::new());
    let mut omitted = 0;
    for (at, member) in members.iter().enumerate() {
        // One odd member must not disable the other keys.
        let Ok(jwk) = serde_json::from_str::<Jwk>(member.get()) else {
            odd.push(at);
            continue;
        };
        // Encryption keys and unknown kinds are ignored (RFC 7517 section 5).
        let is_for_encryption = matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
        match jwk_key(&jwk).filter(|_| !is_for_encryption) {
            Some(_) if keys.len() == SET_MAX => omitted += 1,
            Some(key) => keys.push(key),
            None => {}
        }
    }
    let odd = (!odd.is_empty()).then(|| {
        let list: Vec<String> = odd.iter().take(8).map(|at| format!("keys[{at}]")).collect();
        format!("{} members are no keys of RFC 7517: {}", odd.len(), list.join(", "))
    });
    let omitted = (omitted > 0).then(|| format!("{omitted} keys exceed the limit of {SET_MAX}"));
    let skipped: Vec<String> = odd.into_iter().chain(omitted).collect();
    let skipped = (!skipped.is_empty()).then(|| skipped.join("; "));
    if keys.is_empty() {
        let skipped = skipped.map_or_else(String::new, |skipped| format!(" ({skipped})"));
        return Err(format!("the key set has no key for RS*, PS*, ES256, ES384, EdDSA or HS*{skipped}"));
    }
    Ok(KeySet { keys, skipped })
}

/// Reads the keys in a key set file; the log has the members that are no keys.
fn read_key_set(path: &Path) -> Result<Vec<VerifyingKey>, HubError> {
    let set = key_set(&read(path)?).map_err(|fault| HubError::key(fault).at(path.display()))?;
    if let Some(skipped) = set.skipped {
        tracing::warn!(file = %path.display(), "members of the key set are not used: {skipped}");
    }
    Ok(set.keys)
}

fn jwk_key(jwk: &Jwk) -> Option<VerifyingKey> {
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let mut algorithms = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => RSA.to_vec(),
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P256 => {
            vec![Algorithm::ES256]
        }
        AlgorithmParameters::EllipticCurve(curve) if curve.curve == EllipticCurve::P384 => {
            vec![Algorithm::ES384]
        }
        AlgorithmParameters::OctetKeyPair(pair) if pair.curve == EllipticCurve::Ed25519 => {
            vec![Algorithm::EdDSA]
        }
        AlgorithmParameters::OctetKey(_) => hmac_algorithms(key.try_get_as_bytes().ok()?).ok()?,
        _ => return None,
    };
    if let Some(named) = &jwk.common.key_algorithm {
        let named = Algorithm::try_from(*named).ok()?;
        algorithms.retain(|algorithm| *algorithm == named);
    }
    let id = jwk.common.key_id.clone();
    (!algorithms.is_empty()).then_some(VerifyingKey { id, algorithms, key })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// RSA and elliptic-curve keys.
    fn good() -> Vec<Value> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/keys/jwks.json");
        let set: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        set["keys"].as_array().unwrap().clone()
    }

    fn read_set(members: &[Value]) -> Result<KeySet, String> {
        key_set(json!({ "keys": members }).to_string().as_bytes())
    }

    #[test]
    fn odd_members_of_a_key_set_are_skipped() {
        let good = good();
        let known = read_set(&good).unwrap();
        assert!(known.keys.len() > 1 && known.skipped.is_none());
        for odd in [
            json!(null),
            json!(7),
            json!("secret"),
            json!([]),
            json!({}),
            json!({ "kty": "RSA", "kid": 7, "n": "AQAB", "e": "AQAB" }),
            json!({ "kty": "RSA", "kid": "a" }),
            json!({ "kty": "oct", "kid": "a", "k": ["secret"] }),
            json!({ "kty": 7 }),
        ] {
            for at in [0, good.len()] {
                let mut members = good.clone();
                members.insert(at, odd.clone());
                let set = read_set(&members).unwrap();
                assert_eq!(set.keys.len(), known.keys.len(), "{odd}");
                // Objects may be keys with an unknown kind.
                let expected = format!("1 members are no keys of RFC 7517: keys[{at}]");
                assert!(set.skipped.is_none() && odd.is_object() || set.skipped == Some(expected), "{odd}");
            }
            let error = read_set(std::slice::from_ref(&odd)).map(drop).unwrap_err();
            assert!(error.starts_with("the key set has no key") && !error.contains("secret"), "{error}");
        }
        // Unknown kinds are no fault (RFC 7517 section 5), and `null` is no value.
        let mut members = good.clone();
        members[0]["kid"] = Value::Null;
        members[0]["use"] = Value::Null;
        let set = read_set(&members).unwrap();
        assert!(set.skipped.is_none() && set.keys[0].id.is_none());
    }

    #[test]
    fn first_keys_of_a_large_set_are_used() {
        let key = good().remove(0);
        let named = |name: usize| {
            let mut key = key.clone();
            key["kid"] = json!(name.to_string());
            key
        };
        for count in [65, SET_MAX] {
            let set = read_set(&(0..count).map(named).collect::<Vec<_>>()).unwrap();
            assert_eq!((set.keys.len(), set.skipped), (count, None));
        }
        let set = read_set(&(0..SET_MAX + 2).map(named).collect::<Vec<_>>()).unwrap();
        assert_eq!((set.keys.len(), set.keys[0].id.as_deref()), (SET_MAX, Some("0")));
        assert_eq!(set.skipped.unwrap(), "2 keys exceed the limit of 1024");
    }

    #[test]
    fn text_that_is_no_key_set_is_rejected_without_its_content() {
        for bad in ["", "secret", "[]", "{}", "{\"keys\":\"secret\"}", "{\"keys\":null}"] {
            let error = key_set(bad.as_bytes()).map(drop).unwrap_err();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
