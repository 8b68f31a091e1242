//! A burst's events as Python objects.

use std::collections::VecDeque;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use sinews_proto::Kind;
use sinews_session::{Events, Payload, Tx};

/// An event for a handler.
pub(crate) enum Incoming {
    Message(Kind, Py<PyAny>),
    Ping(Py<PyAny>),
    Pong(Py<PyAny>, Option<Duration>),
    /// Bytes before the connection is open.
    Raw(Py<PyAny>),
    /// The transport's end before the connection is open.
    RawEnd,
}

/// Creates the objects for a burst. It calls no Python code.
pub(crate) struct Collector<'a, 'py> {
    pub(crate) py: Python<'py>,
    /// Receives messages, if the connection has a queue.
    pub(crate) queue: Option<&'a mut VecDeque<Py<PyAny>>>,
    pub(crate) events: &'a mut Vec<Incoming>,
    pub(crate) wants_pings: bool,
    pub(crate) bytes: usize,
}

/// Bytes in a burst's messages, after which the rest waits. Compressed messages may be a thousand times larger than
/// the received chunk.
const BURST_MAX: usize = 1 << 20;

impl Events for Collector<'_, '_> {
    fn message(&mut self, payload: Payload<'_>, _: &mut Tx<'_>) {
        self.bytes += payload.len();
        let object = match payload.text() {
            Some(text) => PyString::new(self.py, text).into_any(),
            None => PyBytes::new(self.py, &payload).into_any(),
        };
        match &mut self.queue {
            Some(queue) => queue.push_back(object.unbind()),
            None => self.events.push(Incoming::Message(payload.kind(), object.unbind())),
        }
    }

    fn ping(&mut self, payload: &[u8], _: &mut Tx<'_>) {
        if self.wants_pings {
            self.events.push(Incoming::Ping(self.bytes_object(payload)));
        }
    }

    fn pong(&mut self, payload: &[u8], answers: Option<Duration>, _: &mut Tx<'_>) {
        self.events.push(Incoming::Pong(self.bytes_object(payload), answers));
    }

    fn pauses(&self) -> bool {
        self.bytes >= BURST_MAX
    }
}

impl Collector<'_, '_> {
    fn bytes_object(&self, payload: &[u8]) -> Py<PyAny> {
        PyBytes::new(self.py, payload).into_any().unbind()
    }
}
