/// Counters of one loop, since it was made. Plain numbers, read by value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Turns, each of which waited for the kernel once.
    pub turns: u64,
    /// System calls that entered the ring; 0 with the readiness backend, whose calls are one a turn, one a
    /// receive and one a send.
    pub enters: u64,
    /// Times another thread woke the loop for mail.
    pub wakes: u64,
    /// Connections accepted.
    pub accepts: u64,
    /// Episodes in which no connection could be accepted for lack of descriptors or memory.
    pub accept_stalls: u64,
    /// Connections closed.
    pub closes: u64,
    /// Receive operations, also those that found an end, an error or nothing.
    pub receives: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Send operations, also those that were refused.
    pub sends: u64,
    /// Bytes the kernel took.
    pub sent_bytes: u64,
}
