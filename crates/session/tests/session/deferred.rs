//! Published messages during a fragmented message.

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use sinews_proto::{CloseCode, Config, Kind, Misuse, Overflow, Role, Time};
use sinews_session::{Cause, Prepared, Resources, Sent, Session};

use crate::negotiate;

struct End {
    session: Session,
    resources: Resources,
}

impl End {
    fn new(config: Config) -> Self {
        let session = Session::new(negotiate(Role::Server), Arc::new(config), Time::ZERO);
        Self { session, resources: Resources::with_masks(|| [0; 4]) }
    }

    fn publish(&mut self, text: &str) -> Result<Sent, Misuse> {
        let sent = self.session.tx(&mut self.resources, Time::ZERO).send_prepared(&Prepared::text(text));
        self.session.after_tx(&mut self.resources, Time::ZERO);
        sent
    }

    fn fragment(&mut self, piece: &str, last: bool) -> Result<Sent, Misuse> {
        let mut tx = self.session.tx(&mut self.resources, Time::ZERO);
        tx.send_fragment(Kind::Text, piece.as_bytes(), last)
    }

    /// The sent frames: the first byte of each, and its payload, which is short in these tests.
    fn frames(&mut self) -> Vec<(u8, String)> {
        let mut wire = Vec::new();
        while let Some(mut chain) = self.session.start_send() {
            while !chain.is_empty() {
                let mut slices = [IoSlice::new(&[]); 8];
                let filled = chain.slices(&mut slices);
                let before = wire.len();
                slices[..filled].iter().for_each(|slice| wire.extend_from_slice(slice));
                chain.advance(wire.len() - before);
            }
            self.session.finish_send(chain, &mut self.resources, Time::ZERO);
        }
        let (mut frames, mut rest) = (Vec::new(), &wire[..]);
        while let [first, len, behind @ ..] = rest {
            assert!(*len < 126);
            let (payload, next) = behind.split_at(usize::from(*len));
            frames.push((*first, String::from_utf8(payload.to_vec()).expect("text")));
            rest = next;
        }
        frames
    }
}

/// Pauses after each message.
struct Pauses;

impl sinews_session::Events for Pauses {
    fn message(&mut self, _: sinews_session::Payload<'_>, _: &mut sinews_session::Tx<'_>) {}

    fn pauses(&self) -> bool {
        true
    }
}

#[test]
fn idle_timeout_does_not_count_while_reads_are_paused() {
    let config = Config::default();
    let mut end = End::new(config.clone());
    let mut message = *b"\x81\x81\0\0\0\0a";
    let flow = end.session.receive(&mut message, &mut end.resources, Time::ZERO, &mut Pauses);
    assert_eq!(flow, sinews_session::Flow::Pause);
    let mut now = Time::ZERO;
    for _ in 0..100 {
        now = end.session.deadline().expect("a timeout");
        end.session.handle_timeout(&mut end.resources, now);
        assert!(end.session.is_open(), "after {now:?}");
        let _ = end.frames();
    }
    assert!(now > Time::ZERO + config.idle_timeout().expect("a time"));
    now = now + Duration::from_secs(1);
    assert_eq!(end.session.resume(&mut end.resources, now, &mut Pauses), sinews_session::Flow::Continue);
    assert_eq!(end.session.deadline(), Some(now + config.pong_timeout()));
    end.session.handle_timeout(&mut end.resources, now + config.pong_timeout());
    assert!(!end.session.is_open(), "a silent peer times out once reads resume");
}

// First byte of a frame (RFC 6455 section 5.2): a whole text, and the fragments of a text.
const WHOLE: u8 = 0x81;
const BEGIN: u8 = 0x01;
const MIDDLE: u8 = 0x00;
const END: u8 = 0x80;

fn expected<const N: usize>(frames: [(u8, &str); N]) -> Vec<(u8, String)> {
    frames.map(|(first, text)| (first, text.to_owned())).to_vec()
}

#[test]
fn deferred_publications_follow_last_fragment_in_order() {
    for overflow in [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest] {
        let mut end = End::new(Config::default().with_overflow(overflow));
        assert_eq!(end.publish("one"), Ok(Sent::Queued));
        assert_eq!(end.fragment("be", false), Ok(Sent::Queued));
        assert_eq!(end.publish("two"), Ok(Sent::Queued));
        assert_eq!(end.fragment("gin", false), Ok(Sent::Queued));
        assert_eq!(end.publish("three"), Ok(Sent::Queued));
        assert_eq!(end.frames(), expected([(WHOLE, "one"), (BEGIN, "be"), (MIDDLE, "gin")]));
        assert_eq!(end.fragment("ning", true), Ok(Sent::Queued));
        assert_eq!(end.publish("four"), Ok(Sent::Queued));
        let rest = expected([(END, "ning"), (WHOLE, "two"), (WHOLE, "three"), (WHOLE, "four")]);
        assert_eq!(end.frames(), rest, "{overflow:?}");
    }
}

