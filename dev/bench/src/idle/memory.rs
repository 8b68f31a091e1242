//! Memory use as reported by the kernel.

use std::collections::HashMap;
use std::fs;

use crate::Error;

/// Memory in use, or the difference of two readings.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    /// Private dirty pages of the server.
    pub(crate) private_dirty: i64,
    /// Resident pages of the server.
    pub(crate) resident: i64,
    /// Kernel objects of all processes.
    pub(crate) slab: i64,
    /// Socket queues of all processes.
    pub(crate) socket_buffers: i64,
    /// Kernel objects by kind, the largest growth first in a difference. Empty without root privileges.
    pub(crate) caches: Vec<(String, i64)>,
}

impl Memory {
    pub(crate) fn now(server: u32) -> Result<Self, Error> {
        let maps = fs::read_to_string(format!("/proc/{server}/smaps_rollup"))?;
        let all = fs::read_to_string("/proc/meminfo")?;
        let sockets = fs::read_to_string("/proc/net/sockstat")?;
        let missing = |what: &str| format!("the kernel does not report {what}");
        Ok(Self {
            private_dirty: kilobytes(&maps, "Private_Dirty:").ok_or_else(|| missing("Private_Dirty"))?,
            resident: kilobytes(&maps, "Rss:").ok_or_else(|| missing("Rss"))?,
            slab: kilobytes(&all, "Slab:").ok_or_else(|| missing("Slab"))?,
            socket_buffers: socket_pages(&sockets).ok_or_else(|| missing("TCP mem"))? * PAGE,
            caches: caches(&fs::read_to_string("/proc/slabinfo").unwrap_or_default()),
        })
    }

    /// Returns the growth since an earlier reading.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let before: HashMap<&str, i64> =
            earlier.caches.iter().map(|(name, bytes)| (&**name, *bytes)).collect();
        let grown = |name: &str, bytes: i64| bytes - before.get(name).copied().unwrap_or_default();
        let mut caches: Vec<(String, i64)> =
            self.caches.iter().map(|(name, bytes)| (name.clone(), grown(name, *bytes))).collect();
        caches.sort_by_key(|(_, bytes)| -bytes);
        caches.truncate(CACHES_SHOWN);
        Self {
            private_dirty: self.private_dirty - earlier.private_dirty,
            resident: self.resident - earlier.resident,
            slab: self.slab - earlier.slab,
            socket_buffers: self.socket_buffers - earlier.socket_buffers,
            caches,
        }
    }
}

/// The bytes of a line `name 12 kB`.
fn kilobytes(file: &str, name: &str) -> Option<i64> {
    let line = file.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()? << 10)
}

/// `mem` of the line `TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 0`.
fn socket_pages(file: &str) -> Option<i64> {
    let line = file.lines().find(|line| line.starts_with("TCP:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Name and bytes of the objects in use of each kind.
fn caches(file: &str) -> Vec<(String, i64)> {
    let cache = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        let active: i64 = fields.next()?.parse().ok()?;
        let size: i64 = fields.nth(1)?.parse().ok()?;
        Some((name, active * size))
    };
    // Two lines of heading.
    file.lines().skip(2).filter_map(cache).collect()
}

/// Unit of `mem` in sockstat, on the machines this runs on.
const PAGE: i64 = 4096;

const CACHES_SHOWN: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!(kilobytes("Rss:                 12 kB\nPss: 1 kB\n", "Rss:"), Some(12 << 10));
        assert_eq!(socket_pages("sockets: used 32\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 7\n"), Some(7));
        let slabinfo = "slabinfo - version: 2.1\n# name <active_objs> ...\nTCP 3 9 2368 13 8 : tunables\n";
        assert_eq!(caches(slabinfo), [("TCP".to_owned(), 3 * 2368)]);
    }
}
