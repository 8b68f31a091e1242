//! RFC 7541.

use alloc::string::String;
use alloc::vec::Vec;

use super::decoder::Decoder;
use super::encoder::Encoder;
use crate::fields::{BlockError, FieldBuffer, huffman, integer};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    let value = |pair: &[u8]| u8::from_str_radix(core::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.chunks(2).map(value).collect()
}

/// Decodes a block into lines.
fn decode(decoder: &mut Decoder, block: &[u8]) -> Result<Vec<String>, BlockError> {
    let mut fields = FieldBuffer::new();
    decoder.decode(block, &mut fields)?;
    let line = |(name, value): (&[u8], &[u8])| {
        [String::from_utf8_lossy(name), String::from_utf8_lossy(value)].join("=")
    };
    Ok(fields.iter().map(line).collect())
}

fn fails(block: &[u8]) {
    let decoded = decode(&mut Decoder::new(), block);
    assert!(matches!(decoded, Err(BlockError::Invalid(_))), "{block:x?}: {decoded:?}");
}

/// RFC 7541 appendix C.1.
#[test]
fn integers_have_a_prefix() {
    for (value, prefix, expected) in
        [(10, 5, &[10][..]), (1337, 5, &[31, 154, 10]), (42, 8, &[42]), (31, 5, &[31, 0]), (30, 5, &[30])]
    {
        let mut out = Vec::new();
        integer::encode(value, prefix, 0, &mut out);
        assert_eq!(out, expected);
        assert_eq!(integer::decode(prefix, &mut &out[..]), Ok(value));
    }
}

/// RFC 7541 section 5.1.
#[test]
fn integers_are_limited() {
    assert_eq!(integer::decode(5, &mut &[31, 255, 255, 255, 127][..]), Ok((1 << 28) - 1 + 31));
    for long in [&[31, 255, 255, 255, 255, 1][..], &[31, 128, 128, 128, 128, 0], &[31, 128], &[]] {
        assert!(integer::decode(5, &mut &long[..]).is_err(), "{long:?}");
    }
}

/// RFC 7541 appendices C.3 and C.4: requests, without and with Huffman coding.
#[test]
fn requests_of_the_rfc_are_decoded() {
    let plain = [
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    ];
    let coded = [
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    ];
    let expected = [
        ":method=GET :scheme=http :path=/ :authority=www.example.com",
        ":method=GET :scheme=http :path=/ :authority=www.example.com cache-control=no-cache",
        ":method=GET :scheme=https :path=/index.html :authority=www.example.com custom-key=custom-value",
    ];
    for blocks in [plain, coded] {
        let mut decoder = Decoder::new();
        for ((block, expected), size) in blocks.iter().zip(expected).zip([57, 110, 164]) {
            let decoded = decode(&mut decoder, &bytes(block)).expect("a valid block");
            assert_eq!((decoded.join(" ").as_str(), decoder.table().size()), (expected, size));
        }
    }
}

/// RFC 7541 appendix C.6: a 256-byte table evicts entries.
#[test]
fn responses_of_the_rfc_evict_entries() {
    let blocks = [
        "3fe101 488264025885aec3771a4b6196d07abe941054d444a8200595040b8166e082a62d1bff6e919d29ad171863c78f0b97c8e9ae82ae43d3",
        "4883640effc1c0bf",
        "88c16196d07abe941054d444a8200595040b8166e084a62d1bffc05a839bd9ab77ad94e7821dd7f2e6c7b335dfdfcd5b3960d5af27087f3672\
         c1ab270fb5291f9587316065c003ed4ee5b1063d5007",
    ];
    let sizes = [222, 222, 215];
    let mut decoder = Decoder::new();
    for (block, size) in blocks.iter().zip(sizes) {
        let decoded = decode(&mut decoder, &bytes(block)).expect("a valid block");
        assert!(decoded.contains(&"location=https://www.example.com".into()), "{decoded:?}");
        assert_eq!(decoder.table().size(), size);
    }
}

/// RFC 7541 section 5.2 and appendix B.
#[test]
fn huffman_strings_of_all_bytes_return() {
    for first in 0..=255 {
        let string: Vec<u8> = (0..first % 7).map(|at| first ^ (at * 37)).chain([first]).collect();
        let mut coded = Vec::new();
        huffman::encode(&string, &mut coded);
        assert_eq!(coded.len(), huffman::encoded_len(&string));
        let mut decoded = Vec::new();
        assert_eq!(huffman::decode(&coded, &mut decoded), Ok(()));
        assert_eq!(decoded, string);
    }
}

