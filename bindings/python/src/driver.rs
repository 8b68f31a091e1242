//! Reads, writes and callbacks.

use std::cell::{Cell, RefCell};

use pyo3::exceptions::PyOSError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use sinews_bindings::{EventKind, socket};
use sinews_proto::{CloseCode, Kind};

use crate::connection::{Connection, Link, Phase};
use crate::events::Incoming;
use crate::receiver::wake;
use crate::steps::Step;

thread_local! {
    /// One receive's bytes.
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; RECEIVE_MAX]);
    /// Memory for one burst's events.
    static EVENTS: Cell<Vec<Incoming>> = const { Cell::new(Vec::new()) };
}

/// Bytes of one receive.
const RECEIVE_MAX: usize = 128 << 10;

/// Events whose memory is kept for the next burst.
const EVENTS_KEPT: usize = 1_024;

/// The socket is readable: receives a burst, calls the handlers, and sends their messages.
pub(crate) fn read(slf: &Bound<'_, Connection>) -> PyResult<()> {
    let py = slf.py();
    let mut events = EVENTS.take();
    let received = {
        let mut this = slf.borrow_mut();
        let Link::Socket { descriptor, .. } = this.link else { return Ok(()) };
        if this.flags.is_losing {
            // Closed by the handler of another connection.
            return Ok(());
        }
        if this.is_throttled() {
            // Reads stop when input arrives for a connection that takes none: a short pause costs no system call.
            this.flags.is_reading = false;
            drop(this);
            return watch(slf, "remove_reader", None);
        }
        BUFFER.with_borrow_mut(|buffer| {
            let received = socket::receive(descriptor, buffer);
            if let Ok(Some(count)) = received {
                this.take_chunk(py, &mut buffer[..count], &mut events);
            }
            received
        })
    };
    match received {
        Ok(Some(0)) => {
            EVENTS.set(events);
            receive_end(slf)
        }
        Ok(Some(_)) => {
            dispatch(slf, &mut events, true)?;
            if events.capacity() <= EVENTS_KEPT {
                EVENTS.set(events);
            }
            settle(slf)
        }
        Ok(None) => {
            EVENTS.set(events);
            Ok(())
        }
        Err(error) => lose(slf, Some(error.into())),
    }
}

/// Receives a burst from the loop's transport.
pub(crate) fn receive_bytes(slf: &Bound<'_, Connection>, data: &[u8]) -> PyResult<()> {
    let mut events = Vec::new();
    slf.borrow_mut().take_chunk(slf.py(), &mut data.to_vec(), &mut events);
    dispatch(slf, &mut events, false)?;
    settle(slf)
}

/// The peer has ended the transport.
pub(crate) fn receive_end(slf: &Bound<'_, Connection>) -> PyResult<()> {
    let is_handshake = {
        let mut this = slf.borrow_mut();
        this.flags.has_ended = true;
        if let Phase::Open(connection) = &mut this.phase {
            connection.receive_end();
        }
        matches!(this.phase, Phase::Handshake)
    };
    if is_handshake {
        dispatch(slf, &mut vec![Incoming::RawEnd], false)?;
    }
    settle(slf)
}

/// Calls the handlers, and wakes the task that receives: `at_once` in a call of the loop.
fn dispatch(slf: &Bound<'_, Connection>, events: &mut Vec<Incoming>, at_once: bool) -> PyResult<()> {
    let py = slf.py();
    let (on_message, receiver) = {
        let this = slf.borrow();
        let on_message = this.on_message.as_ref().map(|object| object.bind(py).clone());
        let receiver = this.receiver.as_ref().filter(|_| !this.queue.is_empty());
        (on_message, receiver.map(|receiver| receiver.bind(py).clone()))
    };
    for event in events.drain(..) {
        if let Err(error) = call_handler(slf, on_message.as_ref(), event) {
            fail(slf, error)?;
            break;
        }
        if on_message.is_some() && matches!(slf.borrow().phase, Phase::Lost) {
            break;
        }
    }
    let woken = receiver.map_or(Ok(()), |receiver| wake(&receiver, at_once));
    slf.borrow_mut().flags.is_bursting = false;
    woken
}

