//! Echo of bytes: the reference without a protocol.

use sinews_session::{Chain, Outbound, Resources};

use super::super::tally::Failure;
use super::lane::{Desk, Lane};
use super::wire::Fault;

#[derive(Debug, Default)]
pub(super) struct Tcp {
    pub(super) out: Outbound,
    /// Echoed bytes of the current message.
    at: usize,
}

impl Tcp {
    pub(super) fn send(&mut self, lane: &mut Lane, desk: &mut Desk, resources: &mut Resources) {
        let plan = desk.plan.clone();
        while let Some(number) = lane.take(desk) {
            let message = plan.corpus.message(number);
            let len = message.len();
            self.out.gathering(resources).write(|out| out.extend_from_slice(message));
            lane.sent_bytes(desk, len);
            if len == 0 {
                // An empty message has no echo.
                lane.answered(desk, 0);
            }
        }
    }

    pub(super) fn receive(
        &mut self,
        mut chunk: &[u8],
        lane: &mut Lane,
        desk: &mut Desk,
    ) -> Result<(), Fault> {
        let plan = desk.plan.clone();
        while !chunk.is_empty() {
            let Some(number) = lane.expects() else {
                return Err(Fault::new(Failure::WrongBytes, "echo is longer than the sent bytes"));
            };
            let message = plan.corpus.message(number);
            let rest = &message[self.at..];
            let len = rest.len().min(chunk.len());
            if chunk[..len] != rest[..len] {
                return Err(Fault::new(Failure::WrongBytes, "echo differs from the sent bytes"));
            }
            chunk = &chunk[len..];
            self.at += len;
            if self.at == message.len() {
                self.at = 0;
                lane.answered(desk, message.len());
            }
        }
        Ok(())
    }

    pub(super) fn start_send(&mut self) -> Option<Box<Chain>> {
        self.out.start()
    }
}
