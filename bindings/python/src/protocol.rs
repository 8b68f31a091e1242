//! The methods of an asyncio protocol, for connections on the loop's transport.

use pyo3::intern;
use pyo3::prelude::*;

use crate::connection::{Connection, Link};
use crate::driver;

#[pymethods]
impl Connection {
    fn connection_made(slf: &Bound<'_, Self>, transport: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = slf.py();
        let high_water = {
            let mut this = slf.borrow_mut();
            this.link = Link::Transport(transport.clone().unbind());
            this.limits.high_water
        };
        transport.call_method1(intern!(py, "set_write_buffer_limits"), (high_water,))?;
        slf.call_method0(intern!(py, "_made")).map(drop)
    }

    fn data_received(slf: &Bound<'_, Self>, data: &[u8]) -> PyResult<()> {
        driver::receive_bytes(slf, data)
    }

    fn eof_received(slf: &Bound<'_, Self>) -> PyResult<()> {
        driver::receive_end(slf)
    }

    #[pyo3(signature = (exc))]
    fn connection_lost(slf: &Bound<'_, Self>, exc: Option<Bound<'_, PyAny>>) -> PyResult<()> {
        driver::finish(slf, exc.map(PyErr::from_value))
    }

    fn pause_writing(&mut self) {
        self.flags.is_blocked = true;
        self.flags.is_congested = true;
    }

    fn resume_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.borrow_mut().flags.is_blocked = false;
        driver::settle(slf)
    }
}
