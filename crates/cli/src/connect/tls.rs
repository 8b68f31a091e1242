//! TLS settings from the options.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, ServerConfig};
use sinews_bench::trust;
use sinews_server::describe_pem_error;

use super::args::ConnectTlsArgs;
use super::end::RunEnd;

/// Returns a client's certificate and trust settings.
///
/// # Errors
/// Returns an error if a file is unreadable or its content is invalid.
pub(crate) fn client(args: &ConnectTlsArgs) -> Result<ClientConfig, RunEnd> {
    let builder = trust::client(args.insecure, &args.ca).map_err(RunEnd::failed)?;
    let mut config = match (&args.cert, &args.key) {
        (Some(cert), Some(key)) => builder
            .with_client_auth_cert(trust::certificates(cert).map_err(RunEnd::failed)?, private_key(key)?)
            .map_err(|error| fault(&cert.display().to_string(), &error))?,
        _ => builder.with_no_client_auth(),
    };
    // The WebSocket handshake uses HTTP/1.1.
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Returns a server's certificate settings; `None` without a certificate.
///
/// # Errors
/// Returns an error if a file is unreadable or its content is invalid.
pub(crate) fn server(args: &ConnectTlsArgs) -> Result<Option<Arc<ServerConfig>>, RunEnd> {
    let (Some(cert), Some(key)) = (&args.cert, &args.key) else { return Ok(None) };
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| fault("TLS", &error))?
        .with_no_client_auth()
        .with_single_cert(trust::certificates(cert).map_err(RunEnd::failed)?, private_key(key)?)
        .map_err(|error| fault(&cert.display().to_string(), &error))?;
    Ok(Some(Arc::new(config)))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, RunEnd> {
    let key = PrivateKeyDer::from_pem_file(path);
    key.map_err(|error| fault(&path.display().to_string(), &describe_pem_error(&error)))
}

fn fault(what: &str, error: &dyn std::fmt::Display) -> RunEnd {
    RunEnd::failed(format!("{what}: {error}"))
}
