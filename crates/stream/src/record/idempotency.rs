//! Idempotency keys: if a record was published with one, its key has it behind a prefix.

/// Start of the key in a record that was published with an idempotency key; the rest of the key is the idempotency key.
/// A server rejects other records with such keys, so that no payload and no key of a client can forge one.
pub const IDEMPOTENCY_PREFIX: &[u8] = b"sinews-idempotency-key:";

/// The idempotency key in a record's key, if the record was published with one.
pub fn idempotency_key(key: &[u8]) -> Option<&[u8]> {
    key.strip_prefix(IDEMPOTENCY_PREFIX)
}
