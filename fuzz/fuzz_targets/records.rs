//! Entry point of cargo-fuzz for [`sinews_fuzz::records`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sinews_fuzz::records(data));
