//! Keys of NATS users: Ed25519 seeds as text, which sign the challenge of the server, and JWTs beside them.

use std::fmt;

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};

/// First byte of a seed, and of a user's public key: their texts begin with `S` and `U`.
const SEED: u8 = 18 << 3;
const USER: u8 = 20 << 3;

/// Bytes in a decoded seed: two with its kind, the seed, and a checksum.
const SEED_LENGTH: usize = 2 + 32 + 2;

/// Key of a NATS user.
pub(super) struct NatsKey {
    pair: Ed25519KeyPair,
    jwt: Option<String>,
}

impl NatsKey {
    /// Reads a file with a seed (`SU…` on its own line), and perhaps with a JWT before it.
    ///
    /// # Errors
    /// The reason, without the content.
    pub(super) fn parse(text: &str) -> Result<Self, &'static str> {
        let (mut seed, mut jwt, mut label) = (None, None, "");
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.starts_with("---") {
                label = line;
            } else if label.contains("BEGIN") && label.contains("JWT") {
                jwt = jwt.or_else(|| Some(line.to_owned()));
            } else if line.starts_with("SU") {
                seed = seed.or(Some(line));
            }
        }
        let seed = decode_seed(seed.ok_or("it has no seed of a user (a line with SU…)")?)?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| "its seed is invalid")?;
        Ok(Self { pair, jwt })
    }

    pub(super) fn jwt(&self) -> Option<&str> {
        self.jwt.as_deref()
    }

    /// Returns the text of the public key.
    pub(super) fn public(&self) -> String {
        let mut bytes = vec![USER];
        bytes.extend_from_slice(self.pair.public_key().as_ref());
        bytes.extend_from_slice(&checksum(&bytes).to_le_bytes());
        encode(&bytes)
    }

    /// Returns the signature of a server's challenge, in Base64.
    pub(super) fn sign(&self, nonce: &str) -> String {
        BASE64_URL_SAFE_NO_PAD.encode(self.pair.sign(nonce.as_bytes()))
    }
}

/// Shows no secret.
impl fmt::Debug for NatsKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NatsKey").field(&self.public()).finish()
    }
}

fn decode_seed(text: &str) -> Result<[u8; 32], &'static str> {
    let invalid = "its seed is incomplete or mistyped";
    let bytes: [u8; SEED_LENGTH] = decode(text).and_then(|bytes| bytes.try_into().ok()).ok_or(invalid)?;
    let (content, sum) = bytes.split_last_chunk::<2>().ok_or(invalid)?;
    let ([first, second], seed) = content.split_first_chunk::<2>().ok_or(invalid)?;
    // The kind of the key lies across both bytes.
    if first & 0xF8 != SEED
        || (first << 5 | second >> 3) != USER
        || checksum(content) != u16::from_le_bytes(*sum)
    {
        return Err(invalid);
    }
    seed.try_into().map_err(|_| invalid)
}

const ALPHABET: &[u8; 32] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";

/// Decodes Base32 (RFC 4648) without padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let (mut bytes, mut bits, mut count) = (Vec::new(), 0_u16, 0);
    for digit in text.bytes() {
        let value = ALPHABET.iter().position(|known| *known == digit)?;
        bits = bits << 5 | u16::try_from(value).ok()?;
        count += 5;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xFF).ok()?);
        }
    }
    Some(bytes)
}

/// Encodes Base32 (RFC 4648) without padding.
fn encode(bytes: &[u8]) -> String {
    let (mut text, mut bits, mut count) = (String::new(), 0_u16, 0);
    let mut push = |value: u16| text.push(char::from(ALPHABET[usize::from(value & 31)]));
    for byte in bytes {
        bits = bits << 8 | u16::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            push(bits >> count);
        }
    }
    if count > 0 {
        push(bits << (5 - count));
    }
    text
}

/// CRC-16/XMODEM.
fn checksum(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |sum, byte| {
        (0..8).fold(sum ^ u16::from(*byte) << 8, |sum, _| match sum & 0x8000 {
            0 => sum << 1,
            _ => sum << 1 ^ 0x1021,
        })
    })
}

#[cfg(test)]
pub(super) mod tests {
    use ring::signature::{ED25519, UnparsedPublicKey};

    use super::*;

    /// The example of the documentation of NATS.
    pub(crate) const SEED: &str = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
    pub(crate) const PUBLIC: &str = "UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4";

    /// A file with credentials.
    pub(crate) fn credentials(jwt: &str) -> String {
        format!(
            "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\nNKEYs are secret.\n\
             \n-----BEGIN USER NKEY SEED-----\r\n{SEED}\r\n------END USER NKEY SEED------\n"
        )
    }

    #[test]
    fn seed_is_decoded_and_signs_the_challenge() {
        let key = NatsKey::parse(SEED).unwrap();
        assert_eq!((key.public(), key.jwt()), (PUBLIC.to_owned(), None));
        let signature = BASE64_URL_SAFE_NO_PAD.decode(key.sign("nonce")).unwrap();
        let public = decode(PUBLIC).unwrap();
        let verified = UnparsedPublicKey::new(&ED25519, &public[1..33]).verify(b"nonce", &signature);
        assert!(verified.is_ok());
    }

    #[test]
    fn jwt_and_seed_are_found_in_a_file() {
        let key = NatsKey::parse(&credentials("eyJ.x.y")).unwrap();
        assert_eq!((key.public(), key.jwt()), (PUBLIC.to_owned(), Some("eyJ.x.y")));
        let shown = format!("{key:?}");
        assert!(shown.contains(PUBLIC) && !shown.contains("eyJ"), "{shown}");
    }

    #[test]
    fn error_of_an_invalid_seed_omits_it() {
        let mistyped = SEED.replace("SSL3", "SSL4");
        // The seed of an account.
        let account = "SAANWFZ3JINNPERWT3ALE45U7GYT2ZDW6GJUIVPDKUF6GKAX6AISZJMAS4";
        for text in ["", "a\nb", &mistyped, &SEED[..50], &SEED.to_lowercase(), account, "SU\u{e9}"] {
            let error = NatsKey::parse(text).unwrap_err();
            assert!(error.contains("seed") && !error.contains("SUACS"), "{text}: {error}");
        }
    }
}
