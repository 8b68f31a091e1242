//! A self-signed certificate for servers on this machine.

use std::fs;
use std::path::{Path, PathBuf};

/// A certificate for `localhost` and `127.0.0.1`, and its key, as files.
pub(crate) struct Certificate {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

impl Certificate {
    /// Makes `certificate.pem` and `key.pem` in the directory.
    pub(crate) fn make(directory: &Path) -> Result<Self, String> {
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let made =
            rcgen::generate_simple_self_signed(names).map_err(|error| format!("certificate: {error}"))?;
        let found = Self { certificate: directory.join("certificate.pem"), key: directory.join("key.pem") };
        fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let files = [(&found.certificate, made.cert.pem()), (&found.key, made.signing_key.serialize_pem())];
        for (path, text) in files {
            fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(found)
    }
}
