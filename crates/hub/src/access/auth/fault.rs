//! Why a token is not accepted.

/// Why a token is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenFault {
    pub(crate) text: String,
    /// The same token may be accepted later.
    pub(crate) is_temporary: bool,
}

impl TokenFault {
    pub(super) fn invalid(text: impl Into<String>) -> Self {
        Self { text: text.into(), is_temporary: false }
    }

    pub(super) fn temporary(text: String) -> Self {
        Self { text, is_temporary: true }
    }
}
