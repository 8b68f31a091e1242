//! Halves have the same methods on each runtime.

use std::sync::Arc;

use sinews::{Bytes, Cause, CloseCode, Closed, Kind, Message, Prepared, Role, Sent};
use sinews_testkit::negotiate;

/// Calls each send method and each receive method, and closes.
macro_rules! exercise {
    ($near:expr, $far:expr) => {{
        let (mut write, mut read) = $near.split();
        let (mut far_write, mut far_read) = $far.split();
        write.send("send").await.unwrap();
        write.send_text("send_text").await.unwrap();
        write.send_binary(b"send_binary").await.unwrap();
        write.feed("feed").await.unwrap();
        assert_eq!(write.try_send("try_send").unwrap(), Sent::Queued);
        assert_eq!(write.publish(&Prepared::text("publish")).unwrap(), Sent::Queued);
        write.flush().await.unwrap();
        let mut writer = write.writer(Kind::Text);
        writer.write(b"wri").await.unwrap();
        writer.write(b"ter").await.unwrap();
        writer.finish().await.unwrap();
        write.sender().try_send("sender").unwrap();
        write.flush().await.unwrap();
        write.send(Message::Ping(Bytes::new())).await.unwrap();
        write.send("behind the ping").await.unwrap();
        for expected in ["send", "send_text", "send_binary", "feed", "try_send", "publish"] {
            let message = far_read.next().await.unwrap().unwrap();
            assert_eq!(message.as_bytes(), expected.as_bytes());
        }
        let head = far_read.next_head().await.unwrap().unwrap();
        assert_eq!(head.kind, Kind::Text);
        // Every other receive method skips it from here on.
        for expected in ["sender", "behind the ping"] {
            assert_eq!(far_read.next_data().await.unwrap().unwrap(), Message::text(expected));
        }
        assert_eq!((write.role(), read.role()), (Role::Client, Role::Client));
        assert_eq!((write.subprotocol(), read.subprotocol()), (None, None));
        assert_eq!(write.config().max_message(), read.config().max_message());
        let none: [Option<&Closed>; 2] = [write.closed(), read.closed()];
        assert_eq!(none, [None, None]);

        write.close(CloseCode::GOING_AWAY, "enough").await.unwrap();
        assert!(far_read.next().await.unwrap().unwrap().is_close());
        far_write.close(CloseCode::NORMAL, "").await.unwrap();
        let closing = read.close(CloseCode::NORMAL, "");
        let (closed, end) = futures_util::join!(closing, far_read.next());
        assert!(end.is_none());
        assert_eq!(closed.unwrap().cause(), Cause::Local);
        let closed: [Option<&Closed>; 2] = [write.closed(), read.closed()];
        assert!(closed.iter().all(|closed| closed.is_some_and(|closed| closed.cause() == Cause::Local)));
        let other = far_read.reunite(write).expect_err("of two connections");
        drop(other.read.reunite(far_write).expect("of one connection"));
        drop(read.reunite(other.write).expect("of one connection"));
    }};
}

#[tokio::test]
async fn halves_of_tokio_have_each_method() {
    let agreed = negotiate(None, None);
    let (near, far) = tokio::io::duplex(1 << 16);
    let near = sinews::WebSocket::from_negotiated(near, agreed.client, Arc::default(), &[]);
    let far = sinews::WebSocket::from_negotiated(far, agreed.server, Arc::default(), &[]);
    exercise!(near, far);
}

#[test]
fn halves_of_compio_have_each_method() {
    let Ok(runtime) = compio::runtime::Runtime::new() else {
        return println!("skipped: no runtime");
    };
    runtime.block_on(async {
        let agreed = negotiate(None, None);
        let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
        let socket = |stream| compio::net::UnixStream::from_std(stream).unwrap();
        let (near, far) = (socket(near), socket(far));
        let near = sinews::compio::WebSocket::from_negotiated(near, agreed.client, Arc::default(), &[]);
        let far = sinews::compio::WebSocket::from_negotiated(far, agreed.server, Arc::default(), &[]);
        exercise!(near, far);
    });
}
