//! Entry point of cargo-fuzz for [`sinews_fuzz::session`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sinews_fuzz::session(data));
