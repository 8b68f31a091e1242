//! The program as it is started: what it says, serves and refuses.

mod admission;
mod auth;
mod config;
mod handover;
mod limits;
mod protocol;
mod proxies;
mod start;
mod streams;
mod support;
mod tls;
mod usage;
mod waits;
