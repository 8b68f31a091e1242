//! The connection as Python sees it.

use std::collections::VecDeque;

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PyString, PyTuple};
use sinews_bindings::EventKind;
use sinews_bindings::socket::Descriptor;
use sinews_proto::{CloseCode, Expired, Kind, Misuse, Time};
use sinews_session::{Cause, Closed};

use crate::config::Config;
use crate::driver;
use crate::handshake::Negotiation;
use crate::receiver::Receiver;

/// A WebSocket connection: base class for `sinews.listener` and `sinews.websockets`.
///
/// No Python code runs while a connection is borrowed: handlers call the connection again.
#[pyclass(subclass, weakref, module = "sinews._native")]
#[derive(Default)]
pub(crate) struct Connection {
    pub(crate) phase: Phase,
    pub(crate) link: Link,
    pub(crate) event_loop: Option<Py<PyAny>>,
    /// Watches the socket for input in place of the loop.
    pub(crate) poller: Option<Py<PyAny>>,
    /// The listener's callback; without one, messages are queued.
    pub(crate) on_message: Option<Py<PyAny>>,
    pub(crate) on_ping: Option<Py<PyAny>>,
    pub(crate) queue: VecDeque<Py<PyAny>>,
    pub(crate) receiver: Option<Py<Receiver>>,
    pub(crate) limits: Limits,
    /// The handshake's bytes: sent before the connection's bytes.
    pub(crate) raw: Vec<u8>,
    pub(crate) raw_sent: usize,
    pub(crate) timer: Option<(Time, Py<PyAny>)>,
    pub(crate) flags: Flags,
    pub(crate) local_close: Option<(u16, String)>,
    pub(crate) ending: Option<Ending>,
}

#[derive(Default)]
pub(crate) enum Phase {
    #[default]
    Handshake,
    Open(Box<sinews_bindings::Connection>),
    /// The transport is closed.
    Lost,
}

/// The transport.
#[derive(Default)]
pub(crate) enum Link {
    #[default]
    None,
    /// A socket that this connection reads and writes itself.
    Socket { socket: Py<PyAny>, descriptor: Descriptor },
    /// The loop's transport.
    Transport(Py<PyAny>),
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Limits {
    pub(crate) high_water: usize,
    pub(crate) max_queue: usize,
    pub(crate) low_queue: usize,
}

#[derive(Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts")]
pub(crate) struct Flags {
    /// The loop watches the socket for input.
    pub(crate) is_reading: bool,
    /// The loop watches the socket for output, or the transport's buffer is full.
    pub(crate) is_blocked: bool,
    /// The caller has paused reads.
    pub(crate) is_paused: bool,
    /// Handlers run, and a flush follows.
    pub(crate) is_bursting: bool,
    pub(crate) is_flush_scheduled: bool,
    /// A sender was told to slow down.
    pub(crate) is_congested: bool,
    /// The sending side is shut down.
    pub(crate) is_shut: bool,
    /// The peer has ended the transport.
    pub(crate) has_ended: bool,
    /// The transport is being closed.
    pub(crate) is_losing: bool,
    /// Close behind the handshake's bytes.
    pub(crate) closes_raw: bool,
}

/// How a connection ended.
pub(crate) struct Ending {
    closed: Option<Closed>,
    sent: Option<(u16, String)>,
}

/// The result of [`Connection::queue_message`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Queued {
    Yes = 0,
    /// Queued; the sender shall slow down.
    SlowDown = 1,
    /// Not queued: the connection is closing.
    Closing = 2,
    /// Not queued: neither text nor bytes.
    Unsupported = 3,
    /// Not queued: a fragmented message is being sent.
    MessageOpen = 4,
}

/// Queued bytes that are written at once, also within a burst.
const WRITE_MIN: usize = 64 << 10;

#[pymethods]
impl Connection {
    #[new]
    #[pyo3(signature = (*_args, **_kwargs))]
    fn new(_args: &Bound<'_, PyTuple>, _kwargs: Option<&Bound<'_, PyDict>>) -> Self {
        Self::default()
    }

    /// Binds the connection to its loop and its limits.
    fn _setup(&mut self, event_loop: Py<PyAny>, config: &Config) {
        self.event_loop = Some(event_loop);
        self.limits = Limits {
            high_water: config.high_water,
            max_queue: config.max_queue,
            low_queue: config.low_queue,
        };
    }

