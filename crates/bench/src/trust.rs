//! Whom a client trusts, for every command that is one: `--ca` and `--insecure`, and what is said about a certificate
//! that is not trusted.

use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WantsClientCert;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, ConfigBuilder, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use sinews::ConnectError;
use sinews::client::TlsError;

/// The settings of a client that trusts the system's certificates and those of the files, or anybody.
///
/// # Errors
///
/// A file cannot be read, or holds no certificate; nobody is trusted at all.
pub fn client(
    insecure: bool,
    ca: &[PathBuf],
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    Ok(match insecure {
        true => builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider))),
        false => builder.with_root_certificates(roots(ca)?),
    })
}

fn roots(files: &[PathBuf]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for file in files {
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|error| format!("--ca {}: {error}", file.display()))?;
        }
    }
    // Some systems hold a certificate that cannot be parsed; the others are as good.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => {
            Err("no root certificates on this machine: --ca FILE names some, --insecure does without".into())
        }
        false => Ok(roots),
    }
}

/// The certificates of a PEM file; there is one at least.
///
/// # Errors
///
/// The file cannot be read, or holds none.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(format!("{}: no certificate in PEM", path.display())),
        found => found.map_err(|error| format!("{}: {error}", path.display())),
    }
}

/// An error in words; where a certificate was not taken, with what would have it taken.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    match advice(error) {
        Some(advice) => format!("{error}; {advice}"),
        None => error.to_string(),
    }
}

fn advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(rustls::Error::InvalidCertificate(fault)) = error.downcast_ref() {
        return Some(match fault {
            CertificateError::UnknownIssuer => "--ca FILE trusts who has signed it, --insecure anybody",
            _ => "--insecure takes any certificate",
        });
    }
    // An error that names its cause in its own text has no source for it.
    if let Some(ConnectError::Tls { error: TlsError::Handshake(error), .. }) = error.downcast_ref() {
        return advice(error);
    }
    // What an I/O error holds is not its source: that is the source of what it holds.
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(held) => advice(held),
        None => advice(error.source()?),
    }
}

/// Trusts anybody (`--insecure`). Signatures are still checked, so that a broken server is seen.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
