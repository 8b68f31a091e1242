//! Errors of commands, and of reading a stream.

use std::fmt;

use redis::{Cmd, ErrorKind, RedisError};

/// Error that ended reading.
#[derive(Debug)]
pub(super) enum FollowError {
    /// Transient: retry later.
    Transient(QueryError),
    Permanent(String),
}

impl fmt::Display for FollowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Transient(error) => error.fmt(f),
            Self::Permanent(reason) => f.write_str(reason),
        }
    }
}

impl From<QueryError> for FollowError {
    fn from(error: QueryError) -> Self {
        Self::Transient(error)
    }
}

/// Why a command has no result.
#[derive(Debug)]
pub(super) enum QueryError {
    /// The key does not exist.
    MissingKey,
    /// The user has no right to the command.
    NoRight(String),
    /// Redis rejects the command, or is not connected.
    Failed(String),
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MissingKey => "no such key",
            Self::NoRight(reason) | Self::Failed(reason) => reason,
        })
    }
}

/// Code of the error of a command, key or channel that the user may not use.
pub(super) const NO_RIGHT: &str = "NOPERM";

/// Whether Redis has answered, so that another connection would not help.
pub(super) fn is_answer(error: &RedisError) -> bool {
    error.code().is_some() || error.kind() == ErrorKind::UnexpectedReturnType
}

/// Names a rejected command, the reason, and the remedy.
pub(super) fn rejection(command: &Cmd, error: &RedisError) -> String {
    let name = match command.args_iter().next() {
        Some(redis::Arg::Simple(name)) => String::from_utf8_lossy(name).into_owned(),
        _ => "a command".to_owned(),
    };
    let (code, detail) = (error.code().unwrap_or_default(), error.detail().unwrap_or_default());
    format!("Redis rejects {name}: {}", with_remedy(&format!("{code} {detail}")))
}

/// Adds the remedy to an error that begins with its code.
pub(super) fn with_remedy(error: &str) -> String {
    // A script has another code.
    let is_right = error.starts_with(NO_RIGHT) || error.contains("The user executing the script");
    let remedy =
        if is_right { "; give the user the rights that the documentation of brokers lists" } else { "" };
    format!("{error}{remedy}")
}

/// Whether the error means that the key does not exist. Redis and proxies report other errors with the same code.
pub(super) fn is_missing_key(error: &RedisError) -> bool {
    error.code() == Some("ERR") && error.detail() == Some("no such key")
}
