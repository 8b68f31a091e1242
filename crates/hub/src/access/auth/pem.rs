//! Signature keys in PEM (RFC 7468). The rustls library decodes the sections.

use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, SubjectPublicKeyInfoDer, alg_id};
use rustls::server::ParsedCertificate;

/// Algorithms for an RSA key.
pub(super) const RSA: [Algorithm; 6] = [
    Algorithm::RS256,
    Algorithm::RS384,
    Algorithm::RS512,
    Algorithm::PS256,
    Algorithm::PS384,
    Algorithm::PS512,
];

/// Label of a public key in PKCS #1, which the decoder does not know, and a label that it knows.
const PKCS1_LABEL: [&str; 2] = ["RSA PUBLIC KEY-----", "PUBLIC KEY-----"];

// DER tags (X.690).
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const SEQUENCE: u8 = 0x30;

/// Reads the first private key: RSA in PKCS #1; RSA, EC on P-256 or P-384, or Ed25519 in PKCS #8. Returns it with its
/// algorithms, or `None` if there is none.
#[must_use]
pub fn signing_key(pem: &[u8]) -> Option<(EncodingKey, Vec<Algorithm>)> {
    let der = match PrivateKeyDer::from_pem_slice(pem).ok()? {
        PrivateKeyDer::Pkcs1(key) => {
            return Some((EncodingKey::from_rsa_der(key.secret_pkcs1_der()), RSA.to_vec()));
        }
        PrivateKeyDer::Pkcs8(key) => key,
        _ => return None,
    };
    let der = der.secret_pkcs8_der();
    // RFC 5958 section 2.
    let mut fields = take(&mut &*der, SEQUENCE)?;
    take(&mut fields, INTEGER)?;
    let algorithms = algorithms(take(&mut fields, SEQUENCE)?)?;
    let key = match algorithms[0] {
        Algorithm::ES256 | Algorithm::ES384 => EncodingKey::from_ec_der(der),
        Algorithm::EdDSA => EncodingKey::from_ed_der(der),
        _ => EncodingKey::from_rsa_der(take(&mut fields, OCTET_STRING)?),
    };
    Some((key, algorithms))
}

/// Reads the first public key, or that of the first certificate: RSA, EC on P-256 or P-384, or Ed25519. Returns it with
/// its algorithms, or `None` if there is none.
pub(super) fn verifying_key(pem: &[u8]) -> Option<(DecodingKey, Vec<Algorithm>)> {
    let [label, known] = PKCS1_LABEL;
    if let Some(text) = str::from_utf8(pem).ok().filter(|text| text.contains(label)) {
        let key = SubjectPublicKeyInfoDer::from_pem_slice(text.replace(label, known).as_bytes()).ok()?;
        return Some((DecodingKey::from_rsa_der(&key), RSA.to_vec()));
    }
    let key = SubjectPublicKeyInfoDer::from_pem_slice(pem).ok().or_else(|| {
        let certificate = CertificateDer::from_pem_slice(pem).ok()?;
        Some(ParsedCertificate::try_from(&certificate).ok()?.subject_public_key_info())
    })?;
    // RFC 5280 section 4.1.
    let mut fields = take(&mut &*key, SEQUENCE)?;
    let algorithms = algorithms(take(&mut fields, SEQUENCE)?)?;
    // The first byte counts the bits that are not used.
    let key = take(&mut fields, BIT_STRING)?.strip_prefix(&[0])?;
    let key = match algorithms[0] {
        Algorithm::ES256 | Algorithm::ES384 => DecodingKey::from_ec_der(key),
        Algorithm::EdDSA => DecodingKey::from_ed_der(key),
        _ => DecodingKey::from_rsa_der(key),
    };
    Some((key, algorithms))
}

/// Returns the algorithms of a key, by the content of its AlgorithmIdentifier; at least one.
fn algorithms(identifier: &[u8]) -> Option<Vec<Algorithm>> {
    let known = [
        (alg_id::RSA_ENCRYPTION, &RSA[..]),
        (alg_id::ECDSA_P256, &[Algorithm::ES256]),
        (alg_id::ECDSA_P384, &[Algorithm::ES384]),
        (alg_id::ED25519, &[Algorithm::EdDSA]),
    ];
    known.iter().find(|(known, _)| known.as_ref() == identifier).map(|(_, algorithms)| algorithms.to_vec())
}

