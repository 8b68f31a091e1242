//! Messages beside the stream of a connection.

use sinews_proto::{Kind, Time};

use super::Session;
use crate::events::{Events, Flow};
use crate::payload::Payload;
use crate::resources::Resources;
use crate::tx::Tx;

impl Session {
    /// Handles a whole message that has arrived beside the stream, in a datagram. Text must be UTF-8. Returns `false` if the
    /// message is dropped, since reads are paused, or the connection closes.
    pub fn receive_datagram(
        &mut self,
        kind: Kind,
        payload: &mut [u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> bool {
        if self.paused || !self.connection.is_receiving() {
            return false;
        }
        let tx = &mut Tx::new(&mut self.connection, &mut self.outbound, resources, now);
        events.message(Payload::chunk(kind, payload), tx);
        self.paused = self.outbound.congested || events.pauses();
        let _: Flow = self.after_input(resources, now);
        true
    }
}
