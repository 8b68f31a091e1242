//! Random keys and masks.

use crate::payload::mix;

/// Returns 16 random bytes for a handshake. Without randomness, there are no mask keys either.
pub(super) fn key() -> [u8; 16] {
    let mut key = [0; 16];
    let _ = getrandom::fill(&mut key);
    key
}

/// Returns a mask key generator for this thread. Browsers need unpredictable keys (RFC 6455 section 10.3), a load
/// generator does not. One random seed replaces a system call per 64 keys.
pub(super) fn masks() -> impl FnMut() -> [u8; 4] + Send + 'static {
    let [seed @ .., _, _, _, _, _, _, _, _] = key();
    let mut state = u64::from_le_bytes(seed);
    move || {
        state = mix(state);
        (state as u32).to_le_bytes()
    }
}
