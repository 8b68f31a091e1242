use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::AtomicUsize;

use sinews_server::{BoundServer, Router, Server};
use tracing::Metadata;
use tracing::span::{Attributes, Id, Record};

use super::super::message::{
    EncodedPublication, MessageKind, NodeId, NodeMessageHead, write_publication, write_topic,
};
use super::super::options::ClusterOptions;
use super::super::outbox::Audience;
use super::super::times::NODE_TIMEOUT;
use super::*;
use crate::access::auth::{Revocation, RevokedTokens};
use crate::access::namespaces::order::PatternSet;
use crate::config::RejectedClaims;
use crate::wire::ContentKind;

/// Longer than any step takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A link that is connected with a test broker, and has no work.
struct TestLink {
    link: ClusterLink,
    events: Events,
    listener: TcpListener,
    broker: TcpStream,
    /// The other node's message count.
    messages: u64,
    _server: BoundServer,
}

impl TestLink {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let options = ClusterOptions::parse(&format!("nats://{}", listener.local_addr().unwrap())).unwrap();
        let cluster = Arc::new(Cluster::new(options, &[], None).unwrap());
        let server = Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let hub = Arc::new(HubTopics::new(PatternSet::new([])));
        let mut link = ClusterLink::new(&cluster, hub, LocalParts::default(), server.publisher()).unwrap();
        let mut events = Events::with_capacity(8);
        let broker = log_in(&mut link, &mut events, &listener);
        Self { link, events, listener, broker, messages: 0, _server: server }
    }

    /// Returns the bytes of another node's message, as the broker sends it.
    fn message(&mut self, kind: MessageKind, body: &[u8]) -> Vec<u8> {
        self.messages += 1;
        let mut message = Vec::new();
        NodeMessageHead { kind, node: NodeId { id: 1, start: 1 }, number: self.messages }.write(&mut message);
        message.extend_from_slice(body);
        let mut line = format!("MSG s 1 {}\r\n", message.len()).into_bytes();
        line.append(&mut message);
        line.extend_from_slice(b"\r\n");
        line
    }

    /// Sends the broker's bytes to the idle link. Returns whether the link goes on to wait, with no other work.
    fn waits_after(&mut self, bytes: &[u8]) -> bool {
        let end = Instant::now() + TIMEOUT;
        while !self.link.flush_receiver(Instant::now()) {
            assert!(Instant::now() < end, "the link is not idle");
            self.link.turn();
        }
        self.broker.write_all(bytes).unwrap();
        while !self.link.connection.as_ref().unwrap().has_input() {
            assert!(Instant::now() < end, "the bytes have not arrived");
            self.link.wait(&mut self.events, BACKLOG_DELAY);
        }
        self.link.flush_receiver(Instant::now())
    }
}

/// Connects a link, and logs it in. Returns the broker's end.
fn log_in(link: &mut ClusterLink, events: &mut Events, listener: &TcpListener) -> TcpStream {
    link.connect(Instant::now());
    let (mut broker, _) = listener.accept().unwrap();
    broker.write_all(b"INFO {}\r\nPONG\r\n").unwrap();
    let end = Instant::now() + TIMEOUT;
    while !link.connection.as_ref().unwrap().is_ready {
        assert!(Instant::now() < end, "the link is not connected");
        link.wait(events, BACKLOG_DELAY);
        link.turn();
    }
    broker
}

/// A broker that accepts each login, and then closes the connection.
#[test]
fn delay_grows_across_logins_until_a_connection_lasts() {
    let TestLink { mut link, mut events, listener, broker, _server, .. } = TestLink::new();
    drop(broker);
    for attempts in 1..8 {
        if attempts > 1 {
            log_in(&mut link, &mut events, &listener);
        }
        let now = Instant::now();
        link.disconnect("test", now);
        assert_eq!(link.attempts, attempts, "a login alone is no success");
        let delay = RETRY_MIN.saturating_mul(1 << (attempts - 1)).min(RETRY_MAX);
        assert!(link.retry_at >= now + delay / 2, "attempt {attempts}");
    }
    let now = Instant::now();
    link.ready_at = Some(now);
    link.beat_at = now;
    link.beat(now + STABLE_TIME / 2);
    assert!(link.attempts > 0);
    link.beat_at = now;
    link.beat(now + STABLE_TIME);
    assert_eq!(link.attempts, 0);
}

/// Counts this thread's log lines.
#[derive(Clone, Default)]
struct LineCounter(Arc<AtomicUsize>);

