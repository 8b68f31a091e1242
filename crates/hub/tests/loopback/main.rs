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
mod publications;
mod pusher;
mod recovery;
mod rejections;
mod senders;
mod support;
