//! `sinews connect` as it is started: against our servers, and against scripts that say what a test wants.

mod console;
mod ends;
mod inspect;
mod listen;
mod pipe;
mod probe;
mod record;
mod request;
mod support;
mod way;
