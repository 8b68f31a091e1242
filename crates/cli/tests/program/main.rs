//! Tests of the program as a process: output, routes and rejections.

mod admission;
mod api;
mod apps;
mod auth;
mod cluster;
mod config;
mod dashboard;
mod deploy;
#[path = "../shared/directory.rs"]
mod directory;
#[cfg(feature = "connect")]
mod first_hour;
mod handover;
mod hooks;
#[cfg(feature = "connect")]
mod http2;
#[cfg(feature = "connect")]
mod http3;
mod jwks;
mod keys;
mod limits;
mod live;
mod namespaces;
mod ports;
mod protocol;
mod proxies;
#[cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]
#[allow(dead_code, reason = "the brokers that are compiled need a part of it")]
#[path = "../../../brokers/tests/bridges/broker/real.rs"]
mod real_broker;
mod reference;
mod reload;
mod secrets;
mod stalled;
mod start;
mod streams;
mod support;
mod tls;
mod usage;
mod versions;
mod waits;
mod webhooks;
