//! A directory for the files of a test.

use std::fs;

use sinews_testkit::TestCertificate;
use tempfile::TempDir;

/// A temporary directory, removed on drop.
pub(crate) struct Directory(TempDir);

impl Directory {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A path in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).into_os_string().into_string().unwrap()
    }

    /// Writes a certificate and its key; returns both paths.
    pub(crate) fn write_tls(&self, made: &TestCertificate) -> (String, String) {
        (self.write("a.pem", &made.pem()), self.write("a.key", &made.key_pem()))
    }

    /// The text with the directory in place of `$DIR`.
    pub(crate) fn fill(&self, text: &str) -> String {
        text.replace("$DIR", self.path("").trim_end_matches('/'))
    }

    /// Writes a file; returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }
}
