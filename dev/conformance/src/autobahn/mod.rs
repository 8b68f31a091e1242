//! The Autobahn suite's case families under its numbers, as data.
//!
//! Each frame, payload and expectation equals the suite's. There are three differences:
//!
//! * where Autobahn accepts a closed transport, these cases require a Close with the right code as the last
//!   frame;
//! * a case is run in each role and cut in several ways, including the suite's chopping;
//! * the long sections (9, 12, 13) have the suite's shapes with fewer rounds.

mod close;
mod deflate;
mod framing;
mod sizes;
mod utf8;

pub use close::section_7;
pub use deflate::{Family, SHAPES, Shape, section_12, section_13};
pub use framing::{section_1, section_2, section_3, section_4, section_5};
pub use sizes::{section_9_fragmented, section_9_round_trips, section_9_whole, section_10};
pub use utf8::{first_impossible_byte, section_6};
