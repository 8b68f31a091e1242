//! HTTP/2 and HTTP/3 in memory. The allocator counts the allocations of each thread, and thus of each test.

mod h2;
mod h3;

use sinews_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
