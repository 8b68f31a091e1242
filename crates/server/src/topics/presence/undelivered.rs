//! Messages of presence that wait for a full mailbox of another thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use rustc_hash::FxHashMap;

use super::member::PRESENCE_INTERVAL;
use crate::topics::mail::Mail;

/// Maximum number of waiting messages of one thread; beyond it, the thread takes no further update of any topic. Each
/// message is shared with the other threads, so that 65,536 take some MiB.
const UNDELIVERED_MAX: usize = 65_536;

/// Messages of the last update of each topic that did not fit into the mailbox of a thread. The next update of such a
/// topic is taken after they are sent. Its changes meanwhile have become few: an update is about the result.
#[derive(Debug, Default)]
pub(crate) struct UndeliveredPresence {
    topics: FxHashMap<Arc<str>, WaitingMessages>,
    count: usize,
}

#[derive(Debug)]
struct WaitingMessages {
    /// Threads, and their mail in order.
    mail: VecDeque<(usize, Mail)>,
    /// When they are sent again.
    retry: Instant,
}

/// What a thread does with a topic whose update is due.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum UpdateTurn {
    /// Takes the update.
    Take,
    /// Returns to the topic at this time.
    Retry(Instant),
    /// Does nothing: the topic is scheduled for a retry.
    Scheduled,
}

impl UndeliveredPresence {
    /// Returns whether a thread has messages of an internal topic to wait for.
    pub(crate) fn has(&self, internal: &str, thread: usize) -> bool {
        let waiting = self.topics.get(internal);
        waiting.is_some_and(|waiting| waiting.mail.iter().any(|(waits, _)| *waits == thread))
    }

    /// Adds a message of an internal topic. Returns when to retry, for the first message.
    pub(crate) fn push(&mut self, internal: &Arc<str>, thread: usize, mail: Mail) {
        let retry = Instant::now() + PRESENCE_INTERVAL;
        let new = || WaitingMessages { mail: VecDeque::new(), retry };
        self.topics.entry(internal.clone()).or_insert_with(new).mail.push_back((thread, mail));
        self.count += 1;
    }

    /// Returns when the messages of an internal topic are sent again, if any wait.
    pub(super) fn retry_of(&self, internal: &str) -> Option<Instant> {
        self.topics.get(internal).map(|waiting| waiting.retry)
    }

    /// Sends the messages of an internal topic again. `send` returns the mail if the mailbox of its thread is full.
    pub(crate) fn retry(
        &mut self,
        internal: &str,
        now: Instant,
        mut send: impl FnMut(usize, Mail) -> Result<(), Mail>,
    ) -> UpdateTurn {
        let Some(waiting) = self.topics.get_mut(internal) else {
            let is_full = self.count >= UNDELIVERED_MAX;
            return if is_full { UpdateTurn::Retry(now + PRESENCE_INTERVAL) } else { UpdateTurn::Take };
        };
        if now < waiting.retry {
            return UpdateTurn::Scheduled;
        }
        let before = waiting.mail.len();
        let mut full = Vec::new();
        let mut rest = VecDeque::new();
        for (thread, mail) in waiting.mail.drain(..) {
            // Behind a message that waits, later ones of the thread wait as well: they arrive in order.
            let sent = if full.contains(&thread) { Err(mail) } else { send(thread, mail) };
            if let Err(mail) = sent {
                if full.last() != Some(&thread) {
                    full.push(thread);
                }
                rest.push_back((thread, mail));
            }
        }
        self.count -= before - rest.len();
        if rest.is_empty() {
            self.topics.remove(internal);
            return UpdateTurn::Take;
        }
        (waiting.mail, waiting.retry) = (rest, now + PRESENCE_INTERVAL);
        UpdateTurn::Retry(waiting.retry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mail() -> Mail {
        Mail::Shed
    }

    #[test]
    fn messages_wait_in_order_and_each_topic_has_one_retry() {
        let (mut waiting, topic) = (UndeliveredPresence::default(), Arc::from("t"));
        for thread in [1, 2, 1] {
            waiting.push(&topic, thread, mail());
        }
        assert!(waiting.has("t", 1) && waiting.has("t", 2) && !waiting.has("t", 0) && !waiting.has("u", 1));
        let due = waiting.retry_of("t").unwrap();
        assert_eq!(waiting.retry("u", due, |_, _| Ok(())), UpdateTurn::Take, "other topics do not wait");
        let mut tried = Vec::new();
        let turn = waiting.retry("t", due, |thread, mail| {
            tried.push(thread);
            if thread == 1 { Err(mail) } else { Ok(()) }
        });
        let next = due + PRESENCE_INTERVAL;
        assert_eq!((turn, tried), (UpdateTurn::Retry(next), vec![1, 2]), "one attempt for a full mailbox");
        assert_eq!(waiting.retry("t", due, |_, _| Ok(())), UpdateTurn::Scheduled);
        assert_eq!(waiting.count, 2);
        assert_eq!(waiting.retry("t", next, |_, _| Ok(())), UpdateTurn::Take);
        assert_eq!((waiting.count, waiting.retry_of("t")), (0, None));
    }

    #[test]
    fn waiting_messages_are_bounded() {
        let (mut waiting, topic) = (UndeliveredPresence::default(), Arc::from("t"));
        for _ in 0..UNDELIVERED_MAX {
            waiting.push(&topic, 1, mail());
        }
        let due = waiting.retry_of("t").unwrap();
        let turn = waiting.retry("u", due, |_, _| Ok(()));
        assert_eq!(turn, UpdateTurn::Retry(due + PRESENCE_INTERVAL), "no further update is taken");
        assert_eq!(waiting.retry("t", due, |_, _| Ok(())), UpdateTurn::Take);
        assert_eq!(waiting.retry("u", due, |_, _| Ok(())), UpdateTurn::Take);
    }
}
