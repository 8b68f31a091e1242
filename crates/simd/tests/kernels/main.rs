//! Vector kernels against references.

mod mask;
mod utf8;
