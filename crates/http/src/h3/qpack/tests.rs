//! RFC 9204.

use alloc::string::String;
use alloc::vec::Vec;

use super::{decode, encode, static_table};
use crate::fields::{BlockError, FieldBuffer};

/// Decodes a section into lines.
fn lines(section: &[u8]) -> Result<Vec<String>, BlockError> {
    let mut fields = FieldBuffer::new();
    decode(section, &mut fields)?;
    let line = |(name, value): (&[u8], &[u8])| {
        [String::from_utf8_lossy(name), String::from_utf8_lossy(value)].join("=")
    };
    Ok(fields.iter().map(line).collect())
}

/// RFC 9204 appendix B.1.
#[test]
fn literal_with_a_name_reference_of_the_rfc_is_decoded() {
    assert_eq!(lines(b"\x00\x00\x51\x0b/index.html"), Ok(Vec::from([":path=/index.html".into()])));
}

/// RFC 9204 appendix B.2 to B.5: sections with dynamic entries.
#[test]
fn sections_of_the_rfc_with_dynamic_entries_are_rejected() {
    for section in [&b"\x03\x81\x10\x11"[..], b"\x05\x00\x80\xc1\x81"] {
        assert!(matches!(lines(section), Err(BlockError::Invalid(_))));
    }
}

/// RFC 9204 sections 4.5.2 to 4.5.6 and appendix A.
#[test]
fn each_static_entry_returns_by_its_index() {
    for index in 0..99_usize {
        let (name, value) = static_table::get(index).unwrap();
        let mut section = Vec::from([0, 0]);
        encode(name, value, &mut section);
        let expected = [String::from_utf8_lossy(name), String::from_utf8_lossy(value)].join("=");
        assert_eq!(lines(&section), Ok(Vec::from([expected.clone()])), "{index}");
        let by_index = if index < 63 {
            Vec::from([0, 0, 0xc0 | index as u8])
        } else {
            Vec::from([0, 0, 0xff, index as u8 - 63])
        };
        assert_eq!(lines(&by_index), Ok(Vec::from([expected])));
        let is_secret = matches!(name, b"cookie" | b"set-cookie" | b"authorization");
        assert_eq!(section == by_index, !is_secret, "{index}");
    }
    assert_eq!(static_table::get(99), None);
}

/// RFC 9204 section 4.5.1.2: without dynamic entries any Base is valid that is not negative.
#[test]
fn base_is_ignored_without_dynamic_entries() {
    assert_eq!(lines(&[0, 0x7f, 0x80, 0x01, 0xd1]), Ok(Vec::from([":method=GET".into()])));
    assert!(lines(&[0, 0x80, 0xd1]).is_err());
}

/// RFC 9204 section 7.1.3: no intermediary may index secrets.
#[test]
fn secrets_are_never_indexed() {
    for name in ["authorization", "cookie", "proxy-authorization", "set-cookie"] {
        let mut out = Vec::from([0, 0]);
        encode(name.as_bytes(), b"secret", &mut out);
        // The bit N of both literals.
        assert!(matches!(out[2], 0x70..=0x7f | 0x30..=0x3f), "{name}");
        assert!(lines(&out).is_ok_and(|lines| lines[0].ends_with("=secret")));
    }
}

#[test]
fn random_fields_return() {
    let mut random = 0x5eed_u64;
    let mut next = |end: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) as usize % end
    };
    for _ in 0..2000 {
        let (mut section, mut expected) = (Vec::from([0, 0]), Vec::new());
        for _ in 0..next(8) {
            let name =
                ["a", "x-rather-long-name-of-a-field", ":status", "date", "cookie", "content-type"][next(6)];
            let value: String = (0..next(60)).map(|_| (next(95) as u8 + b' ') as char).collect();
            encode(name.as_bytes(), value.as_bytes(), &mut section);
            expected.push([name, &value].join("="));
        }
        assert_eq!(lines(&section), Ok(expected));
    }
}
