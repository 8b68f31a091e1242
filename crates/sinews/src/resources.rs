//! Resources shared by the connections of one thread.

use std::cell::Cell;

use sinews_proto::Time;
use sinews_session::Resources;

/// Size of a receive block: as much as the kernel returns at once on loopback, and within the first two levels of the
/// cache.
pub(crate) const BLOCK: usize = 64 << 10;

/// Blocks that a thread keeps.
const BLOCKS_MAX: usize = 16;

/// Time after which unused memory is freed.
const RELEASE_AFTER: std::time::Duration = std::time::Duration::from_secs(2);

#[derive(Default)]
struct ThreadResources {
    resources: Resources,
    blocks: Vec<Vec<u8>>,
    released: Time,
}

thread_local! {
    /// `None` until first use, and while a function uses them.
    static LOCAL: Cell<Option<Box<ThreadResources>>> = const { Cell::new(None) };
}

/// Runs a function with the thread's resources.
///
/// A payload that the function drops may run code of the application, which may use another connection: that one gets
/// resources of its own, as does a connection that is dropped when those of the thread are dropped already.
#[inline]
fn with_local<R>(work: impl FnOnce(&mut ThreadResources) -> R) -> R {
    let mut local = LOCAL.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let done = work(&mut local);
    // Drops the resources of a function that ran meanwhile.
    let _ = LOCAL.try_with(|slot| slot.set(Some(local)));
    done
}

/// Runs a function with the thread's resources.
#[inline]
pub(crate) fn with<R>(work: impl FnOnce(&mut Resources) -> R) -> R {
    with_local(|local| work(&mut local.resources))
}

/// An empty block of [`BLOCK`] bytes.
#[inline]
pub(crate) fn take_block() -> Vec<u8> {
    with_local(|local| local.blocks.pop()).unwrap_or_else(|| Vec::with_capacity(BLOCK))
}

/// Takes back a block, or another buffer of received bytes.
#[inline]
pub(crate) fn give_block(mut block: Vec<u8>) {
    if block.capacity() == BLOCK {
        with_local(|local| {
            if local.blocks.len() < BLOCKS_MAX {
                block.clear();
                local.blocks.push(block);
            }
        });
    }
}

/// Frees memory that no message has used for a while; returns when to call again, if any is left.
pub(crate) fn release(now: Time) -> Option<Time> {
    with_local(|local| {
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
