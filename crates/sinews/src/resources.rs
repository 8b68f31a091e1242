//! What the connections of one thread share.

use std::cell::RefCell;

use sinews_proto::Time;
use sinews_session::Resources;

/// What a receive reads into: as much as the kernel hands over at once on loopback, and within the first two levels
/// of the cache.
pub(crate) const BLOCK: usize = 64 << 10;

/// Blocks that a thread keeps.
const BLOCKS_MAX: usize = 16;

/// How long unused memory waits for the next message.
const RELEASE_AFTER: std::time::Duration = std::time::Duration::from_secs(2);

struct Local {
    resources: Resources,
    blocks: Vec<Vec<u8>>,
    released: Time,
}

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::new(Local {
        resources: Resources::new(),
        blocks: Vec::new(),
        released: Time::ZERO,
    });
}

/// Lends the thread's resources.
#[inline]
pub(crate) fn with<R>(work: impl FnOnce(&mut Resources) -> R) -> R {
    LOCAL.with_borrow_mut(|local| work(&mut local.resources))
}

/// An empty block of [`BLOCK`] bytes.
#[inline]
pub(crate) fn take_block() -> Vec<u8> {
    LOCAL.with_borrow_mut(|local| local.blocks.pop()).unwrap_or_else(|| Vec::with_capacity(BLOCK))
}

/// Takes a block back, or whatever else held received bytes.
#[inline]
pub(crate) fn give_block(mut block: Vec<u8>) {
    if block.capacity() == BLOCK {
        LOCAL.with_borrow_mut(|local| {
            if local.blocks.len() < BLOCKS_MAX {
                block.clear();
                local.blocks.push(block);
            }
        });
    }
}

/// Frees what no message has used for a while; answers when to call again, if anything is left.
pub(crate) fn release(now: Time) -> Option<Time> {
    LOCAL.with_borrow_mut(|local| {
        let due = local.released + RELEASE_AFTER;
        if due <= now {
            local.released = now;
            local.resources.release_idle();
            let spare = local.blocks.len() / 2;
            local.blocks.truncate(spare);
        }
        (local.resources.holds_spares() || !local.blocks.is_empty()).then(|| local.released + RELEASE_AFTER)
    })
}
