//! Token renewal in binary messages.

use super::{ANY, Binary, assert_error, serve};
use crate::auth::token;

const SUBSCRIBE: u8 = 2;
const TOKEN: u8 = 8;
const SUBSCRIBED: u8 = 130;
const RENEWED: u8 = 136;

/// From the end on.
const LATEST: [u8; 16] = [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

#[test]
fn renewed_token_grants_and_ends_subscriptions() {
    let secret = crate::auth::keys("secret");
    let server = serve(&["--auth-secret-file", &secret, "--auth-public-publish", "s"]);
    let reader = token(&secret, &["--subscribe", "s"]);
    let writer = token(&secret, &["--publish", "t"]);
    for mut client in Binary::both(&server, "s") {
        client.send_message(SUBSCRIBE, 0, ANY, 1, &LATEST);
        assert_error(&client.receive_message(), 1, 401);
        client.send_message(TOKEN, 0, ANY, 2, b"no token");
        assert_error(&client.receive_message(), 2, 401);
        client.send_message(TOKEN, 0, ANY, 3, b"\xff");
        assert_error(&client.receive_message(), 3, 400);

        client.send_message(TOKEN, 0, ANY, 4, reader.as_bytes());
        let renewed = client.receive_message();
        assert_eq!((renewed.op, renewed.id), (RENEWED, 4));
        let left = u32::from_le_bytes(renewed.body.try_into().unwrap());
        assert!((3_500..=3_630).contains(&left), "{left} s");
        client.send_message(SUBSCRIBE, 0, ANY, 5, &LATEST);
        assert_eq!(client.receive_message().op, SUBSCRIBED);

        client.send_message(TOKEN, 0, ANY, 6, writer.as_bytes());
        assert_eq!(client.receive_message().op, RENEWED);
        assert_error(&client.receive_message(), 5, 403);
        client.send_message(SUBSCRIBE, 0, ANY, 7, &LATEST);
        assert_error(&client.receive_message(), 7, 403);
    }
    let metrics = server.get("/metrics");
    assert!(metrics.contains("sinews_rejections_total{reason=\"token\"} 2"), "{metrics}");
}

#[test]
fn errors_in_binary_messages_echo_at_most_64_bytes() {
    let secret = crate::auth::keys("secret");
    let name = "Q".repeat(200);
    let server = serve(&["--auth-secret-file", &secret, "--auth-public-publish", &name]);
    for mut client in Binary::both(&server, &name) {
        for (op, body) in [(SUBSCRIBE, &LATEST[..]), (TOKEN, name.as_bytes()), (99, name.as_bytes())] {
            client.send_message(op, 0, ANY, 1, body);
            let error = client.receive_message();
            let echoed = error.body.iter().filter(|byte| **byte == b'Q').count();
            assert!(error.op == 255 && echoed <= 64, "{echoed} bytes of op {op} are echoed");
        }
    }
}
