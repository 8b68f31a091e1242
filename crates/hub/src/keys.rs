//! Topic keys for clients: in memory, durable, or in a topic store.

use std::sync::Arc;

use futures_util::FutureExt as _;
use sinews_server::{Context, KeyError, KeyLog as _, KeyWrite, KeyWritten, Publisher};

use crate::activity::{Activity, BACKEND};
use crate::model::Creator;
use crate::model::opening::SharedOpening;
use crate::model::problem::Problem;
use crate::streams::service::StreamService;
use crate::topics::HubTopics;
use crate::topics::keys::key_problem;
use crate::topics::shared_keys::KeyWriteOutcome;

/// What stores and shares the keys.
#[derive(Clone, Copy)]
pub(crate) struct KeyStore<'a> {
    hub: &'a HubTopics,
    streams: Option<&'a Arc<StreamService>>,
}

impl<'a> KeyStore<'a> {
    pub(crate) fn new(hub: &'a HubTopics, streams: Option<&'a Arc<StreamService>>) -> Self {
        Self { hub, streams: streams.map(StreamService::for_keys) }
    }

    /// Returns the streams, if they store the topic's keys.
    pub(crate) fn durable(&self, topic: &str) -> Option<&'a Arc<StreamService>> {
        self.streams.filter(|streams| streams.keys().stores(topic))
    }

    /// Checks whether a topic's keys can be read.
    ///
    /// # Errors
    /// They are not read from their stream yet, or cannot be, or this node shares none.
    pub(crate) fn check_ready(&self, topic: &str) -> Result<(), Problem> {
        self.streams.map_or(Ok(()), |streams| streams.keys().check_ready(topic))?;
        self.hub.shared_keys().map_or(Ok(()), |keys| keys.check_ready(topic))
    }

    /// Returns what a subscription, or a write by this stream creator, has to wait for.
    pub(crate) fn opening(&self, topic: &str, creator: Option<&Creator>) -> Option<SharedOpening> {
        if let Some(opening) = self.streams.and_then(|streams| streams.opening_of_keys(topic, creator)) {
            return Some(opening);
        }
        // The store executes a write without a copy here.
        let keys = self.hub.shared_keys().filter(|_| creator.is_none())?;
        Some(keys.loading(topic)?.shared())
    }

    /// Whether the other nodes do not receive a write yet.
    pub(crate) fn is_isolated(&self) -> bool {
        self.hub.is_isolated()
    }

    /// Writes a key for a request, or for the program. A new stream has this creator.
    pub(crate) fn write(
        &self,
        topic: &str,
        write: KeyWrite,
        creator: Creator,
        publisher: &Publisher,
    ) -> KeyWriteOutcome {
        let observed = self.hub.activity().is_observed().then(|| (write.clone(), creator.clone()));
        let outcome = match self.durable(topic) {
            Some(streams) => write_durable(streams, publisher.clone(), topic, write, creator),
            None => self.write_with(topic, write, &mut |write| publisher.write_key(topic, write)),
        };
        if let (Some((write, creator)), false) = (observed, matches!(outcome, KeyWriteOutcome::Done(Err(_))))
        {
            self.observe(topic, &write, &creator);
        }
        outcome
    }

    /// Observes a write for a request, or for the program.
    pub(crate) fn observe(&self, topic: &str, write: &KeyWrite, creator: &Creator) {
        let (user, address, path) = match creator {
            Creator::Subject(user) => (Some(&**user), None, "/topics/{name}/keys/{key}"),
            Creator::Address(address) => (None, Some(*address), "/topics/{name}/keys/{key}"),
            Creator::App(_) | Creator::Server => (None, None, BACKEND),
        };
        self.hub.activity().observe(|| Activity { user, address, path, ..Activity::key_write(topic, write) });
    }

    /// Writes a key for a connection's client. The stream is open.
    pub(crate) fn write_of_connection(
        &self,
        topic: &str,
        write: KeyWrite,
        cx: &mut Context<'_>,
    ) -> KeyWriteOutcome {
        let outcome = self.write_with(topic, write, &mut |write| cx.write_key(topic, write));
        if let KeyWriteOutcome::Done(Ok(written)) = outcome
            && let (Some(ticket), Some(streams)) = (written.pending, self.streams)
        {
            let stored = streams.keys().wait_for(topic, ticket);
            return KeyWriteOutcome::Later(Box::pin(stored.map(move |stored| stored.map(|()| written))));
        }
        outcome
    }

    fn write_with(
        &self,
        topic: &str,
        write: KeyWrite,
        write_here: &mut dyn FnMut(&KeyWrite) -> Result<KeyWritten, KeyError>,
    ) -> KeyWriteOutcome {
        match self.hub.shared_keys() {
            Some(keys) => keys.write(topic, write),
            None => KeyWriteOutcome::Done(write_here(&write).map_err(key_problem)),
        }
    }
}

fn write_durable(
    streams: &Arc<StreamService>,
    publisher: Publisher,
    topic: &str,
    write: KeyWrite,
    creator: Creator,
) -> KeyWriteOutcome {
    let written = Arc::clone(streams).write_key(publisher, topic.to_owned(), write, creator);
    KeyWriteOutcome::Later(Box::pin(written))
}