/// Takes a DER value with this tag, and returns its content.
fn take<'a>(der: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (length, rest) = der.strip_prefix(&[tag])?.split_first()?;
    // From 128 on, the byte count of the length that follows (X.690 section 8.1.3). Keys have less than 64 KiB.
    let (length, rest) = match length {
        0..=0x7f => (usize::from(*length), rest),
        0x81 | 0x82 => {
            let (bytes, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), rest)
        }
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *der = rest;
    Some(content)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use jsonwebtoken::{Header, Validation, decode, encode};
    use serde_json::{Value, json};

    use super::*;
    use crate::access::auth::crypto;

    const KEYS: [(&str, &[Algorithm]); 4] = [
        ("rsa", &RSA),
        ("ec256", &[Algorithm::ES256]),
        ("ec384", &[Algorithm::ES384]),
        ("ed25519", &[Algorithm::EdDSA]),
    ];

    fn file(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/keys").join(name)).unwrap()
    }

    fn pem(label: &str, der: &[u8]) -> Vec<u8> {
        let text = STANDARD.encode(der);
        format!("-----BEGIN {label}-----\n{text}\n-----END {label}-----\n").into_bytes()
    }

    /// Signs with one key and verifies with the other, in each algorithm.
    fn check(private: &[u8], public: &[u8], algorithms: &[Algorithm]) {
        crypto::install();
        let (signing, found) = signing_key(private).expect("a private key");
        assert_eq!(found, algorithms);
        let (verifying, found) = verifying_key(public).expect("a public key");
        assert_eq!(found, algorithms);
        for algorithm in algorithms {
            let token = encode(&Header::new(*algorithm), &json!({ "exp": 1_u64 << 40 }), &signing).unwrap();
            decode::<Value>(&token, &verifying, &Validation::new(*algorithm)).unwrap();
        }
    }

    #[test]
    fn signatures_of_private_keys_are_verified_by_their_public_keys() {
        for (name, algorithms) in KEYS {
            check(&file(&format!("{name}.pem")), &file(&format!("{name}.pub.pem")), algorithms);
        }
    }

    #[test]
    fn rsa_keys_of_pkcs1_are_read() {
        let private = PrivateKeyDer::from_pem_slice(&file("rsa.pem")).unwrap();
        let mut fields = take(&mut private.secret_der(), SEQUENCE).unwrap();
        take(&mut fields, INTEGER).unwrap();
        take(&mut fields, SEQUENCE).unwrap();
        let private = pem("RSA PRIVATE KEY", take(&mut fields, OCTET_STRING).unwrap());
        let public = SubjectPublicKeyInfoDer::from_pem_slice(&file("rsa.pub.pem")).unwrap();
        let mut fields = take(&mut &*public, SEQUENCE).unwrap();
        take(&mut fields, SEQUENCE).unwrap();
        let public = pem("RSA PUBLIC KEY", &take(&mut fields, BIT_STRING).unwrap()[1..]);
        check(&private, &public, &RSA);
    }

    #[test]
    fn key_of_a_certificate_is_read() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = certificate.self_signed(&key).unwrap();
        check(key.serialize_pem().as_bytes(), certificate.pem().as_bytes(), &[Algorithm::ES384]);
    }

    #[test]
    fn private_keys_are_no_public_keys_and_the_reverse() {
        for (name, _) in KEYS {
            assert!(verifying_key(&file(&format!("{name}.pem"))).is_none(), "{name}");
            assert!(signing_key(&file(&format!("{name}.pub.pem"))).is_none(), "{name}");
        }
    }

    #[test]
    fn truncated_and_unknown_keys_are_rejected() {
        let der = SubjectPublicKeyInfoDer::from_pem_slice(&file("ec256.pub.pem")).unwrap();
        for end in 0..der.len() {
            assert!(verifying_key(&pem("PUBLIC KEY", &der[..end])).is_none(), "{end}");
        }
        let private = PrivateKeyDer::from_pem_slice(&file("rsa.pem")).unwrap();
        for end in 0..private.secret_der().len() {
            assert!(signing_key(&pem("PRIVATE KEY", &private.secret_der()[..end])).is_none(), "{end}");
        }
        // Another curve: the last byte of secp256r1 is changed.
        let oid = der.windows(3).position(|bytes| bytes == [3, 1, 7]).unwrap();
        let mut unknown = der.to_vec();
        unknown[oid + 2] = 8;
        assert!(verifying_key(&pem("PUBLIC KEY", &unknown)).is_none());
        // A length that no key has.
        assert!(verifying_key(&pem("PUBLIC KEY", &[SEQUENCE, 0x84, 0xff, 0xff, 0xff, 0xff])).is_none());
        assert!(verifying_key(b"").is_none() && signing_key(b"secret").is_none());
    }
}
