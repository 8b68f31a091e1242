//! The program as it is started: what it says, serves and refuses.

mod auth;
mod config;
mod start;
mod support;
