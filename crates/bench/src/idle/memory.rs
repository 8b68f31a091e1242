//! Memory in use as Linux reports it in /proc.

use std::collections::BTreeMap;
use std::fs;

/// Memory in use at one time, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct MemoryReading {
    /// The server's anonymous resident pages (`RssAnon`).
    pub(super) user: i64,
    /// The server's page tables (`VmPTE`).
    pub(super) page_tables: i64,
    /// Kernel objects of the whole machine (`Slab`).
    pub(super) slab: i64,
    /// Memory that all TCP sockets on the machine account for (`TCP: mem`).
    pub(super) socket_buffers: i64,
    /// Further kernel memory: virtually contiguous and per-processor memory, and stacks.
    pub(super) other_kernel: i64,
    /// The machine's available memory (`MemAvailable`).
    pub(super) available: i64,
    /// Objects in use by cache: number and bytes. Empty without permission to read /proc/slabinfo.
    pub(super) caches: BTreeMap<String, KernelCache>,
}

/// Kernel objects of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct KernelCache {
    pub(super) objects: i64,
    pub(super) bytes: i64,
}

impl MemoryReading {
    /// Reads the memory of these processes and of the machine.
    ///
    /// # Errors
    ///
    /// Returns an error if a process cannot be inspected, or the kernel does not report a figure.
    pub(super) fn take(pids: &[u32]) -> Result<Self, String> {
        let (mut user, mut page_tables) = (0, 0);
        for pid in pids {
            let path = format!("/proc/{pid}/status");
            let status =
                fs::read_to_string(&path).map_err(|error| format!("--pid {pid}: {path}: {error}"))?;
            user += kibibytes(&status, "RssAnon:").ok_or_else(|| format!("{path} has no RssAnon"))?;
            page_tables += kibibytes(&status, "VmPTE:").ok_or_else(|| format!("{path} has no VmPTE"))?;
        }
        let machine = read("/proc/meminfo")?;
        let line = |name: &str| {
            kibibytes(&machine, name)
                .ok_or_else(|| format!("/proc/meminfo has no {}", name.trim_end_matches(':')))
        };
        let sockets = read("/proc/net/sockstat")?;
        let pages = socket_pages(&sockets).ok_or("/proc/net/sockstat has no memory of TCP")?;
        Ok(Self {
            user,
            page_tables,
            slab: line("Slab:")?,
            socket_buffers: pages * page_size(),
            // Older kernels do not report all these values.
            other_kernel: ["VmallocUsed:", "Percpu:", "KernelStack:"]
                .into_iter()
                .filter_map(|name| line(name).ok())
                .sum(),
            available: line("MemAvailable:")?,
            // Only root may read it.
            caches: fs::read_to_string("/proc/slabinfo").map(|text| caches(&text)).unwrap_or_default(),
        })
    }

    /// Returns the growth since an earlier reading. Caches that have not grown are left out.
    pub(super) fn since(&self, earlier: &Self) -> Self {
        let growth = |(name, now): (&String, &KernelCache)| {
            let before = earlier.caches.get(name).copied().unwrap_or_default();
            let (objects, bytes) = (now.objects - before.objects, now.bytes - before.bytes);
            (bytes > 0).then(|| (name.clone(), KernelCache { objects, bytes }))
        };
        Self {
            user: self.user - earlier.user,
            page_tables: self.page_tables - earlier.page_tables,
            slab: self.slab - earlier.slab,
            socket_buffers: self.socket_buffers - earlier.socket_buffers,
            other_kernel: self.other_kernel - earlier.other_kernel,
            available: self.available - earlier.available,
            caches: self.caches.iter().filter_map(growth).collect(),
        }
    }

    /// Kernel memory for both ends of the connections, except page tables.
    pub(super) fn kernel(&self) -> i64 {
        self.slab + self.socket_buffers + self.other_kernel
    }

    /// Kernel memory for the server's end, if both ends are on this machine and use the same backend. Both ends of a
    /// connection are TCP sockets from the same caches, so each has half, except what only a connecting socket has.
    pub(super) fn kernel_of_one_end(&self) -> i64 {
        let of_clients: i64 =
            CLIENT_CACHES.iter().filter_map(|name| self.caches.get(*name)).map(|cache| cache.bytes).sum();
        (self.kernel() - of_clients) / 2
    }
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}; `sinews bench idle` needs Linux"))
}

