//! Idempotency keys and senders: a record's key has them behind a prefix.

/// Start of the key in a record that was published with an idempotency key; the rest of the key is the idempotency key.
/// A server rejects other records with such keys, so that no payload and no key of a client can forge one.
pub const IDEMPOTENCY_PREFIX: &[u8] = b"sinews-idempotency-key:";

/// Start of the key in a record with a sender that the server has verified. The idempotency key follows, if there is
/// one, then a space, and the sender. Such an idempotency key has no space. A server rejects other records with such
/// keys.
pub const SENDER_PREFIX: &[u8] = b"sinews-sender:";

/// The idempotency key in a record's key, if the record was published with one.
pub fn idempotency_key(key: &[u8]) -> Option<&[u8]> {
    match split_sender(key) {
        Some((once, _)) => Some(once).filter(|once| !once.is_empty()),
        None => key.strip_prefix(IDEMPOTENCY_PREFIX),
    }
}

/// The sender in a record's key, if it has one.
pub fn sender(key: &[u8]) -> Option<&[u8]> {
    split_sender(key).map(|(_, sender)| sender)
}

/// The part of a record's key by which a store finds an earlier record with the same idempotency key: the same for all
/// senders.
pub fn deduplication_id(key: &[u8]) -> &[u8] {
    match split_sender(key) {
        Some((once, _)) => &key[..SENDER_PREFIX.len() + once.len()],
        None => key,
    }
}

/// The idempotency key, which may be empty, and the sender.
fn split_sender(key: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = key.strip_prefix(SENDER_PREFIX)?;
    let space = rest.iter().position(|byte| *byte == b' ')?;
    Some((&rest[..space], &rest[space + 1..]))
}
