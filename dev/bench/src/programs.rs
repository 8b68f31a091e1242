//! The programs of this workspace that are measured.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Error;

/// Arguments of cargo that build a program, and its path below the profile's folder.
pub(crate) struct Program(&'static [&'static str], &'static str);

impl Program {
    pub(crate) const SINEWS: Self =
        Self(&["--package", "sinews-cli", "--features", "http3", "--bin", "sinews"], "sinews");
    pub(crate) const HELLO: Self =
        Self(&["--package", "sinews-server", "--example", "hello_http"], "examples/hello_http");
    pub(crate) const TCP_ECHO: Self =
        Self(&["--package", "sinews-engine", "--example", "tcp_echo"], "examples/tcp_echo");
    pub(crate) const LIBRARY: Self = Self(&["--package", "sinews-library"], "sinews-library");
    pub(crate) const INGEST: Self =
        Self(&["--package", "sinews-ingest", "--features", "kafka"], "sinews-ingest");
    /// Servers on libraries of other projects.
    pub(crate) const PEERS: Self =
        Self(&["--package", "sinews-peers", "--features", "peers"], "sinews-peers");
    /// The same with HTTP/3.
    pub(crate) const HTTP3_PEERS: Self = Self(
        &["--package", "sinews-peers", "--bin", "sinews-peers-http3", "--features", "http3"],
        "sinews-peers-http3",
    );

    /// Returns the given path of the program, or that in the target directory of this program. There, cargo builds the
    /// program if it is needed.
    pub(crate) fn path(&self, given: Option<&PathBuf>, is_needed: bool) -> Result<PathBuf, Error> {
        if let Some(given) = given {
            return Ok(given.clone());
        }
        let this = env::current_exe()?;
        let mut folders = this.ancestors().skip(1);
        let own = folders.next().and_then(Path::file_name).and_then(OsStr::to_str).unwrap_or_default();
        let directory = folders.next().ok_or("this program is not in a target directory")?;
        // The folder has the name of the profile, except for that of debug builds, which nobody measures.
        let profile = if own == "debug" { "release" } else { own };
        if is_needed {
            cargo_build(directory, profile, self.0)?;
        }
        Ok(directory.join(profile).join(self.1))
    }
}

fn cargo_build(directory: &Path, profile: &str, what: &[&str]) -> Result<(), Error> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let status = Command::new(cargo)
        .args(["build", "--profile", profile, "--manifest-path", manifest, "--target-dir"])
        .arg(directory)
        .args(what)
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("cargo build {}: {status}", what.join(" ")).into()) }
}
