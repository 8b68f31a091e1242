//! Request errors, and their codes.

use serde_json::{Value, json};

/// A request error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Problem {
    pub(crate) code: u16,
    pub(crate) text: String,
    /// The right that a token would have to grant.
    pub(crate) needs: Option<Value>,
    /// The request may have been executed, or may be later.
    pub(crate) unknown: bool,
}

/// Error codes. They are HTTP status codes where HTTP has a matching one.
pub(crate) mod code {
    /// Not a JSON object, or a field is missing, of another type or of another operation.
    pub(crate) const MALFORMED: u16 = 400;
    /// An expired token.
    pub(crate) const TOKEN: u16 = 401;
    /// The token names another client.
    pub(crate) const NOT_SUBJECT: u16 = 403;
    /// No such `op`.
    pub(crate) const UNKNOWN_OP: u16 = 404;
    /// Unknown stream or partition.
    pub(crate) const NO_STREAM: u16 = 404;
    /// No subscription to that name.
    pub(crate) const NOT_SUBSCRIBED: u16 = 409;
    /// The topic has no history, or the stream was deleted.
    pub(crate) const GONE: u16 = 410;
    /// A key write's condition is not met.
    pub(crate) const CONDITION: u16 = 412;
    /// A message or batch exceeds a limit.
    pub(crate) const TOO_LARGE: u16 = 413;
    /// An invalid topic name or pattern, or a pattern where a topic name is required.
    pub(crate) const TOPIC: u16 = 422;
    /// More subscriptions than a connection's limit.
    pub(crate) const TOO_MANY: u16 = 429;
    /// The log or the broker has failed, or its queue is full.
    pub(crate) const STORE: u16 = 503;
}

impl Problem {
    /// Encodes the error as a message.
    pub(crate) fn into_json(self) -> Value {
        let mut message = self.fields();
        message["op"] = json!("error");
        message
    }

    /// Encodes the error as an object.
    pub(crate) fn fields(&self) -> Value {
        let mut fields = json!({ "code": self.code, "error": self.text });
        if let Some(needs) = &self.needs {
            fields["needs"] = needs.clone();
        }
        if self.unknown {
            fields["unknown"] = json!(true);
        }
        fields
    }
}

pub(crate) fn problem(code: u16, text: impl Into<String>) -> Problem {
    Problem { code, text: text.into(), needs: None, unknown: false }
}
