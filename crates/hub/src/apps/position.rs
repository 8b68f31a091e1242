//! Event positions, as message fields.

use std::fmt::Write as _;

use sinews_server::Position;

/// Appends an event's position, and a mark for the connection that does not receive it.
pub(crate) fn with_position(event: &str, position: Position, socket_id: Option<u128>) -> String {
    let mut text = String::with_capacity(event.len() + 96);
    text.push_str(event.strip_suffix('}').unwrap_or(event));
    push_position(&mut text, position);
    match socket_id {
        Some(id) => text.push_str(&end_of(position, id)),
        None => text.push('}'),
    }
    text
}

/// The end of an event that a connection does not receive. The mark depends on the position, so that a connection's
/// events have nothing in common.
pub(crate) fn end_of(position: Position, socket_id: u128) -> String {
    let mut context = ring::digest::Context::new(&ring::digest::SHA256);
    context.update(&socket_id.to_be_bytes());
    context.update(&position.epoch.to_be_bytes());
    context.update(&position.sequence.to_be_bytes());
    let digest = context.finish();
    let mut text = String::from(",\"except\":\"");
    for byte in digest.as_ref().iter().take(MARK_LEN) {
        let _ = write!(text, "{byte:02x}");
    }
    text.push_str("\"}");
    text
}

/// Bytes of a mark: a collision hides an event from one client only.
const MARK_LEN: usize = 12;

/// Appends a position field.
pub(crate) fn push_position(text: &mut String, Position { epoch, sequence }: Position) {
    let _ = write!(text, ",\"position\":\"{epoch}-{sequence}\"");
}

/// Parses a position.
pub(crate) fn parse_position(text: &str) -> Option<Position> {
    let (epoch, sequence) = text.split_once('-')?;
    let number = |text: &str| {
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|_| is_decimal)
    };
    Some(Position { epoch: number(epoch)?, sequence: number(sequence)? })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const POSITION: Position = Position { epoch: 81, sequence: 7 };

    #[test]
    fn fields_follow_those_of_the_event_and_marks_differ_by_position() {
        let event = r#"{"event":"e","channel":"a","data":"1"}"#;
        let plain = with_position(event, POSITION, None);
        assert_eq!(plain, r#"{"event":"e","channel":"a","data":"1","position":"81-7"}"#);
        let marked = with_position(event, POSITION, Some(5));
        let value: Value = serde_json::from_str(&marked).unwrap();
        assert_eq!(
            (&value["position"], value["except"].as_str().unwrap().len()),
            (&json!("81-7"), 2 * MARK_LEN)
        );
        assert!(marked.ends_with(&end_of(POSITION, 5)) && !marked.ends_with(&end_of(POSITION, 6)));
        assert_ne!(end_of(POSITION, 5), end_of(Position { sequence: 8, ..POSITION }, 5));
        assert_ne!(end_of(POSITION, 5), end_of(Position { epoch: 82, ..POSITION }, 5));
    }
}
