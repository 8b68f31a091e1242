//! Close payloads: valid and invalid codes.

use super::violation::{EITHER, PROTOCOL, Violation};

/// Returns the violations in a Close's payload (RFC 6455 sections 5.5.1 and 7.4).
pub(super) fn close_violations(payload: &[u8], from_client: bool) -> Vec<Violation> {
    let mut violations = Vec::new();
    let mut add =
        |section, description: String, codes| violations.push(Violation::fatal(section, description, codes));
    let (code, reason) = match payload {
        [] => return violations,
        [_] => {
            add("RFC 6455 section 5.5.1", "a Close with one byte: a code has two".to_owned(), PROTOCOL);
            return violations;
        }
        [high, low, reason @ ..] => (u16::from_be_bytes([*high, *low]), reason),
    };
    match code {
        1004..=1006 | 1015 => {
            add(
                "RFC 6455 section 7.4.1",
                format!("{code} is reserved and must not be in a Close frame"),
                PROTOCOL,
            );
        }
        1000..=1003 | 1007..=1014 | 3000..=4999 => {}
        0..=999 => add("RFC 6455 section 7.4.2", format!("codes below 1000 are not used: {code}"), PROTOCOL),
        1016..=2999 => add(
            "RFC 6455 section 7.4.2",
            format!("{code} is reserved for the protocol and undefined"),
            PROTOCOL,
        ),
        _ => add(
            "RFC 6455 section 7.4.2",
            format!("{code} exceeds the range of codes (1000 to 4999)"),
            PROTOCOL,
        ),
    }
    if code == 1010 && !from_client {
        violations.push(Violation::new(
            "RFC 6455 section 7.4.1",
            "1010 is for clients: a server fails the handshake instead",
        ));
    }
    if std::str::from_utf8(reason).is_err() {
        violations.push(Violation::fatal(
            "RFC 6455 section 5.5.1",
            "the reason of a Close is not UTF-8",
            EITHER,
        ));
    }
    violations
}
