//! The server in the caller's loop: HTTP, WebSocket and topics.

use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::time::Duration;

use pyo3::exceptions::{PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyList, PyMemoryView, PyString};
use sinews_bindings::server::{
    BatchServer, ConfigSource, InvalidArgument, NextTurn, Position, ReplayFrom, SendResult, ServerEvent,
    ServerFault, ServerSettings,
};
use sinews_proto::{CloseCode, Kind};

use crate::config::Config;

/// Turns without an event until the loop's other work gets its time.
const TURNS_MAX: usize = 64;

/// A bound server.
#[pyclass(unsendable, module = "sinews._native")]
pub(crate) struct NativeServer {
    server: BatchServer,
    /// Python has the events.
    is_read: bool,
    has_ended: bool,
    /// Time until the next turn; `None`: when the descriptor is readable.
    timeout: Option<Duration>,
}

#[pymethods]
impl NativeServer {
    #[new]
    #[pyo3(signature = (address, *, file, json, websockets, requests, subprotocols, origins, config))]
    #[expect(clippy::too_many_arguments, reason = "keywords of the Python module")]
    fn new(
        address: Option<&str>,
        file: Option<PathBuf>,
        json: Option<String>,
        websockets: Vec<String>,
        requests: Vec<String>,
        subprotocols: Vec<String>,
        origins: Vec<String>,
        config: &Config,
    ) -> PyResult<Self> {
        let parse = |address: &str| {
            let fault = |_| PyValueError::new_err(format!("host: {address} is no IP address with a port"));
            address.parse().map_err(fault)
        };
        let settings = ServerSettings {
            address: address.map(parse).transpose()?,
            whole: file.map(ConfigSource::File).or_else(|| json.map(ConfigSource::Json)),
            websockets,
            requests,
            config: (*config.proto).clone(),
            deflate: config.deflate.clone(),
            subprotocols,
            origins,
        };
        let server = BatchServer::bind(settings).map_err(|fault| match fault {
            ServerFault::Setting(text) => PyValueError::new_err(text),
            ServerFault::System(text) => PyOSError::new_err(text),
        })?;
        Ok(Self { server, is_read: false, has_ended: false, timeout: Some(Duration::ZERO) })
    }

    /// The descriptor to watch for reading.
    fn fileno(&self) -> i32 {
        self.server.descriptor().as_raw_fd()
    }

    /// The bound IP address and port; `None` if all addresses are Unix sockets.
    #[getter]
    fn address(&self) -> Option<(String, u16)> {
        self.server.address().map(|address| (address.ip().to_string(), address.port()))
    }

    /// Seconds until the next turn; `None`: when the descriptor is readable.
    #[getter]
    fn timeout(&self) -> Option<f64> {
        self.timeout.map(|time| time.as_secs_f64())
    }

