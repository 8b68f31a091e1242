//! The protocol in memory: Autobahn's families, faults of other projects, properties; and the list of standards.

mod autobahn;
mod faults;
mod http;
mod lifetime;
mod probes;
mod properties;
mod standards;
