//! Entry point of cargo-fuzz for [`sinews_fuzz::pusher`].
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| sinews_fuzz::pusher(data));
