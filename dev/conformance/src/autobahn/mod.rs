//! The case families of the Autobahn suite under its numbers, as data.
//!
//! Each frame, payload and expectation is that of the suite. Three things differ:
//!
//! * where Autobahn is content with a connection that merely ends, these want the Close with the right
//!   code and nothing behind it;
//! * a case is run in each role and cut in several ways, so that its own chopping is only one of them;
//! * the long ones (9, 12, 13) have the shapes of the suite with fewer rounds.

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
