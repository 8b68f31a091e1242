//! Process resource usage: CPU time and memory, from Linux's /proc.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// CPU time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CpuTime {
    pub(crate) busy: Duration,
}

/// A process's resource usage with all its threads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessUsage {
    pub(crate) busy: Duration,
    /// Resident memory in bytes.
    pub(crate) memory: u64,
    pub(crate) threads: u64,
}

/// Returns the calling thread's CPU time; `None` without /proc.
pub(crate) fn this_thread() -> Option<CpuTime> {
    busy("/proc/thread-self/schedstat").map(|busy| CpuTime { busy })
}

/// Nanoseconds on a processor, the first field.
fn busy(path: &str) -> Option<Duration> {
    let books = fs::read_to_string(path).ok()?;
    books.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// Sums these processes' usage and, with `children`, that of their descendants.
///
/// # Errors
///
/// Returns an error if a process cannot be inspected.
pub(crate) fn usage(pids: &[u32], children: bool) -> Result<ProcessUsage, String> {
    let all = if children { family(pids) } else { pids.iter().copied().collect() };
    let mut sum = ProcessUsage::default();
    for pid in all {
        match process_usage(pid) {
            Some(one) => {
                sum.busy += one.busy;
                sum.memory += one.memory;
                sum.threads += one.threads;
            }
            // A child may have ended meanwhile.
            None if !pids.contains(&pid) => {}
            None => return Err(format!("--pid {pid}: no such process, or no permission to inspect it")),
        }
    }
    Ok(sum)
}

/// Returns these processes and their descendants.
pub(crate) fn family(pids: &[u32]) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = pids.iter().copied().collect();
    let mut next = pids.to_vec();
    while let Some(pid) = next.pop() {
        next.extend(children_of(pid).into_iter().filter(|child| all.insert(*child)));
    }
    all
}

fn process_usage(pid: u32) -> Option<ProcessUsage> {
    let mut sum = ProcessUsage { memory: memory(pid)?, ..ProcessUsage::default() };
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let path = task.ok()?.path().join("schedstat");
        // A thread may have ended meanwhile; /proc no longer reports its time.
        sum.busy += busy(&path.to_string_lossy()).unwrap_or_default();
        sum.threads += 1;
    }
    Some(sum)
}

fn memory(pid: u32) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib << 10)
}

fn children_of(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// Pins this process, and its future threads, to processors.
pub(crate) fn pin(cores: &str) -> Result<(), String> {
    let pid = std::process::id().to_string();
    let output = Command::new("taskset").args(["--all-tasks", "--cpu-list", "--pid", cores, &pid]).output();
    let output = output.map_err(|error| format!("--load-core needs taskset (of util-linux): {error}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_threads_and_memory() {
        let usage = usage(&[std::process::id()], true).unwrap();
        // A running thread's accounting lags and may still be 0.
        assert!(usage.memory > 100_000 && usage.threads > 0 && this_thread().is_some());
        assert!(super::usage(&[u32::MAX], false).is_err());
    }
}
