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
    shared: Arc<Shared<M>>,
}

impl<M> Post<M> {
    /// Puts `mail` into the mailbox. The loop passes it to [`App::mail`](crate::App::mail) in its next turn
    /// and is woken if it sleeps. Mail of one thread arrives in order.
    ///
    /// # Errors
    ///
    /// Returns the mail if the mailbox is full (see [`Config::mailbox`](crate::Config::mailbox)) or the
    /// engine is dropped ([`is_gone`](Self::is_gone)).
    pub fn send(&self, mail: M) -> Result<(), M> {
        {
            let mut mailbox = self.shared.lock();
            if mailbox.gone || mailbox.mail.len() >= self.shared.limit {
                return Err(mail);
            }
            mailbox.mail.push(mail);
        }
        self.alert();
        Ok(())
    }

    /// Makes the loop call [`App::mail`](crate::App::mail) in its next turn even with an empty mailbox, and
    /// wakes it if it sleeps. Never rejected: keep state that must not be lost to a full mailbox elsewhere,
    /// change it before this call, and read it in that callback. A loop may wake itself: it does not sleep
    /// before its next turn.
    pub fn wake(&self) {
        self.shared.woken.store(true, Ordering::SeqCst);
        self.alert();
    }

    fn alert(&self) {
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
    pub fn is_crowded(&self) -> bool {
        self.shared.lock().mail.len() > self.shared.limit / 2
    }

    /// Whether the engine has been dropped: no mail is delivered any more.
    pub fn is_gone(&self) -> bool {
        self.shared.lock().gone
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
pub(crate) struct Inbox<M> {
    shared: Arc<Shared<M>>,
    /// Swapped with the vector in the mailbox, to avoid allocations.
    burst: Vec<M>,
}

impl<M> Inbox<M> {
    pub(crate) fn new(waker: Waker, limit: usize) -> Self {
        let shared = Shared {
            mailbox: Mutex::new(Mailbox { mail: Vec::new(), gone: false }),
            pending: AtomicBool::new(false),
            woken: AtomicBool::new(false),
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
        let woken = self.shared.woken.swap(false, Ordering::SeqCst);
        if burst.is_empty() && !woken {
            self.burst = burst;
            return None;
        }
        Some(burst)
    }

    /// Takes back the vector of a handled burst for reuse, unless it has grown large.
    pub(crate) fn finish(&mut self, mut burst: Vec<M>) {
        burst.clear();
        if burst.capacity() <= KEPT {
            self.burst = burst;
        }
    }
}

impl<M> Drop for Inbox<M> {
    fn drop(&mut self) {
        let mail = {
            let mut mailbox = self.shared.lock();
            mailbox.gone = true;
            std::mem::take(&mut mailbox.mail)
        };
        // Dropped outside of the lock: mail may hold a `Post` and use it when dropped.
        drop(mail);
    }
}

struct Shared<M> {
    mailbox: Mutex<Mailbox<M>>,
    /// The loop has unseen mail, or was woken.
    pending: AtomicBool,
    /// The application must be called even without mail.
    woken: AtomicBool,
    /// The loop sleeps, or is about to, and needs a wake-up.
    asleep: AtomicBool,
    limit: usize,
    waker: Waker,
}

struct Mailbox<M> {
    mail: Vec<M>,
    gone: bool,
}

impl<M> Shared<M> {
    /// No code under the lock can leave the mailbox inconsistent, so a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, Mailbox<M>> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Capacity kept between bursts, in pieces of mail, so that a rare flood does not pin memory.
const KEPT: usize = 1024;
