//! Accept errors: errors of a single connection, and remedies for shortages.

use std::io;

/// Errors of the connection at the head of the backlog, not of the listener. Linux reports network errors
/// of a new connection this way and requires a retry (accept(2), "Error handling").
pub(crate) fn is_connection_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionReset, Interrupted, TimedOut};
    matches!(error.kind(), ConnectionAborted | ConnectionReset | Interrupted | TimedOut)
        || matches!(
            error.raw_os_error(),
            Some(
                libc::EPROTO
                    | libc::EPERM
                    | libc::ENETDOWN
                    | libc::ENETUNREACH
                    | libc::EHOSTDOWN
                    | libc::EHOSTUNREACH
                    | libc::ENOPROTOOPT
                    | libc::EOPNOTSUPP
            )
        )
}

/// The remedy for the operator.
pub(crate) fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "raise the process's descriptor limit: ulimit -n, or LimitNOFILE= of systemd",
        Some(libc::ENFILE) => "raise the system's descriptor limit: sysctl fs.file-max",
        Some(libc::ENOBUFS | libc::ENOMEM) => {
            "the kernel is out of memory for sockets: see sysctl net.ipv4.tcp_mem"
        }
        _ => "none needed: accepting is retried automatically",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shortages_pause_accepting() {
        for code in [libc::ECONNABORTED, libc::EPROTO, libc::EINTR, libc::EPERM, libc::EHOSTUNREACH] {
            assert!(is_connection_error(&io::Error::from_raw_os_error(code)), "{code}");
        }
        // EBADF represents an impossible error: it must pause too, or the loop would spin.
        for code in [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EBADF] {
            assert!(!is_connection_error(&io::Error::from_raw_os_error(code)), "{code}");
        }
        assert!(remedy(&io::Error::from_raw_os_error(libc::EMFILE)).contains("ulimit -n"));
    }
}
