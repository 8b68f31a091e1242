//! What each client protocol needs beside the topics: messages of clients, the hooks of a request, and the backends of the hub.

pub(crate) mod backends;
pub(crate) mod client_message;
pub(crate) mod request_hooks;