    /// Opens the connection after its handshake.
    #[pyo3(signature = (negotiation, config, on_message=None, on_ping=None))]
    fn _open(
        slf: &Bound<'_, Self>,
        negotiation: &Negotiation,
        config: &Config,
        on_message: Option<Py<PyAny>>,
        on_ping: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        {
            let mut this = slf.borrow_mut();
            if matches!(this.phase, Phase::Handshake) {
                let connection =
                    sinews_bindings::Connection::new(negotiation.negotiated, config.proto.clone());
                this.phase = Phase::Open(Box::new(connection));
                this.on_message = on_message;
                this.on_ping = on_ping;
            }
        }
        // Starts the timer.
        driver::settle(slf)
    }

    /// Receives bytes that followed the peer's handshake.
    fn _feed(slf: &Bound<'_, Self>, data: &[u8]) -> PyResult<()> {
        driver::receive_bytes(slf, data)
    }

    /// Queues the handshake's bytes, and closes the transport behind them if asked.
    #[pyo3(signature = (data, close=false))]
    fn _write_raw(slf: &Bound<'_, Self>, data: &[u8], close: bool) -> PyResult<()> {
        {
            let mut this = slf.borrow_mut();
            this.raw.extend_from_slice(data);
            this.flags.closes_raw |= close;
        }
        driver::settle(slf)
    }

    /// Sends the queued bytes.
    fn _flush(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.borrow_mut().flags.is_flush_scheduled = false;
        driver::settle(slf)
    }

    fn _timeout(slf: &Bound<'_, Self>) -> PyResult<()> {
        {
            let mut this = slf.borrow_mut();
            this.timer = None;
            let is_unread = this.is_throttled();
            if let Phase::Open(connection) = &mut this.phase {
                if is_unread {
                    connection.note_unread();
                }
                connection.handle_timeout();
            }
        }
        driver::settle(slf)
    }

    /// Takes the next queued message; `None` if there is none.
    fn _take(slf: &Bound<'_, Self>) -> PyResult<Option<Py<PyAny>>> {
        let mut this = slf.borrow_mut();
        let message = this.queue.pop_front();
        if message.is_some() && this.queue.len() <= this.limits.low_queue && this.is_input_waiting() {
            drop(this);
            schedule_flush(slf)?;
        }
        Ok(message)
    }

