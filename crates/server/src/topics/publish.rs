//! Publications of this thread and of others: queued, and delivered in order.

use std::time::Instant;

use sinews_engine::ConnId;
use sinews_session::Prepared;

use super::entry::{Reach, Recipients};
use super::history::append::{EpochMismatch, HistoryPlace};
use super::history::policy::Position;
use super::name::InvalidTopic;
use super::presence::undelivered::UpdateTurn;
use super::publish_options::{Placement, PublishOptions};
use super::registry::{QueuedPublication, Topics};
use super::subscriber_id::SubscriberId;
use crate::log_limit::LogLimit;
use crate::topics::mail::{Mail, MailedPublication};

/// Limit of the lines about publications that a full mailbox has dropped.
static LOST_LINES: LogLimit = LogLimit::new();

impl Topics {
    /// Publishes a message to the subscribers of a topic on every thread. Messages of this thread keep their order,
    /// with an exception and without. Returns the number of matching subscriptions; those of an exception on another
    /// thread count. A connection with overlapping subscriptions counts once for each, and gets the message once.
    ///
    /// # Errors
    /// [`InvalidTopic`]: the name cannot be published to.
    pub fn publish(
        &mut self,
        name: &str,
        message: &Prepared,
        options: PublishOptions,
    ) -> Result<usize, InvalidTopic> {
        self.publish_with(name, |_| message.clone(), options)
    }

