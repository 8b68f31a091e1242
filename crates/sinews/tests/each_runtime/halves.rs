//! Halves have the same methods on each runtime.

use crate::support::{ends, run};
use sinews::{Bytes, Cause, CloseCode, Closed, Config, Kind, Message, Prepared, Role, Sent};

/// Calls each send method and each receive method, and closes.
#[test]
fn halves_have_each_method() {
    run(|| async {
        let (near, far) = ends(&Config::default());
        let (mut write, mut read) = near.split();
        let (mut far_write, mut far_read) = far.split();
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
    });
}
