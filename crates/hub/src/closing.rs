//! The server's close codes, and closing with a reason.

use sinews_server::{CloseCode, Context};

/// The connection's token has expired; the client may reconnect with a new token.
pub(crate) const TOKEN_EXPIRED: CloseCode = private_code(4401);

/// The reason of a Close with [`TOKEN_EXPIRED`].
pub(crate) const EXPIRED: &str = "the token has expired";

/// The connection's token does not allow the message.
pub(crate) const FORBIDDEN: CloseCode = private_code(4403);

/// The backend has disconnected the client, which may reconnect.
pub(crate) const DISCONNECTED: CloseCode = private_code(4410);

/// Longest reason in a Close, in bytes (RFC 6455 section 5.5).
pub(crate) const REASON_MAX: usize = 123;

const fn private_code(code: u16) -> CloseCode {
    match CloseCode::new(code) {
        Some(code) => code,
        None => panic!("not within 4000 to 4999"),
    }
}

/// Closes with a reason that is cut to the limit of a Close (RFC 6455 section 5.5).
pub(crate) fn close(cx: &mut Context<'_>, code: CloseCode, reason: &str) {
    let ends = reason.char_indices().map(|(at, char)| at + char.len_utf8());
    let end = ends.take_while(|end| *end <= REASON_MAX).last().unwrap_or(0);
    // Fails only if a Close is in progress, which has the same effect.
    let _ = cx.close(code, &reason[..end]);
}
