//! Locks that survive a panic.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No code can panic while holding these locks with partial changes, so a poisoned lock is usable.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
