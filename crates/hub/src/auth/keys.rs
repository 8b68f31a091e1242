//! The keys that verify tokens, and their files.

use std::fs;
use std::path::{Path, PathBuf};

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};

use super::crypto;
use super::jwks_options::JwksOptions;
use crate::brief::describe_json_error;

/// A key and its algorithms.
#[derive(Clone)]
pub(crate) struct VerifyingKey {
    /// The `kid` of the key.
    pub(crate) id: Option<String>,
    pub(crate) algorithms: Vec<Algorithm>,
    pub(crate) key: DecodingKey,
}

/// The source of the keys that verify tokens.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenKeys {
    /// A secret for HS256, HS384 and HS512, as long as the algorithm's hash at least.
    Secret(String),
    /// A file with a secret. A final line break is accepted as part of the secret, and as none.
    SecretFile(PathBuf),
    /// A file with a public key in PEM: RSA, EC on P-256 or P-384, or Ed25519.
    PublicKeyFile(PathBuf),
    /// A file with a set of keys (RFC 7517), at most 64.
    JwksFile(PathBuf),
    /// Sets of public keys at URLs, at most 64 keys each. They are fetched while a hub has the policy.
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
    /// The line break at the end of the secret's file, in hexadecimal digits, if there is one.
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
    /// The fault of the file or the secret.
    pub(crate) fn read(&self) -> Result<Vec<VerifyingKey>, String> {
        let keys = match self {
            Self::Secret(secret) => vec![of_secret(secret.as_bytes(), None)?],
            Self::SecretFile(path) => at(path, of_secret_file(&read(path)?))?,
            Self::PublicKeyFile(path) => vec![at(path, of_pem(&read(path)?))?],
            Self::JwksFile(path) => at(path, of_set(&read(path)?))?,
            Self::JwksUrls(_) => Vec::new(),
        };
        Ok(keys)
    }
}

/// The bytes of a file with a secret, without the final line break that editors add.
///
/// # Errors
/// The file's name, and the error of reading it.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let mut secret = read(path)?;
    secret.truncate(without_line_break(&secret).len());
    Ok(secret)
}

/// The text of a file.
///
/// # Errors
/// The file's name, and the error of reading it.
pub(super) fn read_text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The bytes without one LF or CR LF at the end.
fn without_line_break(secret: &[u8]) -> &[u8] {
    let line = secret.strip_suffix(b"\n");
    line.map_or(secret, |line| line.strip_suffix(b"\r").unwrap_or(line))
}

/// The key without the final line break of its file, and a second key with it, if there is one: other programs sign
/// with all bytes of the file.
fn of_secret_file(file: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    let secret = without_line_break(file);
    let key = of_secret(secret, None)?;
    if secret.len() == file.len() {
        return Ok(vec![key]);
    }
    let whole = VerifyingKey { key: DecodingKey::from_secret(file), ..key.clone() };
    Ok(vec![key, whole])
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn at<T>(path: &Path, result: Result<T, String>) -> Result<T, String> {
    result.map_err(|error| format!("{}: {error}", path.display()))
}

/// The algorithms for which a secret is long enough (RFC 7518 section 3.2).
///
/// # Errors
/// The secret is too short for HS256.
pub fn hmac_algorithms(secret: &[u8]) -> Result<Vec<Algorithm>, String> {
    let all = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
    let good: Vec<_> = all.into_iter().filter(|one| secret.len() >= crypto::secret_min(*one)).collect();
    if good.is_empty() {
        return Err(format!(
            "the secret has {} bytes; HS256 requires 32 (create one with `openssl rand -hex 32`)",
            secret.len()
        ));
    }
    Ok(good)
}

fn of_secret(secret: &[u8], id: Option<String>) -> Result<VerifyingKey, String> {
    Ok(VerifyingKey { id, algorithms: hmac_algorithms(secret)?, key: DecodingKey::from_secret(secret) })
}

const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

fn of_pem(pem: &[u8]) -> Result<VerifyingKey, String> {
    if let Ok(key) = DecodingKey::from_rsa_pem(pem) {
        return Ok(VerifyingKey { id: None, algorithms: RSA.to_vec(), key });
    }
    if let Ok(key) = DecodingKey::from_ec_pem(pem) {
        let algorithm = match key.try_get_as_bytes().map_or(0, <[u8]>::len) {
            // 0x04 and two coordinates (SEC 1 section 2.3.3).
            65 => Algorithm::ES256,
            97 => Algorithm::ES384,
            _ => return Err("an EC key must be on P-256 or P-384".to_owned()),
        };
        return Ok(VerifyingKey { id: None, algorithms: vec![algorithm], key });
    }
    if let Ok(key) = DecodingKey::from_ed_pem(pem) {
        return Ok(VerifyingKey { id: None, algorithms: vec![Algorithm::EdDSA], key });
    }
    Err("not a PEM public key of RSA, EC on P-256 or P-384, or Ed25519".to_owned())
}

/// Limit of keys in a set: a token without `kid` is tried with all keys.
const SET_MAX: usize = 64;

/// The keys of a set that anybody can read: secrets of HMAC in it are ignored.
pub(super) fn of_public_set(json: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    let mut keys = of_set(json)?;
    let secret = [Algorithm::HS256, Algorithm::HS384, Algorithm::HS512];
    keys.retain(|key| !key.algorithms.iter().any(|algorithm| secret.contains(algorithm)));
    if keys.is_empty() {
        return Err("the key set has no public key for RS*, PS*, ES256, ES384 or EdDSA".to_owned());
    }
    Ok(keys)
}

fn of_set(json: &[u8]) -> Result<Vec<VerifyingKey>, String> {
    let set: JwkSet = serde_json::from_slice(json)
        .map_err(|error| format!("invalid key set: {}", describe_json_error(&error)))?;
    // Skip encryption keys and unknown kinds (RFC 7517 section 5).
    let signs = |jwk: &&Jwk| !matches!(jwk.common.public_key_use, Some(PublicKeyUse::Encryption));
    let keys: Vec<VerifyingKey> = set.keys.iter().filter(signs).filter_map(of_jwk).collect();
    match keys.len() {
        0 => Err("the key set has no key for RS*, PS*, ES256, ES384, EdDSA or HS*".to_owned()),
        1..=SET_MAX => Ok(keys),
        many => Err(format!("the key set has {many} keys (limit {SET_MAX})")),
    }
}

fn of_jwk(jwk: &Jwk) -> Option<VerifyingKey> {
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
