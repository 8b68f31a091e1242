//! Stream errors as problems of a request.

use sinews_stream::record::RecordError;
use sinews_stream::{AppendError, CommitError, CreateError, StreamError};

use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};

/// The error of a server without streams.
pub(crate) const STREAMS_DISABLED: &str =
    "streams are disabled: the server was started without --streams-directory or --store";

/// The problem for a stream that was closed after it was opened for a message.
pub(crate) fn not_open(name: &str) -> Problem {
    problem(code::STORE, format!("stream {name} is not open; retry"))
}

/// The problem for a stream that cannot be used.
pub(crate) fn unusable(name: &str, error: &StreamError) -> Problem {
    let code = match error {
        StreamError::Name => code::TOPIC,
        StreamError::TooMany { .. } => code::TOO_MANY,
        _ => code::STORE,
    };
    let setting = if let StreamError::TooMany { .. } = error { " (streams.max_streams)" } else { "" };
    problem(code, format!("stream {name}: {error}{setting}"))
}

/// The problem for a stream that could not be created.
pub(crate) fn created(name: &str, error: &CreateError) -> Problem {
    let code = match error {
        CreateError::Name => code::TOPIC,
        CreateError::TooMany => code::TOO_MANY,
        _ => code::STORE,
    };
    problem(code, format!("stream {}: {error}", brief(name)))
}

/// The problem for a deleted stream.
pub(crate) fn deleted(name: &str) -> Problem {
    problem(code::GONE, format!("{name}: {}", AppendError::Deleted))
}

/// The problem for records that cannot be stored.
pub(crate) fn malformed(error: RecordError) -> Problem {
    if error == RecordError::TooLarge {
        let most = "the batch exceeds 8 MiB or max_message, or the key 65535 bytes";
        return problem(code::TOO_LARGE, format!("{error}: {most}"));
    }
    problem(code::MALFORMED, error.to_string())
}

impl From<AppendError> for Problem {
    fn from(error: AppendError) -> Self {
        let code = match error {
            AppendError::Busy => code::TOO_MANY,
            AppendError::TooLarge { .. } | AppendError::TooManyRecords { .. } => code::TOO_LARGE,
            AppendError::Deleted => code::GONE,
            AppendError::NoKey => code::TOPIC,
            _ => code::STORE,
        };
        problem(code, error.to_string())
    }
}

impl From<CommitError> for Problem {
    fn from(error: CommitError) -> Self {
        let code = match error {
            CommitError::Append(error) => return error.into(),
            CommitError::Partition => code::NO_STREAM,
            CommitError::TooMany => code::TOO_MANY,
            _ => code::TOPIC,
        };
        problem(code, error.to_string())
    }
}
