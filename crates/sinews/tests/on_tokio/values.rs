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
fn close_reason_converts_from_and_into_shared_text() {
    let text = sinews::Utf8Bytes::from("restart");
    let frame = CloseFrame { code: CloseCode::GOING_AWAY, reason: text.clone().into() };
    assert_eq!(frame, CloseFrame::new(CloseCode::GOING_AWAY, text.clone()));
    assert_eq!(sinews::Utf8Bytes::from(frame.reason), text);
}

#[test]
fn message_of_any_kind_reads_as_text() {
    let close = Message::from(CloseFrame::new(CloseCode::NORMAL, "done"));
    let cases = [
        (Message::text("Grüße"), Some("Grüße")),
        (Message::binary("Grüße"), Some("Grüße")),
        (Message::Ping("ping".into()), Some("ping")),
        (Message::Pong("pong".into()), Some("pong")),
        (close, Some("done")),
        (Message::Close(None), Some("")),
        (Message::binary(vec![b'a', 0xff]), None),
        (Message::Ping(vec![0xff].into()), None),
    ];
    for (message, text) in cases {
        assert_eq!(message.to_text().ok(), text, "{message:?}");
        let shown = text.map_or_else(|| format!("{} bytes", message.len()), str::to_owned);
        assert_eq!(message.to_string(), shown);
        let data = text.map_or_else(|| message.as_bytes().to_vec(), |text| text.as_bytes().to_vec());
        assert_eq!(message.into_data(), data);
    }
    assert_eq!(Message::binary(vec![b'a', 0xff]).to_text().expect_err("not UTF-8").valid_up_to(), 1);
    assert_eq!(format!("[{:>6}]", Message::text("abc")), "[   abc]");
}

#[test]
fn each_kind_of_message_is_recognized() {
    let kinds = |message: Message| {
        [message.is_text(), message.is_binary(), message.is_ping(), message.is_pong(), message.is_close()]
    };
    let messages = [
        Message::text("a"),
        Message::binary("a"),
        Message::Ping("a".into()),
        Message::Pong("a".into()),
        Message::Close(None),
    ];
    for (at, message) in messages.into_iter().enumerate() {
        assert_eq!(kinds(message), std::array::from_fn(|kind| kind == at));
    }
}

#[test]
fn close_code_converts_into_its_number() {
    assert_eq!(u16::from(CloseCode::POLICY), 1008);
    let number: u16 = CloseCode::new(4001).expect("an application's code").into();
    assert_eq!(number, 4001);
}

#[test]
fn close_code_converts_from_its_number() {
    assert_eq!(CloseCode::try_from(4001), Ok(CloseCode::new(4001).expect("an application's code")));
    for invalid in [0, 999, 1004, 1005, 1006, 1015, 2999, 5000, u16::MAX] {
        let error = CloseCode::try_from(invalid).expect_err("never on the wire");
        assert_eq!(error.as_u16(), invalid);
        assert!(error.to_string().starts_with(&format!("close code {invalid} is not one of")), "{error}");
    }
}

#[test]
fn received_text_is_published_without_a_copy() {
    let text = Message::text(String::from("to all")).into_text().expect("text");
    let prepared = sinews::Prepared::from(text.clone());
    assert_eq!((prepared.kind(), prepared.payload().as_ptr()), (sinews::Kind::Text, text.as_ptr()));
    let binary = Message::binary(vec![1]);
    assert_eq!(binary.clone().into_text(), Err(binary));
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

#[cfg(feature = "tokio")]
mod memory {
    use std::cell::RefCell;
    use std::sync::Arc;

    use sinews::{Message, Sent, WebSocket};
    use sinews_testkit::negotiate;
    use tokio::io::DuplexStream;
    use tokio::sync::Mutex;

    fn pair() -> (WebSocket<DuplexStream>, WebSocket<DuplexStream>) {
        let (agreed, (client, server)) = (negotiate(None, None), tokio::io::duplex(1 << 20));
        (
            WebSocket::from_negotiated(client, agreed.client, Arc::default(), &[]),
            WebSocket::from_negotiated(server, agreed.server, Arc::default(), &[]),
        )
    }

    /// A connection with received input that no call has asked for.
    async fn with_unread_input() -> WebSocket<DuplexStream> {
        let (mut client, mut server) = pair();
        for _ in 0..3 {
            client.feed(vec![2; 4000]).await.unwrap();
        }
        client.flush().await.unwrap();
        server.next().await.unwrap().unwrap();
        server
    }

    /// Memory whose drop sends on another connection.
    struct Credit(Vec<u8>, Arc<Mutex<WebSocket<DuplexStream>>>);

    impl AsRef<[u8]> for Credit {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Credit {
        fn drop(&mut self) {
            let sent = self.1.try_lock().unwrap().try_send("the buffer is free");
            assert_eq!(sent.unwrap(), Sent::Queued);
        }
    }

    /// Memory that owns a connection.
    struct Owner(Vec<u8>, #[allow(dead_code, reason = "dropped with the memory")] WebSocket<DuplexStream>);

    impl AsRef<[u8]> for Owner {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    /// The compiler warns where a caller ignores that a message was dropped: the expectation fails without it.
    #[tokio::test]
    #[deny(unfulfilled_lint_expectations)]
    #[expect(unused_must_use, reason = "the result of a queue is ignored here")]
    async fn ignored_result_of_a_queue_is_a_warning() {
        let (mut client, _server) = pair();
        client.try_send("hello").unwrap();
    }

    #[tokio::test]
    async fn drop_of_payload_memory_may_use_other_connections() {
        let (_client, mut server) = pair();
        let (other, mut peer) = pair();
        let other = Arc::new(Mutex::new(other));
        for len in [10, 10_000] {
            server.send(Message::from_owner(Credit(vec![1; len], other.clone()))).await.unwrap();
            other.lock().await.flush().await.unwrap();
            assert_eq!(peer.next().await.unwrap().unwrap().as_text(), Some("the buffer is free"));
            let owner = Owner(vec![1; len], with_unread_input().await);
            server.send(Message::from_owner(owner)).await.unwrap();
        }
    }

    #[test]
    fn connection_of_a_thread_local_is_dropped_with_its_thread() {
        thread_local! {
            static CONNECTION: RefCell<Option<WebSocket<DuplexStream>>> = const { RefCell::new(None) };
        }
        let thread = std::thread::spawn(|| {
            // Dropped after the library's own state of the thread.
            CONNECTION.set(None);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            CONNECTION.set(Some(runtime.block_on(with_unread_input())));
        });
        thread.join().unwrap();
    }
}
