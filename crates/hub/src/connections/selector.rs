//! Connections that a command from the HTTP API, or from another node, names.

use serde::{Deserialize, Serialize};

use super::ClientConnection;
use crate::access::auth::RevokedTokens;

/// The connections that a command names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ConnectionSelector {
    /// A user's connections.
    User(String),
    /// The connection with this id.
    Connection(String),
    /// The connections with this token id (`jti`).
    Token(String),
}

impl ConnectionSelector {
    /// Selects the connections with revoked tokens.
    pub(crate) fn from_tokens(tokens: &RevokedTokens) -> Self {
        match tokens {
            RevokedTokens::OfUser(user) => Self::User(user.to_string()),
            RevokedTokens::WithId(id) => Self::Token(id.to_string()),
        }
    }

    /// Returns whether it names a connection among the [`candidates`](ConnectionRegistry::candidates).
    pub(crate) fn names(&self, connection: &ClientConnection) -> bool {
        match self {
            Self::Token(id) => connection.rights().token_id() == Some(id),
            Self::User(_) | Self::Connection(_) => true,
        }
    }
}