impl tracing::Subscriber for LineCounter {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        if *event.metadata().level() <= tracing::Level::INFO {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn lines_of_the_log_that_nodes_and_the_broker_cause_are_limited() {
    const NODES: u128 = 1_000;
    let TestLink { mut link, broker: _broker, _server, .. } = TestLink::new();
    let cluster = Arc::clone(link.cluster());
    let mut receive = |kind, id: u128, number| {
        let mut message = Vec::new();
        NodeMessageHead { kind, node: NodeId { id, start: 1 }, number }.write(&mut message);
        message.extend_from_slice(br#"{"name":"","version":"","uptime":0}"#);
        link.receiver.receive(&message, Instant::now());
    };
    let (lines, mut unlimited) = (LineCounter::default(), Vec::new());
    let mut count = |cause, kinds, work: &mut dyn FnMut()| {
        let before = lines.0.load(Ordering::Relaxed);
        tracing::subscriber::with_default(lines.clone(), work);
        let count = lines.0.load(Ordering::Relaxed) - before;
        if !(kinds..=10 * kinds).contains(&count) {
            unlimited.push((cause, count));
        }
    };
    count("nodes join, and exceed the limit", 2, &mut || {
        (1..=NODES).for_each(|id| receive(MessageKind::Heartbeat, id, 1));
    });
    count("nodes leave", 1, &mut || (1..=NODES / 10).for_each(|id| receive(MessageKind::Leave, id, 2)));
    let later = Instant::now() + NODE_TIMEOUT;
    count("nodes are dead", 1, &mut || drop(cluster.expire_nodes(later, true)));
    count("the broker rejects commands", 1, &mut || {
        let now = Instant::now();
        (0..NODES).for_each(|id| link.rejections.note(&cluster, id.to_string(), now));
    });
    let large = vec![b'x'; cluster.outbox.max_payload()];
    count("clients publish what the broker does not accept", 1, &mut || {
        for _ in 0..NODES {
            cluster.outbox.push(
                "chat.1",
                Audience::Subscribers,
                &EncodedPublication::plain(ContentKind::Text, &large, None),
            );
        }
    });
    count("clients connect, and the application answers with invalid claims", 1, &mut || {
        for _ in 0..NODES {
            let _ = RejectedClaims::Invalid("no claim".to_owned()).into_close();
        }
    });
    assert!(unlimited.is_empty(), "{unlimited:?}");
}

/// A broker whose connection looks alive: nothing closes it.
#[test]
fn connection_to_a_broker_that_does_not_answer_is_given_up_within_ten_seconds() {
    // Checks are due each second.
    const LIMIT: Duration = Duration::from_secs(10).saturating_sub(HEARTBEAT);
    let reason = |link: &mut ClusterLink, received: Instant, now: Instant| {
        if let Some(connection) = &mut link.connection {
            connection.received = received;
        }
        link.beat_at = now;
        link.beat(now);
        link.connection.is_none().then(|| link.cluster().check_broker().unwrap_err())
    };
    let mut silent = TestLink::new();
    let answered = silent.link.connection.as_ref().unwrap().answered;
    assert_eq!(reason(&mut silent.link, answered, answered + SILENCE_MAX), None);
    let text = reason(&mut silent.link, answered, answered + LIMIT).unwrap();
    assert!(text.contains("the broker has not answered for"), "{text}");
    // It sends messages and pings, and answers nothing.
    let mut deaf = TestLink::new();
    let connection = |link: &TestLink| link.link.connection.as_ref().unwrap().answered;
    while !deaf.link.flush_receiver(Instant::now()) {
        deaf.link.turn();
    }
    let answered = connection(&deaf);
    let mut publication = Vec::new();
    write_topic(&mut publication, "chat.1");
    write_publication(&mut publication, ContentKind::Text, b"a", None);
    let message = deaf.message(MessageKind::Publications, &publication);
    deaf.waits_after(&[&message, &b"PING\r\n"[..]].concat());
    assert_eq!(connection(&deaf), answered);
    let late = answered + LIMIT;
    assert_eq!(reason(&mut deaf.link, answered + SILENCE_MAX, answered + ANSWER_MAX), None);
    // While it reads no messages itself, answers may be behind them.
    deaf.link.is_delayed = true;
    assert_eq!(reason(&mut deaf.link, late, late), None);
    deaf.link.is_delayed = false;
    let later = late + LIMIT;
    let text = reason(&mut deaf.link, later, later).unwrap();
    assert!(text.contains("has answered no command"), "{text}");
    // An answer is one.
    let mut slow = TestLink::new();
    slow.link.connection.as_mut().unwrap().answered = Instant::now() - LIMIT;
    slow.waits_after(b"PONG\r\n");
    let now = Instant::now();
    assert_eq!(reason(&mut slow.link, now, now), None);
}

/// A broker that accepts the connection, and then is silent.
#[test]
fn login_without_an_answer_is_given_up_within_ten_seconds() {
    let TestLink { mut link, mut events, listener, broker, _server, .. } = TestLink::new();
    drop(broker);
    link.disconnect("test", Instant::now());
    link.connect(Instant::now());
    let (_broker, _) = listener.accept().unwrap();
    let end = Instant::now() + TIMEOUT;
    while link.connection.as_mut().unwrap().socket().is_none() {
        assert!(Instant::now() < end, "the link is not connected");
        link.wait(&mut events, BACKLOG_DELAY);
        link.serve();
    }
    let late = Instant::now() + Duration::from_secs(10) - HEARTBEAT;
    link.beat(late);
    assert!(link.connection.is_none());
    assert!(link.cluster().check_broker().unwrap_err().contains("no connection within 5 s"));
}

#[test]
fn message_with_another_version_is_named_and_the_later_node_is_not_ready() {
    let mut link = TestLink::new();
    // A node that has started before this one.
    let mut message = link.message(MessageKind::Heartbeat, b"{}");
    let at = message.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    message[at] += 1;
    link.waits_after(&message);
    let cluster = Arc::clone(link.link.cluster());
    cluster.confirmed(Instant::now());
    let reason = cluster.ready().unwrap_err();
    assert!(reason.contains("has version 3") && reason.contains("has version 2:"), "{reason}");
    assert_eq!(cluster.node_count(), 1);
}

#[test]
fn next_batch_of_subscriptions_follows_the_answer_or_a_timeout() {
    let mut link = TestLink::new();
    let cluster = Arc::clone(link.link.cluster());
    // As after a login, with topics whose results have no answers yet.
    let observer = cluster.observer();
    (0..1_100).for_each(|at| observer.subscribed(&format!("t{at}"), 1));
    let TestLink { link: inner, listener, events, .. } = &mut link;
    inner.disconnect("test", Instant::now());
    let mut broker = log_in(inner, events, listener);
    let now = Instant::now();
    let is_connected = |link: &ClusterLink| link.cluster().check_broker().is_ok();
    assert!(inner.batch_at.is_some_and(|at| at <= now + BATCH_TIMEOUT));
    // Two subjects for the node, a batch, and the heartbeat behind it.
    broker.write_all(&b"PONG\r\n".repeat(2 + 512 + 1)).unwrap();
    let end = now + TIMEOUT;
    let turn = |link: &mut ClusterLink, events: &mut Events| {
        assert!(Instant::now() < end, "no further batch");
        link.wait(events, BACKLOG_DELAY);
        link.turn();
    };
    // Not after the timeout, but after the answer.
    let later = Some(now + 60 * TIMEOUT);
    inner.batch_at = later;
    while inner.batch_at == later {
        turn(inner, events);
    }
    assert!(!is_connected(inner), "the broker does not have all subscriptions");
    // The second batch, and no answer: the third follows nevertheless.
    while !cluster.interest.is_resumed() {
        turn(inner, events);
        if inner.batch_at.is_some_and(|at| at > Instant::now() + BATCH_DELAY_MAX) {
            inner.batch_at = Some(Instant::now());
        }
    }
    broker.write_all(&b"PONG\r\n".repeat(2_000)).unwrap();
    while !is_connected(inner) {
        inner.beat_at = Instant::now();
        turn(inner, events);
        let _ = broker.write_all(b"PONG\r\n");
    }
}

#[test]
fn connection_to_a_broker_that_never_reads_is_given_up() {
    let mut link = TestLink::new().link;
    let cluster = Arc::clone(link.cluster());
    let body = vec![0; 1 << 20];
    // As the answers to other nodes' requests, which are not dropped.
    let limit = (0..).find(|_| {
        cluster.outbox.send(
            "sinews.all",
            MessageKind::Result,
            &body[..cluster.outbox.max_payload().min(1 << 20)],
        );
        cluster.outbox.check_waiting().is_err()
    });
    assert!(limit.is_some_and(|count| count <= 64), "{limit:?} MiB wait");
    link.beat_at = Instant::now();
    link.beat(Instant::now());
    assert!(link.connection.is_none() && cluster.outbox.waiting() == 0);
    assert!(cluster.check_broker().unwrap_err().contains("does not read"));
}

/// Other messages have results, such as the answer to a request, which the thread sends in its next turn.
#[test]
fn link_only_waits_again_after_publications() {
    let mut link = TestLink::new();
    let mut publications = Vec::new();
    write_topic(&mut publications, "chat.1");
    write_publication(&mut publications, ContentKind::Text, b"a", None);
    let publications = |link: &mut TestLink| link.message(MessageKind::Publications, &publications);
    let bytes = publications(&mut link);
    assert!(link.waits_after(&bytes), "publications");
    assert!(link.waits_after(&bytes), "a duplicate");
    for kind in [MessageKind::PresenceRequest, MessageKind::Heartbeat, MessageKind::Command] {
        let other = link.message(kind, b"{}");
        assert!(!link.waits_after(&other), "{kind:?}");
        let mut both = link.message(kind, b"{}");
        both.append(&mut publications(&mut link));
        assert!(!link.waits_after(&both), "{kind:?} before publications");
        let mut both = publications(&mut link);
        both.append(&mut link.message(kind, b"{}"));
        assert!(!link.waits_after(&both), "{kind:?} behind publications");
    }
    assert!(!link.waits_after(b"PONG\r\n"), "an answer of the broker");
    let bytes = publications(&mut link);
    assert!(link.waits_after(&bytes));
}

/// A publication meanwhile is not dropped, and waits behind a few parts only.
#[test]
fn list_of_revocations_leaves_in_parts_without_further_events() {
    const COUNT: usize = 60_000;
    let mut link = TestLink::new();
    let of = |at: usize| Revocation::new(RevokedTokens::WithId(format!("{at:032}").into()), 4e9);
    let all: Vec<Revocation> = (0..COUNT).map(of).collect();
    link.link.receiver.local.revocations.revoke_all(&all).1.unwrap();
    let mut broker = link.broker.try_clone().unwrap();
    let reader = thread::spawn(move || {
        broker.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (mut received, mut chunk, mut count) = (Vec::new(), vec![0; 1 << 16], 0);
        while count < COUNT {
            let length = broker.read(&mut chunk).unwrap();
            assert!(length > 0, "the link has closed its connection after {count}");
            // A silent broker counts as lost.
            broker.write_all(b"PONG\r\n").unwrap();
            let is_new = received.len().saturating_sub(6);
            received.extend_from_slice(&chunk[..length]);
            count += received[is_new..].windows(7).filter(|part| part == b"with_id").count();
        }
        received
    });
    for id in 1..=10 {
        let mut message = Vec::new();
        let head = NodeMessageHead { kind: MessageKind::Command, node: NodeId { id, start: 1 }, number: 1 };
        head.write(&mut message);
        message.extend_from_slice(br#"{"id":0,"op":"sync"}"#);
        assert!(link.link.receiver.receive(&message, Instant::now()));
    }
    let cluster = Arc::clone(link.link.cluster());
    let end = Instant::now() + TIMEOUT;
    while link.link.receiver.revocations.sends_list() {
        assert!(Instant::now() < end, "the list is not sent");
        link.link.receiver.do_pending_work();
        let waiting = cluster.outbox.waiting();
        assert!(waiting < 1 << 20, "{waiting}");
        cluster.outbox.push(
            "chat.1",
            Audience::Subscribers,
            &EncodedPublication::plain(ContentKind::Text, b"a", None),
        );
        link.link.turn();
        let is_flushed = link.link.connection.as_ref().unwrap().is_flushed();
        if is_flushed && link.link.receiver.revocations.sends_list() {
            assert_eq!(link.link.timeout(Instant::now()), Duration::ZERO);
            assert!(!link.link.flush_receiver(Instant::now()), "the thread has more to send");
        }
        link.link.wait(&mut link.events, BACKLOG_DELAY);
    }
    while !link.link.connection.as_ref().unwrap().is_flushed() {
        assert!(Instant::now() < end, "the list is not sent");
        link.link.wait(&mut link.events, BACKLOG_DELAY);
        link.link.serve();
    }
    let received = reader.join().unwrap();
    assert!(String::from_utf8_lossy(&received).matches("PUB sinews.t.chat.1 ").count() > 1);
    assert_eq!(cluster.outbox.counters.dropped_full.load(Ordering::Relaxed), 0);
}
