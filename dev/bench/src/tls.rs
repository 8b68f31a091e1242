//! Servers with TLS that are measured beside each other, with the same certificate.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::Error;
use crate::args::TlsProgramArgs;
use crate::generator::Generator;
use crate::process::{SERVER_CORE, Server};
use crate::programs::Program;
use crate::report;
use crate::round::Rounds;

/// The programs that are measured, and the files of their certificate.
pub(crate) struct TlsPrograms {
    pub(crate) sinews: PathBuf,
    hello: PathBuf,
    pub(crate) peers: PathBuf,
    pub(crate) folder: TempDir,
    pub(crate) certificate: String,
    pub(crate) key: String,
}

impl TlsPrograms {
    /// Builds the missing programs: paths in the arguments take precedence. `peers` has the servers on other libraries.
    pub(crate) fn build(args: &TlsProgramArgs, peers: &Program) -> Result<Self, Error> {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()])?;
        let folder = tempfile::tempdir()?;
        let [certificate, key] = ["certificate.pem", "key.pem"].map(|name| folder.path().join(name));
        fs::write(&certificate, made.cert.pem())?;
        fs::write(&key, made.signing_key.serialize_pem())?;
        let text = |path: &Path| path.to_str().map(str::to_owned).ok_or("temporary directory is not UTF-8");
        Ok(Self {
            sinews: Program::SINEWS.path(args.sinews.as_ref(), true)?,
            hello: Program::HELLO.path(args.hello.as_ref(), true)?,
            peers: peers.path(args.sinews_peers.as_ref(), true)?,
            certificate: text(&certificate)?,
            key: text(&key)?,
            folder,
        })
    }

    /// `sinews serve` on a backend, with options.
    pub(crate) fn serve(&self, backend: &str, options: &[&str]) -> Result<Server, Error> {
        let arguments = ["serve", "--listen", "127.0.0.1:0", "--log", "error", "--backend", backend];
        let more = ["--threads", "1", "--deflate", "off"];
        let tls = ["--tls-certificate", &self.certificate, "--tls-key", &self.key];
        start(&self.sinews, &[&arguments[..], &more, &tls, options].concat())
    }

    /// The example of the server that answers `GET /hello` and echoes at `/echo`.
    pub(crate) fn hello(&self, backend: &str, options: &[&str]) -> Result<Server, Error> {
        let arguments = ["0", backend, "1", &self.certificate, &self.key];
        start(&self.hello, &[&arguments, options].concat())
    }

    /// A server on another library.
    pub(crate) fn peer(&self, name: &str) -> Result<Server, Error> {
        start(&self.peers, &[name, "--certificate", &self.certificate, "--key", &self.key])
    }
}

/// The rounds of a part.
pub(crate) struct PartResult {
    pub(crate) title: String,
    pub(crate) names: Vec<String>,
    pub(crate) rounds: Rounds,
    /// A server, another, and the most that the first may cost as a multiple of the second.
    pub(crate) bars: Vec<(usize, usize, f64)>,
}

impl PartResult {
    pub(crate) fn print_table(&self, unit: [&str; 2]) {
        let mut beside: Vec<usize> = self.bars.iter().map(|(_, other, _)| *other).collect();
        beside.sort_unstable();
        beside.dedup();
        report::table(&self.title, unit, &self.names, &beside, &self.rounds);
    }

    pub(crate) fn print_bars(&self) {
        for (this, other, most) in &self.bars {
            report::bar(&self.title, &self.names, *this, *other, *most, &self.rounds);
        }
    }
}

/// One load on one server.
pub(crate) struct EchoContender {
    pub(crate) name: String,
    pub(crate) server: usize,
    pub(crate) load: Generator,
}

pub(crate) fn start(program: &Path, arguments: &[&str]) -> Result<Server, Error> {
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    Server::start(program, &arguments, SERVER_CORE)
}

/// The name of a backend in tables.
pub(crate) fn short(backend: &str) -> &str {
    if backend == "uring" { "ring" } else { backend }
}

pub(crate) const BACKENDS: [&str; 2] = ["poll", "uring"];
