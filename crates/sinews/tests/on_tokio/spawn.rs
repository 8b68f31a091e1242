//! Tasks of one type.

use std::pin::Pin;

use tokio::task::JoinHandle;

/// Spawns a future in a box: Tokio's task is compiled once for each output type, not for each future. That is a third
/// of these programs' code.
pub(crate) fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
    tokio::spawn(Box::pin(future) as Pin<Box<dyn Future<Output = T> + Send>>)
}