    /// Sends the queued bytes. Returns an awaitable that ends when a message may be there.
    fn _wait(slf: &Bound<'_, Self>) -> PyResult<Py<Receiver>> {
        let py = slf.py();
        if !slf.borrow().flags.is_bursting {
            driver::settle(slf)?;
        }
        let error = {
            let mut this = slf.borrow_mut();
            let is_ready = !this.queue.is_empty();
            if !is_ready && matches!(this.phase, Phase::Lost) {
                drop(this);
                return Err(PyErr::from_value(slf.call_method0(intern!(py, "_closed_error"))?));
            }
            let receiver = match &this.receiver {
                Some(receiver) => receiver.clone_ref(py),
                None => {
                    let event_loop = this.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py));
                    let receiver = Py::new(py, Receiver::new(event_loop))?;
                    this.receiver = Some(receiver.clone_ref(py));
                    receiver
                }
            };
            let mut inner = receiver.borrow_mut(py);
            if !inner.is_awaited() {
                inner.restart(is_ready);
                drop(inner);
                return Ok(receiver);
            }
            drop(inner);
            drop(this);
            slf.call_method0(intern!(py, "_concurrency_error"))?
        };
        Err(PyErr::from_value(error))
    }

    /// Removes the queue's limit, and resumes reads.
    fn _unlimit(slf: &Bound<'_, Self>) -> PyResult<()> {
        {
            let mut this = slf.borrow_mut();
            this.flags.is_paused = false;
            this.limits.max_queue = usize::MAX;
            this.limits.low_queue = usize::MAX;
        }
        driver::settle(slf)
    }

    /// Sends a message. Returns a [`Queued`] as number.
    #[pyo3(signature = (message, text=None))]
    fn _send(slf: &Bound<'_, Self>, message: &Bound<'_, PyAny>, text: Option<bool>) -> PyResult<u8> {
        Ok(send(slf, message, text, None)? as u8)
    }

    /// Sends a message's next fragment.
    #[pyo3(signature = (piece, text, last))]
    fn _send_fragment(
        slf: &Bound<'_, Self>,
        piece: &Bound<'_, PyAny>,
        text: bool,
        last: bool,
    ) -> PyResult<u8> {
        Ok(send(slf, piece, Some(text), Some(last))? as u8)
    }

    /// Queues a message: `str` as text, bytes as binary, or as `kind` says. Returns whether to send no more until
    /// `on_drain`. A connection that is closing discards the message and returns `True`.
    #[pyo3(signature = (payload, kind=None))]
    fn send(slf: &Bound<'_, Self>, payload: &Bound<'_, PyAny>, kind: Option<i64>) -> PyResult<bool> {
        let text = match kind {
            None => None,
            Some(kind) if kind == EventKind::Text as i64 => Some(true),
            Some(kind) if kind == EventKind::Binary as i64 => Some(false),
            Some(kind) => {
                return Err(PyValueError::new_err(format!("kind must be TEXT (1) or BINARY (2): {kind}")));
            }
        };
        match send(slf, payload, text, None)? {
            Queued::Yes => Ok(false),
            Queued::Unsupported => {
                let name = payload.get_type().name()?;
                Err(PyTypeError::new_err(format!("payload must be str or bytes, not {name}")))
            }
            Queued::SlowDown | Queued::Closing | Queued::MessageOpen => Ok(true),
        }
    }

    /// Queues a ping. Returns `False` if the connection is closing.
    #[pyo3(signature = (payload=None))]
    fn _ping(slf: &Bound<'_, Self>, payload: Option<&[u8]>) -> PyResult<bool> {
        control(slf, payload, sinews_bindings::Connection::ping)
    }

    /// Queues a pong. Returns `False` if the connection is closing.
    #[pyo3(signature = (payload=None))]
    fn _pong(slf: &Bound<'_, Self>, payload: Option<&[u8]>) -> PyResult<bool> {
        control(slf, payload, sinews_bindings::Connection::pong)
    }

    /// Starts the closing handshake behind the queued messages. Returns whether the connection was open.
    #[pyo3(signature = (code=1000, reason=""))]
    fn _close(slf: &Bound<'_, Self>, code: u16, reason: &str) -> PyResult<bool> {
        let invalid =
            || PyValueError::new_err(format!("code must be 1000-1003, 1007-1014 or 3000-4999: {code}"));
        let code = CloseCode::new(code).ok_or_else(invalid)?;
        let result = slf.borrow_mut().start_close(code, reason);
        match result {
            Ok(()) => schedule_flush(slf).map(|()| true),
            Err(Misuse::ReasonTooLong) => Err(PyValueError::new_err("reason must have at most 123 bytes")),
            Err(_) => Ok(false),
        }
    }

    /// Closes the transport now.
    fn abort(slf: &Bound<'_, Self>) -> PyResult<()> {
        driver::lose(slf, None)
    }

    /// Stops to receive until `resume_reads`.
    fn pause_reads(&mut self) {
        self.flags.is_paused = true;
    }

    /// Receives again.
    fn resume_reads(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.borrow_mut().flags.is_paused = false;
        schedule_flush(slf)
    }

    /// 0 during the handshake, 1 open, 2 closing, 3 closed.
    #[getter]
    fn _state(&self) -> u8 {
        match &self.phase {
            Phase::Handshake => 0,
            Phase::Open(connection) if connection.is_open() => 1,
            Phase::Open(_) => 2,
            Phase::Lost => 3,
        }
    }

    /// Whether messages can be sent.
    #[getter]
    fn is_open(&self) -> bool {
        self._state() == 1
    }

    /// Queued bytes that the socket has not accepted.
    #[getter]
    fn buffered(&self) -> usize {
        self.buffered_bytes()
    }

    /// Whether a sender shall wait.
    #[getter]
    fn _is_congested(&self) -> bool {
        self.flags.is_congested
    }

    /// The close code: 1005 for a Close without a code, 1006 without a Close; `None` before the end.
    #[getter(_close_code)]
    fn close_code_number(&self) -> Option<u16> {
        Some(self.ending.as_ref()?.closed.as_ref().map_or(1006, Closed::status))
    }

    /// The close reason; `None` before the end.
    #[getter(_close_reason)]
    fn close_reason_text(&self) -> Option<String> {
        Some(
            self.ending
                .as_ref()?
                .closed
                .as_ref()
                .map_or_else(String::new, |closed| closed.reason().to_owned()),
        )
    }

    /// The peer's Close, the local Close, whether the peer's came first, and the fault.
    #[getter]
    #[allow(clippy::type_complexity, reason = "a tuple for Python")]
    fn _ending(&self) -> (Option<(u16, String)>, Option<(u16, String)>, bool, Option<String>) {
        let Some(Ending { closed, sent }) = &self.ending else { return (None, None, false, None) };
        let Some(closed) = closed else { return (None, sent.clone(), false, None) };
        let received = closed.is_orderly().then(|| (closed.status(), closed.reason().to_owned()));
        let fault = match closed.cause() {
            Cause::Fault(_) | Cause::Expired(_) | Cause::Overflow => Some(closed.to_string()),
            _ => None,
        };
        (received, sent.clone(), closed.cause() == Cause::Peer, fault)
    }

    /// The loop's transport, if the connection has no socket of its own.
    #[getter]
    fn _transport(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        match &self.link {
            Link::Transport(transport) => Some(transport.clone_ref(py)),
            Link::Socket { .. } | Link::None => None,
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let objects = [&self.event_loop, &self.poller, &self.on_message, &self.on_ping];
        for object in objects.into_iter().flatten() {
            visit.call(object)?;
        }
        if let Some(receiver) = &self.receiver {
            visit.call(receiver)?;
        }
        if let Some((_, timer)) = &self.timer {
            visit.call(timer)?;
        }
        match &self.link {
            Link::Socket { socket: object, .. } | Link::Transport(object) => visit.call(object),
            Link::None => Ok(()),
        }
    }

    fn __clear__(&mut self) {
        self.event_loop = None;
        self.poller = None;
        self.on_message = None;
        self.on_ping = None;
        self.receiver = None;
        self.timer = None;
        self.link = Link::None;
    }
}

