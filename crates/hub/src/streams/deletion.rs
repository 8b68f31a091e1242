//! Stream deletion: on request, and after disuse.

use std::sync::Arc;
use std::time::Duration;

use futures_channel::oneshot;
use futures_util::FutureExt as _;
use sinews_stream::{DeleteError, Streams};
use tokio::sync::Semaphore;

use super::service::StreamService;
use crate::access::auth::{Action, Rights};
use crate::background::Periodic;
use crate::model;
use crate::model::problem::{Problem, code, problem};

/// Concurrent deletions: each one waits for the disk on a pool thread.
const DELETIONS_MAX: usize = 16;

static DELETIONS: Semaphore = Semaphore::const_new(DELETIONS_MAX);

impl StreamService {
    /// Checks whether a stream may be deleted.
    ///
    /// # Errors
    /// The name is invalid, the right is missing, a broker stores the stream, or the stream does not exist.
    pub(crate) fn check_delete(&self, name: &str, rights: &Rights) -> Result<(), Problem> {
        model::check_name(name).map_err(|text| problem(code::TOPIC, text))?;
        rights.may(Action::Delete, name)?;
        self.store.check_delete(name)?;
        if self.streams()?.describe(name).is_none() {
            return Err(problem(code::NO_STREAM, format!("stream {name} does not exist")));
        }
        Ok(())
    }

    /// Deletes a stream on the pool, because it waits for the disk. Appends and reads fail with 410 from then on,
    /// groups are forgotten, and a topic's subscribers are notified of its new epoch.
    ///
    /// # Errors
    /// Too many deletions are in progress, or the task thread cannot be started.
    pub(crate) fn delete(
        self: &Arc<Self>,
        name: &str,
    ) -> Result<impl Future<Output = Result<(), Problem>> + Send + 'static + use<>, Problem> {
        let permit = DELETIONS.try_acquire().map_err(|_| {
            let message = format!("stream {name}: too many deletions in progress (limit {DELETIONS_MAX})");
            problem(code::TOO_MANY, message)
        })?;
        let (store, name, (done, deleted)) = (Arc::clone(self), name.to_owned(), oneshot::channel());
        let deletion = move || {
            let result = store.delete_now(&name);
            drop(permit);
            // The client may have disconnected.
            let _ = done.send(result);
        };
        let failed = |error| problem(code::STORE, format!("cannot start a thread: {error}"));
        self.background.spawn_blocking("streams-delete", deletion).map_err(failed)?;
        let lost = || Err(problem(code::STORE, "the deletion was interrupted"));
        Ok(deleted.map(move |result| result.unwrap_or_else(|_| lost())))
    }

    /// Deletes a stream on the calling thread.
    pub(super) fn delete_now(&self, name: &str) -> Result<(), Problem> {
        let streams = self.streams()?;
        match self.delete_by(streams, name, |streams| streams.delete(name)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(problem(code::NO_STREAM, format!("stream {name} does not exist"))),
            Err(error) => Err(problem(code::STORE, format!("stream {name}: {error}"))),
        }
    }

    /// Deletes a stream from the log, and then what this server knows about it. Returns whether the stream was deleted.
    fn delete_by(
        &self,
        streams: &Streams,
        name: &str,
        delete: impl FnOnce(&Streams) -> Result<bool, DeleteError>,
    ) -> Result<bool, DeleteError> {
        let created = streams.describe(name).map_or(0, |info| info.created);
        let is_deleted = delete(streams)?;
        if is_deleted {
            self.quota.release(name);
            self.groups.remove(name);
            self.topics.remove(name, created);
            tracing::info!(stream = name, "stream deleted");
        }
        Ok(is_deleted)
    }

    /// Periodically deletes unused streams that their first use has created.
    pub(crate) fn start_expiry(self: &Arc<Self>) -> std::io::Result<Option<Periodic>> {
        let Some(after) = self.rules.expire_unused else { return Ok(None) };
        let store = Arc::downgrade(self);
        let interval = (after / 10).clamp(EXPIRY_LEAST, EXPIRY_MOST);
        let task = move || {
            if let Some(store) = store.upgrade().filter(|store| !store.is_closed()) {
                store.expire();
            }
        };
        self.background.every("streams-expiry", interval, || true, task).map(Some)
    }

    /// Deletes unused streams. The log decides for each one, by its clock, and in one step with the deletion.
    pub(super) fn expire(&self) {
        let (Some(after), Some(streams)) = (self.rules.expire_unused, self.streams.get()) else { return };
        if !self.store.expires_unused() {
            return;
        }
        for name in streams.unused(after) {
            // A consumer that waits for records is a use. A topic's relay is a consumer, too.
            let relays = u64::from(self.topics.is_durable(&name));
            match self.delete_by(streams, &name, |streams| streams.delete_unused(&name, after, relays)) {
                Ok(true) => tracing::info!(stream = &*name, "unused stream has expired"),
                Ok(false) => {}
                Err(error) => tracing::warn!(stream = &*name, %error, "expiry failed"),
            }
        }
    }
}

/// Bounds of the interval between checks for unused streams.
const EXPIRY_LEAST: Duration = Duration::from_secs(1);
const EXPIRY_MOST: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use sinews_stream::{PartitionEvent, StreamConfig, StreamsConfig};

    use super::super::options::CreationRules;
    use super::*;

    #[test]
    fn unused_streams_expire_unless_they_were_created_on_request_or_a_consumer_waits() {
        let directory = tempfile::tempdir().unwrap();
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        let service = |after| {
            let rules = CreationRules { expire_unused: Some(after), ..CreationRules::default() };
            let store = StreamService::new(
                StreamConfig::default(),
                Default::default(),
                1 << 20,
                None,
                rules,
                Default::default(),
            );
            store.install(streams.clone());
            store
        };
        let automatic = StreamConfig::default().with_automatic(true);
        for (name, config) in
            [("auto", &automatic), ("waits", &automatic), ("asked", &StreamConfig::default())]
        {
            streams.create(name, config).unwrap();
        }
        let waits = streams.stream("waits").unwrap().partition(0).unwrap();
        assert!(!waits.watch(PartitionEvent::Readable(0), Waker::noop()));
        let names = || streams.describe_all().iter().map(|info| info.name.to_string()).collect::<Vec<_>>();
        service(Duration::from_secs(3600)).expire();
        assert_eq!(names(), ["asked", "auto", "waits"]);
        let unused_at_once = service(Duration::ZERO);
        unused_at_once.expire();
        assert_eq!(names(), ["asked", "waits"]);
        unused_at_once.close();
    }
}
