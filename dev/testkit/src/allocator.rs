//! An allocator that counts memory.

#![allow(unsafe_code, reason = "an allocator is unsafe code")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::thread;

use crate::{until, until_some};

/// The system's allocator, with counts. A test binary declares it with `#[global_allocator]`.
#[derive(Clone, Copy, Debug)]
pub struct CountingAllocator;

/// Allocations of one thread during [`measure`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AllocationCounts {
    /// Allocated bytes without freed bytes.
    pub live: isize,
    /// Maximum of `live`.
    pub peak: isize,
    /// Calls that allocated memory, including growth in place.
    pub allocations: usize,
    /// The largest single allocation.
    pub largest: usize,
}

impl AllocationCounts {
    const ZERO: Self = Self { live: 0, peak: 0, allocations: 0, largest: 0 };
}

static LIVE: AtomicIsize = AtomicIsize::new(0);

thread_local! {
    static COUNTS: Cell<AllocationCounts> = const { Cell::new(AllocationCounts::ZERO) };
    static IS_EXCLUDED: Cell<bool> = const { Cell::new(false) };
}

/// Returns the bytes that all threads except the excluded ones have allocated. Memory counts where it is allocated and
/// freed.
pub fn live_bytes() -> isize {
    LIVE.load(Ordering::SeqCst)
}

/// Returns [`live_bytes`] while all other threads in this process sleep: a thread that works has buffers beside what it
/// retains. On a system without `/proc`, this is the number at the call.
///
/// # Panics
/// Some other thread has worked for a minute.
pub fn idle_live_bytes() -> isize {
    until_some("a moment in which all other threads sleep", || {
        let live = others_sleep().then(live_bytes);
        live.filter(|_| others_sleep())
    })
}

/// Whether all other threads in this process sleep.
fn others_sleep() -> bool {
    let (Ok(own), Ok(threads)) = (fs::read_link("/proc/thread-self"), fs::read_dir("/proc/self/task")) else {
        return true;
    };
    threads.flatten().filter(|entry| Some(&*entry.file_name()) != own.file_name()).all(|entry| {
        // The state is behind the name, which is in parentheses. A thread without a file has ended.
        let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
    })
}

/// Waits until no other test in this program holds the guard: [`live_bytes`] counts the whole process.
///
/// The first thread that waits for a `parking_lot` lock allocates the table for all waiting threads, and each further
/// thread may make it grow. Whether a lock is contended is chance, so the table gets its size here: for more threads
/// than a test starts.
pub fn measure_alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static ARE_LOCKS_READY: Once = Once::new();
    ARE_LOCKS_READY.call_once(|| {
        let (gate, opened) = (parking_lot::Mutex::new(false), parking_lot::Condvar::new());
        let waiting = AtomicIsize::new(0);
        thread::scope(|scope| {
            for _ in 0..64 {
                scope.spawn(|| {
                    let mut is_open = gate.lock();
                    waiting.fetch_add(1, Ordering::SeqCst);
                    opened.wait_while(&mut is_open, |is_open| !*is_open);
                });
            }
            until("64 threads that wait for a lock", || waiting.load(Ordering::SeqCst) == 64);
            *gate.lock() = true;
            opened.notify_all();
        });
    });
    // A test that has failed is over.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Excludes this thread's further calls from [`live_bytes`].
pub fn exclude_this_thread() {
    IS_EXCLUDED.set(true);
}

/// Counts `work`'s allocations on this thread, from zero.
pub fn measure<R>(work: impl FnOnce() -> R) -> (R, AllocationCounts) {
    let before = COUNTS.replace(AllocationCounts::ZERO);
    let result = work();
    let counts = COUNTS.get();
    COUNTS.set(AllocationCounts { live: before.live + counts.live, ..before });
    (result, counts)
}

fn count(freed: usize, given: usize) {
    let change = given.cast_signed() - freed.cast_signed();
    // A thread that exits may have no counts any more; no code reads them.
    let _ = COUNTS.try_with(|counts| {
        let mut now = counts.get();
        now.live += change;
        now.peak = now.peak.max(now.live);
        if given > 0 {
            now.allocations += 1;
            now.largest = now.largest.max(given);
        }
        counts.set(now);
    });
    if !IS_EXCLUDED.try_with(Cell::get).unwrap_or(false) {
        LIVE.fetch_add(change, Ordering::Relaxed);
    }
}

// SAFETY: each method passes its arguments to the system's allocator unchanged, under the contract that its caller
// keeps, and counts without allocating.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(0, layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(layout.size(), 0);
        // SAFETY: all this allocator's pointers come from `System`, and the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(layout.size(), size);
        // SAFETY: all this allocator's pointers come from `System`, and the caller keeps the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
