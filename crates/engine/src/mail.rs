//! Mail from other threads: one box per loop, and a wake-up per burst.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How a sleeping loop is woken: its backend's way.
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

/// A handle by which any thread posts mail to one loop. Clones post to the same box.
pub struct Post<M> {
    shared: Arc<Shared<M>>,
}

impl<M> Post<M> {
    /// Puts `mail` into the box; the loop hands it to [`App::mail`](crate::App::mail) in its next turn,
    /// woken if it sleeps. Mail of one thread arrives in order.
    ///
    /// # Errors
    ///
    /// The mail comes back when the box is full (see [`Config::mailbox`](crate::Config::mailbox)), or the
    /// engine is gone ([`is_gone`](Self::is_gone)).
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

    /// Has the loop call [`App::mail`](crate::App::mail) in its next turn even if the box is empty then, woken
    /// if it sleeps. Never refused: what may not be lost to a full box stands elsewhere, is changed before this
    /// call, and is read in that callback. A loop may wake itself: it does not sleep before its next turn.
    pub fn wake(&self) {
        self.shared.woken.store(true, Ordering::SeqCst);
        self.alert();
    }

    fn alert(&self) {
        // Either this thread sees that the loop sleeps, or the loop, before it sleeps, sees the mail: each
        // writes its own flag before it reads the other's, in one total order.
        self.shared.pending.store(true, Ordering::SeqCst);
        if self.shared.asleep.swap(false, Ordering::SeqCst) {
            // Waking can only fail if the descriptor is broken; the mail is then read at the next event.
            if let Err(error) = self.shared.waker.wake() {
                tracing::warn!(%error, "could not wake a loop for its mail");
            }
        }
    }

    /// Whether more than half of what the box takes is in it: a good time to wait, for those who can.
    pub fn is_crowded(&self) -> bool {
        self.shared.lock().mail.len() > self.shared.limit / 2
    }

    /// Whether the engine has been dropped: nothing will ever be delivered again.
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

/// The loop's end of the box.
pub(crate) struct Inbox<M> {
    shared: Arc<Shared<M>>,
    /// Swapped with the vector in the box, so that neither is allocated anew.
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

    /// Announces that the loop is about to sleep. `false`: there is mail, so it must not.
    pub(crate) fn fall_asleep(&self) -> bool {
        self.shared.asleep.store(true, Ordering::SeqCst);
        !self.shared.pending.load(Ordering::SeqCst)
    }

    /// From here on nobody needs to wake the loop.
    pub(crate) fn wake_up(&self) {
        self.shared.asleep.store(false, Ordering::Relaxed);
    }

    /// Everything in the box, or `None` when it is empty and nobody has asked to be called. To be given back to [`finish`](Self::finish).
    pub(crate) fn take(&mut self) -> Option<Vec<M>> {
        // The flag is lowered before the box is emptied: mail that comes in between raises it again.
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

    /// The burst has been handled; its vector is used again unless it has grown large.
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
    /// There is mail that the loop has not seen, or it was woken.
    pending: AtomicBool,
    /// The application is to be called even without mail.
    woken: AtomicBool,
    /// The loop sleeps, or is about to, and needs to be woken.
    asleep: AtomicBool,
    limit: usize,
    waker: Waker,
}

struct Mailbox<M> {
    mail: Vec<M>,
    gone: bool,
}

impl<M> Shared<M> {
    /// No code runs under the lock that could leave the box half changed, so a poisoned one is as good.
    fn lock(&self) -> MutexGuard<'_, Mailbox<M>> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Capacity kept between bursts, in pieces of mail: a rare flood does not hold its memory for ever.
const KEPT: usize = 1024;
