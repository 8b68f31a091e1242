//! Results that a store gives later.

use std::future::Future;
use std::pin::Pin;

use futures_util::future::Shared;

use crate::model::problem::Problem;

/// A result that a store gives later.
pub(crate) type StoreFuture<T> = Pin<Box<dyn Future<Output = Result<T, Problem>> + Send>>;

/// Completes when a stream, or this node's copy of a topic, can be used. All tasks that wait for it share it.
pub(crate) type SharedOpening = Shared<StoreFuture<()>>;
