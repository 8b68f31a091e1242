//! What processes use: processor time and memory, out of Linux's /proc.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

/// Processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Processor {
    pub(crate) busy: Duration,
}

/// What a process, with all its threads, has used and holds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    pub(crate) busy: Duration,
    /// Resident, in bytes.
    pub(crate) memory: u64,
    pub(crate) threads: u64,
}

/// The calling thread's; `None` where there is no /proc.
pub(crate) fn of_this_thread() -> Option<Processor> {
    busy("/proc/thread-self/schedstat").map(|busy| Processor { busy })
}

/// Nanoseconds on a processor, the first field.
fn busy(path: &str) -> Option<Duration> {
    let books = fs::read_to_string(path).ok()?;
    books.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The sum of these processes, and of those that they have started.
///
/// # Errors
///
/// One cannot be looked at.
pub(crate) fn usage(pids: &[u32], children: bool) -> Result<Usage, String> {
    let all = if children { family(pids) } else { pids.iter().copied().collect() };
    let mut sum = Usage::default();
    for pid in all {
        match of(pid) {
            Some(one) => {
                sum.busy += one.busy;
                sum.memory += one.memory;
                sum.threads += one.threads;
            }
            // A child may have ended meanwhile.
            None if !pids.contains(&pid) => {}
            None => return Err(format!("--pid {pid}: there is no such process, or it cannot be looked at")),
        }
    }
    Ok(sum)
}

/// These processes, those that they have started, and so on.
pub(crate) fn family(pids: &[u32]) -> BTreeSet<u32> {
    let mut all: BTreeSet<u32> = pids.iter().copied().collect();
    let mut next = pids.to_vec();
    while let Some(pid) = next.pop() {
        next.extend(children_of(pid).into_iter().filter(|child| all.insert(*child)));
    }
    all
}

fn of(pid: u32) -> Option<Usage> {
    let mut sum = Usage { memory: memory(pid)?, ..Usage::default() };
    for task in fs::read_dir(format!("/proc/{pid}/task")).ok()? {
        let path = task.ok()?.path().join("schedstat");
        // A thread may have ended meanwhile; its time is lost, as it is to everybody who reads this.
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

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_threads_and_memory() {
        let usage = usage(&[std::process::id()], true).unwrap();
        // The books of a thread that runs lag, so that they may hold nothing yet.
        assert!(usage.memory > 100_000 && usage.threads > 0 && of_this_thread().is_some());
        assert!(super::usage(&[u32::MAX], false).is_err());
    }
}
