//! Tests of the bridges: against scripted brokers, a mock cluster in this process, and real brokers.

#![cfg(any(feature = "kafka", feature = "nats", feature = "redis"))]

#[allow(dead_code, reason = "the bridges that are compiled need a part of it")]
mod broker;
#[cfg(feature = "kafka")]
mod mock;
#[cfg(feature = "nats")]
mod nats;
#[cfg(any(feature = "nats", feature = "redis"))]
mod peers;
mod real;
