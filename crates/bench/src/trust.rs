//! Certificate verification in all client commands: `--ca` and `--insecure`, and errors about untrusted certificates.

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

/// Returns the settings for a client that trusts the system's certificates and the given files, or any certificate.
///
/// # Errors
///
/// Returns an error if a file cannot be read or contains no certificate, or if there are no trusted certificates.
pub fn client(
    insecure: bool,
    ca: &[PathBuf],
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>, String> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS: {error}"))?;
    Ok(match insecure {
        true => {
            builder.dangerous().with_custom_certificate_verifier(Arc::new(AcceptAnyCertificate(provider)))
        }
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
    // Some systems contain a certificate that cannot be parsed; the rest remains usable.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    match roots.is_empty() {
        true => Err("no root certificates on this machine: use --ca FILE or --insecure".into()),
        false => Ok(roots),
    }
}

/// Reads a PEM file's certificates; at least one.
///
/// # Errors
///
/// Returns an error if the file cannot be read or contains no certificate.
pub fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(format!("{}: no certificate in PEM", path.display())),
        found => found
            .map_err(|error| format!("{}: {}", path.display(), sinews_server::describe_pem_error(&error))),
    }
}

/// Formats an error; certificate errors include a remedy.
pub fn explain(error: &(dyn Error + 'static)) -> String {
    match advice(error) {
        Some(advice) => format!("{error}; {advice}"),
        None => error.to_string(),
    }
}

fn advice(error: &(dyn Error + 'static)) -> Option<&'static str> {
    if let Some(rustls::Error::InvalidCertificate(fault)) = error.downcast_ref() {
        return Some(match fault {
            CertificateError::UnknownIssuer => {
                "--ca FILE trusts its issuer, --insecure accepts any certificate"
            }
            _ => "--insecure accepts any certificate",
        });
    }
    // An error that includes its cause in its own text does not report it as source.
    if let Some(ConnectError::Tls { error: TlsError::Handshake(error), .. }) = error.downcast_ref() {
        return advice(error);
    }
    // The source of an I/O error is its inner error's source, not the inner error itself.
    match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
        Some(held) => advice(held),
        None => advice(error.source()?),
    }
}

/// Accepts any certificate (`--insecure`). Signatures are still verified, so that broken servers are detected.
#[derive(Debug)]
struct AcceptAnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AcceptAnyCertificate {
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
