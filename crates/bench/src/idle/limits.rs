//! Limits on the load generator's own machine: descriptors and ports.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};

use sinews_engine::{BackendChoice, raise_descriptor_limit};

use super::is_ring;
use crate::load::LoadThreads;

/// Raises the descriptor limit to the hard limit. Returns the limit.
pub(super) fn raise_descriptors() -> usize {
    // Without a known limit, the first failing connection reports it.
    let limit = raise_descriptor_limit().unwrap_or(u64::MAX);
    usize::try_from(limit).unwrap_or(usize::MAX)
}

/// Returns the number of threads that so many connections need. On io_uring each thread has its own socket table; on
/// readiness, all threads share the process's descriptors.
pub(super) fn threads(connections: usize, descriptors: usize, backend: BackendChoice) -> usize {
    if backend == BackendChoice::Poll { 1 } else { connections.div_ceil(table_size(descriptors)) }
}

/// Size of a thread's socket table on io_uring.
fn table_size(descriptors: usize) -> usize {
    descriptors.clamp(1, TABLE_MAX)
}

/// Checks that these threads' connections, and all connections in this process, fit the descriptor limit.
///
/// # Errors
///
/// Returns an error that names the limit.
pub(super) fn check_descriptors(
    load_threads: &LoadThreads,
    threads: usize,
    connections: usize,
    all: usize,
    descriptors: usize,
) -> Result<(), String> {
    let is_ring = is_ring(load_threads.backend);
    too_few_descriptors(is_ring, threads, connections, all, descriptors).map_or(Ok(()), Err)
}

fn too_few_descriptors(
    ring: bool,
    threads: usize,
    connections: usize,
    all: usize,
    descriptors: usize,
) -> Option<String> {
    let advice = "raise the hard limit (ulimit -Hn, LimitNOFILE= in a unit)";
    if ring {
        let table = table_size(descriptors);
        let needed = connections.div_ceil(table);
        return (threads < needed).then(|| {
            format!(
                "{connections} connections exceed the tables of {threads} threads (--threads) with {table} sockets \
                 each: use --threads {needed}, or {advice}"
            )
        });
    }
    (all > descriptors.saturating_sub(RESERVED)).then(|| {
        format!(
            "{all} connections exceed the limit of {descriptors} file descriptors, of which {RESERVED} are reserved: \
             {advice}, or use --backend uring, whose connections take no descriptor"
        )
    })
}

/// Number of ephemeral ports for one address.
pub(super) fn ephemeral_ports() -> usize {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    ports(&range).unwrap_or(EPHEMERAL_PORTS)
}

fn ports(range: &str) -> Option<usize> {
    let mut numbers = range.split_whitespace().map(str::parse::<usize>);
    let (first, last) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(last.checked_sub(first)? + 1)
}

/// Returns as many loopback addresses as so many connections need, without the address that most servers use. Only half
/// of an address's ports are used: Linux prefers ports with one parity, and searches all ports before it takes another.
pub(super) fn loopback_addresses(connections: usize, ports: usize) -> Result<Vec<IpAddr>, String> {
    let count = connections.div_ceil((ports / 2).max(1)) + 1;
    if count > LOOPBACK_MAX {
        return Err(format!(
            "{count} source addresses are needed, and {LOOPBACK_MAX} are chosen at most: use --source"
        ));
    }
    Ok((0..count).map(|index| Ipv4Addr::new(127, 0, 0, 2 + index as u8).into()).collect())
}

pub(super) fn too_few_ports(connections: usize, ports: usize, needed: usize) -> String {
    format!(
        "{connections} connections exceed the {ports} ports of an address: give {needed} addresses of this machine \
         with --source, or widen net.ipv4.ip_local_port_range"
    )
}

/// The engine's limit for a ring's table.
const TABLE_MAX: usize = 131_072;

/// Descriptors for event loops, sockets on their way into a table, and the program's files.
const RESERVED: usize = 512;

/// Linux's default.
const EPHEMERAL_PORTS: usize = 28_232;

const LOOPBACK_MAX: usize = 250;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_follow_from_the_descriptor_limit() {
        assert_eq!(threads(100_000, 20_000, BackendChoice::Auto), 5);
        assert_eq!(threads(100_001, 20_000, BackendChoice::Uring), 6);
        assert_eq!(threads(1_000_000, 1 << 20, BackendChoice::Uring), 8);
        assert_eq!(threads(100_000, 20_000, BackendChoice::Poll), 1);
    }

    #[test]
    fn errors_name_the_descriptor_limit_and_its_settings() {
        let of =
            |ring, threads, connections| too_few_descriptors(ring, threads, connections, connections, 20_000);
        assert_eq!(of(true, 5, 100_000), None);
        let error = of(true, 1, 100_000).unwrap();
        assert!(
            error.contains("--threads 5") && error.contains("20000") && error.contains("LimitNOFILE="),
            "{error}"
        );
        assert_eq!(of(false, 1, 19_000), None);
        let error = of(false, 1, 19_900).unwrap();
        assert!(error.contains("20000") && error.contains("--backend uring"), "{error}");
    }

    #[test]
    fn ports_of_an_address_follow_from_the_kernel_setting() {
        assert_eq!(ports("32768\t60999\n"), Some(28_232));
        assert_eq!(ports("unknown"), None);
        let error = too_few_ports(100_000, 28_232, 4);
        assert!(error.contains("--source") && error.contains("net.ipv4.ip_local_port_range"), "{error}");
    }

    #[test]
    fn loopback_addresses_use_half_of_their_ports() {
        let first: IpAddr = [127, 0, 0, 2].into();
        assert_eq!(loopback_addresses(10, 28_232).unwrap(), [first, [127, 0, 0, 3].into()]);
        assert_eq!(loopback_addresses(100_000, 28_232).unwrap().len(), 9);
        assert!(loopback_addresses(10_000_000, 28_232).unwrap_err().contains("--source"));
    }
}
