//! The library as a server and as a client, on Tokio and on compio, with rustls: `cargo xtask interop` tests
//! it against third-party programs.
#![forbid(unsafe_code)]

mod check;
mod runtime;
mod serve;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Parser, Subcommand, ValueEnum};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use sinews::compio::Compio;
use sinews::tokio::Tokio;

type Error = Box<dyn std::error::Error + Send + Sync>;

#[derive(Parser)]
#[command(name = "sinews-interop")]
struct Arguments {
    /// Runtime of the library
    #[arg(long, value_enum, default_value_t = On::Tokio)]
    on: On,
    #[command(subcommand)]
    task: Task,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum On {
    Tokio,
    Compio,
}

#[derive(Subcommand)]
enum Task {
    /// Write a certificate for localhost and 127.0.0.1, and its key, as certificate.pem and key.pem
    Certificate {
        /// Folder for the files
        folder: PathBuf,
    },
    /// Echo on a free port of 127.0.0.1, with TLS if a folder with a certificate and its key is given
    Serve {
        /// The folder with certificate.pem and key.pem
        folder: Option<PathBuf>,
    },
    /// Connect to an echo server and check its answers
    Check(check::Options),
}

fn main() -> Result<ExitCode, Error> {
    let Arguments { on, task } = Arguments::parse();
    let on_tokio = || tokio::runtime::Builder::new_current_thread().enable_all().build();
    let on_compio = compio::runtime::Runtime::new;
    match (task, on) {
        (Task::Certificate { folder }, _) => write_certificate(&folder)?,
        (Task::Serve { folder }, On::Tokio) => on_tokio()?.block_on(serve::on_tokio(folder.as_deref()))?,
        (Task::Serve { folder }, On::Compio) => on_compio()?.block_on(serve::on_compio(folder.as_deref()))?,
        (Task::Check(options), On::Tokio) => {
            return on_tokio()?.block_on(check::run::<Tokio>(&options, sinews::connect(&options.url)));
        }
        (Task::Check(options), On::Compio) => {
            let connect = sinews::compio::connect(&options.url);
            return on_compio()?.block_on(check::run::<Compio>(&options, connect));
        }
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
