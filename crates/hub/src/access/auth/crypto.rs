//! Token signatures by `ring`, which TLS uses too.

use jsonwebtoken::crypto::{CryptoProvider, JwtSigner, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{ErrorKind, Result};
use jsonwebtoken::signature::{Error, Signer, Verifier};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind, EncodingKey};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{
    self, EcdsaKeyPair, EcdsaSigningAlgorithm, Ed25519KeyPair, RsaEncoding, RsaKeyPair, RsaParameters,
    RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm,
};

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: signer,
    verifier_factory: verifier,
    // For thumbprints and for the creation of key sets, which this program does not need.
    key_utils: KeyUtils::new_unimplemented(),
};

/// Installs the signature provider. [`Auth::new`](super::Auth::new) does it, too; programs that only sign tokens call
/// it before the first one.
pub fn install() {
    // A second call finds it installed.
    let _ = PROVIDER.install_default();
}

struct JwtKeySigner {
    algorithm: Algorithm,
    key: SigningKey,
}

enum SigningKey {
    Hmac(hmac::Key),
    Rsa(Box<RsaKeyPair>, &'static dyn RsaEncoding),
    Ec(EcdsaKeyPair),
    Ed(Ed25519KeyPair),
}

fn signer(algorithm: &Algorithm, key: &EncodingKey) -> Result<Box<dyn JwtSigner>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    let rsa = |encoding| -> Result<SigningKey> {
        let pair = RsaKeyPair::from_der(key.as_bytes());
        let pair = pair.map_err(|error| ErrorKind::InvalidRsaKey(error.to_string()))?;
        Ok(SigningKey::Rsa(Box::new(pair), encoding))
    };
    let ec = |algorithm: &'static EcdsaSigningAlgorithm| -> Result<SigningKey> {
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, key.as_bytes(), &SystemRandom::new());
        Ok(SigningKey::Ec(pair.map_err(|_| ErrorKind::InvalidEcdsaKey)?))
    };
    let signing = match algorithm {
        Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
            SigningKey::Hmac(hmac::Key::new(hmac_algorithm(*algorithm), key.as_bytes()))
        }
        Algorithm::RS256 => rsa(&signature::RSA_PKCS1_SHA256)?,
        Algorithm::RS384 => rsa(&signature::RSA_PKCS1_SHA384)?,
        Algorithm::RS512 => rsa(&signature::RSA_PKCS1_SHA512)?,
        Algorithm::PS256 => rsa(&signature::RSA_PSS_SHA256)?,
        Algorithm::PS384 => rsa(&signature::RSA_PSS_SHA384)?,
        Algorithm::PS512 => rsa(&signature::RSA_PSS_SHA512)?,
        Algorithm::ES256 => ec(&signature::ECDSA_P256_SHA256_FIXED_SIGNING)?,
        Algorithm::ES384 => ec(&signature::ECDSA_P384_SHA384_FIXED_SIGNING)?,
        Algorithm::EdDSA => {
            let pair = Ed25519KeyPair::from_pkcs8_maybe_unchecked(key.as_bytes());
            SigningKey::Ed(pair.map_err(|_| ErrorKind::InvalidEddsaKey)?)
        }
        _ => return Err(ErrorKind::UnsupportedAlgorithm.into()),
    };
    Ok(Box::new(JwtKeySigner { algorithm: *algorithm, key: signing }))
}

impl Signer<Vec<u8>> for JwtKeySigner {
    fn try_sign(&self, message: &[u8]) -> std::result::Result<Vec<u8>, Error> {
        match &self.key {
            SigningKey::Hmac(key) => Ok(hmac::sign(key, message).as_ref().to_vec()),
            SigningKey::Rsa(pair, encoding) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(*encoding, &SystemRandom::new(), message, &mut signature)
                    .map_err(|_| Error::new())?;
                Ok(signature)
            }
            SigningKey::Ec(pair) => {
                let signature = pair.sign(&SystemRandom::new(), message).map_err(|_| Error::new())?;
                Ok(signature.as_ref().to_vec())
            }
            SigningKey::Ed(pair) => Ok(pair.sign(message).as_ref().to_vec()),
        }
    }
}

impl JwtSigner for JwtKeySigner {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

struct JwtKeyVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

fn verifier(algorithm: &Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>> {
    if key.family() != algorithm.family() {
        return Err(ErrorKind::InvalidKeyFormat.into());
    }
    Ok(Box::new(JwtKeyVerifier { algorithm: *algorithm, key: key.clone() }))
}

impl Verifier<Vec<u8>> for JwtKeyVerifier {
    fn verify(&self, message: &[u8], signed: &Vec<u8>) -> std::result::Result<(), Error> {
        let bytes = || self.key.try_get_as_bytes().map_err(|_| Error::new());
        let public = |algorithm: &'static dyn VerificationAlgorithm| {
            let key = UnparsedPublicKey::new(algorithm, bytes()?);
            key.verify(message, signed).map_err(|_| Error::new())
        };
        let rsa = |parameters: &'static RsaParameters| match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => {
                let key = RsaPublicKeyComponents { n, e };
                key.verify(parameters, message, signed).map_err(|_| Error::new())
            }
            DecodingKeyKind::SecretOrDer(_) => public(parameters),
        };
        match self.algorithm {
            Algorithm::HS256 | Algorithm::HS384 | Algorithm::HS512 => {
                let key = hmac::Key::new(hmac_algorithm(self.algorithm), bytes()?);
                hmac::verify(&key, message, signed).map_err(|_| Error::new())
            }
            Algorithm::RS256 => rsa(&signature::RSA_PKCS1_2048_8192_SHA256),
            Algorithm::RS384 => rsa(&signature::RSA_PKCS1_2048_8192_SHA384),
            Algorithm::RS512 => rsa(&signature::RSA_PKCS1_2048_8192_SHA512),
            Algorithm::PS256 => rsa(&signature::RSA_PSS_2048_8192_SHA256),
            Algorithm::PS384 => rsa(&signature::RSA_PSS_2048_8192_SHA384),
            Algorithm::PS512 => rsa(&signature::RSA_PSS_2048_8192_SHA512),
            Algorithm::ES256 => public(&signature::ECDSA_P256_SHA256_FIXED),
            Algorithm::ES384 => public(&signature::ECDSA_P384_SHA384_FIXED),
            Algorithm::EdDSA => public(&signature::ED25519),
            _ => Err(Error::new()),
        }
    }
}

impl JwtVerifier for JwtKeyVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

/// Returns the hash for an HMAC algorithm; callers pass no other algorithms.
fn hmac_algorithm(algorithm: Algorithm) -> hmac::Algorithm {
    match algorithm {
        Algorithm::HS384 => hmac::HMAC_SHA384,
        Algorithm::HS512 => hmac::HMAC_SHA512,
        _ => hmac::HMAC_SHA256,
    }
}

/// Returns a secret's minimum length in bytes: the hash length (RFC 7518 section 3.2).
pub(crate) fn secret_min(algorithm: Algorithm) -> usize {
    match algorithm.family() {
        AlgorithmFamily::Hmac => hmac_algorithm(algorithm).digest_algorithm().output_len(),
        _ => 0,
    }
}
