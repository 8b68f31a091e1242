//! The dashboard in a build without the feature `pages`: nothing is reported.

use std::io;
use std::sync::Arc;

use sinews_server::{Monitor, Publisher};

use crate::background::Periodic;
use crate::config::ConfigHandle;
use crate::node::ServerInfo;
use crate::session::backends::Backends;
use crate::topics::HubTopics;

pub(crate) fn start(
    _monitor: Monitor,
    _publisher: Publisher,
    _hub: Arc<HubTopics>,
    _live: ConfigHandle,
    _backends: Backends,
    _server_info: ServerInfo,
) -> io::Result<Option<Periodic>> {
    Ok(None)
}
