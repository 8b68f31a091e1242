//! Tables of the file for each connection.

use serde::Deserialize;

use super::units::{Bytes, SomeWait, WaitOrOff};
use crate::args::{RejectBrowsers, Slow};

/// `[http]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct HttpValues {
    pub(crate) max_body: Option<Bytes>,
    pub(crate) head_timeout: Option<SomeWait>,
    pub(crate) keep_alive_timeout: Option<SomeWait>,
    pub(crate) min_upload_rate: Option<u64>,
}

/// `[websocket]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct WebSocketValues {
    pub(crate) ping_interval: Option<WaitOrOff>,
    pub(crate) pong_timeout: Option<SomeWait>,
    pub(crate) idle_timeout: Option<WaitOrOff>,
    pub(crate) high_water: Option<Bytes>,
    pub(crate) max_outbound: Option<Bytes>,
    pub(crate) overflow: Option<Slow>,
    pub(crate) reject_browsers: Option<RejectBrowsers>,
}
