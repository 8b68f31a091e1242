//! End of connections: the handler's `close` runs once, whatever its callbacks do.

use std::time::{Duration, Instant};

use sinews_proto::Role;
use sinews_server::{
    Cause, CloseCode, Config, Context, Expired, Handler, InvalidTopic, Member, Misuse, Overflow, Payload,
    PeerMisbehaved, PingRate, Prepared, PublishOptions, Router, Server, SlowConsumer, TopicRule, Topics,
    WebSocketRoute,
};
use sinews_testkit::{Frame, Reply};

use crate::support::{HandlerEvent, Peer, Running, routes, scripted};

/// Commands of the script, so that a peer controls the handler.
fn execute(event: &HandlerEvent, cx: &mut Context<'_>) {
    match event {
        HandlerEvent::Message(..) if event.text() == "close" => {
            cx.close(CloseCode::new(4000).unwrap(), "asked").unwrap()
        }
        HandlerEvent::Message(..) if event.text() == "flood" => {
            for _ in 0..1_000 {
                let _ = cx.send_binary(&[0; 64 << 10]);
            }
        }
        _ => {}
    }
}

/// Runs one connection until it has ended; returns the reported cause. The peer lives until then.
fn ended(config: Config, live: impl FnOnce(&Running, Peer) -> Option<Peer>) -> (Cause, u16) {
    ended_by_time(config, |server, mut peer| {
        peer.sync();
        live(server, peer)
    })
}

/// As [`ended`], with a timeout that may be over before the peer has sent anything.
fn ended_by_time(config: Config, live: impl FnOnce(&Running, Peer) -> Option<Peer>) -> (Cause, u16) {
    let (route, events) = scripted(execute);
    let server = Running::router(routes().websocket("/", route.with_config(config)));
    let peer = server.websocket("/");
    let kept = live(&server, peer);
    let closed = events.closed();
    drop((kept, server));
    let after = events.rest();
    assert!(after.is_empty(), "callbacks after close: {after:?}");
    (closed.cause(), closed.status())
}

#[test]
fn every_kind_of_end_is_reported_once() {
    let plain = Config::default;
    let short = Duration::from_millis(20);
    let by_peer = |frame: Frame| {
        move |_: &Running, mut peer: Peer| {
            peer.send(&frame);
            while peer.next().is_some() {}
            Some(peer)
        }
    };
    let kept = |_: &Running, peer: Peer| Some(peer);
    assert_eq!(ended(plain(), by_peer(Frame::close(3001, "x"))), (Cause::Peer, 3001));
    assert_eq!(ended(plain(), by_peer(Frame::close_raw(""))), (Cause::Peer, 1005));
    let (cause, status) = ended(plain(), by_peer(Frame::text("x").unmasked()));
    assert!(cause == Cause::Fault(PeerMisbehaved::UnmaskedFrame) && status == 1002, "{cause:?}");
    let flooding = plain().with_ping_rate(PingRate { per_second: 1, burst: 1 });
    let (cause, status) = ended(flooding, |_, mut peer| {
        // At once: within a second, the rate permits one.
        peer.client.send(Frame::ping("").encode(Role::Client).repeat(10));
        while peer.next().is_some() {}
        Some(peer)
    });
    assert!(cause == Cause::Fault(PeerMisbehaved::PingFlood) && status == 1008, "{cause:?}");
    let (cause, status) = ended_by_time(plain().with_idle_timeout(Some(short)), |_, mut peer| {
        while matches!(peer.next(), Some(Reply::Close(..))) {
            // After the peer's Close the handler gets no message.
            peer.send(&Frame::text("late")).send(&Frame::close(1001, ""));
        }
        Some(peer)
    });
    assert!(cause == Cause::Expired(Expired::Idle) && status == 1006, "{cause:?}");
    let silent = plain().with_ping_interval(Some(short)).with_pong_timeout(short);
    assert!(matches!(ended_by_time(silent, kept), (Cause::Expired(Expired::Pong), 1006)));
    assert_eq!(
        ended(plain(), |_, peer| {
            peer.reset();
            None
        }),
        (Cause::Ended, 1006)
    );
    assert_eq!(
        ended(plain(), |_, peer| {
            drop(peer);
            None
        }),
        (Cause::Ended, 1006)
    );
    let half = ended(plain(), |_, mut peer| {
        peer.send(&Frame::text("half").declares(100)).client.half_close().assert_end();
        Some(peer)
    });
    assert_eq!(half, (Cause::Ended, 1006));
    assert_eq!(
        ended(plain(), |server, peer| {
            server.stop.stop_now();
            Some(peer)
        }),
        (Cause::Ended, 1006)
    );
}

