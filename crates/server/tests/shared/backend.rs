//! Which backend the tests run on.

use std::env::VarError;

use sinews_server::{BackendChoice, EngineConfig};

/// Settings of the loops on the backend that `SINEWS_TEST_BACKEND` names; without it, the best there is.
pub(crate) fn engine() -> EngineConfig {
    let backend = match std::env::var("SINEWS_TEST_BACKEND").as_deref() {
        Err(VarError::NotPresent) => BackendChoice::Auto,
        Ok("poll") => BackendChoice::Poll,
        Ok("uring") => BackendChoice::Uring,
        other => panic!("SINEWS_TEST_BACKEND is {other:?} in place of poll or uring"),
    };
    EngineConfig::default().backend(backend)
}
