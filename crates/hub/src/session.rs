//! What each client protocol needs beside the topics: client sessions, request hooks, and the hub's backends.

pub(crate) mod backends;
pub(crate) mod client_message;
pub(crate) mod client_session;
pub(crate) mod publishing;
pub(crate) mod request_hooks;
