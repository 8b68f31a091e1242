//! Limits and timeouts, shared by the connections of one `connect` or `serve`.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use sinews_proto::deflate::{DeflateConfig, DeflateMode};

/// Limits, timeouts and compression.
#[pyclass(frozen, module = "sinews._native")]
pub(crate) struct Config {
    pub(crate) proto: Arc<sinews_proto::Config>,
    pub(crate) deflate: Option<DeflateConfig>,
    /// Queued bytes above which a sender shall slow down.
    pub(crate) high_water: usize,
    /// Queued messages above which nothing is read from the socket.
    pub(crate) max_queue: usize,
    /// Queued messages at which reads resume.
    pub(crate) low_queue: usize,
}

#[pymethods]
impl Config {
    #[new]
    #[pyo3(signature = (*, max_message, max_frame=None, ping_interval, pong_timeout, idle_timeout, write_timeout,
        close_timeout, high_water, max_outbound, max_queue=None, low_queue=0, pause_reads=false, deflate=None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        max_message: Option<u64>,
        max_frame: Option<u64>,
        ping_interval: Option<f64>,
        pong_timeout: Option<f64>,
        idle_timeout: Option<f64>,
        write_timeout: Option<f64>,
        close_timeout: Option<f64>,
        high_water: usize,
        max_outbound: Option<usize>,
        max_queue: Option<usize>,
        low_queue: usize,
        pause_reads: bool,
        deflate: Option<(u8, bool)>,
    ) -> PyResult<Self> {
        let max_message = max_message.unwrap_or(u32::MAX.into());
        let proto = sinews_proto::Config::default()
            .with_max_message(max_message)
            .with_max_frame(max_frame.unwrap_or(max_message))
            .with_ping_interval(seconds("ping_interval", ping_interval)?)
            .with_pong_timeout(seconds("pong_timeout", pong_timeout)?.unwrap_or(NEVER))
            .with_idle_timeout(seconds("idle_timeout", idle_timeout)?)
            .with_write_timeout(seconds("write_timeout", write_timeout)?.unwrap_or(NEVER))
            .with_close_timeout(seconds("close_timeout", close_timeout)?.unwrap_or(NEVER))
            // The Close is answered behind the messages of the burst's handlers.
            .with_answers(false)
            .with_high_water(if pause_reads { high_water } else { usize::MAX })
            .with_max_outbound(max_outbound.unwrap_or(usize::MAX));
        proto.check().map_err(|fault| PyValueError::new_err(fault.to_string()))?;
        let deflate = deflate.map(|(level, takeover)| deflate_config(level, takeover)).transpose()?;
        Ok(Self {
            proto: Arc::new(proto),
            deflate,
            high_water,
            max_queue: max_queue.unwrap_or(usize::MAX),
            low_queue,
        })
    }
}

/// Longer than any connection, and far from an overflow.
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

fn seconds(name: &str, value: Option<f64>) -> PyResult<Option<Duration>> {
    let Some(value) = value else { return Ok(None) };
    match Duration::try_from_secs_f64(value) {
        Ok(duration) => Ok(Some(duration.min(NEVER))),
        Err(_) if value == f64::INFINITY => Ok(Some(NEVER)),
        Err(_) => Err(PyValueError::new_err(format!("{name} must not be negative: {value}"))),
    }
}

fn deflate_config(level: u8, takeover: bool) -> PyResult<DeflateConfig> {
    let mode = if takeover { DeflateMode::Dedicated } else { DeflateMode::Shared };
    let config = DeflateConfig::new().with_mode(mode).with_level(level);
    config.map_err(|_| PyValueError::new_err(format!("deflate level must be 1 to 9: {level}")))
}
