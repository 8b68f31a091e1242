//! Results of the codec, with the feature `deflate` and without it.

/// The peer's bytes are not the deflate stream of a complete message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BadDeflate;

/// The result of one call of [`Inflater::inflate`](super::Inflater::inflate) or [`Inflater::finish`](super::Inflater::finish).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inflated {
    /// Consumed input bytes.
    pub(crate) consumed: usize,
    /// Bytes appended to the output.
    #[allow(dead_code, reason = "unused without the feature deflate")]
    pub(crate) produced: usize,
    /// At least one more byte of output exists than the capacity permits.
    ///
    /// A message that fills the capacity exactly is not full: this distinguishes a message at the limit from a message
    /// one byte above the limit.
    pub(crate) full: bool,
}
