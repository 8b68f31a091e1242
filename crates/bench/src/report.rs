//! A result's output formats.

mod chart;
pub(crate) mod html;
pub(crate) mod table;
pub(crate) mod units;
