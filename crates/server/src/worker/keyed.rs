//! Delivery of updates of keys to subscribers, within the budget per turn.

use sinews_engine::Io;

use super::Worker;
use super::conn::ConnProtocol;

impl Worker {
    /// Sends the updates of keys that are due, and sets the timer for the next.
    pub(super) fn send_keyed(&mut self, io: &mut Io) {
        while let Some(conn) = self.shared.services.topics.next_joined_keyed() {
            // What the kernel queues for a slow client cannot be replaced by newer values.
            io.limit_unsent(conn);
        }
        if !self.shared.services.topics.has_keyed_to_publish(io.now()) {
            return;
        }
        self.time(io);
        self.shared.services.topics.run_keyed_timers(io.now());
        while let Some(mut current) = self.shared.services.topics.next_keyed(io.now()) {
            while let Some(&subscriber) = current.subscribers.get(current.next) {
                if self.delivery.left == 0 {
                    return self.shared.services.topics.split_keyed(current);
                }
                self.delivery.left -= 1;
                current.next += 1;
                if current.split && !self.shared.services.topics.awaits_keyed(&current, subscriber) {
                    continue;
                }
                if let Some((ConnProtocol::WebSocket(websocket), shared)) = self.conn_and_shared(subscriber) {
                    shared.services.counters.deliveries.add(1);
                    websocket.send_keys(&current, shared);
                    self.flush_conn_alone(io, subscriber);
                }
            }
            self.shared.services.topics.finish_keyed(current);
        }
        self.shared.services.topics.end_keyed_turn();
        self.shared
            .services
            .counters
            .sent(self.shared.resources.traffic(), self.shared.services.topics.counters_ref());
        if let Some(due) = self.shared.services.topics.arm_batch_timer() {
            io.set_batch_timer(due);
        }
    }
}
