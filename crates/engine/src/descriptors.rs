//! Limit of file descriptors.

use std::io;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit of file descriptors to the hard limit (`ulimit -Hn`). Returns the new limit.
///
/// # Errors
/// If the system rejects the new limit.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return Ok(current.unwrap_or(u64::MAX));
    }
    let set = |limit| setrlimit(Resource::Nofile, Rlimit { current: limit, maximum }).map(|()| limit);
    let raised = match set(maximum) {
        Err(_) if maximum.is_none() => set(current.map(|current| current.max(OPEN_MAX)))?,
        result => result?,
    };
    Ok(raised.unwrap_or(u64::MAX))
}

/// macOS has no hard limit, and rejects soft limits above its `OPEN_MAX`.
const OPEN_MAX: u64 = 10_240;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_is_raised_to_the_hard_limit() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // Other tests in this process need descriptors.
        let lower = maximum.map_or(OPEN_MAX - 1, |maximum| maximum - 1);
        setrlimit(Resource::Nofile, Rlimit { current: Some(lower), maximum }).unwrap();
        let raised = raise_descriptor_limit().unwrap();
        assert!(raised > lower);
        assert_eq!(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), raised);
        assert_eq!(raise_descriptor_limit().unwrap(), raised, "it is idempotent");
    }
}
