//! Records and batches of streams, compared with a decoder written from their tables and a bitwise checksum.

use bytes::Bytes;
use sinews_stream::record::{self, RecordBuilder, RecordLimits, Records, ValueKind};

use crate::input::Input;

/// Maximum of all sizes, so that inputs reach the limits.
const MOST: usize = 4096;
const MOST_RECORDS: u32 = 16;

/// Fuzzes records and batches. The first byte selects the use of the rest: as is, with corrected checksums,
/// or as decisions to build records.
///
/// # Panics
///
/// If the decoders do not agree, or the decoded records differ from the built records.
pub fn records(data: &[u8]) {
    let mut input = Input::new(data);
    match input.below(4) {
        0 => sent(input.rest()),
        1 => sent(&with_checksums(input.rest(), 0, Shape::Record)),
        2 => stored(&with_checksums(input.rest(), 0, Shape::Batch)),
        _ => made(&mut input),
    }
}

/// A record as described in the table.
#[derive(Debug, PartialEq, Eq)]
struct Read<'a> {
    offset: u64,
    timestamp: u64,
    kind: u8,
    key: &'a [u8],
    value: &'a [u8],
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// Computes CRC-32C by its polynomial, reflected.
fn checksum(bytes: &[u8]) -> u64 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
    }
    u64::from(!crc)
}

/// Decodes all bytes as records, or returns `None`.
fn decode(mut bytes: &[u8], mut offset: u64) -> Option<Vec<Read<'_>>> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let size = number(bytes.get(4..8)?) as usize;
        let record = bytes.get(..size).filter(|record| record.len() >= 20)?;
        let key = 20..20 + number(&record[16..18]) as usize;
        let is_right = number(&record[..4]) == checksum(&record[4..]) && record[18] < 3 && record[19] == 0;
        let (key, value) = (record.get(key.clone())?, record.get(key.end..)?);
        found.push(Read { offset, timestamp: number(&record[8..16]), kind: record[18], key, value });
        if !is_right {
            return None;
        }
        offset += 1;
        bytes = &bytes[size..];
    }
    Some(found)
}

fn compare(found: &record::Record<'_>, wanted: &Read<'_>) {
    let kind = [ValueKind::Bytes, ValueKind::Text, ValueKind::Json][usize::from(wanted.kind)];
    let found = (found.offset, found.timestamp, found.kind, found.key, found.value);
    assert_eq!(found, (wanted.offset, wanted.timestamp, kind, wanted.key, wanted.value));
}

/// Tests the bytes of a producer.
fn sent(bytes: &[u8]) {
    let limits = RecordLimits::default().with_max_bytes(MOST).with_max_count(MOST_RECORDS);
    let wanted = decode(bytes, 0)
        .filter(|all| !all.is_empty() && bytes.len() <= MOST && all.len() <= MOST_RECORDS as usize);
    let found = Records::check(Bytes::copy_from_slice(bytes), &limits);
    let Some(wanted) = wanted else {
        assert!(found.is_err(), "{found:?} is none");
        return;
    };
    let found = found.expect("they are right");
    assert_eq!(found.count() as usize, wanted.len());
    found.iter().zip(&wanted).for_each(|(found, wanted)| compare(&found.expect("it was checked"), wanted));
}

/// Tests the bytes of a server or a file, up to the first error.
fn stored(bytes: &[u8]) {
    let mut rest = bytes;
    let mut batches = record::iter(bytes);
    while let Some((head, length)) = batch(rest) {
        let batch = batches.next().expect("there is one more").expect("it is right");
        let header = batch.header();
        let (base, count) = (number(&head[8..16]), number(&head[24..28]));
        assert_eq!((header.base, header.appended), (base, number(&head[16..24])));
        assert_eq!((u64::from(header.count), header.end()), (count, base + count));
        let inside = &rest[head.len()..length];
        let found: Result<Vec<_>, _> = batch.records().collect();
        match decode(inside, base) {
            Some(wanted) => {
                found.expect("all are right").iter().zip(&wanted).for_each(|(a, b)| compare(a, b))
            }
            None => assert!(found.is_err(), "{found:?} are none"),
        }
        rest = &rest[length..];
    }
    assert_eq!(batches.next().map(|batch| batch.is_err()), (!rest.is_empty()).then_some(true));
    assert!(batches.next().is_none(), "reading stops at the first error");
}

/// Returns the length of a header, by its flags.
fn size_of_header(bytes: &[u8]) -> Option<usize> {
    Some(if number(bytes.get(28..32)?) == 1 { 40 } else { 32 })
}

/// Returns the header of a complete batch, and its length.
fn batch(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let head = bytes.get(..size_of_header(bytes)?)?;
    let (length, count) = (number(&head[4..8]), number(&head[24..28]));
    let is_right = number(&head[..4]) == checksum(&head[4..])
        && count > 0
        && length >= head.len() as u64 + 20 * count
        && number(&head[8..16]).checked_add(count).is_some()
        && number(&head[28..32]) < 2;
    (is_right && length as usize <= bytes.len()).then_some((head, length as usize))
}

#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Record,
    Batch,
}

/// Replaces the checksums at the positions of records or batches of these sizes: otherwise almost no input
/// passes the checksum.
fn with_checksums(bytes: &[u8], from: usize, shape: Shape) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut at = from;
    while let Some(size) = bytes.get(at + 4..at + 8) {
        let size = number(size) as usize;
        let end = at.saturating_add(size).min(bytes.len());
        let header = size_of_header(&bytes[at..]).unwrap_or(32);
        let covered = if shape == Shape::Batch { at + header } else { end };
        let Some(inside) = bytes.get(at + 4..covered).filter(|_| end > at + 4) else { break };
        let crc = checksum(inside) as u32;
        bytes[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        if shape == Shape::Batch && covered < end {
            let records = with_checksums(&bytes[..end], covered, Shape::Record);
            bytes[..end].copy_from_slice(&records);
        }
        at = end;
    }
    bytes
}

/// Builds records as a producer does: their bytes follow the tables, and the decoder returns the same
/// records.
fn made(input: &mut Input<'_>) {
    let mut builder =
        RecordBuilder::with_limits(RecordLimits::default().with_max_bytes(MOST).with_max_count(MOST_RECORDS));
    let mut wanted = Vec::new();
    let mut bytes = 0;
    while !input.is_empty() {
        let kind = input.below(3);
        let timestamp = number(input.take(8));
        let (key, value) = (input.below(300), input.below(3000));
        let (key, value) = (input.take(key), input.take(value));
        let size = 20 + key.len() + value.len();
        let fits = bytes + size <= MOST && wanted.len() < MOST_RECORDS as usize;
        let pushed =
            builder.push(timestamp, key, value, [ValueKind::Bytes, ValueKind::Text, ValueKind::Json][kind]);
        assert_eq!(pushed.is_ok(), fits, "{pushed:?}");
        if fits {
            bytes += size;
            wanted.push(Read { offset: wanted.len() as u64, timestamp, kind: kind as u8, key, value });
        }
    }
    let made = builder.finish();
    assert_eq!(made.is_some(), !wanted.is_empty());
    let Some(made) = made else { return };
    assert_eq!(decode(made.bytes(), 0), Some(wanted));
    sent(made.bytes());
}
