//! `cargo bench -p sinews-benches --bench core`, `deflate`, `echo` or `kernels`. A package needs a library or a program.

#![forbid(unsafe_code)]
