//! `Sec-WebSocket-Protocol` (RFC 6455 sections 1.9, 4.1, 4.2.2 and 11.3.4).

use alloc::string::String;
use alloc::vec::Vec;

use super::HandshakeMisuse;
use sinews_http::text::{elements, is_token};

/// Maximum subprotocols at either end. Duplicate detection compares all pairs, so without a limit a head full of short
/// names would cost millions of comparisons. Applications use a few.
pub(super) const SUBPROTOCOLS_MAX: usize = 64;

/// The client's offer is not a list of distinct tokens, or too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BadOffers;

/// The first supported subprotocol, in the server's order of preference, that the client offers; names are
/// compared exactly.
pub(super) fn choose<'v, 'o>(
    lines: impl Iterator<Item = &'v [u8]>,
    supported: &'o [String],
) -> Result<Option<&'o str>, BadOffers> {
    let mut offers: [&[u8]; SUBPROTOCOLS_MAX] = [&[]; SUBPROTOCOLS_MAX];
    let mut count = 0;
    let mut present = false;
    for line in lines {
        present = true;
        for offer in elements(line) {
            if count == SUBPROTOCOLS_MAX || !is_token(offer) || offers[..count].contains(&offer) {
                return Err(BadOffers);
            }
            offers[count] = offer;
            count += 1;
        }
    }
    // The list has at least one element (RFC 6455 section 4.3).
    if present && count == 0 {
        return Err(BadOffers);
    }
    let offers = &offers[..count];
    Ok(supported.iter().map(String::as_str).find(|ours| offers.contains(&ours.as_bytes())))
}

/// Adds a subprotocol of the caller to a list of distinct tokens.
pub(super) fn add(list: &mut Vec<String>, name: String) -> Result<(), HandshakeMisuse> {
    if !is_token(name.as_bytes()) {
        return Err(HandshakeMisuse::Subprotocol);
    }
    if list.len() == SUBPROTOCOLS_MAX || list.contains(&name) {
        return Err(HandshakeMisuse::SubprotocolList);
    }
    list.push(name);
    Ok(())
}