#[test]
fn own_close_is_reported_once() {
    let local = ended(Config::default(), |_, mut peer| {
        peer.send(&Frame::text("close")).expect(&Reply::Close(Some(4000), "asked".into()));
        peer.send(&Frame::close(4000, "asked"));
        assert_eq!(peer.next(), None, "the server ends TCP first");
        Some(peer)
    });
    assert_eq!(local, (Cause::Local, 4000));
    let crossing = ended(Config::default(), |_, mut peer| {
        peer.send(&Frame::text("close")).send(&Frame::close(1000, "mine"));
        peer.expect(&Reply::Close(Some(4000), "asked".into()));
        assert_eq!(peer.next(), None);
        Some(peer)
    });
    assert_eq!(crossing.0, Cause::Local);
    let unanswered = ended(Config::default().with_close_timeout(Duration::from_millis(20)), |_, mut peer| {
        peer.send(&Frame::text("close")).expect(&Reply::Close(Some(4000), "asked".into()));
        Some(peer)
    });
    assert!(matches!(unanswered, (Cause::Expired(Expired::Close), 1006)), "{unanswered:?}");
    let stopped = ended(Config::default(), |server, mut peer| {
        server.stop.stop();
        let close = peer.next().unwrap();
        assert_eq!(close.close_code(), Some(1001));
        peer.send(&Frame::close(1001, ""));
        assert_eq!(peer.next(), None);
        Some(peer)
    });
    assert_eq!(stopped, (Cause::Local, 1001));
}

#[test]
fn peer_that_does_not_read_is_dropped() {
    let never =
        Config::default().with_write_timeout(Duration::from_millis(50)).with_overflow(Overflow::DropNewest);
    // More than the sockets' buffers take.
    let stuck = ended(never.clone().with_max_outbound(64 << 20), |_, mut peer| {
        peer.send(&Frame::text("flood"));
        Some(peer)
    });
    assert!(matches!(stuck, (Cause::Expired(Expired::Write), 1006)), "{stuck:?}");
    let overflown = ended(never.with_overflow(Overflow::Close), |_, mut peer| {
        peer.send(&Frame::text("flood"));
        Some(peer)
    });
    assert_eq!(overflown, (Cause::Overflow, 1008));
    // The same with a peer that reads all queued messages, and the reason.
    let reported = ended(Config::default(), |_, mut peer| {
        peer.send(&Frame::text("flood"));
        let last = std::iter::from_fn(|| peer.next()).find(|reply| !matches!(reply, Reply::Message(..)));
        assert_eq!(last, Some(Reply::Close(Some(1008), "too slow".into())));
        peer.send(&Frame::close(1008, ""));
        assert_eq!(peer.next(), None);
        Some(peer)
    });
    assert_eq!(reported, (Cause::Overflow, 1008));
}

