//! A directory for the lifetime of a value.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use ring::rand::{SecureRandom as _, SystemRandom};

/// Directory that only this user can enter. It is removed with this value.
#[derive(Debug)]
pub(crate) struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    /// Creates a directory with a random name in the system's directory for temporary files.
    ///
    /// # Errors
    /// If it cannot be created, or if the name exists.
    pub(super) fn create() -> io::Result<Self> {
        let mut id = [0; 8];
        let no_random = |_| io::Error::other("the system has no random numbers");
        SystemRandom::new().fill(&mut id).map_err(no_random)?;
        let path = std::env::temp_dir().join(format!("sinews-{:016x}", u64::from_ne_bytes(id)));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "cannot remove a temporary directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn temporary_directory_is_private_and_removed_with_its_content() {
        let directory = TemporaryDirectory::create().unwrap();
        let path = directory.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o700);
        fs::create_dir(path.join("inner")).unwrap();
        fs::write(path.join("inner/file"), "content").unwrap();
        assert_ne!(TemporaryDirectory::create().unwrap().path(), path);
        drop(directory);
        assert!(!path.exists());
    }
}
