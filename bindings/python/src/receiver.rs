//! The awaitable of a task that receives.

use pyo3::exceptions::PyRuntimeError;
use pyo3::exceptions::asyncio::CancelledError;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// A future for tasks, as asyncio defines one by its methods. One serves a connection for all its messages.
///
/// A task that waits for a burst runs within the loop's call for that burst: no further iteration of the loop and no
/// further write is needed for its answer.
#[pyclass(module = "sinews._native")]
pub(crate) struct Receiver {
    event_loop: Option<Py<PyAny>>,
    /// The task's callback and its context.
    callback: Option<(Py<PyAny>, Py<PyAny>)>,
    state: State,
    /// The task has to wait: the protocol between tasks and futures.
    #[pyo3(get, set)]
    _asyncio_future_blocking: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Ready,
    Cancelled,
}

#[pymethods]
impl Receiver {
    fn __await__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__(slf: &Bound<'_, Self>) -> Option<Py<Self>> {
        let mut this = slf.borrow_mut();
        if this.state == State::Waiting {
            this._asyncio_future_blocking = true;
            return Some(slf.clone().unbind());
        }
        None
    }

    fn get_loop(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.event_loop.as_ref().map(|event_loop| event_loop.clone_ref(py))
    }

    #[pyo3(signature = (callback, *, context=None))]
    fn add_done_callback(
        slf: &Bound<'_, Self>,
        callback: Py<PyAny>,
        context: Option<Py<PyAny>>,
    ) -> PyResult<()> {
        let py = slf.py();
        let context = match context {
            Some(context) => context,
            None => {
                py.import(intern!(py, "contextvars"))?.call_method0(intern!(py, "copy_context"))?.unbind()
            }
        };
        let mut this = slf.borrow_mut();
        if this.state != State::Waiting {
            drop(this);
            return call_soon(slf, &callback, &context);
        }
        if this.callback.is_some() {
            return Err(PyRuntimeError::new_err("two tasks wait for a message"));
        }
        this.callback = Some((callback, context));
        Ok(())
    }

    fn remove_done_callback(&mut self, py: Python<'_>, callback: &Bound<'_, PyAny>) -> PyResult<usize> {
        let is_same = match &self.callback {
            Some((known, _)) => known.bind(py).eq(callback)?,
            None => false,
        };
        if is_same {
            self.callback = None;
        }
        Ok(usize::from(is_same))
    }

    /// Wakes the task with an exception. The messages stay in the queue.
    #[pyo3(signature = (msg=None))]
    fn cancel(slf: &Bound<'_, Self>, msg: Option<Py<PyAny>>) -> PyResult<bool> {
        drop(msg);
        let callback = {
            let mut this = slf.borrow_mut();
            if this.state != State::Waiting {
                return Ok(false);
            }
            this.state = State::Cancelled;
            this.callback.take()
        };
        if let Some((callback, context)) = callback {
            call_soon(slf, &callback, &context)?;
        }
        Ok(true)
    }

    fn cancelled(&self) -> bool {
        self.state == State::Cancelled
    }

    fn done(&self) -> bool {
        self.state != State::Waiting
    }

    fn result(&self) -> PyResult<()> {
        match self.state {
            State::Ready => Ok(()),
            State::Cancelled => Err(CancelledError::new_err(())),
            State::Waiting => Err(PyRuntimeError::new_err("no message has arrived")),
        }
    }

    fn exception(&self) -> PyResult<()> {
        self.result()
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        if let Some((callback, context)) = &self.callback {
            visit.call(callback)?;
            visit.call(context)?;
        }
        self.event_loop.as_ref().map_or(Ok(()), |event_loop| visit.call(event_loop))
    }

    fn __clear__(&mut self) {
        self.event_loop = None;
        self.callback = None;
    }
}

impl Receiver {
    pub(crate) fn new(event_loop: Option<Py<PyAny>>) -> Self {
        Self { event_loop, callback: None, state: State::Ready, _asyncio_future_blocking: false }
    }

    /// Whether a task waits.
    pub(crate) fn is_awaited(&self) -> bool {
        self.state == State::Waiting && self.callback.is_some()
    }

    /// Lets the next task wait, unless a message is there.
    pub(crate) fn restart(&mut self, is_ready: bool) {
        self.state = if is_ready { State::Ready } else { State::Waiting };
    }
}

/// Wakes the task: at once in a call of the loop, otherwise in the loop's next iteration.
pub(crate) fn wake(slf: &Bound<'_, Receiver>, at_once: bool) -> PyResult<()> {
    let py = slf.py();
    let (callback, context) = {
        let mut this = slf.borrow_mut();
        if this.state != State::Waiting {
            return Ok(());
        }
        this.state = State::Ready;
        let Some(callback) = this.callback.take() else { return Ok(()) };
        callback
    };
    if at_once {
        return context.call_method1(py, intern!(py, "run"), (callback, slf)).map(drop);
    }
    call_soon(slf, &callback, &context)
}

fn call_soon(slf: &Bound<'_, Receiver>, callback: &Py<PyAny>, context: &Py<PyAny>) -> PyResult<()> {
    let py = slf.py();
    let Some(event_loop) = slf.borrow().get_loop(py) else { return Ok(()) };
    let options = PyDict::new(py);
    options.set_item(intern!(py, "context"), context)?;
    event_loop.bind(py).call_method(intern!(py, "call_soon"), (callback, slf), Some(&options)).map(drop)
}