/// RFC 7541 section 5.2.
#[test]
fn huffman_padding_is_short_and_all_ones() {
    let decode = |coded: &[u8]| huffman::decode(coded, &mut Vec::new());
    // "a" has the code 00011.
    assert_eq!(decode(&[0b0001_1111]), Ok(()));
    assert_eq!(decode(&[]), Ok(()));
    for wrong in [
        &[0b0001_1000][..],
        &[0b0001_1110],
        &[0b0001_1111, 0xff],
        &[0xff],
        &[0xff, 0xff, 0xff, 0xff],
        // The end-of-string symbol.
        &[0xff, 0xff, 0xff, 0xfc],
        &[0b0001_1111, 0xff, 0xff, 0xff, 0xff],
    ] {
        assert!(decode(wrong).is_err(), "{wrong:x?}");
    }
}

/// RFC 7541 sections 2.3.3, 6.1 and 6.2.
#[test]
fn indexes_beyond_the_tables_and_cut_fields_are_invalid() {
    for block in [
        &[0x80][..],
        &[0x80 | 62],
        &[0xff, 0],
        &[0x40 | 62, 1, b'a'],
        &[0x0f, 47, 1, b'a'],
        &[0x40],
        &[0x40, 3, b'a'],
        &[0x40, 1, b'a', 2, b'b'],
        &[0x44],
        &[0xff],
    ] {
        fails(block);
    }
    assert_eq!(decode(&mut Decoder::new(), &[0x80 | 61]), Ok(Vec::from(["www-authenticate=".into()])));
}

/// RFC 7541 sections 4.2 and 6.3.
#[test]
fn table_size_updates_come_first_and_within_the_settings() {
    fails(&[0x82, 0x20]);
    fails(&[0x3f, 0xe2, 0x1f]);
    let mut decoder = Decoder::new();
    assert!(decode(&mut decoder, &[0x40, 1, b'a', 1, b'b', 0x80 | 62]).is_ok());
    assert_eq!(decode(&mut decoder, &[0x20, 0x3f, 0xe1, 0x1f, 0x82]), Ok(Vec::from([":method=GET".into()])));
    assert_eq!((decoder.table().size(), decoder.table().max()), (0, 4096));
    // A reduction that our settings require.
    decoder.set_limit(100);
    assert!(decode(&mut decoder, &[0x82]).is_err());
    assert!(decode(&mut decoder, &[0x3f, 69, 0x82]).is_ok());
    assert_eq!(decoder.table().max(), 100);
}

/// RFC 7541 section 4.4: a field that is larger than the table empties it.
#[test]
fn large_fields_empty_the_table() {
    let mut decoder = Decoder::new();
    assert!(decode(&mut decoder, &[0x3f, 9, 0x40, 1, b'a', 1, b'b']).is_ok());
    assert_eq!(decoder.table().size(), 34);
    let block = [0x40, 1, b'a', 8, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(decode(&mut decoder, &block).map(|lines| lines.len()), Ok(1));
    assert_eq!(decoder.table().size(), 0);
}

/// RFC 7541 section 7.1.3: no intermediary may index secrets.
#[test]
fn secrets_are_never_indexed() {
    let mut encoder = Encoder::new();
    for name in ["authorization", "cookie", "proxy-authorization", "set-cookie"] {
        for _ in 0..2 {
            let mut out = Vec::new();
            encoder.field(name.as_bytes(), b"secret", &mut out);
            assert_eq!(out[0] >> 4, 1, "{name}");
            assert!(decode(&mut Decoder::new(), &out).is_ok_and(|lines| lines[0].ends_with("=secret")));
        }
    }
    assert_eq!(encoder.table().size(), 0);
}

/// RFC 7541 section 4.2: the encoder reports each table reduction.
#[test]
fn encoder_follows_the_size_of_the_peers_table() {
    let (mut encoder, mut decoder) = (Encoder::new(), Decoder::new());
    let mut random = 0x5eed_u64;
    let mut next = |end: usize| {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (random >> 33) as usize % end
    };
    for _ in 0..3000 {
        for _ in 0..next(3) {
            let limit = [0, 40, 200, 4096, 1 << 20][next(5)];
            encoder.set_limit(limit);
        }
        let mut block = Vec::new();
        encoder.begin(&mut block);
        let mut expected = Vec::new();
        for _ in 0..next(6) {
            let name = ["a", "b", ":status", "date", "cookie", "content-type"][next(6)];
            let value = "x!~0".repeat(next(30));
            encoder.field(name.as_bytes(), value.as_bytes(), &mut block);
            expected.push([name, &value].join("="));
        }
        assert_eq!(decode(&mut decoder, &block), Ok(expected));
        assert_eq!(encoder.table().size(), decoder.table().size());
        assert!(encoder.memory() < 40_000 && decoder.memory() < 40_000);
    }
    encoder.set_limit(0);
    assert_eq!(encoder.memory(), 0);
}