    /// Publishes a message built from its position in the topic, so that the message can contain the position: `None`
    /// in a topic without history ([`HistoryPolicy`](crate::HistoryPolicy)). The topic is locked while the message is
    /// built: the callback must not publish. It is not called if no history retains the message and nobody is
    /// subscribed. Otherwise as [`publish`](Self::publish).
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_with(
        &mut self,
        name: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> Result<usize, InvalidTopic> {
        let topic = self.resolve(name)?;
        Ok(self.publish_resolved(topic, name, make, options))
    }

    /// Returns whether a topic has history.
    #[inline]
    pub(crate) fn has_history(&self, topic: Option<usize>, name: &str) -> bool {
        self.has_history
            && match topic.and_then(|topic| self.topics.get(topic)) {
                Some(topic) => topic.entry.history().is_some(),
                None => self.directory.rules.history(name).is_some(),
            }
    }

    /// Counts a publication that this thread has put into its own mailbox.
    pub(super) fn note_mailed(&mut self) {
        self.published = true;
        self.mailed += 1;
    }

    /// Returns the number of subscriptions that an exception of this thread has to a topic.
    pub(super) fn own_subscriptions(&self, topic: Option<usize>, except: Option<SubscriberId>) -> usize {
        let except = except.and_then(|except| except.on_thread(self.shard));
        except.zip(topic).map_or(0, |(conn, topic)| self.matching_subscriptions(topic, conn))
    }

    /// Publishes to a topic that was just resolved.
    pub(crate) fn publish_resolved(
        &mut self,
        topic: Option<usize>,
        name: &str,
        make: impl FnOnce(Option<Position>) -> Prepared,
        options: PublishOptions,
    ) -> usize {
        let PublishOptions { except, placement } = options;
        match placement {
            Placement::Append | Placement::Version(_) if self.has_history(topic, name) => {
                self.append(topic, name, |position| make(Some(position)), except)
            }
            Placement::At(position, prev) => {
                let message = make(Some(position));
                self.append_at(topic, name, HistoryPlace { position, prev }, &message, except)
                    .unwrap_or_else(|EpochMismatch| self.post_to_all(topic, name, &message, 0, except))
            }
            Placement::Version(version) => self.post_to_all(topic, name, &make(None), version, except),
            Placement::Append | Placement::Unretained => self.queue(topic, name, || make(None), except),
        }
    }

    /// Posts a message to all threads with subscribers, this one included, past the history.
    fn post_to_all(
        &mut self,
        topic: Option<usize>,
        name: &str,
        message: &Prepared,
        version: u64,
        except: Option<SubscriberId>,
    ) -> usize {
        self.counters.published += 1;
        let exact = self.directory.find(name);
        let route = topic.and_then(|topic| self.topics[topic].route());
        let patterns = route.map_or(&[][..], |route| &route.all);
        let name = exact.as_ref().map_or_else(|| name.into(), |entry| entry.name.clone());
        let recipients = Recipients { name: &name, exact: exact.as_deref(), patterns };
        let Reach { reached, lost } = self.post(recipients, message, version, None, except);
        self.counters.lost += lost as u64;
        self.note_mailed();
        reached.saturating_sub(self.own_subscriptions(topic, except))
    }

    /// Queues a message for the subscribers of this thread, and posts it to the other threads.
    fn queue(
        &mut self,
        topic: Option<usize>,
        name: &str,
        make: impl FnOnce() -> Prepared,
        except: Option<SubscriberId>,
    ) -> usize {
        self.counters.published += 1;
        let Some(local) = topic else {
            let Some(entry) = self.directory.find(name) else { return 0 };
            self.published = true;
            let recipients = Recipients { name: &entry.name, exact: Some(&entry), patterns: &[] };
            let Reach { reached, lost } = self.post(recipients, &make(), 0, Some(self.shard), except);
            self.counters.lost += lost as u64;
            return reached;
        };
        self.published = true;
        let message = make();
        let found = &self.topics[local];
        let elsewhere;
        let exact = if found.subscribers.is_empty() {
            // The local entry may differ from the entry of the other threads.
            elsewhere = self.directory.find(name);
            elsewhere.as_deref()
        } else {
            Some(&*found.entry)
        };
        let patterns = found.route().map_or(&[][..], |route| &route.all);
        let recipients = Recipients { name: &found.entry.name, exact, patterns };
        let Reach { mut reached, lost } = self.post(recipients, &message, 0, Some(self.shard), except);
        reached += found.subscribers.len();
        reached +=
            self.local(local).iter().map(|pattern| self.topics[*pattern].subscribers.len()).sum::<usize>();
        reached -= self.own_subscriptions(topic, except);
        let except = except.and_then(|except| except.on_thread(self.shard));
        self.counters.lost += lost as u64;
        self.push(QueuedPublication { topic: local, message, except, sequence: 0 });
        reached
    }

    /// Publishes a message to an internal topic of presence: to the watchers of an earlier version than this one, or to
    /// all with version 0.
    pub(super) fn queue_presence_message(&mut self, name: &str, message: &Prepared, version: u64) {
        self.counters.published += 1;
        self.published = true;
        let Some(entry) = self.directory.find(name) else { return };
        for thread in (0..self.posts.len()).filter(|thread| *thread != self.shard) {
            let subscribers = entry.subscribers_on(thread);
            if subscribers == 0 {
                continue;
            }
            let (topic, message) = (entry.name.clone(), message.clone());
            let mail = Mail::Publish(MailedPublication {
                topic,
                message,
                position: None,
                prev: 0,
                except: None,
                version,
            });
            let waits = self.presence.undelivered.has(name, thread);
            let sent = if waits { Err(mail) } else { self.posts[thread].send(mail) };
            match sent {
                Ok(()) => {}
                Err(_) if self.posts[thread].is_closed() => self.counters.lost += subscribers as u64,
                Err(mail) => self.presence.undelivered.push(&entry.name, thread, mail),
            }
        }
        if let Some(topic) = self.index_of(name) {
            self.push(QueuedPublication { topic, message: message.clone(), except: None, sequence: version });
        }
    }

    /// Sends messages of an internal topic again that did not fit into the mailbox of a thread.
    pub(super) fn retry_presence(&mut self, name: &str, now: Instant) -> UpdateTurn {
        let posts = &self.posts;
        self.presence.undelivered.retry(name, now, |thread, mail| match posts[thread].send(mail) {
            Err(mail) if !posts[thread].is_closed() => Err(mail),
            _ => Ok(()),
        })
    }

    /// Sends a publication to all threads, except a thread and a connection.
    fn post(
        &self,
        recipients: Recipients<'_>,
        message: &Prepared,
        version: u64,
        except_thread: Option<usize>,
        except: Option<SubscriberId>,
    ) -> Reach {
        let counts = recipients.post(message, version, &self.posts, except_thread, except);
        if counts.lost > 0
            && let Some(omitted) = LOST_LINES.permit(Instant::now())
        {
            tracing::warn!(
                topic = &**recipients.name,
                subscribers = counts.lost,
                omitted,
                "mailbox full: publication dropped for its subscribers"
            );
        }
        counts
    }

    /// Queues a publication of another thread.
    pub(crate) fn queue_mailed(&mut self, published: MailedPublication) {
        let MailedPublication { topic, message, position, prev, except, version } = published;
        // The publishing thread has checked the name.
        let Ok(Some(topic)) = self.resolve(&topic) else { return };
        if position.is_none_or(|position| self.accept_from_mail(topic, position, prev)) {
            let sequence = position.map_or(version, |position| position.sequence);
            self.push(QueuedPublication { topic, message, except, sequence });
        }
    }

    pub(super) fn push(&mut self, publication: QueuedPublication) {
        self.topics[publication.topic].references += 1;
        self.queued_bytes += publication.message.payload().len();
        self.publications.push_back(publication);
        #[cfg(test)]
        {
            self.max_queued = self.max_queued.max(self.publications.len());
        }
    }

    #[inline]
    pub(crate) fn has_published(&self) -> bool {
        self.published
    }

    pub(crate) fn take_published(&mut self) -> bool {
        std::mem::take(&mut self.published)
    }

    /// Returns the next publication and its current subscribers: a copy, since delivery may change them. Return the
    /// list to [`recycle_subscribers`](Self::recycle_subscribers), and end with
    /// [`finish_delivery`](Self::finish_delivery).
    pub(crate) fn next_publication(&mut self) -> Option<(QueuedPublication, Vec<ConnId>)> {
        let publication = self.publications.pop_front()?;
        self.queued_bytes -= publication.message.payload().len();
        self.refresh_routes();
        self.route(publication.topic);
        let mut subscribers = std::mem::take(&mut self.scratch);
        if let Some(topic) = self.topics.get(publication.topic) {
            subscribers.extend_from_slice(&topic.subscribers);
        }
        if !self.local(publication.topic).is_empty() {
            self.add_by_pattern(publication.topic, &mut subscribers);
        }
        if publication.sequence > 0 {
            self.exclude_replaying(publication.topic, publication.sequence, &mut subscribers);
        }
        Some((publication, subscribers))
    }

    /// Returns the next publication if it goes to exactly these subscribers of the previous publication, except for
    /// excluded connections, and its payload has at most `room` bytes.
    pub(crate) fn next_for_same(
        &mut self,
        previous: &QueuedPublication,
        subscribers: &[ConnId],
        room: usize,
    ) -> Option<QueuedPublication> {
        let next = self.publications.front()?;
        let (topic, sequence) = (next.topic, next.sequence);
        let fits = next.message.payload().len() <= room;
        let is_same = fits && sequence == 0 && (topic, 0) == (previous.topic, previous.sequence)
            || fits && self.has_subscribers(topic, sequence, subscribers);
        let next = if is_same { self.publications.pop_front()? } else { return None };
        self.queued_bytes -= next.message.payload().len();
        Some(next)
    }

    /// Returns whether these are the subscribers of a publication, in order.
    fn has_subscribers(&mut self, topic: usize, sequence: u64, subscribers: &[ConnId]) -> bool {
        self.refresh_routes();
        self.route(topic);
        let Some(found) = self.topics.get(topic) else { return false };
        // Late subscribers get one message from the history and the next one live.
        if sequence > 0 && found.progress().is_some_and(|progress| !progress.joined.is_empty()) {
            return false;
        }
        if self.local(topic).is_empty() {
            return *found.subscribers == *subscribers;
        }
        let mut all = std::mem::take(&mut self.scratch);
        all.extend_from_slice(&self.topics[topic].subscribers);
        self.add_by_pattern(topic, &mut all);
        let is_same = all == subscribers;
        all.clear();
        self.scratch = all;
        is_same
    }

    #[inline]
    pub(crate) fn has_publications(&self) -> bool {
        !self.publications.is_empty()
    }

    /// Returns the number of deliveries of the next publication, at least one if there is a publication.
    #[inline]
    pub(crate) fn pending_deliveries(&self) -> usize {
        let of = |topic: usize| self.topics.get(topic).map_or(0, |topic| topic.subscribers.len());
        self.publications.front().map_or(0, |next| {
            let by_pattern = self.local(next.topic).iter().map(|pattern| of(*pattern)).sum::<usize>();
            (of(next.topic) + by_pattern).max(1)
        })
    }

    /// Releases a delivered publication.
    pub(crate) fn finish_delivery(&mut self, publication: &QueuedPublication) {
        let topic = &mut self.topics[publication.topic];
        topic.references -= 1;
        if publication.sequence > 0
            && topic.entry.history().is_none()
            && let Some(progress) = topic.progress_mut()
        {
            progress.seen = progress.seen.max(publication.sequence);
        }
        self.prune(publication.topic);
    }

    /// Takes the list of [`next_publication`](Self::next_publication) back.
    pub(crate) fn recycle_subscribers(&mut self, mut subscribers: Vec<ConnId>) {
        subscribers.clear();
        self.scratch = subscribers;
    }
}
