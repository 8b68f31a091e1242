//! Byte echo: the reference without a protocol.

use sinews_session::{Chain, Outbound, Resources};

use super::super::tally::FailureKind;
use super::failure::ConnectionFailure;
use super::tracker::{MessageTracker, ThreadState};

#[derive(Debug, Default)]
pub(super) struct TcpLoad {
    pub(super) out: Outbound,
    /// The current message's echoed bytes.
    at: usize,
}

impl TcpLoad {
    pub(super) fn send(
        &mut self,
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
        resources: &mut Resources,
    ) {
        let plan = thread_state.plan.clone();
        while let Some(number) = tracker.take(thread_state) {
            let message = plan.corpus.message(number);
            let len = message.len();
            self.out.pending_chain(resources).write(|out| out.extend_from_slice(message));
            tracker.sent_bytes(thread_state, len);
            if len == 0 {
                // An empty message has no echo.
                tracker.answered(thread_state, 0);
            }
        }
    }

    pub(super) fn receive(
        &mut self,
        mut chunk: &[u8],
        tracker: &mut MessageTracker,
        thread_state: &mut ThreadState,
    ) -> Result<(), ConnectionFailure> {
        let plan = thread_state.plan.clone();
        while !chunk.is_empty() {
            let Some(number) = tracker.expects() else {
                return Err(ConnectionFailure::new(
                    FailureKind::WrongBytes,
                    "echo is longer than the sent bytes",
                ));
            };
            let message = plan.corpus.message(number);
            let rest = &message[self.at..];
            let len = rest.len().min(chunk.len());
            if chunk[..len] != rest[..len] {
                return Err(ConnectionFailure::new(
                    FailureKind::WrongBytes,
                    "echo differs from the sent bytes",
                ));
            }
            chunk = &chunk[len..];
            self.at += len;
            if self.at == message.len() {
                self.at = 0;
                tracker.answered(thread_state, message.len());
            }
        }
        Ok(())
    }

    pub(super) fn start_send(&mut self) -> Option<Box<Chain>> {
        self.out.start()
    }
}
