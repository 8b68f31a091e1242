//! The HTTP API for backends.

use std::path::PathBuf;

use crate::config::schema::settings;
use crate::config::units::Redacted;

settings! {
    /// The HTTP API for backends at `/api/v1`. Without a key, it is disabled. Both keys may be set, and SIGHUP reloads
    /// them: to rotate a key, add the new one to the file, reload, change the backends, and remove the old one.
    pub(crate) struct ApiSettings in "api", "HTTP API" {
        /// A key with all rights, of at least 32 bytes; `openssl rand -hex 32` makes one. Other users of this machine can
        /// read a command line: prefer the environment variable, or {api.keys_file}.
        key: Option<Redacted> {
            expected: "a string of at least 32 bytes",
            example: "at-least-32-random-bytes-without-spaces",
            reloads: true,
        }

        /// File with keys and their rights, one key a line: a name, the key or `sha256:` and its hash, and the rights
        /// `publish`, `read`, `presence`, `keys`, `subscribe`, `disconnect`, `refresh` and `admin`. Patterns of topics
        /// restrict a right: `publish:chat.>,news`. At most 64 keys.
        keys_file: Option<PathBuf> { example: "/etc/sinews/api-keys", reloads: true }
    }
}