impl Connection {
    /// Bytes that the socket has not accepted.
    pub(crate) fn buffered_bytes(&self) -> usize {
        let raw = self.raw.len() - self.raw_sent;
        match &self.phase {
            Phase::Open(connection) => raw + connection.buffered(),
            Phase::Handshake | Phase::Lost => raw,
        }
    }

    /// Whether nothing shall be read from the socket.
    pub(crate) fn is_throttled(&self) -> bool {
        let flags = &self.flags;
        flags.is_paused
            || flags.has_ended
            || self.queue.len() > self.limits.max_queue
            || matches!(&self.phase, Phase::Open(connection) if connection.is_paused())
    }

    /// Whether input waits for the queue.
    fn is_input_waiting(&self) -> bool {
        let is_paused = matches!(&self.phase, Phase::Open(connection) if connection.is_paused());
        (is_paused || !self.flags.is_reading) && !self.flags.has_ended
    }

    pub(crate) fn start_close(&mut self, code: CloseCode, reason: &str) -> Result<(), Misuse> {
        let Phase::Open(connection) = &mut self.phase else { return Err(Misuse::Closing) };
        connection.close(code, reason)?;
        self.local_close = Some((code.as_u16(), reason.to_owned()));
        Ok(())
    }

    /// Records how the connection has ended.
    pub(crate) fn end(&mut self) {
        let Phase::Open(mut connection) = std::mem::replace(&mut self.phase, Phase::Lost) else { return };
        connection.receive_end();
        let closed = connection.take_closed();
        let local = self.local_close.take();
        let sent = local.or_else(|| sent_close(closed.as_ref()?));
        self.ending = Some(Ending { closed, sent });
    }

    fn queue_message(&mut self, payload: &[u8], kind: Kind, last: Option<bool>) -> Queued {
        let Phase::Open(connection) = &mut self.phase else { return Queued::Closing };
        let sent = match last {
            None => connection.send(kind, payload),
            Some(last) => connection.send_fragment(kind, payload, last),
        };
        match sent {
            Ok(sinews_session::Sent::Dropped) | Err(Misuse::Closing) => return Queued::Closing,
            Ok(_) => {}
            Err(_) => return Queued::MessageOpen,
        }
        if connection.buffered() >= WRITE_MIN {
            self.write_early();
        }
        if self.flags.is_congested || self.buffered_bytes() > self.limits.high_water {
            self.flags.is_congested = true;
            return Queued::SlowDown;
        }
        Queued::Yes
    }
}

