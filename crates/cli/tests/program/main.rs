//! Tests of the program as a process: output, routes and rejections.

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
