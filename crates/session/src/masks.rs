//! Mask keys from the operating system's random source.

/// Mask keys drawn in batches: one system call for 64 frames. Each key is used once, so the sender of a
/// payload cannot predict it (RFC 6455 section 5.3).
pub(crate) fn from_os() -> impl FnMut() -> [u8; 4] + Send + 'static {
    let mut batch = [0; 256];
    let mut at = batch.len();
    move || {
        if at == batch.len() {
            // The protocol is unsafe without randomness. All supported systems provide it.
            getrandom::fill(&mut batch).expect("getrandom failed: no random bytes from the operating system");
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