    #[getter]
    fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Sends what was queued, and turns until there are events: `(kind, id, payload)`. An empty list: wait for the
    /// descriptor or the timeout.
    fn turn<'py>(&mut self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        if std::mem::take(&mut self.is_read) {
            self.server.clear();
        }
        for _ in 0..TURNS_MAX {
            let goes_on = self.server.turn()?;
            let events = self.server.with_events(|words, bytes| events(py, words, bytes))?;
            if !events.is_empty() {
                self.is_read = true;
                return Ok(events);
            }
            if !goes_on {
                self.has_ended = true;
                return Ok(events);
            }
            if let NextTurn::Readable(time) = self.server.next_turn() {
                self.timeout = time;
                return Ok(events);
            }
        }
        self.timeout = Some(Duration::ZERO);
        Ok(PyList::empty(py))
    }

    /// Queues a message. Returns 0 if it was queued, 1 if the queue is long, 2 if it was dropped.
    fn send(&self, id: u32, data: &Bound<'_, PyAny>) -> PyResult<u8> {
        let sent = with_payload(data, |kind, payload| self.server.send(id, kind, payload))?;
        Ok(match sent {
            SendResult::Queued => 0,
            SendResult::Backpressure => 1,
            SendResult::Dropped => 2,
        })
    }

    /// Starts the closing handshake.
    fn close(&self, id: u32, code: u16, reason: &str) -> PyResult<bool> {
        if reason.len() > 123 {
            return Err(PyValueError::new_err("reason must have at most 123 bytes"));
        }
        let fault =
            || PyValueError::new_err(format!("code must be a close code that may be sent, not {code}"));
        Ok(self.server.close(id, CloseCode::new(code).ok_or_else(fault)?, reason))
    }

    fn subscribe(&self, id: u32, topic: &str) -> PyResult<bool> {
        self.server.subscribe(id, topic).map_err(argument_fault)
    }

    fn unsubscribe(&self, id: u32, topic: &str) -> bool {
        self.server.unsubscribe(id, topic)
    }

    fn buffered(&self, id: u32) -> usize {
        self.server.buffered(id)
    }

    /// Publishes to all subscribers with the next turn. Returns whether the message was queued.
    fn publish(&self, topic: &str, data: &Bound<'_, PyAny>) -> PyResult<bool> {
        with_payload(data, |kind, payload| self.server.publish(topic, kind, payload))?.map_err(argument_fault)
    }

    /// Publishes JSON to the topics of the whole server.
    fn publish_json(&self, topic: &str, data: &str) -> PyResult<bool> {
        self.server.publish_json(topic, data).map_err(argument_fault)
    }

    /// Reads the last messages of a topic, or those after a position. Returns the id of the answer's event; `None` if too
    /// many answers wait.
    #[pyo3(signature = (topic, last, after))]
    fn history(&mut self, topic: &str, last: usize, after: Option<(u64, u64)>) -> PyResult<Option<u32>> {
        let start = match after {
            Some((epoch, sequence)) => ReplayFrom::After(Position { epoch, sequence }),
            None => ReplayFrom::Last(last),
        };
        self.server.history(topic, start).map_err(argument_fault)
    }

    /// Reads who is present in a topic, as JSON.
    #[pyo3(signature = (topic, after))]
    fn presence(&self, topic: &str, after: Option<&str>) -> PyResult<String> {
        self.server.presence(topic, after).map_err(argument_fault)
    }

    /// Answers a request. Returns whether it still waits.
    fn respond(
        &self,
        id: u32,
        status: u16,
        headers: Vec<(String, String)>,
        body: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        with_payload(body, |_, body| self.server.respond(id, status, &headers, body))?
            .map_err(PyValueError::new_err)
    }

    fn stop(&self) {
        self.server.stop();
    }
}

fn argument_fault(fault: InvalidArgument) -> PyErr {
    PyValueError::new_err(fault.to_string())
}

/// Calls a function with a `str` as text, or with bytes.
fn with_payload<R>(data: &Bound<'_, PyAny>, call: impl FnOnce(Kind, &[u8]) -> R) -> PyResult<R> {
    if let Ok(text) = data.cast::<PyString>() {
        let text = text.to_cow()?;
        return Ok(call(Kind::Text, text.as_bytes()));
    }
    if let Ok(bytes) = data.cast::<PyBytes>() {
        return Ok(call(Kind::Binary, bytes.as_bytes()));
    }
    if data.is_instance_of::<PyByteArray>() || data.is_instance_of::<PyMemoryView>() {
        let bytes = data.py().get_type::<PyBytes>().call1((data,))?;
        return Ok(call(Kind::Binary, bytes.cast::<PyBytes>()?.as_bytes()));
    }
    let name = data.get_type().name()?;
    Err(PyTypeError::new_err(format!("data must be str, bytes, bytearray or memoryview, not {name}")))
}

/// Creates the events as tuples.
fn events<'py>(py: Python<'py>, words: &[u32], bytes: &[u8]) -> PyResult<Bound<'py, PyList>> {
    let event = |words: &[u32]| -> PyResult<Bound<'py, PyAny>> {
        let (kind, id, start, len) = (words[0], words[1], words[2] as usize, words[3] as usize);
        let payload = &bytes[start..start + len];
        let payload = match kind {
            // A text is a `str`. The protocol has checked it.
            kind if kind == ServerEvent::Text as u32 => {
                PyString::new(py, std::str::from_utf8(payload).unwrap_or_default()).into_any()
            }
            _ => PyBytes::new(py, payload).into_any(),
        };
        Ok((kind, id, payload).into_pyobject(py)?.into_any())
    };
    let list = PyList::empty(py);
    for words in words.chunks_exact(4) {
        list.append(event(words)?)?;
    }
    Ok(list)
}