/// Everything a callback can do to itself and to other connections, in orders that have broken servers before.
const DEEDS: [fn(&mut Context<'_>); 9] = [
    |cx| assert!(cx.close(CloseCode::NORMAL, "").is_ok() || !cx.is_open()),
    |cx| {
        let _ = cx.close(CloseCode::NORMAL, "");
        assert_eq!(cx.close(CloseCode::NORMAL, ""), Err(Misuse::Closing));
        assert_eq!(cx.send_text("late"), Err(Misuse::Closing));
    },
    |cx| {
        let _ = cx.subscribe("t");
        cx.publish("t", &Prepared::text("deed"), PublishOptions::new()).unwrap();
        cx.unsubscribe("t");
        cx.publish("t", &Prepared::text("deed"), PublishOptions::new()).unwrap();
    },
    |cx| {
        cx.unsubscribe("t");
        cx.unsubscribe("never");
        let _ = cx.subscribe("t");
        let _ = cx.subscribe("t");
    },
    |cx| {
        cx.publish("t", &Prepared::text("deed"), PublishOptions::new()).unwrap();
        let _ = cx.close(CloseCode::NORMAL, "");
        cx.unsubscribe("t");
        cx.publish("t", &Prepared::text("deed"), PublishOptions::new().except(cx.subscriber_id())).unwrap();
    },
    |cx| {
        let _ = cx.subscribe("t");
        let _ = cx.close(CloseCode::NORMAL, "");
        cx.publish("t", &Prepared::text("deed"), PublishOptions::new()).unwrap();
    },
    |cx| {
        for number in 0..50 {
            let _ = cx.subscribe(&format!("t{number}"));
            cx.publish(&format!("t{number}"), &Prepared::text("deed"), PublishOptions::new()).unwrap();
        }
    },
    |cx| {
        let _ = cx.send_ping(b"deed");
        let _ = cx.send_text("deed");
        cx.publish("t", &Prepared::binary(vec![0; 1_000]), PublishOptions::new()).unwrap();
    },
    |cx| {
        cx.join("t", Member::new("deed")).unwrap();
        cx.watch_presence("t").unwrap();
        cx.leave("t");
        cx.join_anonymous("t").unwrap();
    },
];

fn is_callback(event: &HandlerEvent, at: usize) -> bool {
    match event {
        HandlerEvent::Open => at == 0,
        HandlerEvent::Message(..) => at == 1,
        HandlerEvent::Drain => at == 2,
        HandlerEvent::Close(_) => at == 3,
        HandlerEvent::Dropped(_) => at == 4,
    }
}

#[test]
fn callbacks_may_close_subscribe_unsubscribe_and_publish() {
    for (number, deed) in DEEDS.into_iter().enumerate() {
        for at in 0..5 {
            let (route, events) = scripted(move |event, cx| {
                if *event == HandlerEvent::Open {
                    cx.subscribe("t").unwrap();
                }
                if is_callback(event, at) {
                    deed(cx);
                }
                if matches!(event, HandlerEvent::Message(..)) {
                    // Enough for `drain`.
                    let _ = cx.send_binary(&[0; 100_000]);
                    // And for drops: one of these messages may be queued.
                    for _ in 0..3 {
                        cx.publish("t", &Prepared::text("deed"), PublishOptions::new()).unwrap();
                    }
                }
            });
            let (others, _others_events) = scripted(|event, cx| {
                if *event == HandlerEvent::Open {
                    cx.subscribe("t").unwrap();
                }
            });
            let routes = routes().websocket("/deeds", route).websocket("/others", others);
            let rule = TopicRule::new("t").with_slow_consumer(SlowConsumer::DropNewest);
            let rule = rule.with_max_queued_messages(1);
            let server = Server::new(routes).threads(1).topic_rule(rule);
            let server = Running::server(server.presence(|_| Some(Prepared::text("present"))));
            let mut witness = server.websocket("/others");
            for _ in 0..3 {
                let mut peer = server.websocket("/deeds");
                let mut sender = peer.client.try_clone();
                // The server may have closed already.
                let sending = std::thread::spawn(move || {
                    sender.try_send_all(&[Frame::text("m"), Frame::close(1000, "")])
                });
                while peer.next().is_some() {}
                sending.join().unwrap();
                events.closed();
            }
            witness.send(&Frame::ping("alive"));
            while let Some(reply) = witness.next() {
                if reply == Reply::Pong(b"alive".to_vec()) {
                    break;
                }
                assert!(matches!(reply, Reply::Message(..)), "deed {number} at {at}: {reply:?}");
            }
            drop((witness, server));
            let after = events.rest();
            assert!(after.is_empty(), "deed {number} at {at}: {after:?}");
        }
    }
}

#[test]
fn topic_names_and_subscriptions_have_limits() {
    let (route, events) = scripted(|event, cx| {
        if *event == HandlerEvent::Open {
            for bad in ["", "a\nb", &"x".repeat(Topics::NAME_MAX + 1)] {
                assert_eq!(cx.subscribe(bad), Err(InvalidTopic::Name));
            }
            for number in 0..Topics::SUBSCRIPTIONS_MAX {
                assert_eq!(cx.subscribe(&number.to_string()), Ok(()));
            }
            assert_eq!(cx.subscribe("0"), Ok(()), "twice is once");
            assert_eq!(cx.subscribe("more"), Err(InvalidTopic::TooManySubscriptions));
            assert!(cx.unsubscribe("0") && !cx.unsubscribe("0"));
            assert_eq!(cx.subscribe("more"), Ok(()));
        }
    });
    let server = Running::router(Router::new().websocket("/", route));
    server.websocket("/").sync();
    assert_eq!(events.next(), HandlerEvent::Open);
    assert_eq!(events.closed().cause(), Cause::Ended);
}

/// Counts its deadlines, and closes at the third.
struct Lease {
    until: Instant,
    left: u16,
}

impl Handler for Lease {
    fn message(&mut self, _: Payload<'_>, _: &mut Context<'_>) {}

    fn deadline(&self) -> Option<Instant> {
        Some(self.until)
    }

    fn expired(&mut self, cx: &mut Context<'_>) {
        assert!(self.until <= Instant::now(), "called before its deadline");
        self.left -= 1;
        if self.left > 0 {
            self.until = Instant::now() + Duration::from_millis(5);
            let _ = cx.send_text("renewed").unwrap();
        } else {
            // The deadline stays in the past, and is not evaluated again.
            cx.close(CloseCode::new(4000).unwrap(), "over").unwrap();
        }
    }
}

#[test]
fn handler_is_called_at_its_deadline() {
    // The first deadline has passed before it is first evaluated.
    let lease = || Lease { until: Instant::now(), left: 3 };
    let server = Running::router(routes().websocket("/", WebSocketRoute::new(move |_| Ok(lease()))));
    let mut peer = server.websocket("/");
    // The peer sends nothing, and no timer of the session is due soon.
    assert_eq!(peer.next(), Some(Reply::text("renewed")));
    assert_eq!(peer.next(), Some(Reply::text("renewed")));
    assert_eq!(peer.next().and_then(|reply| reply.close_code()), Some(4000));
}
