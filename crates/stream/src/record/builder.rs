//! Encoding of records by a producer.

use bytes::{BufMut, BytesMut};

use super::{RECORD_HEADER, RawRecord, Record, RecordError, RecordLimits, Records, ValueKind};

/// Encodes records into one buffer.
#[derive(Debug, Default)]
pub struct RecordBuilder {
    bytes: BytesMut,
    count: u32,
    limits: RecordLimits,
}

impl RecordBuilder {
    /// Creates an empty builder with the default [`RecordLimits`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty builder with these limits.
    #[must_use]
    pub fn with_limits(limits: RecordLimits) -> Self {
        Self { limits, ..Self::default() }
    }

    /// Appends a record.
    ///
    /// `timestamp` is in microseconds since 1970; an empty key means no key. A tombstone has no value.
    ///
    /// # Errors
    ///
    /// [`RecordError::TooLarge`] if the limits or a key length of 65,535 bytes are exceeded, [`RecordError::Size`] if a
    /// tombstone has a value. The builder is then unchanged.
    pub fn push(
        &mut self,
        timestamp: u64,
        key: &[u8],
        value: &[u8],
        kind: ValueKind,
    ) -> Result<(), RecordError> {
        if kind == ValueKind::Tombstone && !value.is_empty() {
            return Err(RecordError::Size);
        }
        let key_size = u16::try_from(key.len()).map_err(|_| RecordError::TooLarge)?;
        let size = RECORD_HEADER + key.len() + value.len();
        let fits = size <= self.limits.bytes.saturating_sub(self.bytes.len());
        if !fits || self.count == self.limits.count {
            return Err(RecordError::TooLarge);
        }
        let start = self.bytes.len();
        self.bytes.reserve(size);
        self.bytes.put_u32_le(0);
        // The limit on all bytes is below 4 GiB.
        self.bytes.put_u32_le(size as u32);
        self.bytes.put_u64_le(timestamp);
        self.bytes.put_u16_le(key_size);
        self.bytes.put_u8(kind as u8);
        self.bytes.put_u8(0);
        self.bytes.put_slice(key);
        self.bytes.put_slice(value);
        let crc = crc32c::crc32c(&self.bytes[start + 4..]);
        self.bytes[start..start + 4].copy_from_slice(&crc.to_le_bytes());
        self.count += 1;
        Ok(())
    }

    /// As [`push`](Self::push). The offset is not encoded.
    pub(crate) fn push_record(&mut self, record: &Record<'_>) -> Result<(), RecordError> {
        self.push(record.timestamp, record.key, record.value, record.kind)
    }

    /// Record count.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Encoded bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether the builder has no records.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes the records, if there are any. The builder is empty afterwards and can be reused.
    pub fn finish(&mut self) -> Option<Records> {
        let count = std::mem::take(&mut self.count);
        (count > 0).then(|| Records { bytes: self.bytes.split().freeze(), count })
    }
}

/// Encodes a tombstone with the time at which the older records of its key were removed.
pub(crate) fn write_tombstone(raw: &RawRecord<'_>, time: u64, out: &mut BytesMut) {
    let start = out.len();
    out.extend_from_slice(&raw.bytes[..RECORD_HEADER + raw.record.key.len()]);
    out.put_u64_le(time);
    let size = (out.len() - start) as u32;
    out[start + 4..start + 8].copy_from_slice(&size.to_le_bytes());
    let crc = crc32c::crc32c(&out[start + 4..]);
    out[start..start + 4].copy_from_slice(&crc.to_le_bytes());
}
