//! Process metrics of the system.

use std::fs;
use std::time::Duration;

/// Process metrics of the system. A number is `None` if the system does not report it: all are read from `/proc`,
/// which is Linux's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct ProcessMetrics {
    /// Resident set in bytes.
    pub resident_bytes: Option<u64>,
    /// Processor time of all threads, in the system's ticks of 10 ms.
    pub cpu: Option<Duration>,
    /// Open descriptors. Connections of a ring use none.
    pub open_descriptors: Option<u64>,
}

impl ProcessMetrics {
    /// Reads [`resident_bytes`](Self::resident_bytes) only: some microseconds, and no disk access.
    pub(crate) fn read_resident_bytes() -> Option<u64> {
        fs::read_to_string("/proc/self/status").ok().and_then(|status| resident(&status))
    }

    /// Reads all metrics: a few virtual files of the kernel.
    pub(crate) fn read() -> Self {
        let read = |path| fs::read_to_string(path).ok();
        Self {
            resident_bytes: Self::read_resident_bytes(),
            cpu: read("/proc/self/stat").and_then(|stat| cpu(&stat)),
            open_descriptors: fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count() as u64),
        }
    }
}

/// `VmRSS` is given in KiB.
fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// The 14th and 15th field: user and system time. The second field, the program's name, may contain any characters,
/// but it ends with the last parenthesis.
fn cpu(stat: &str) -> Option<Duration> {
    let mut fields = stat[stat.rfind(')')? + 1..].split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some(Duration::from_millis((user + system) * TICK_MS))
}

/// Linux reports times in hundredths of a second, whatever its internal unit (proc_pid_stat(5), USER_HZ).
const TICK_MS: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_files_are_parsed() {
        assert_eq!(resident("Name:\tx\nVmRSS:\t    5124 kB\nVmHWM:\t 1 kB\n"), Some(5124 * 1024));
        let stat = "17 (a) b (c)) S 1 17 17 0 -1 4194560 100 0 2 0 250 50 0 0 20 0 3 0 5 6 7";
        assert_eq!(cpu(stat), Some(Duration::from_secs(3)));
        for broken in ["", "17 (a", "17 (a) S 1 17", "VmRSS: many kB", "VmRSS:"] {
            assert_eq!((resident(broken), cpu(broken)), (None, None), "{broken}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn linux_reports_all_process_metrics() {
        let process = ProcessMetrics::read();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 100_000), "{process:?}");
        assert!(process.open_descriptors.is_some_and(|count| count > 2), "{process:?}");
        assert!(process.cpu.is_some(), "{process:?}");
    }
}