fn call_handler(
    slf: &Bound<'_, Connection>,
    on_message: Option<&Bound<'_, PyAny>>,
    event: Incoming,
) -> PyResult<()> {
    let py = slf.py();
    match event {
        Incoming::Message(kind, payload) => {
            let Some(on_message) = on_message else { return Ok(()) };
            let kind = if kind == Kind::Text { EventKind::Text } else { EventKind::Binary } as u8;
            on_message.call1((slf, kind, payload))?;
        }
        Incoming::Ping(payload) => {
            let on_ping = slf.borrow().on_ping.as_ref().map(|on_ping| on_ping.clone_ref(py));
            if let Some(on_ping) = on_ping {
                on_ping.call1(py, (slf, payload))?;
            }
        }
        Incoming::Pong(payload, round_trip) => {
            let round_trip = round_trip.map(|time| time.as_secs_f64());
            slf.call_method1(intern!(py, "_pong_received"), (payload, round_trip))?;
        }
        Incoming::Raw(bytes) => {
            slf.call_method1(intern!(py, "_raw"), (bytes,))?;
        }
        Incoming::RawEnd => {
            slf.call_method1(intern!(py, "_raw"), (py.None(),))?;
        }
    }
    Ok(())
}

/// A handler has raised: closes with 1011, and passes the exception to the loop's handler.
pub(crate) fn fail(slf: &Bound<'_, Connection>, error: PyErr) -> PyResult<()> {
    let py = slf.py();
    if !error.is_instance_of::<pyo3::exceptions::PyException>(py) {
        // An interrupt or an exit.
        slf.borrow_mut().flags.is_bursting = false;
        return Err(error);
    }
    let event_loop = {
        let mut this = slf.borrow_mut();
        if matches!(this.phase, Phase::Open(_)) {
            // Fails only if the connection is closing.
            let _ = this.start_close(CloseCode::INTERNAL, "");
        } else {
            this.flags.closes_raw = true;
        }
        this.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py))
    };
    let Some(event_loop) = event_loop else { return Err(error) };
    let context = PyDict::new(py);
    context.set_item("message", "exception in a WebSocket handler")?;
    context.set_item("exception", error.value(py))?;
    context.set_item("protocol", slf)?;
    event_loop.call_method1(py, intern!(py, "call_exception_handler"), (context,)).map(drop)
}

/// Sends the queued bytes, and makes the calls that are due.
pub(crate) fn settle(slf: &Bound<'_, Connection>) -> PyResult<()> {
    let py = slf.py();
    loop {
        let Some(step) = slf.borrow_mut().next_step(py) else { return Ok(()) };
        match step {
            Step::AddReader => watch(slf, "add_reader", Some("_readable"))?,
            Step::RemoveReader => watch(slf, "remove_reader", None)?,
            Step::AddWriter => watch(slf, "add_writer", Some("_writable"))?,
            Step::RemoveWriter => watch(slf, "remove_writer", None)?,
            Step::WriteTransport(bytes) => {
                call_link(slf, |link| link.call_method1(intern!(py, "write"), (bytes,)).map(drop))?;
            }
            Step::Shutdown => shut_down(slf)?,
            Step::Dispatch(mut events) => dispatch(slf, &mut events, false)?,
            Step::Drained => {
                if let Err(error) = slf.call_method0(intern!(py, "_drained")) {
                    fail(slf, error)?;
                }
            }
            Step::ArmTimer(delay) => arm(slf, delay)?,
            Step::Lose(error) => lose(slf, error)?,
        }
    }
}

/// Changes the events for which the loop watches the socket.
fn watch(slf: &Bound<'_, Connection>, method: &str, callback: Option<&str>) -> PyResult<()> {
    let py = slf.py();
    let (watcher, is_poller, descriptor) = {
        let this = slf.borrow();
        let is_poller = this.poller.is_some() && method.ends_with("_reader");
        let watcher = if is_poller { &this.poller } else { &this.event_loop };
        let (Some(watcher), Link::Socket { descriptor, .. }) = (watcher, &this.link) else {
            return Ok(());
        };
        (watcher.clone_ref(py), is_poller, *descriptor)
    };
    match callback {
        Some(_) if is_poller => watcher.call_method1(py, method, (descriptor, slf))?,
        Some(callback) => watcher.call_method1(py, method, (descriptor, slf.getattr(callback)?))?,
        None => watcher.call_method1(py, method, (descriptor,))?,
    };
    Ok(())
}

