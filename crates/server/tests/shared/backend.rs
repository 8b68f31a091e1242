//! Backend of the tests.

use std::env::VarError;

use sinews_server::{BackendChoice, EngineConfig};

/// Returns engine settings with the backend named by `SINEWS_TEST_BACKEND`; without it, the best available one.
pub(crate) fn engine() -> EngineConfig {
    let backend = match std::env::var("SINEWS_TEST_BACKEND").as_deref() {
        Err(VarError::NotPresent) => BackendChoice::Auto,
        Ok("poll") => BackendChoice::Poll,
        Ok("uring") => BackendChoice::Uring,
        other => panic!("SINEWS_TEST_BACKEND is {other:?} in place of poll or uring"),
    };
    EngineConfig::default().with_backend(backend)
}
