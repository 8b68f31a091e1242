//! The methods for connections with a socket of their own.

use pyo3::intern;
use pyo3::prelude::*;
use sinews_bindings::socket::Descriptor;

use crate::connection::{Connection, Link};
use crate::driver;

#[pymethods]
impl Connection {
    /// Takes over a connected, nonblocking socket, which the loop or a poller watches for input.
    #[pyo3(signature = (socket, poller=None))]
    fn _attach(slf: &Bound<'_, Self>, socket: &Bound<'_, PyAny>, poller: Option<Py<PyAny>>) -> PyResult<()> {
        let descriptor: Descriptor = socket.call_method0(intern!(slf.py(), "fileno"))?.extract()?;
        {
            let mut this = slf.borrow_mut();
            this.link = Link::Socket { socket: socket.clone().unbind(), descriptor };
            this.poller = poller;
        }
        driver::settle(slf)
    }

    /// The socket is readable.
    fn _readable(slf: &Bound<'_, Self>) -> PyResult<()> {
        driver::read(slf)
    }

    /// The socket is writable.
    fn _writable(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.borrow_mut().retry_write();
        driver::settle(slf)
    }
}
