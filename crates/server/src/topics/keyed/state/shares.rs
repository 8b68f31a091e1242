//! Shares of the memory of keys: each key counts toward the client that has written it.

use std::num::NonZeroU64;

use bytes::Bytes;

use super::{KeyedState, ShareChanges, TOPIC_COST, WriteLimits, cost};
use crate::topics::keyed::write::{KeyError, KeyWrite};

impl KeyedState {
    /// Checks the share of the client that writes.
    pub(super) fn check_share(
        &self,
        write: &KeyWrite,
        value: &Bytes,
        limits: WriteLimits,
    ) -> Result<(), KeyError> {
        if write.client.is_none() {
            return Ok(());
        }
        let known = self.keys.get(&write.key).filter(|known| known.client == write.client);
        let before = known.map_or(0, |known| cost(&write.key, known.value.as_ref()));
        let growth = cost(&write.key, Some(value)).saturating_sub(before);
        let topic_cost = if self.keys.is_empty() { TOPIC_COST } else { 0 };
        if growth > 0 && growth + topic_cost > limits.client_left {
            return Err(KeyError::ClientFull(limits.config.client_bytes));
        }
        Ok(())
    }

    /// Takes the changes of the memory of clients since the last call.
    pub(in crate::topics::keyed) fn take_shares(&mut self) -> ShareChanges {
        std::mem::take(&mut self.shares)
    }

    pub(super) fn note_share(&mut self, client: Option<NonZeroU64>, bytes: usize, is_freed: bool) {
        let bytes = isize::try_from(bytes).unwrap_or(isize::MAX);
        self.shares.extend(client.map(|client| (client, if is_freed { -bytes } else { bytes })));
    }

    /// Frees the shares of the clients, before the keys are replaced.
    pub(super) fn free_shares(&mut self) -> ShareChanges {
        let costs: Vec<_> =
            self.keys.iter().map(|(key, known)| (known.client, cost(key, known.value.as_ref()))).collect();
        costs.into_iter().for_each(|(client, bytes)| self.note_share(client, bytes, true));
        let creator = self.creator.take();
        self.note_share(creator, TOPIC_COST, true);
        self.take_shares()
    }
}
