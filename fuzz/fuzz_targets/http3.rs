//! Entry point of cargo-fuzz for [`sinews_fuzz::http3`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sinews_fuzz::http3(data));
