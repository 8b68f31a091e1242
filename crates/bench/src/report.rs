//! How a result is shown.

pub(crate) mod html;
pub(crate) mod table;
pub(crate) mod units;
