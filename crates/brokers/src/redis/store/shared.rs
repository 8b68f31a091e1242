//! State that the store's thread shares with callers.

use std::collections::HashSet;
use std::sync::Mutex;

use sinews_store::{StoreAnswer, StoreError, StoreHealth};
use tokio::sync::Notify;

use super::channel::FollowedChannel;
use super::names::{Names, partition};
use super::queue::{OperationAnswer, OperationReply, OperationRequest};
use super::servers::StoreServers;
use crate::lock::lock;

/// State that the store's thread shares with callers.
pub(super) struct RedisStoreShared {
    pub(super) names: Names,
    pub(super) servers: StoreServers,
    /// What the node follows.
    pub(super) followed: Mutex<HashSet<FollowedChannel>>,
    /// The health of which the sink was notified last.
    pub(super) is_reported_up: Mutex<bool>,
    pub(super) closed: Notify,
}

impl RedisStoreShared {
    pub(super) fn new(names: Names, servers: StoreServers) -> Self {
        Self {
            names,
            servers,
            followed: Mutex::default(),
            is_reported_up: Mutex::new(false),
            closed: Notify::new(),
        }
    }

    pub(super) fn set_followed(&self, followed: FollowedChannel, is_wanted: bool) {
        let mut all = lock(&self.followed);
        let has_changed = if is_wanted { all.insert(followed.clone()) } else { all.remove(&followed) };
        drop(all);
        match &followed {
            _ if !has_changed => {}
            FollowedChannel::Part(part) => {
                // A server that gets the partition later looks at all followed parts.
                if let Ok(server) = self.servers.get(partition(&part.topic)) {
                    server.note_change(followed);
                }
            }
            FollowedChannel::Pattern(_) => {
                self.servers.all().iter().for_each(|server| server.note_change(followed.clone()));
            }
        }
    }

    /// Submits an operation to the server that has its partition.
    pub(super) fn submit<T: Send + 'static>(
        &self,
        request: OperationRequest,
        decode: impl FnOnce(OperationReply) -> Result<T, StoreError> + Send + 'static,
    ) -> StoreAnswer<T> {
        match self.servers.get(request.partition()) {
            Ok(server) => server.queue.submit(request, decode),
            Err(health) => StoreAnswer::ready(Err(away(health))),
        }
    }

    pub(super) fn submit_with(&self, request: OperationRequest, answer: OperationAnswer) {
        match self.servers.get(request.partition()) {
            Ok(server) => server.queue.submit_with(request, answer),
            Err(health) => answer(Err(away(health))),
        }
    }
}

fn away(health: StoreHealth) -> StoreError {
    match health {
        StoreHealth::Away { reason, .. } => StoreError::Away(reason),
        _ => StoreError::Busy,
    }
}
