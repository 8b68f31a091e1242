//! TLS as the options say.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

use super::args::TlsArgs;
use super::end::End;
use crate::anybody::Anybody;

/// What a client shows and trusts.
///
/// # Errors
/// A file, or what is in it.
pub(crate) fn client(args: &TlsArgs) -> Result<ClientConfig, End> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(|error| fault("TLS", &error))?;
    let builder = if args.insecure {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(Anybody(provider)))
    } else {
        builder.with_root_certificates(roots(&args.ca)?)
    };
    let mut config = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(certificates(cert)?, private_key(key)?)
            .map_err(|error| fault(&cert.display().to_string(), &error))?,
        _ => builder.with_no_client_auth(),
    };
    // The handshake of WebSocket is in HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// What a server shows; `None` without a certificate.
///
/// # Errors
/// A file, or what is in it.
pub(crate) fn server(args: &TlsArgs) -> Result<Option<Arc<ServerConfig>>, End> {
    let (Some(cert), Some(key)) = (&args.cert, &args.key) else { return Ok(None) };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fault("TLS", &error))?
        .with_no_client_auth()
        .with_single_cert(certificates(cert)?, private_key(key)?)
        .map_err(|error| fault(&cert.display().to_string(), &error))?;
    Ok(Some(Arc::new(config)))
}

fn roots(files: &[std::path::PathBuf]) -> Result<RootCertStore, End> {
    let mut roots = RootCertStore::empty();
    for file in files {
        for certificate in certificates(file)? {
            roots.add(certificate).map_err(|error| fault(&file.display().to_string(), &error))?;
        }
    }
    if files.is_empty() {
        // Some stores hold a certificate that cannot be parsed; the others are as good.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    match roots.is_empty() {
        true => Err(End::trouble("no root certificates on this machine: --ca FILE names some")),
        false => Ok(roots),
    }
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, End> {
    let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if found.is_empty() => Err(fault(&path.display().to_string(), &"no certificate in PEM")),
        found => found.map_err(|error| fault(&path.display().to_string(), &error)),
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, End> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| fault(&path.display().to_string(), &error))
}

fn fault(what: &str, error: &dyn std::fmt::Display) -> End {
    End::trouble(format!("{what}: {error}"))
}
