//! The sweep: one node at a time removes expired keys, for all nodes.

use std::time::Duration;

use sinews_store::StoreError;

use super::connection::StoreThread;
use super::decode::{Values, unexpected};
use super::names::PARTITIONS;
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

impl StoreThread {
    /// Sweeps until the task is dropped.
    pub(super) async fn sweep(&self) -> String {
        let holder = random::below(u64::MAX);
        loop {
            let pause = match self.sweep_once(holder).await {
                Ok(Sweep { more: true, .. }) => Duration::ZERO,
                Ok(Sweep { holds_lease: true, .. }) => INTERVAL,
                Ok(_) => LEASE_INTERVAL,
                Err(error) => {
                    tracing::debug!("{}: expired keys are not removed: {error}", self.settings.name);
                    LEASE_INTERVAL
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    async fn sweep_once(&self, holder: u64) -> Result<Sweep, StoreError> {
        let names = &self.settings.names;
        let request = OperationRequest::new(ScriptName::Keys, "sweep", "")
            .key(names.in_partition(0) + "sweeper")
            .number(holder)
            .number(LEASE.as_millis() as u64)
            .number(PARTITIONS.into());
        let request = (0..PARTITIONS)
            .fold(request, |request, number| request.key(names.due(number)).text(names.in_partition(number)));
        let decode = |mut values: Values| {
            values.number()?;
            Some(Sweep { holds_lease: values.number()? > 0, more: values.number()? > 0 })
        };
        let swept = self
            .shared
            .queue
            .submit(request, move |reply| decode(Values::new(reply.values)).ok_or_else(unexpected));
        swept.await
    }
}
