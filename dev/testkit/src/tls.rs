//! A self-signed certificate, and rustls settings that use it.

use std::sync::Arc;

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

/// A certificate that is its own authority, and its key.
#[allow(missing_debug_implementations, reason = "the key is private")]
pub struct TestCertificate(CertifiedKey<KeyPair>);

#[allow(clippy::missing_panics_doc, reason = "a panic fails the test")]
impl TestCertificate {
    /// Makes a certificate for `localhost`.
    #[must_use]
    pub fn new() -> Self {
        Self::for_names(&["localhost"])
    }

    /// Makes a certificate for these names.
    #[must_use]
    pub fn for_names(names: &[&str]) -> Self {
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        Self(generate_simple_self_signed(names).expect("a certificate"))
    }

    /// Returns the certificate as DER.
    #[must_use]
    pub fn der(&self) -> CertificateDer<'static> {
        self.0.cert.der().clone()
    }

    /// Returns the certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> String {
        self.0.cert.pem()
    }

    /// Returns the key as DER.
    #[must_use]
    pub fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.0.signing_key.serialize_der().into())
    }

    /// Returns the key as PEM.
    #[must_use]
    pub fn key_pem(&self) -> String {
        self.0.signing_key.serialize_pem()
    }

    /// Returns roots that trust this certificate alone.
    #[must_use]
    pub fn roots(&self) -> RootCertStore {
        roots([self.der()])
    }

    /// Returns server settings with this certificate.
    #[must_use]
    pub fn server_config(&self) -> ServerConfig {
        server_config(self.der(), self.key())
    }

    /// Returns client settings that trust only this certificate.
    #[must_use]
    pub fn client_config(&self) -> ClientConfig {
        trusting([self.der()])
    }
}

impl Default for TestCertificate {
    fn default() -> Self {
        Self::new()
    }
}

/// Returns server settings with a certificate.
///
/// # Panics
/// The key is not that of the certificate.
#[must_use]
pub fn server_config(certificate: CertificateDer<'static>, key: PrivateKeyDer<'static>) -> ServerConfig {
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("versions");
    config.with_no_client_auth().with_single_cert(vec![certificate], key).expect("a matching key")
}

/// Returns client settings that trust these certificates.
///
/// # Panics
/// The bytes are no certificate.
#[must_use]
pub fn trusting(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> ClientConfig {
    trusting_roots(roots(certificates))
}

/// Returns client settings with these roots.
#[must_use]
pub fn trusting_roots(roots: RootCertStore) -> ClientConfig {
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let config = config.with_safe_default_protocol_versions().expect("versions");
    config.with_root_certificates(roots).with_no_client_auth()
}

fn roots(certificates: impl IntoIterator<Item = CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in certificates {
        roots.add(certificate).expect("a certificate");
    }
    roots
}