fn call_link<'py, R>(
    slf: &Bound<'py, Connection>,
    call: impl FnOnce(&Bound<'py, PyAny>) -> PyResult<R>,
) -> PyResult<Option<R>> {
    let link = match &slf.borrow().link {
        Link::Socket { socket: object, .. } | Link::Transport(object) => object.bind(slf.py()).clone(),
        Link::None => return Ok(None),
    };
    call(&link).map(Some)
}

fn shut_down(slf: &Bound<'_, Connection>) -> PyResult<()> {
    let py = slf.py();
    let is_socket = matches!(slf.borrow().link, Link::Socket { .. });
    let result = call_link(slf, |link| {
        if is_socket {
            // SHUT_WR.
            return link.call_method1(intern!(py, "shutdown"), (1,));
        }
        let ends_one_side = link.call_method0(intern!(py, "can_write_eof"))?.is_truthy()?;
        link.call_method0(if ends_one_side { intern!(py, "write_eof") } else { intern!(py, "close") })
    });
    match result {
        // The peer has closed the transport already.
        Err(error) if error.is_instance_of::<PyOSError>(py) => lose(slf, None),
        result => result.map(drop),
    }
}

fn arm(slf: &Bound<'_, Connection>, delay: std::time::Duration) -> PyResult<()> {
    let py = slf.py();
    let (event_loop, deadline, old) = {
        let mut this = slf.borrow_mut();
        let Some(event_loop) = this.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py)) else {
            return Ok(());
        };
        let Phase::Open(connection) = &this.phase else { return Ok(()) };
        let Some(deadline) = connection.deadline() else { return Ok(()) };
        (event_loop, deadline, this.timer.take())
    };
    if let Some((_, old)) = old {
        old.call_method0(py, intern!(py, "cancel"))?;
    }
    // A loop may call a timer a little early, within its clock's resolution.
    let delay = delay.as_secs_f64().min(DAY) + 0.001;
    let callback = slf.getattr(intern!(py, "_timeout"))?;
    let timer = event_loop.call_method1(py, intern!(py, "call_later"), (delay, callback))?;
    slf.borrow_mut().timer = Some((deadline, timer));
    Ok(())
}

/// The longest delay that each loop supports.
const DAY: f64 = 86_400.0;

/// Closes the transport, and ends the connection.
pub(crate) fn lose(slf: &Bound<'_, Connection>, error: Option<PyErr>) -> PyResult<()> {
    let py = slf.py();
    let (is_socket, is_reading, is_writing, has_ended) = {
        let mut this = slf.borrow_mut();
        if this.flags.is_losing || matches!(this.phase, Phase::Lost) {
            return Ok(());
        }
        this.flags.is_losing = true;
        let flags = &this.flags;
        let is_socket = matches!(this.link, Link::Socket { .. });
        (is_socket, flags.is_reading, flags.is_blocked, flags.has_ended || flags.closes_raw)
    };
    if !is_socket {
        let method = if has_ended && error.is_none() { intern!(py, "close") } else { intern!(py, "abort") };
        call_link(slf, |transport| transport.call_method0(method))?;
        return Ok(());
    }
    if is_reading {
        watch(slf, "remove_reader", None)?;
    }
    if is_writing {
        watch(slf, "remove_writer", None)?;
    }
    call_link(slf, |socket| socket.call_method0(intern!(py, "close")))?;
    finish(slf, error)
}

/// The transport is closed: tells the handlers.
pub(crate) fn finish(slf: &Bound<'_, Connection>, error: Option<PyErr>) -> PyResult<()> {
    let py = slf.py();
    let (timer, callbacks) = {
        let mut this = slf.borrow_mut();
        this.end();
        this.phase = Phase::Lost;
        let callbacks = (this.on_message.take(), this.on_ping.take());
        (this.timer.take(), callbacks)
    };
    drop(callbacks);
    if let Some((_, timer)) = timer {
        timer.call_method0(py, intern!(py, "cancel"))?;
    }
    let error = error.map(|error| error.into_value(py));
    if let Err(error) = slf.call_method1(intern!(py, "_lost"), (error,)) {
        fail(slf, error)?;
    }
    let receiver = slf.borrow().receiver.as_ref().map(|receiver| receiver.bind(py).clone());
    receiver.map_or(Ok(()), |receiver| wake(&receiver, false))
}
