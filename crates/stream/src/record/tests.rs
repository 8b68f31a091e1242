//! Tests of the format against hand-written bytes, and of every kind of damage.

use bytes::Bytes;

use super::*;

fn records(values: &[&[u8]]) -> Records {
    let mut builder = RecordBuilder::new();
    for (index, value) in values.iter().enumerate() {
        builder.push(index as u64, b"k", value, ValueKind::Text).unwrap();
    }
    builder.finish().unwrap()
}

fn batch(base: u64, appended: u64, records: &Records) -> Vec<u8> {
    [&BatchHeader::new(records, base, appended).encode()[..], records.bytes()].concat()
}

#[test]
fn record_is_encoded_as_documented() {
    let mut builder = RecordBuilder::new();
    builder.push(0x0102_0304_0506_0708, b"key", b"value", ValueKind::Json).unwrap();
    let bytes = builder.finish().unwrap().into_bytes();
    let rest =
        [28, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 3, 0, 2, 0, b'k', b'e', b'y', b'v', b'a', b'l', b'u', b'e'];
    assert_eq!(bytes[4..], rest);
    assert_eq!(bytes[..4], crc32c::crc32c(&rest).to_le_bytes());
    // The check value of CRC-32C (RFC 3720 appendix B.4 uses the same polynomial).
    assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
}

