//! Values as callers construct, match and convert them.

use sinews::{CloseCode, CloseFrame, Message};

#[test]
fn close_frame_is_constructed_and_matched_by_its_fields() {
    let message = Message::Close(Some(CloseFrame { code: CloseCode::GOING_AWAY, reason: "restart".into() }));
    assert_eq!(message, Message::from(CloseFrame::new(CloseCode::GOING_AWAY, String::from("restart"))));
    let described = match &message {
        Message::Close(Some(CloseFrame { code: CloseCode::NORMAL, .. })) => "normal".to_owned(),
        Message::Close(Some(CloseFrame { code, reason })) => format!("{code} {reason}"),
        _ => "no close".to_owned(),
    };
    assert_eq!(described, "1001 restart");
}

#[test]
fn close_code_converts_into_its_number() {
    assert_eq!(u16::from(CloseCode::POLICY), 1008);
    let number: u16 = CloseCode::new(4001).expect("an application's code").into();
    assert_eq!(number, 4001);
}

#[test]
fn message_size_is_five_words() {
    assert_eq!(size_of::<Message>(), 5 * size_of::<usize>());
}

#[cfg(feature = "tokio")]
#[test]
fn http_types_of_the_api_are_reachable_without_a_dependency_on_http() {
    use sinews::http::StatusCode;

    let response = http::Response::builder().status(StatusCode::FORBIDDEN).body(()).expect("sound");
    assert_eq!(response.status().as_u16(), 403);
}