/// Returns the Close that the connection has sent without a call of [`Connection::start_close`].
fn sent_close(closed: &Closed) -> Option<(u16, String)> {
    match closed.cause() {
        Cause::Peer => Some((closed.status(), closed.reason().to_owned())),
        Cause::Fault(fault) => Some((fault.close_code().as_u16(), fault.reason().to_owned())),
        Cause::Expired(expired @ Expired::Pong) => Some((1011, expired.reason().to_owned())),
        Cause::Expired(expired @ Expired::Idle) => Some((1001, expired.reason().to_owned())),
        Cause::Overflow => Some((1008, closed.reason().to_owned())),
        _ => None,
    }
}

/// Queues a message or a fragment, and schedules the flush.
fn send(
    slf: &Bound<'_, Connection>,
    message: &Bound<'_, PyAny>,
    text: Option<bool>,
    last: Option<bool>,
) -> PyResult<Queued> {
    let kind = |default: Kind| match text {
        None => default,
        Some(true) => Kind::Text,
        Some(false) => Kind::Binary,
    };
    let (queued, is_scheduled) = if let Ok(bytes) = message.cast::<PyBytes>() {
        let kind = kind(Kind::Binary);
        if kind == Kind::Text && last.is_none() && std::str::from_utf8(bytes.as_bytes()).is_err() {
            return Err(PyValueError::new_err("text message must be UTF-8"));
        }
        queue(slf, bytes.as_bytes(), kind, last)?
    } else if let Ok(string) = message.cast::<PyString>() {
        queue(slf, string.to_cow()?.as_bytes(), kind(Kind::Text), last)?
    } else if let Ok(view) = PyMemoryView::from(message) {
        let bytes = view.call_method0(intern!(slf.py(), "tobytes"))?;
        return send(slf, &bytes, text, last);
    } else {
        return Ok(Queued::Unsupported);
    };
    if !is_scheduled {
        schedule_flush(slf)?;
    }
    Ok(queued)
}

/// Returns the result, and whether a flush follows in any case.
fn queue(
    slf: &Bound<'_, Connection>,
    payload: &[u8],
    kind: Kind,
    last: Option<bool>,
) -> PyResult<(Queued, bool)> {
    let mut this = slf.borrow_mut();
    let queued = this.queue_message(payload, kind, last);
    Ok((queued, this.flags.is_bursting || this.flags.is_flush_scheduled))
}

fn control(
    slf: &Bound<'_, Connection>,
    payload: Option<&[u8]>,
    send: impl FnOnce(&mut sinews_bindings::Connection, &[u8]) -> Result<sinews_session::Sent, Misuse>,
) -> PyResult<bool> {
    let result = match &mut slf.borrow_mut().phase {
        Phase::Open(connection) => send(connection, payload.unwrap_or_default()),
        Phase::Handshake | Phase::Lost => Err(Misuse::Closing),
    };
    match result {
        Ok(_) => schedule_flush(slf).map(|()| true),
        Err(Misuse::PingTooLong) => Err(PyValueError::new_err("data must have at most 125 bytes")),
        Err(_) => Ok(false),
    }
}

/// Schedules one flush for everything that is queued in this iteration of the loop.
pub(crate) fn schedule_flush(slf: &Bound<'_, Connection>) -> PyResult<()> {
    let event_loop = {
        let mut this = slf.borrow_mut();
        if this.flags.is_bursting || this.flags.is_flush_scheduled {
            return Ok(());
        }
        let Some(event_loop) = &this.event_loop else { return Ok(()) };
        let event_loop = event_loop.clone_ref(slf.py());
        this.flags.is_flush_scheduled = true;
        event_loop
    };
    let py = slf.py();
    let flush = slf.getattr(intern!(py, "_flush"))?;
    event_loop.call_method1(py, intern!(py, "call_soon"), (flush,)).map(drop)
}
