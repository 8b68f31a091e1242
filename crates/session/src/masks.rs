//! Mask keys from the operating system's random source.

/// Keys drawn in batches: one call of the system for 64 frames. Each is used once (RFC 6455 section
/// 5.3: unpredictable to whoever chose the payload).
pub(crate) fn from_os() -> impl FnMut() -> [u8; 4] + Send + 'static {
    let mut batch = [0; 256];
    let mut at = batch.len();
    move || {
        if at == batch.len() {
            // A system without randomness cannot speak the protocol safely, and none of ours is.
            getrandom::fill(&mut batch).expect("the operating system gives random bytes");
            at = 0;
        }
        let key = [batch[at], batch[at + 1], batch[at + 2], batch[at + 3]];
        at += 4;
        key
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn keys_differ() {
        let mut masks = super::from_os();
        let keys: std::collections::HashSet<[u8; 4]> = (0..1000).map(|_| masks()).collect();
        assert!(keys.len() > 990, "{} of 1000 differ", keys.len());
    }
}
