//! Integration tests of the hub over loopback sockets. Brokers and further nodes of a cluster are in this process.

#[path = "../../../server/tests/shared/backend.rs"]
mod backend;
mod broker;
mod cluster;
mod embed;
mod errors;
mod events;
mod keys;
mod openapi;
mod presence;
mod pusher;
mod rejections;
mod support;
