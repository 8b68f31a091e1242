//! Output formats of a result.

mod chart;
pub(crate) mod html;
pub(crate) mod table;
pub(crate) mod units;
