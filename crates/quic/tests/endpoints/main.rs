//! Endpoints in memory, with a simulated clock. The allocator counts the allocations of each thread, and thus of each test.

mod certificate;
mod client;
mod exchange;
mod quic_client;

use sinews_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