/// Returns the bytes from a line `Name:   12 kB`.
fn kibibytes(text: &str, name: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<i64>().ok()? << 10)
}

/// Returns `mem` from the line `TCP: inuse 1 orphan 0 tw 0 alloc 1 mem 0`, in pages.
fn socket_pages(text: &str) -> Option<i64> {
    let line = text.lines().find_map(|line| line.strip_prefix("TCP:"))?;
    let mut fields = line.split_whitespace();
    fields.find(|field| *field == "mem")?;
    fields.next()?.parse().ok()
}

/// Returns the caches from /proc/slabinfo, whose first two lines are headings.
fn caches(text: &str) -> BTreeMap<String, KernelCache> {
    let cache = |line: &str| {
        let mut fields = line.split_whitespace();
        let name = fields.next()?.to_owned();
        let objects: i64 = fields.next()?.parse().ok()?;
        let size: i64 = fields.nth(1)?.parse().ok()?;
        Some((name, KernelCache { objects, bytes: objects * size }))
    };
    text.lines().skip(2).filter_map(cache).collect()
}

fn page_size() -> i64 {
    i64::try_from(rustix::param::page_size()).unwrap_or(4096)
}

/// Caches for the ports of connecting sockets. An accepted socket shares its listener's port.
const CLIENT_CACHES: [&str; 2] = ["tcp_bind_bucket", "tcp_bind2_bucket"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        assert_eq!(kibibytes("VmRSS:\t 20 kB\nRssAnon:\t      12 kB\n", "RssAnon:"), Some(12 << 10));
        assert_eq!(kibibytes("VmRSS:\t 20 kB\n", "RssAnon:"), None);
        let sockets = "sockets: used 32\nTCP: inuse 1 orphan 0 tw 0 alloc 1 mem 7\nUDP: inuse 0 mem 3\n";
        assert_eq!(socket_pages(sockets), Some(7));
        let slabinfo = "slabinfo - version: 2.1\n# name <active_objs>\nTCP 3 9 2368 13 8 : tunables 0 0 0\n";
        let known = caches(slabinfo);
        assert_eq!(known.get("TCP"), Some(&KernelCache { objects: 3, bytes: 3 * 2368 }));
        assert_eq!(known.len(), 1);
    }

    #[test]
    fn one_end_has_half_of_the_kernel_memory_without_ports_of_clients() {
        let cache = |bytes| KernelCache { objects: 1, bytes };
        let caches = [("TCP", 4_000), ("tcp_bind_bucket", 100), ("tcp_bind2_bucket", 200)];
        let caches = caches.map(|(name, bytes)| (name.to_owned(), cache(bytes)));
        let grown = MemoryReading {
            slab: 4_300,
            socket_buffers: 600,
            other_kernel: 100,
            caches: caches.into(),
            ..MemoryReading::default()
        };
        assert_eq!((grown.kernel(), grown.kernel_of_one_end()), (5_000, 2_350));
    }

    #[test]
    fn growth_lists_only_caches_that_have_grown() {
        let reading = |tcp: i64, dentry: i64| MemoryReading {
            user: tcp,
            caches: [("TCP", tcp), ("dentry", dentry)]
                .map(|(name, objects)| (name.to_owned(), KernelCache { objects, bytes: objects * 10 }))
                .into(),
            ..MemoryReading::default()
        };
        let growth = reading(7, 3).since(&reading(2, 5));
        assert_eq!(growth.user, 5);
        assert_eq!(
            growth.caches.into_iter().collect::<Vec<_>>(),
            [("TCP".to_owned(), KernelCache { objects: 5, bytes: 50 })]
        );
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_of_this_process_is_read() {
        let reading = MemoryReading::take(&[std::process::id()]).unwrap();
        assert!(
            reading.user > 100_000 && reading.page_tables > 0 && reading.slab > 0 && reading.available > 0
        );
        let error = MemoryReading::take(&[u32::MAX]).unwrap_err();
        assert!(error.starts_with("--pid 4294967295: "), "{error}");
    }
}