/// Deferred messages wait for the fragmented message, so its fragments must not wait for them.
#[test]
fn deferred_publications_do_not_block_fragments() {
    for overflow in [Overflow::Close, Overflow::DropNewest, Overflow::DropOldest] {
        let config = Config::default().with_overflow(overflow).with_max_outbound(50).with_high_water(20);
        let mut end = End::new(config);
        assert_eq!(end.fragment("a", false), Ok(Sent::Queued));
        let large = "x".repeat(100);
        assert_eq!(end.publish(&large), Ok(Sent::Queued), "one message may exceed the limit");
        assert_eq!(end.session.tx(&mut end.resources, Time::ZERO).buffered(), 3);
        assert_eq!(end.fragment("b", false), Ok(Sent::Queued));
        assert_eq!(end.fragment("c", true), Ok(Sent::Backpressure), "all messages are queued now");
        assert_eq!(end.frames(), expected([(BEGIN, "a"), (MIDDLE, "b"), (END, "c"), (WHOLE, &large)]));
    }
}

#[test]
fn drop_newest_applies_to_deferred_publications() {
    let config = Config::default().with_overflow(Overflow::DropNewest).with_max_outbound(20);
    let mut end = End::new(config);
    assert_eq!(end.fragment("a", false), Ok(Sent::Queued));
    assert_eq!(end.publish("exceeds the limit alone"), Ok(Sent::Queued));
    assert_eq!(end.publish("late"), Ok(Sent::Dropped));
    assert_eq!(end.fragment("b", true), Ok(Sent::Queued));
    let frames = expected([(BEGIN, "a"), (END, "b"), (WHOLE, "exceeds the limit alone")]);
    assert_eq!(end.frames(), frames);
}

#[test]
fn drop_oldest_applies_to_deferred_publications() {
    let config = Config::default().with_overflow(Overflow::DropOldest).with_max_outbound(60);
    let mut end = End::new(config);
    assert_eq!(end.publish("before"), Ok(Sent::Queued));
    assert_eq!(end.fragment("a", false), Ok(Sent::Queued));
    for number in 0..100 {
        assert_eq!(
            end.publish(&format!("{number:05}")),
            Ok(Sent::Queued),
            "the newest publication is always admitted"
        );
    }
    assert_eq!(end.fragment("b", true), Ok(Sent::Queued));
    let frames = end.frames();
    assert_eq!(
        frames[..2],
        expected([(BEGIN, "a"), (END, "b")]),
        "older queued publications are dropped first"
    );
    let first = 100 - (frames.len() - 2);
    let newest: Vec<_> = (first..100).map(|number| (WHOLE, format!("{number:05}"))).collect();
    assert!(!newest.is_empty());
    assert_eq!(frames[2..], newest);
}

#[test]
fn close_policy_applies_to_deferred_publications() {
    let mut end = End::new(Config::default().with_max_outbound(20));
    assert_eq!(end.fragment("a", false), Ok(Sent::Queued));
    assert_eq!(end.publish("exceeds the limit alone"), Ok(Sent::Queued));
    assert_eq!(end.publish("late"), Ok(Sent::Dropped));
    let closed = end.session.take_closed().expect("the policy is to close");
    assert_eq!((closed.cause(), closed.code()), (Cause::Overflow, Some(CloseCode::POLICY)));
    assert_eq!(end.publish("later"), Err(Misuse::Closing));
}

#[test]
fn close_within_message_drops_deferred_publications() {
    let mut end = End::new(Config::default());
    assert_eq!(end.fragment("a", false), Ok(Sent::Queued));
    assert_eq!(end.publish("never"), Ok(Sent::Queued));
    end.session.tx(&mut end.resources, Time::ZERO).close(CloseCode::NORMAL, "done").expect("it is open");
    end.session.after_tx(&mut end.resources, Time::ZERO);
    assert_eq!(end.publish("never either"), Err(Misuse::Closing));
    let chain = end.session.start_send().expect("a Close is queued");
    let mut slices = [IoSlice::new(&[]); 2];
    assert_eq!(chain.slices(&mut slices), 1);
    assert_eq!(slices[0][..], *b"\x01\x01a\x88\x06\x03\xe8done");
}
