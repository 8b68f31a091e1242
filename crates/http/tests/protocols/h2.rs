//! HTTP/2: rules of RFC 9113 and RFC 8441, attacks, splits of the input, and the client of another implementation.

mod allocations;
mod attacks;
mod client;
mod flow;
mod frames;
mod oracle;
mod requests;
mod splits;
mod support;
