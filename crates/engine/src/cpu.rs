//! Processor time of the thread that runs a loop.

use std::time::Duration;

/// CPU time of the calling thread so far, including kernel time. It costs a system call, so it is not read
/// in every turn. `None` where the system does not provide it.
#[cfg(unix)]
pub(crate) fn this_thread() -> Option<Duration> {
    use rustix::time::{ClockId, clock_gettime};
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Some(Duration::new(time.tv_sec.try_into().ok()?, time.tv_nsec.try_into().ok()?))
}

#[cfg(not(unix))]
pub(crate) fn this_thread() -> Option<Duration> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_grows_with_work_and_not_with_sleep() {
        let begin = this_thread().unwrap();
        while this_thread().unwrap() - begin < Duration::from_millis(5) {}
        let worked = this_thread().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(this_thread().unwrap() - worked < Duration::from_millis(50));
    }
}
