//! Reasons why a ring is not available, and remedies for the operator.

use std::fmt;
use std::io;

/// The kernel or a security policy refused the ring or a required feature.
#[derive(Clone, Debug)]
pub(crate) struct RingUnavailable {
    what: &'static str,
    code: i32,
}

impl RingUnavailable {
    pub(super) fn new(what: &'static str, error: &io::Error) -> Self {
        Self { what, code: error.raw_os_error().unwrap_or(libc::EIO) }
    }

    /// The cause for the operator.
    fn cause(&self) -> String {
        let error = io::Error::from_raw_os_error(self.code);
        let explanation = match self.code {
            libc::EPERM | libc::EACCES => {
                "a seccomp filter (the default of containers), a security module or kernel.io_uring_disabled forbids it"
            }
            libc::ENOSYS => "the kernel has no io_uring, or a seccomp filter hides it",
            libc::ENOMEM => "the limit on locked memory is too small for the smallest ring",
            libc::EMFILE | libc::ENFILE => "no descriptor is free",
            libc::EINVAL | libc::EOPNOTSUPP => "the kernel is too old",
            _ => return format!("{}: {error}", self.what),
        };
        format!("{}: {error}: {explanation}", self.what)
    }

    fn remedy(&self) -> &'static str {
        match self.code {
            libc::EPERM | libc::EACCES => {
                "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp \
                 profile, and set sysctl kernel.io_uring_disabled=0"
            }
            libc::ENOSYS => "run Linux 6.7 or newer, and allow the calls in the seccomp profile",
            libc::ENOMEM => "raise the limit: ulimit -l, or LimitMEMLOCK= of systemd",
            libc::EMFILE | libc::ENFILE => "raise the limit: ulimit -n, or LimitNOFILE= of systemd",
            _ => "run Linux 6.7 or newer; 6.13 supports all features in use",
        }
    }
}

impl fmt::Display for RingUnavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io_uring cannot be used: {}. Remedy: {}", self.cause(), self.remedy())
    }
}

impl From<RingUnavailable> for io::Error {
    fn from(error: RingUnavailable) -> Self {
        Self::new(io::ErrorKind::Unsupported, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_cause_and_remedy() {
        for (code, cause, remedy) in [
            (libc::EPERM, "seccomp", "kernel.io_uring_disabled=0"),
            (libc::ENOSYS, "has no io_uring", "Linux 6.7"),
            (libc::ENOMEM, "locked memory", "ulimit -l"),
            (libc::EMFILE, "descriptor", "ulimit -n"),
            (libc::EINVAL, "too old", "Linux 6.7"),
        ] {
            let text =
                RingUnavailable::new("io_uring_setup", &io::Error::from_raw_os_error(code)).to_string();
            assert!(text.contains(cause) && text.contains(remedy), "{text}");
        }
    }
}
