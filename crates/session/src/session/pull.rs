//! Receiving for an owner that takes events one by one.

use sinews_proto::{Event, Kind, Received, Time};

use super::Session;
use crate::events::{PullResult, ReceivedEvent};
use crate::resources::Resources;

impl Session {
    /// Reads `input` up to the next event, in place, for an owner that takes events one by one instead of
    /// receiving callbacks. The input is the unconsumed rest of the earlier pull, followed by the newly
    /// received bytes. Bytes that are not [`consumed`](PullResult::consumed) must be passed again. If
    /// [`PullResult::event`] is `None`, at most 130 bytes are left, and the next event requires more input.
    ///
    /// The owner controls the pace: this method never pauses. A session is used either with this method or
    /// with [`receive`](Self::receive).
    #[inline]
    pub fn pull(&mut self, input: &mut [u8], resources: &mut Resources, now: Time) -> PullResult {
        self.release_assembly(resources);
        let mut assembly = self.assembly.take();
        if assembly.capacity() == 0 && self.connection.inflates() {
            assembly = resources.pool.take();
        }
        let received = self.connection.receive(input, &mut assembly, &mut resources.shared, now);
        let pulled = match received {
            Ok(Received { consumed, event, .. }) => PullResult { consumed, event: self.pulled(event, input) },
            Err(fault) => {
                self.fault(fault);
                PullResult { consumed: input.len(), event: None }
            }
        };
        if matches!(&pulled.event, Some(event) if event.is_in_assembly()) {
            self.assembly.put(assembly);
        } else {
            self.keep_assembly(assembly, resources);
        }
        if self.connection.wants_control() {
            self.after_tx(resources, now);
        }
        pulled
    }

    /// Fast path of [`pull`](Self::pull) for the most frequent case: a complete message at the beginning of the input.
    /// Returns its kind and its payload's range; the input is consumed up to that range's end. `None` in all other
    /// cases, including faults: call [`pull`](Self::pull).
    #[inline]
    pub fn pull_whole(&mut self, input: &mut [u8], now: Time) -> Option<(Kind, std::ops::Range<usize>)> {
        if !self.assembly.is_none() {
            return None;
        }
        self.connection.receive_whole(input, now).unwrap_or_else(|fault| {
            self.fault(fault);
            None
        })
    }

    /// [`receive_appended`](Self::receive_appended) for an owner that pulls. Returns the message that these
    /// bytes complete.
    pub fn pull_appended(
        &mut self,
        mut assembly: Vec<u8>,
        appended: usize,
        resources: &mut Resources,
        now: Time,
    ) -> Option<ReceivedEvent> {
        self.lent_bytes = 0;
        let mut received_event = None;
        if appended > 0 {
            match self.connection.receive_appended(&mut assembly, appended, now) {
                Ok(event) => received_event = self.pulled(event, &[]),
                Err(fault) => self.fault(fault),
            }
        }
        self.assembly.put(assembly);
        if received_event.is_none() {
            self.release_assembly(resources);
        }
        self.after_tx(resources, now);
        received_event
    }

    /// Whether a [`pull`](Self::pull) from this input yields an event ([`Connection::holds_event`](sinews_proto::Connection::holds_event)).
    #[must_use]
    #[inline]
    pub fn holds_event(&self, input: &[u8]) -> bool {
        self.connection.is_receiving() && self.connection.holds_event(input)
    }

    /// Number of payload bytes that a driver may receive into the application's memory
    /// ([`Connection::awaits_piece`](sinews_proto::Connection::awaits_piece)), in fragment delivery.
    #[must_use]
    pub fn awaits_piece(&self) -> u64 {
        self.connection.awaits_piece()
    }

    /// Whether these bytes end the message ([`Connection::awaits_last_piece`](sinews_proto::Connection::awaits_last_piece)).
    #[must_use]
    pub fn awaits_last_piece(&self) -> bool {
        self.connection.awaits_last_piece()
    }

    /// Whether the next [`pull`](Self::pull) from this input may end the current message without further
    /// payload ([`Connection::may_end`](sinews_proto::Connection::may_end)).
    #[must_use]
    pub fn may_end(&self, input: &[u8]) -> bool {
        self.connection.is_receiving() && self.connection.may_end(input)
    }

    /// Processes payload bytes in place ([`Connection::receive_piece`](sinews_proto::Connection::receive_piece)). Returns whether they end their
    /// message, or `None` if the connection has ended.
    pub fn receive_piece(
        &mut self,
        piece: &mut [u8],
        resources: &mut Resources,
        now: Time,
    ) -> Option<(Kind, bool)> {
        let handled = self.connection.receive_piece(piece, now).unwrap_or_else(|fault| {
            self.fault(fault);
            None
        });
        self.after_tx(resources, now);
        handled
    }

    /// The message of the last pull that returned [`PayloadLocation::Assembly`](sinews_proto::PayloadLocation::Assembly). The next pull drops its remaining
    /// bytes.
    pub fn assembled(&mut self) -> &mut Vec<u8> {
        self.assembly.get_mut()
    }

    /// Returns the memory of a delivered message to the pool.
    #[inline]
    pub fn release_assembly(&mut self, resources: &mut Resources) {
        if !self.assembly.is_none() && !self.connection.holds_assembly() {
            resources.recycle_assembly(self.assembly.take());
            self.assembly.clear();
        }
    }

    /// Stores the assembly if it holds part of a message; otherwise its memory returns to the pool.
    fn keep_assembly(&mut self, assembly: Vec<u8>, resources: &mut Resources) {
        if self.connection.holds_assembly() {
            self.assembly.put(resources.pool.shrink_to_content(assembly));
        } else {
            self.assembly.clear();
            resources.recycle_assembly(assembly);
        }
    }

    #[inline]
    pub(super) fn pulled(&mut self, event: Event, input: &[u8]) -> Option<ReceivedEvent> {
        Some(match event {
            Event::NeedMore(_) => return None,
            Event::Message { kind, at } => ReceivedEvent::Message { kind, at },
            Event::Fragment { kind, at, first, last } => ReceivedEvent::Fragment { kind, at, first, last },
            Event::Ping(at) => ReceivedEvent::Ping(at),
            Event::Pong { at, answers } => ReceivedEvent::Pong { at, answers },
            Event::Close { code, reason, answers } => {
                self.handle_close(code, &input[reason], answers);
                ReceivedEvent::Close
            }
        })
    }
}
