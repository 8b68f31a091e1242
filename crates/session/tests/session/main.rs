//! Sessions over memory: the driver's half of the library.

mod deferred;
mod large;
mod overflow;
mod pieces;
mod sending;
mod tagged;
