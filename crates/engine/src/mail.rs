//! Mail from other threads: one mailbox per loop, and one wake-up per burst.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The backend's way to wake a sleeping loop.
pub(crate) enum Waker {
    Poll(mio::Waker),
    #[cfg(target_os = "linux")]
    Ring(crate::ring::RingWaker),
}

impl Waker {
    fn wake(&self) -> std::io::Result<()> {
        match self {
            Self::Poll(waker) => waker.wake(),
            #[cfg(target_os = "linux")]
            Self::Ring(waker) => waker.wake(),
        }
    }
}

/// A handle for posting mail to one loop from any thread. Clones post to the same mailbox.
pub struct Post<M> {
    shared: Arc<SharedMailbox<M>>,
}

impl<M> Post<M> {
    /// Puts `mail` into the mailbox. The loop passes it to [`App::mail`](crate::App::mail) in its next turn
    /// and is woken if it sleeps. Mail of one thread arrives in order.
    ///
    /// # Errors
    ///
    /// Returns the mail if the mailbox is full (see [`EngineConfig::with_mailbox`](crate::EngineConfig::with_mailbox)) or the
    /// engine is dropped ([`is_closed`](Self::is_closed)).
    pub fn send(&self, mail: M) -> Result<(), M> {
        {
            let mut mailbox = self.shared.lock();
            if mailbox.closed || mailbox.mail.len() >= self.shared.limit {
                return Err(mail);
            }
            mailbox.mail.push(mail);
        }
        self.wake_if_asleep();
        Ok(())
    }

    /// Makes the loop call [`App::mail`](crate::App::mail) in its next turn even with an empty mailbox, and
    /// wakes it if it sleeps. Never rejected: keep state that must not be lost to a full mailbox elsewhere,
    /// change it before this call, and read it in that callback. A loop may wake itself: it does not sleep
    /// before its next turn.
    pub fn wake(&self) {
        self.shared.wake_requested.store(true, Ordering::SeqCst);
        self.wake_if_asleep();
    }

    fn wake_if_asleep(&self) {
        // Either this thread sees that the loop sleeps, or the loop, before it sleeps, sees the mail: each
        // writes its own flag before it reads the other flag, in one total order.
        self.shared.pending.store(true, Ordering::SeqCst);
        if self.shared.asleep.swap(false, Ordering::SeqCst) {
            // Waking can only fail if the descriptor is broken; the mail is then read at the next event.
            if let Err(error) = self.shared.waker.wake() {
                tracing::warn!(%error, "cannot wake a loop for its mail");
            }
        }
    }

    /// Whether the mailbox is more than half full: senders that can wait should wait.
    pub fn is_over_half_full(&self) -> bool {
        self.shared.lock().mail.len() > self.shared.limit / 2
    }

    /// Whether the engine has been dropped: no mail is delivered any more.
    pub fn is_closed(&self) -> bool {
        self.shared.lock().closed
    }
}

impl<M> Clone for Post<M> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<M> fmt::Debug for Post<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post").finish_non_exhaustive()
    }
}

/// The receiving end of the mailbox.
pub(crate) struct MailInbox<M> {
    shared: Arc<SharedMailbox<M>>,
    /// Swapped with the vector in the mailbox, to avoid allocations.
    burst: Vec<M>,
}

impl<M> MailInbox<M> {
    pub(crate) fn new(waker: Waker, limit: usize) -> Self {
        let shared = SharedMailbox {
            mailbox: Mutex::new(Mailbox { mail: Vec::new(), closed: false }),
            pending: AtomicBool::new(false),
            wake_requested: AtomicBool::new(false),
            asleep: AtomicBool::new(false),
            limit,
            waker,
        };
        Self { shared: Arc::new(shared), burst: Vec::new() }
    }

    pub(crate) fn post(&self) -> Post<M> {
        Post { shared: Arc::clone(&self.shared) }
    }

    /// Announces that the loop is about to sleep. `false`: mail is pending, so it must not sleep.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.shared.asleep.store(true, Ordering::SeqCst);
        !self.shared.pending.load(Ordering::SeqCst)
    }

    /// Announces that the loop is awake and needs no wake-up.
    pub(crate) fn wake_up(&self) {
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Takes all mail, or `None` if the mailbox is empty and no wake-up was requested. Return the vector
    /// with [`finish`](Self::finish).
    pub(crate) fn take(&mut self) -> Option<Vec<M>> {
        // The flag is cleared before the mailbox is emptied: mail that arrives in between sets it again.
        if !self.shared.pending.load(Ordering::Relaxed) || !self.shared.pending.swap(false, Ordering::SeqCst)
        {
            return None;
        }
        let mut burst = std::mem::take(&mut self.burst);
        std::mem::swap(&mut self.shared.lock().mail, &mut burst);
        let wake_requested = self.shared.wake_requested.swap(false, Ordering::SeqCst);
        if burst.is_empty() && !wake_requested {
            self.burst = burst;
            return None;
        }
        Some(burst)
    }

    /// Takes back the vector of a handled burst for reuse, unless it has grown large.
    pub(crate) fn finish(&mut self, mut burst: Vec<M>) {
        burst.clear();
        if burst.capacity() <= CAPACITY_RETAINED {
            self.burst = burst;
        }
    }
}

impl<M> Drop for MailInbox<M> {
    fn drop(&mut self) {
        let mail = {
            let mut mailbox = self.shared.lock();
            mailbox.closed = true;
            std::mem::take(&mut mailbox.mail)
        };
        // Dropped outside of the lock: mail may hold a `Post` and use it when dropped.
        drop(mail);
    }
}

struct SharedMailbox<M> {
    mailbox: Mutex<Mailbox<M>>,
    /// The loop has unseen mail, or was woken.
    pending: AtomicBool,
    /// The application must be called even without mail.
    wake_requested: AtomicBool,
    /// The loop sleeps, or is about to, and needs a wake-up.
    asleep: AtomicBool,
    limit: usize,
    waker: Waker,
}

struct Mailbox<M> {
    mail: Vec<M>,
    closed: bool,
}

impl<M> SharedMailbox<M> {
    /// No code under the lock can leave the mailbox inconsistent, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, Mailbox<M>> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Capacity retained between bursts, in pieces of mail, so that a rare flood does not pin memory.
const CAPACITY_RETAINED: usize = 1024;
