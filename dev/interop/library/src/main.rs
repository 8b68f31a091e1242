//! The library as a server and as a client, on Tokio and rustls: `cargo xtask interop` puts it opposite programs that
//! we did not write.
#![forbid(unsafe_code)]

mod check;
mod serve;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(name = "sinews-interop")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Write a certificate for localhost and 127.0.0.1, and its key, as certificate.pem and key.pem
    Certificate {
        /// The folder to write to
        folder: PathBuf,
    },
    /// Echo on a free port of 127.0.0.1, with TLS if there is a folder with a certificate and its key
    Serve {
        /// The folder with certificate.pem and key.pem
        folder: Option<PathBuf>,
    },
    /// Connect to an echo server and check what comes back
    Check(check::Options),
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<ExitCode, Error> {
    match Arguments::parse().task {
        Task::Certificate { folder } => write_certificate(&folder)?,
        Task::Serve { folder } => serve::run(folder.as_deref()).await?,
        Task::Check(options) => return check::run(&options).await,
    }
    Ok(ExitCode::SUCCESS)
}

const CERTIFICATE: &str = "certificate.pem";
const KEY: &str = "key.pem";

fn write_certificate(folder: &Path) -> Result<(), Error> {
    let names = ["localhost", "127.0.0.1"].map(str::to_owned);
    let made = rcgen::generate_simple_self_signed(names)?;
    fs::write(folder.join(CERTIFICATE), made.cert.pem())?;
    Ok(fs::write(folder.join(KEY), made.signing_key.serialize_pem())?)
}

fn server_config(folder: &Path) -> Result<Arc<ServerConfig>, Error> {
    let certificate = CertificateDer::from_pem_file(folder.join(CERTIFICATE))?;
    let key = PrivateKeyDer::from_pem_file(folder.join(KEY))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
    let mut config = builder.with_single_cert(vec![certificate], key)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn client_config(folder: &Path) -> Result<Arc<ClientConfig>, Error> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join(CERTIFICATE))?)?;
    let builder = ClientConfig::builder_with_provider(Arc::new(default_provider()));
    let builder = builder.with_safe_default_protocol_versions()?.with_root_certificates(roots);
    Ok(Arc::new(builder.with_no_client_auth()))
}
