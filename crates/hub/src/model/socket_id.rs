//! A socket id's text, by which an app's clients know a connection: digits, a dot, digits.

/// Encodes a socket id.
pub(crate) fn socket_id_text(id: u128) -> String {
    format!("{}.{}", (id >> 64) as u64, id as u64)
}

/// Parses a socket id.
pub(crate) fn parse_socket_id(text: &str) -> Option<u128> {
    let (high, low) = text.split_once('.')?;
    let number =
        |text: &str| text.parse::<u64>().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()));
    Some(u128::from(number(high)?) << 64 | u128::from(number(low)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pusher_1_5_socket_ids_are_digits_and_a_dot() {
        for id in [0, 1, u128::MAX, 7 << 64] {
            assert_eq!(parse_socket_id(&socket_id_text(id)), Some(id));
        }
        for bad in ["", "1", "1.", ".1", "1.2.3", "+1.2", "a.b", "18446744073709551616.1"] {
            assert_eq!(parse_socket_id(bad), None, "{bad}");
        }
    }
}
