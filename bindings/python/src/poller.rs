//! One descriptor of the loop for the sockets of many connections.

use std::os::fd::{AsFd as _, AsRawFd as _};

use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use sinews_bindings::socket::{self, Descriptor};

use crate::connection::Connection;
use crate::driver;

/// Calls readable connections: one call of the loop for all of them. It has the loop's methods for readers.
#[pyclass(module = "sinews._native")]
pub(crate) struct Poller {
    poller: socket::Poller,
    event_loop: Option<Py<PyAny>>,
    /// By their descriptors.
    connections: Vec<Option<Py<Connection>>>,
    count: usize,
}

#[pymethods]
impl Poller {
    #[new]
    fn new(event_loop: Py<PyAny>) -> PyResult<Self> {
        let poller = socket::Poller::new()?;
        Ok(Self { poller, event_loop: Some(event_loop), connections: Vec::new(), count: 0 })
    }

    /// Watches the socket of a connection.
    fn add_reader(slf: &Bound<'_, Self>, fd: Descriptor, connection: Py<Connection>) -> PyResult<()> {
        let py = slf.py();
        let (is_first, own) = {
            let mut this = slf.borrow_mut();
            this.poller.watch(fd, fd as u32)?;
            let at = fd as usize;
            if this.connections.len() <= at {
                this.connections.resize_with(at + 1, || None);
            }
            this.connections[at] = Some(connection);
            this.count += 1;
            (this.count == 1, this.poller.as_fd().as_raw_fd())
        };
        if is_first {
            let call = slf.getattr(intern!(py, "_readable"))?;
            Self::call_loop(slf, "add_reader", (own, call))?;
        }
        Ok(())
    }

    /// Watches a socket no longer.
    fn remove_reader(slf: &Bound<'_, Self>, fd: Descriptor) -> PyResult<()> {
        let (removed, is_last, own) = {
            let mut this = slf.borrow_mut();
            this.poller.unwatch(fd);
            let removed = this.connections.get_mut(fd as usize).and_then(Option::take);
            this.count -= usize::from(removed.is_some());
            (removed.is_some(), this.count == 0, this.poller.as_fd().as_raw_fd())
        };
        if removed && is_last {
            Self::call_loop(slf, "remove_reader", (own,))?;
        }
        Ok(())
    }

    /// Sockets are readable.
    fn _readable(slf: &Bound<'_, Self>) -> PyResult<()> {
        let py = slf.py();
        let ready: Vec<_> = {
            let mut this = slf.borrow_mut();
            let Self { poller, connections, .. } = &mut *this;
            let connection =
                |ready: socket::Ready| Some(connections.get(ready.id as usize)?.as_ref()?.clone_ref(py));
            poller.ready()?.filter_map(connection).collect()
        };
        // After an interrupt, the others are ready again.
        ready.iter().try_for_each(|connection| driver::read(connection.bind(py)))
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        for connection in self.connections.iter().flatten() {
            visit.call(connection)?;
        }
        self.event_loop.as_ref().map_or(Ok(()), |event_loop| visit.call(event_loop))
    }

    fn __clear__(&mut self) {
        self.event_loop = None;
        self.connections.clear();
    }
}

impl Poller {
    fn call_loop<'py>(
        slf: &Bound<'py, Self>,
        method: &str,
        arguments: impl pyo3::call::PyCallArgs<'py>,
    ) -> PyResult<()> {
        let event_loop = slf.borrow().event_loop.as_ref().map(|event_loop| event_loop.clone_ref(slf.py()));
        let Some(event_loop) = event_loop else { return Ok(()) };
        event_loop.bind(slf.py()).call_method1(method, arguments).map(drop)
    }
}
