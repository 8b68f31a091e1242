//! `sinews connect` as a process: against this project's servers, and against scripted servers.

mod console;
mod ends;
mod hostile;
mod inspect;
mod listen;
mod pipe;
mod probe;
mod record;
mod request;
mod route;
pub(crate) mod support;