#[test]
fn batch_header_is_encoded_as_documented() {
    let mut header =
        BatchHeader { base: 0x0102, appended: 0x0304, count: 5, length: 0x1000, tag: Some(0x0506) };
    let bytes = header.encode();
    let mut rest = [0, 16, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 1, 0, 0, 0];
    assert_eq!(bytes[4..32], rest);
    assert_eq!(bytes[32..], [6, 5, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[..4], crc32c::crc32c(&bytes[4..]).to_le_bytes());
    assert_eq!((BatchHeader::decode(&bytes), header.size()), (Ok(header), 40));
    assert_eq!(header.end(), 0x0107);
    // Version 1, and batches with a broker's records.
    header.tag = None;
    rest[24] = 0;
    let bytes = header.encode();
    assert_eq!(bytes[4..32], rest);
    assert_eq!(bytes[..4], crc32c::crc32c(&rest).to_le_bytes());
    assert_eq!((BatchHeader::decode(&bytes[..32]), header.size()), (Ok(header), 32));
}

#[test]
fn built_records_are_decoded_unchanged() {
    let built = records(&[b"a", b"", b"ccc"]);
    let checked = Records::check(built.bytes().clone(), &RecordLimits::default()).unwrap();
    assert_eq!(checked.count(), 3);
    let found: Vec<_> =
        checked.iter().map(|record| record.unwrap()).map(|r| (r.offset, r.timestamp, r.value)).collect();
    assert_eq!(found, [(0, 0, &b"a"[..]), (1, 1, b""), (2, 2, b"ccc")]);
    let file = [batch(7, 100, &checked), batch(20, 100, &checked)].concat();
    let offsets: Vec<u64> =
        iter(&file).flat_map(|batch| batch.unwrap().records()).map(|record| record.unwrap().offset).collect();
    assert_eq!(offsets, [7, 8, 9, 20, 21, 22]);
}

#[test]
fn any_damage_is_detected() {
    let good = records(&[b"first", b"second"]);
    let file = batch(3, 9, &good);
    let check = |mut bytes: &[u8]| split_batch(&mut bytes).and_then(|batch| batch.check());
    assert_eq!(check(&file), Ok(()));
    for bit in 0..file.len() * 8 {
        let mut bad = file.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(check(&bad).is_err(), "bit {bit}");
    }
    for cut in 1..file.len() {
        assert!(check(&file[..cut]).is_err(), "cut {cut}");
        if cut > BATCH_HEADER {
            let sent = Bytes::copy_from_slice(&file[BATCH_HEADER..cut]);
            let whole = cut - BATCH_HEADER == RECORD_HEADER + 1 + 5;
            assert_eq!(Records::check(sent, &RecordLimits::default()).is_ok(), whole, "cut {cut}");
        }
    }
}

#[test]
fn tombstone_of_a_producer_has_no_value() {
    let mut builder = RecordBuilder::new();
    assert_eq!(builder.push(0, b"k", b"v", ValueKind::Tombstone), Err(RecordError::Size));
    builder.push(0, b"k", b"", ValueKind::Tombstone).unwrap();
    let tombstone = builder.finish().unwrap().into_bytes();
    let checked = Records::check(tombstone.clone(), &RecordLimits::default()).unwrap();
    let record = checked.iter().next().unwrap().unwrap();
    assert_eq!((record.key, record.value, record.kind), (&b"k"[..], &b""[..], ValueKind::Tombstone));
    // Only compaction notes a time, with which the tombstone expires.
    let mut stamped = bytes::BytesMut::new();
    write_tombstone(&split_raw(&mut &tombstone[..], 0).unwrap(), 77, &mut stamped);
    let raw = split_raw(&mut &stamped[..], 5).unwrap();
    assert_eq!((raw.record.offset, raw.record.value, raw.tombstone_time), (5, &b""[..], Some(77)));
    let checked = Records::check(stamped.clone().freeze(), &RecordLimits::default());
    assert_eq!(checked.unwrap_err(), RecordError::Reserved);
}

#[test]
fn newer_version_is_distinguished_from_damage() {
    let mut header = BatchHeader { base: 0, appended: 0, count: 1, length: 100, tag: None }.encode();
    header[28] = 2;
    let crc = crc32c::crc32c(&header[4..32]);
    header[..4].copy_from_slice(&crc.to_le_bytes());
    assert_eq!(BatchHeader::decode(&header), Err(RecordError::Reserved));
    for (at, value) in [(18, 4), (19, 1)] {
        let mut record = records(&[b"a"]).into_bytes().to_vec();
        record[at] = value;
        let crc = crc32c::crc32c(&record[4..]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
        let checked = Records::check(record.into(), &RecordLimits::default());
        assert_eq!(checked.unwrap_err(), RecordError::Reserved);
    }
}

#[test]
fn limits_apply_to_building_and_checking() {
    let limits = RecordLimits::default().with_max_bytes(2 * (RECORD_HEADER + 2)).with_max_count(2);
    let mut builder = RecordBuilder::with_limits(limits);
    builder.push(0, b"k", b"v", ValueKind::Bytes).unwrap();
    assert_eq!(builder.push(0, b"k", b"vv", ValueKind::Bytes), Err(RecordError::TooLarge));
    builder.push(0, b"k", b"v", ValueKind::Bytes).unwrap();
    assert_eq!(builder.push(0, b"", b"", ValueKind::Bytes), Err(RecordError::TooLarge));
    assert_eq!(RecordBuilder::new().push(0, &[0; 65_536], b"", ValueKind::Bytes), Err(RecordError::TooLarge));
    let bytes = builder.finish().unwrap().into_bytes();
    assert!(builder.is_empty() && builder.finish().is_none());
    assert!(Records::check(bytes.clone(), &limits).is_ok());
    assert_eq!(Records::check(bytes.clone(), &limits.with_max_count(1)).unwrap_err(), RecordError::TooLarge);
    assert_eq!(Records::check(bytes, &limits.with_max_bytes(43)).unwrap_err(), RecordError::TooLarge);
    assert_eq!(Records::check(Bytes::new(), &limits).unwrap_err(), RecordError::Empty);
}

#[test]
fn only_keys_have_idempotency_keys() {
    let records = |all: &[(&[u8], &[u8])]| {
        let mut builder = RecordBuilder::new();
        for (key, value) in all {
            builder.push(0, key, value, ValueKind::Bytes).unwrap();
        }
        builder.finish().unwrap()
    };
    let prefixed = [IDEMPOTENCY_PREFIX, b"a"].concat();
    assert_eq!(idempotency_key(&prefixed), Some(&b"a"[..]));
    assert_eq!(idempotency_key(b"a"), None);
    let (with_key, without) = (b"sinews-sender:~k {\"user\":\"a b\"}", b"sinews-sender: {}");
    assert_eq!((idempotency_key(with_key), idempotency_key(without)), (Some(&b"~k"[..]), None));
    assert_eq!(deduplication_id(with_key), b"sinews-sender:~k");
    assert_eq!((sender(with_key), sender(without)), (Some(&b"{\"user\":\"a b\"}"[..]), Some(&b"{}"[..])));
    assert_eq!(
        (sender(b"sinews-sender:"), sender(&prefixed), deduplication_id(b"a")),
        (None, None, &b"a"[..])
    );
    assert!(records(&[(b"k", b"v"), (&prefixed, b"v")]).have_idempotency_key());
    assert!(records(&[(IDEMPOTENCY_PREFIX, b"")]).have_idempotency_key());
    // A value that begins with the prefix, or completes a key that does.
    assert!(!records(&[(b"", &prefixed), (&prefixed[..5], &prefixed[5..])]).have_idempotency_key());
}
