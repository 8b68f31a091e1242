//! Which connections a command of the HTTP API, or of another node, names.

use serde::{Deserialize, Serialize};

use super::ClientConnection;
use crate::access::auth::RevokedTokens;

/// The connections that a command names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ConnectionSelector {
    /// All connections of a user.
    User(String),
    /// The connection with this id.
    Connection(String),
    /// The connections of the token with this id (`jti`).
    Token(String),
}

impl ConnectionSelector {
    /// The connections of revoked tokens.
    pub(crate) fn from_tokens(tokens: &RevokedTokens) -> Self {
        match tokens {
            RevokedTokens::OfUser(user) => Self::User(user.to_string()),
            RevokedTokens::WithId(id) => Self::Token(id.to_string()),
        }
    }

    /// Whether it names one of the [`candidates`](ConnectionRegistry::candidates).
    pub(crate) fn names(&self, connection: &ClientConnection) -> bool {
        match self {
            Self::Token(id) => connection.rights().token_id() == Some(id),
            Self::User(_) | Self::Connection(_) => true,
        }
    }
}
