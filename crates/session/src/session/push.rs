//! Receiving for a driver with callbacks.

use sinews_proto::{Event, PayloadLocation, Received, Time};

use super::Session;
use crate::events::{Events, Flow};
use crate::payload::{Fragment, Payload};
use crate::resources::Resources;
use crate::tx::Tx;

/// Smallest remainder of a message for which lending the assembly buffer pays off.
const LARGE_MIN: u64 = 64 << 10;

/// Growth factor: the lent capacity per received byte.
const LARGE_FACTOR: usize = 4;

/// Largest single receive into the assembly: the bytes are unmasked while they are in the second-level
/// cache, of which processors have from 512 KiB up.
const LARGE_PIECE: usize = 256 << 10;

impl Session {
    /// Handles received bytes, in place.
    #[inline]
    pub fn receive(
        &mut self,
        chunk: &mut [u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> Flow {
        let mut at = 0;
        if !self.rest.is_none() {
            at = self.receive_behind_rest(chunk, resources, now, events);
        }
        if self.rest.is_none() && !self.paused {
            at += self.handle(&mut chunk[at..], resources, now, events).0;
        }
        if at < chunk.len() {
            self.rest.get_mut().extend_from_slice(&chunk[at..]);
        }
        self.after_input(resources, now)
    }

    /// Whether the rest of the current message is large enough for a driver to receive it into the buffer from
    /// [`lend_assembly`](Self::lend_assembly) instead of its own.
    #[must_use]
    #[inline]
    pub fn awaits_large(&self) -> bool {
        self.rest.is_none() && !self.paused && self.connection.awaits_payload() >= LARGE_MIN
    }

    /// Lends the current message's buffer, and the number of bytes that may be appended. The buffer has capacity for
    /// that many bytes; the driver must not append more. Returns `None` if lending does not pay off. No other bytes may
    /// be received until [`receive_appended`](Self::receive_appended) returns the buffer.
    pub fn lend_assembly(&mut self, resources: &mut Resources) -> Option<(Vec<u8>, usize)> {
        if !self.awaits_large() {
            return None;
        }
        let mut assembly = self.assembly.take();
        // Memory follows the received bytes: a small multiple of their number.
        let limit = (LARGE_FACTOR * assembly.len()).clamp(LARGE_MIN as usize, LARGE_PIECE);
        let room = self.connection.reserve_payload(&mut assembly, &mut resources.shared, limit);
        self.lent_bytes = u32::try_from(assembly.capacity()).unwrap_or(u32::MAX);
        Some((assembly, room))
    }

    /// Returns the lent buffer with `appended` bytes added by the driver; 0 if none were received.
    pub fn receive_appended(
        &mut self,
        mut assembly: Vec<u8>,
        appended: usize,
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> Flow {
        self.lent_bytes = 0;
        if appended > 0 {
            match self.connection.receive_appended(&mut assembly, appended, now) {
                Ok(Event::NeedMore(_)) => {}
                Ok(event) => {
                    self.dispatch(event, &mut [], &mut assembly, resources, now, events);
                    self.paused |= self.outbound.congested || events.pauses();
                }
                Err(fault) => self.fault(fault),
            }
        }
        if self.connection.holds_assembly() {
            self.assembly.put(assembly);
        } else {
            self.assembly.clear();
            resources.recycle_assembly(assembly);
        }
        self.after_input(resources, now)
    }

    /// Continues with the input that was left when the session paused.
    pub fn resume(&mut self, resources: &mut Resources, now: Time, events: &mut impl Events) -> Flow {
        if self.paused {
            self.connection.note_unread(now);
        }
        self.paused = false;
        self.handle_rest(resources, now, events);
        self.after_input(resources, now)
    }

    /// Completes the retained input with as few bytes of the chunk as needed. Returns the number of
    /// consumed bytes of the chunk.
    #[cold]
    fn receive_behind_rest(
        &mut self,
        chunk: &[u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> usize {
        let mut at = 0;
        while !self.rest.is_none() && !self.paused {
            let need = self.handle_rest(resources, now, events);
            if self.rest.is_none() || self.paused || at == chunk.len() {
                break;
            }
            let take = need.min(chunk.len() - at);
            self.rest.get_mut().extend_from_slice(&chunk[at..at + take]);
            at += take;
        }
        at
    }

    /// Processes `rest` as far as possible. Returns the number of missing bytes.
    fn handle_rest(&mut self, resources: &mut Resources, now: Time, events: &mut impl Events) -> usize {
        let mut rest = self.rest.take();
        let (used, need) = self.handle(&mut rest, resources, now, events);
        if used < rest.len() {
            rest.drain(..used);
            self.rest.put(rest);
        } else {
            self.rest.clear();
        }
        need
    }

    /// Processes events until the input is used up or reading pauses. Returns the number of used bytes and
    /// the minimum number of missing bytes. The assembly is borrowed from the pool and stays only if it
    /// holds data.
    #[inline]
    pub(super) fn handle(
        &mut self,
        input: &mut [u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> (usize, usize) {
        let mut assembly = self.assembly.take();
        if assembly.capacity() == 0 {
            assembly = resources.pool.take();
        }
        let done = self.handle_with(&mut assembly, input, resources, now, events);
        if self.connection.holds_assembly() {
            self.assembly.put(resources.pool.shrink_to_content(assembly));
        } else {
            self.assembly.clear();
            resources.recycle_assembly(assembly);
        }
        done
    }

    #[inline]
    fn handle_with(
        &mut self,
        assembly: &mut Vec<u8>,
        input: &mut [u8],
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) -> (usize, usize) {
        let mut at = 0;
        loop {
            let received = self.connection.receive(&mut input[at..], assembly, &mut resources.shared, now);
            let Received { consumed, event, .. } = match received {
                Ok(received) => received,
                Err(fault) => {
                    self.fault(fault);
                    return (input.len(), 1);
                }
            };
            let start = at;
            at += consumed;
            if let Event::NeedMore(need) = event {
                return (at, need);
            }
            self.dispatch(event, &mut input[start..], assembly, resources, now, events);
            if self.outbound.congested || events.pauses() {
                self.paused = true;
                return (at, 1);
            }
        }
    }

    #[inline]
    fn dispatch(
        &mut self,
        event: Event,
        input: &mut [u8],
        assembly: &mut Vec<u8>,
        resources: &mut Resources,
        now: Time,
        events: &mut impl Events,
    ) {
        let tx = &mut Tx::new(&mut self.connection, &mut self.outbound, resources, now);
        match event {
            Event::Message { kind, at: PayloadLocation::Input(range) } => {
                events.message(Payload::chunk(kind, &mut input[range]), tx);
            }
            Event::Message { kind, at: PayloadLocation::Assembly } => {
                events.message(Payload::assembly(kind, assembly), tx);
            }
            Event::Fragment { kind, at, first, last } => {
                let bytes = match at {
                    PayloadLocation::Input(range) => &mut input[range],
                    PayloadLocation::Assembly => assembly,
                };
                events.fragment(Fragment::new(kind, bytes, first, last), tx);
            }
            Event::Ping(range) => {
                events.ping(&input[range], tx);
                self.write_control(resources, now);
            }
            Event::Pong { at, answers } => events.pong(&input[at], answers, tx),
            Event::Close { code, reason, answers } => {
                self.handle_close(code, &input[reason], answers);
            }
            Event::NeedMore(_) => {}
        }
    }

    pub(super) fn after_input(&mut self, resources: &mut Resources, now: Time) -> Flow {
        self.write_control(resources, now);
        self.note_outbound(false, now);
        if self.paused { Flow::Pause } else { Flow::Continue }
    }

    /// Whether the last input ended in [`Flow::Pause`] and has not been resumed yet.
    #[must_use]
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether the driver should call [`resume`](Self::resume): the session is paused and the outbound
    /// queue is short enough.
    #[must_use]
    pub fn wants_resume(&self) -> bool {
        self.paused && !self.outbound.congested
    }
}
