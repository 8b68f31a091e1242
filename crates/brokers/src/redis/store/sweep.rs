//! The sweep: one node at a time removes expired keys, for all nodes.

use std::time::Duration;

use futures_util::future::join_all;
use sinews_store::{StoreAnswer, StoreError};

use super::connection::ServerThread;
use super::decode::{Values, unexpected};
use super::queue::OperationRequest;
use super::random;
use super::script::ScriptName;

/// Interval of the node that holds the lease.
const INTERVAL: Duration = Duration::from_millis(50);
/// Time without a sweep after which another node takes the lease.
const LEASE: Duration = Duration::from_millis(500);
/// Interval in which a node asks for the lease.
const LEASE_INTERVAL: Duration = Duration::from_millis(250);

/// Outcome of one sweep.
struct Sweep {
    holds_lease: bool,
    more: bool,
}

impl ServerThread {
    /// Sweeps until the task is dropped.
    pub(super) async fn sweep(&self) -> String {
        let holder = random::below(u64::MAX);
        loop {
            let pause = match self.sweep_once(holder).await {
                Ok(Sweep { more: true, .. }) => Duration::ZERO,
                Ok(Sweep { holds_lease: true, .. }) => INTERVAL,
                Ok(_) => LEASE_INTERVAL,
                Err(error) => {
                    tracing::debug!("{}: expired keys are not removed: {error}", self.name());
                    LEASE_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn sweep_once(&self, holder: u64) -> Result<Sweep, StoreError> {
        let partitions = self.store.shared.servers.partitions_of(&self.state);
        // A script has keys of one slot.
        let size = if self.store.shared.servers.is_cluster { 1 } else { partitions.len().max(1) };
        let answers =
            join_all(partitions.chunks(size).map(|partitions| self.sweep_partitions(holder, partitions)));
        let mut all = Sweep { holds_lease: false, more: false };
        for answer in answers.await {
            let swept = answer?;
            all = Sweep { holds_lease: all.holds_lease || swept.holds_lease, more: all.more || swept.more };
        }
        Ok(all)
    }

    fn sweep_partitions(&self, holder: u64, partitions: &[u32]) -> StoreAnswer<Sweep> {
        let names = &self.store.shared.names;
        let request = OperationRequest::new(ScriptName::Keys, "sweep", "")
            .in_partition(partitions[0])
            .key(names.in_partition(partitions[0]) + "sweeper")
            .number(holder)
            .number(LEASE.as_millis() as u64)
            .number(partitions.len() as u64);
        let request = partitions.iter().fold(request, |request, number| {
            request.key(names.due(*number)).text(names.in_partition(*number))
        });
        let decode = |mut values: Values| {
            values.number()?;
            Some(Sweep { holds_lease: values.number()? > 0, more: values.number()? > 0 })
        };
        self.state
            .queue
            .submit(request, move |reply| decode(Values::new(reply.values)).ok_or_else(unexpected))
    }
}
