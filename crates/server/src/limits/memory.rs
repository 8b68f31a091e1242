//! Available memory: that of the machine, or the limit of a control group.

/// Returns the memory that this process may use, in bytes, and its source. `None` if unknown.
pub(super) fn available() -> Option<(u64, &'static str)> {
    find(&|path| std::fs::read_to_string(path).ok())
}

fn find(read: &dyn Fn(&str) -> Option<String>) -> Option<(u64, &'static str)> {
    let machine = read("/proc/meminfo").and_then(|text| total(&text)).map(|bytes| (bytes, "the machine"));
    let group = group_limit(read).map(|bytes| (bytes, "the control group"));
    machine.into_iter().chain(group).min_by_key(|(bytes, _)| *bytes)
}

/// `MemTotal` of `/proc/meminfo`.
fn total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The smallest limit of the process's control groups, of version 2 and of version 1.
fn group_limit(read: &dyn Fn(&str) -> Option<String>) -> Option<u64> {
    let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
    let found = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (hierarchy, controllers, group) = (fields.next()?, fields.next()?, fields.next()?);
        let (kind, files): (_, &[&str]) = match (hierarchy, controllers) {
            ("0", "") => ("cgroup2", &["memory.max", "memory.high"]),
            (_, controllers) if controllers.split(',').any(|name| name == "memory") => {
                ("cgroup", &["memory.limit_in_bytes"])
            }
            _ => return None,
        };
        let mount = mounts.lines().filter_map(Mount::parse).find(|mount| mount.is(kind))?;
        smallest(&mount, group, files, read)
    });
    found.min()
}

/// Returns the smallest limit of a group and its ancestors.
fn smallest(
    mount: &Mount<'_>,
    group: &str,
    files: &[&str],
    read: &dyn Fn(&str) -> Option<String>,
) -> Option<u64> {
    // A container sees its own group as the root, or the path as the machine sees it.
    let mut below = group.strip_prefix(mount.root).unwrap_or("").trim_matches('/');
    let mut limits = Vec::new();
    for _ in 0..=DEPTH_MAX {
        let directory =
            if below.is_empty() { mount.point.clone() } else { format!("{}/{below}", mount.point) };
        let read = |file: &&str| read(&format!("{directory}/{file}"))?.trim().parse::<u64>().ok();
        // No limit is `max` in version 2, and an impossible number in version 1.
        limits.extend(files.iter().filter_map(read).filter(|bytes| (1..UNLIMITED).contains(bytes)));
        if below.is_empty() {
            break;
        }
        below = below.rsplit_once('/').map_or("", |(around, _)| around);
    }
    limits.into_iter().min()
}

/// Maximum depth of nested groups.
const DEPTH_MAX: usize = 64;

/// Numbers from here on mean no limit.
const UNLIMITED: u64 = 1 << 60;

/// A line of `/proc/self/mountinfo` (proc_pid_mountinfo(5)).
struct Mount<'a> {
    root: &'a str,
    point: String,
    kind: &'a str,
    options: &'a str,
}

impl<'a> Mount<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let (before, behind) = line.split_once(" - ")?;
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?.replace("\\040", " "));
        let mut fields = behind.split(' ');
        let kind = fields.next()?;
        let point = point.trim_end_matches('/').to_owned();
        Some(Self { root: root.trim_end_matches('/'), point, kind, options: fields.nth(1).unwrap_or("") })
    }

    /// Returns whether it is the file system of version 2, or that of version 1 for memory.
    fn is(&self, kind: &str) -> bool {
        self.kind == kind && (kind == "cgroup2" || self.options.split(',').any(|name| name == "memory"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMINFO: &str = "MemTotal:       16777216 kB\nMemFree:         1000 kB\n";
    const GIB: u64 = 1 << 30;
    const V2: &str = "25 1 0:22 / / rw - ext4 /dev/sda rw\n\
                      30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    const V1: &str = "30 23 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                      31 23 0:27 / /sys/fs/cgroup/cpu rw shared:5 - cgroup cgroup rw,cpu,cpuacct\n\
                      32 23 0:28 /docker/abc /sys/fs/cgroup/memory rw shared:6 - cgroup cgroup rw,memory\n";

    fn from_files(files: &[(&str, &str)]) -> Option<(u64, &'static str)> {
        find(&|path| files.iter().find(|(name, _)| *name == path).map(|(_, text)| (*text).to_owned()))
    }

    #[test]
    fn memory_of_the_machine_counts_without_a_group() {
        assert_eq!(from_files(&[("/proc/meminfo", MEMINFO)]), Some((16 * GIB, "the machine")));
        assert_eq!(from_files(&[]), None);
        for broken in ["", "MemTotal: x kB", "MemTotal: 5", "MemTotal: 99999999999999999999 kB"] {
            assert_eq!(from_files(&[("/proc/meminfo", broken)]), None);
        }
        assert!(available().is_some_and(|(bytes, _)| bytes > 1 << 20));
    }

    #[test]
    fn smallest_limit_of_a_version_2_group_and_its_parents_counts() {
        let group = ("/proc/self/cgroup", "0::/system.slice/sinews.service\n");
        let base = [("/proc/meminfo", MEMINFO), group, ("/proc/self/mountinfo", V2)];
        let with = |more: &[(&'static str, &'static str)]| from_files(&[&base[..], more].concat());
        let own = "/sys/fs/cgroup/system.slice/sinews.service/memory.max";
        let high = "/sys/fs/cgroup/system.slice/sinews.service/memory.high";
        let parent = "/sys/fs/cgroup/system.slice/memory.max";
        assert_eq!(with(&[(own, "max\n"), (high, "max\n")]), Some((16 * GIB, "the machine")));
        assert_eq!(with(&[(own, "4294967296\n")]), Some((4 * GIB, "the control group")));
        assert_eq!(with(&[(own, "4294967296\n"), (high, "3221225472\n")]).unwrap().0, 3 * GIB);
        assert_eq!(with(&[(own, "4294967296\n"), (parent, "2147483648\n")]).unwrap().0, 2 * GIB);
        assert_eq!(with(&[(own, "42949672960\n")]), Some((16 * GIB, "the machine")), "more than there is");
        // A container has a root of its own.
        let root = ("/sys/fs/cgroup/memory.max", "1073741824");
        let contained = [base[0], ("/proc/self/cgroup", "0::/\n"), base[2], root];
        assert_eq!(from_files(&contained), Some((GIB, "the control group")));
    }

    #[test]
    fn limit_of_a_version_1_group_counts() {
        let groups = "12:cpu,cpuacct:/docker/abc\n9:memory:/docker/abc/inner\n0::/docker/abc\n";
        let base = [("/proc/meminfo", MEMINFO), ("/proc/self/cgroup", groups), ("/proc/self/mountinfo", V1)];
        let own = "/sys/fs/cgroup/memory/inner/memory.limit_in_bytes";
        let root = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        let with = |more: &[(&'static str, &'static str)]| from_files(&[&base[..], more].concat());
        assert_eq!(with(&[(own, "9223372036854771712\n")]), Some((16 * GIB, "the machine")));
        assert_eq!(with(&[(own, "9223372036854771712\n"), (root, "536870912\n")]).unwrap().0, GIB / 2);
        assert_eq!(with(&[(own, "268435456\n"), (root, "536870912\n")]).unwrap().0, GIB / 4);
    }
}
