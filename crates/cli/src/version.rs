//! Output of `sinews --version`.

use sinews_engine::check_io_uring;

/// The version alone.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The build's commit, and its date.
pub(crate) const COMMIT: &str = env!("SINEWS_COMMIT");

/// Output of `-V`: version and commit.
pub(crate) const SHORT: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("SINEWS_COMMIT"), ")");

/// Version, commit, target, features, and the backend that `--backend auto` selects on this machine.
pub(crate) fn long() -> String {
    let features = [
        ("kafka", cfg!(feature = "kafka")),
        ("nats", cfg!(feature = "nats")),
        ("redis", cfg!(feature = "redis")),
    ];
    let features: Vec<&str> =
        features.into_iter().filter_map(|(name, is_on)| is_on.then_some(name)).collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    format!(
        "{VERSION}\ncommit {COMMIT}\ntarget {}\nfeatures {features}\nbackend {}",
        env!("SINEWS_TARGET"),
        backend()
    )
}

/// The backend that `--backend auto` selects, and the reason if it is not io_uring.
fn backend() -> String {
    match check_io_uring() {
        Ok(()) => "io_uring".to_owned(),
        Err(error) => format!("readiness (epoll or kqueue); {error}"),
    }
}
