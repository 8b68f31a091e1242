//! The protocol in memory: Autobahn's families, other projects' faults, properties, memory; and the list of standards.

mod autobahn;
mod faults;
mod http;
mod lifetime;
mod memory;
mod probes;
mod properties;
mod standards;

use sinews_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
