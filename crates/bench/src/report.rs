//! Output formats of a result.

pub(crate) mod html;
pub(crate) mod table;
pub(crate) mod units;
