//! The next call to the loop or to a handler.
//!
//! A connection decides while it is borrowed, and the driver calls Python afterwards: see
//! [`settle`](crate::driver::settle).

use std::io::{self, IoSlice};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use sinews_bindings::socket;
use sinews_session::TransportAction;

use crate::connection::{Connection, Link, Phase};
use crate::events::{Collector, Incoming};

/// A call that is due.
pub(crate) enum Step {
    AddReader,
    RemoveReader,
    AddWriter,
    RemoveWriter,
    WriteTransport(Py<PyAny>),
    /// End the sending side.
    Shutdown,
    /// The events of input that waited.
    Dispatch(Vec<Incoming>),
    /// A sender may continue.
    Drained,
    ArmTimer(Duration),
    Lose(Option<PyErr>),
}

impl Connection {
    /// Returns the next due call. Sends the queued bytes first.
    pub(crate) fn next_step(&mut self, py: Python<'_>) -> Option<Step> {
        if matches!(self.phase, Phase::Lost) || self.flags.is_losing {
            return None;
        }
        if !self.flags.is_bursting
            && let Phase::Open(connection) = &mut self.phase
        {
            connection.answer_end();
        }
        match &self.link {
            Link::None => return None,
            Link::Socket { .. } => {
                if let Some(step) = self.socket_step() {
                    return Some(step);
                }
            }
            Link::Transport(_) => {
                if !self.flags.is_blocked
                    && let Some(bytes) = self.take_output(py)
                {
                    return Some(Step::WriteTransport(bytes));
                }
            }
        }
        self.open_step(py)
    }

    fn socket_step(&mut self) -> Option<Step> {
        if !self.flags.is_blocked {
            if let Err(error) = self.write_socket() {
                return Some(Step::Lose(Some(error.into())));
            }
            if self.has_output() {
                self.flags.is_blocked = true;
                return Some(Step::AddWriter);
            }
        } else if !self.has_output() {
            self.flags.is_blocked = false;
            return Some(Step::RemoveWriter);
        }
        if self.flags.has_ended && self.flags.is_reading {
            self.flags.is_reading = false;
            return Some(Step::RemoveReader);
        }
        if !self.flags.is_reading && !self.is_throttled() {
            self.flags.is_reading = true;
            return Some(Step::AddReader);
        }
        None
    }

    fn open_step(&mut self, py: Python<'_>) -> Option<Step> {
        let has_output = self.has_output();
        if self.flags.closes_raw && !has_output {
            return Some(Step::Lose(None));
        }
        if self.flags.is_congested
            && !(self.flags.is_blocked && matches!(self.link, Link::Transport(_)))
            && self.buffered_bytes() <= self.limits.high_water / 4
        {
            self.flags.is_congested = false;
            return Some(Step::Drained);
        }
        let takes_more = self.queue.len() <= self.limits.low_queue;
        let Phase::Open(connection) = &mut self.phase else { return None };
        if takes_more && !self.flags.is_paused && connection.wants_resume() {
            return Some(Step::Dispatch(self.resume(py)));
        }
        match connection.action() {
            TransportAction::Drop => return Some(Step::Lose(None)),
            TransportAction::Finish if !has_output && !self.flags.is_shut => {
                self.flags.is_shut = true;
                return Some(Step::Shutdown);
            }
            _ => {}
        }
        let deadline = connection.deadline()?;
        match &self.timer {
            Some((armed, _)) if *armed <= deadline => None,
            _ => connection.timeout().map(Step::ArmTimer),
        }
    }

    fn resume(&mut self, py: Python<'_>) -> Vec<Incoming> {
        let mut events = Vec::new();
        let has_queue = self.on_message.is_none();
        let Phase::Open(connection) = &mut self.phase else { return events };
        let mut collector = Collector {
            py,
            queue: has_queue.then_some(&mut self.queue),
            events: &mut events,
            wants_pings: self.on_ping.is_some(),
            bytes: 0,
        };
        connection.resume_with(&mut collector);
        self.flags.is_bursting = true;
        events
    }

    /// Parses received bytes, and appends the handlers' events to `events`.
    pub(crate) fn take_chunk(&mut self, py: Python<'_>, chunk: &mut [u8], events: &mut Vec<Incoming>) {
        self.flags.is_bursting = true;
        match &mut self.phase {
            Phase::Handshake => {
                events.push(Incoming::Raw(PyBytes::new(py, chunk).into_any().unbind()));
            }
            Phase::Open(connection) => {
                let mut collector = Collector {
                    py,
                    queue: self.on_message.is_none().then_some(&mut self.queue),
                    events,
                    wants_pings: self.on_ping.is_some(),
                    bytes: 0,
                };
                connection.receive_with(chunk, &mut collector);
            }
            Phase::Lost => {}
        }
    }

    fn has_output(&self) -> bool {
        let is_writing = match &self.phase {
            Phase::Open(connection) => connection.is_writing() || connection.wants_write(),
            Phase::Handshake | Phase::Lost => false,
        };
        is_writing || self.raw_sent < self.raw.len()
    }

    fn write_socket(&mut self) -> io::Result<()> {
        let Link::Socket { descriptor, .. } = self.link else { return Ok(()) };
        while self.raw_sent < self.raw.len() {
            let sent = socket::send(descriptor, &[IoSlice::new(&self.raw[self.raw_sent..])])?;
            if sent == 0 {
                return Ok(());
            }
            self.raw_sent += sent;
        }
        if self.raw_sent > 0 {
            self.raw = Vec::new();
            self.raw_sent = 0;
        }
        if let Phase::Open(connection) = &mut self.phase {
            connection.write_with(|slices| socket::send(descriptor, slices))?;
        }
        Ok(())
    }

    /// Writes within a burst. A failed write fails again in [`next_step`](Self::next_step).
    pub(crate) fn write_early(&mut self) {
        if !self.flags.is_blocked {
            drop(self.write_socket());
        }
    }

    /// The socket is writable again.
    pub(crate) fn retry_write(&mut self) {
        if self.write_socket().is_err() {
            // The next write fails again, and reports its error.
            self.flags.is_blocked = false;
        }
    }

    /// Returns all queued bytes for the loop's transport.
    fn take_output(&mut self, py: Python<'_>) -> Option<Py<PyAny>> {
        let mut output = std::mem::take(&mut self.raw);
        if let Phase::Open(connection) = &mut self.phase {
            let taken = connection.write_with(|slices| {
                slices.iter().for_each(|slice| output.extend_from_slice(slice));
                Ok::<_, std::convert::Infallible>(slices.iter().map(|slice| slice.len()).sum())
            });
            let Ok(_) = taken;
        }
        (!output.is_empty()).then(|| PyBytes::new(py, &output).into_any().unbind())
    }
}
