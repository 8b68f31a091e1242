//! Memory of the whole process, counted by the allocator. A program of its own whose tests run one after the other: other tests
//! would be counted, too.

#[path = "../../../server/tests/shared/backend.rs"]
mod backend;
#[path = "../../../quic/tests/endpoints/http3_client.rs"]
#[expect(dead_code, reason = "other tests use more of the client")]
mod http3_client;
mod idle;
#[path = "../../../quic/tests/endpoints/quic_client.rs"]
#[expect(dead_code, reason = "other tests use more of the client")]
mod quic_client;
mod unread_answers;

use sinews_testkit::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
