use sinews_server::{BoundServer, Router, Server};

use super::*;

const NODE: NodeId = NodeId { id: 1, start: 1 };

/// A server without workers; its presence table is read.
struct TestNode {
    server: BoundServer,
    publisher: Publisher,
    remote: RemotePresence,
}

impl TestNode {
    fn new() -> Self {
        let server = Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
        let publisher = server.publisher();
        publisher.share_presence(|| ());
        Self { server, publisher, remote: RemotePresence::default() }
    }

    /// Returns a topic's connections and members.
    fn presence(&self, topic: &str) -> (usize, Vec<(String, String)>) {
        let _ = &self.server;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let members = self.publisher.members(topic, None, usize::MAX);
        let members =
            members.iter().map(|(member, _)| (member.id().to_owned(), text(member.info()))).collect();
        (self.publisher.presence_count(topic).connections, members)
    }

    fn changes(&mut self, number: u64, topics: &[OwnPresence]) -> bool {
        self.remote.apply_changes(NODE, &message(number, None, topics), &self.publisher, Instant::now())
    }

    fn snapshot(&mut self, number: u64, flags: u8, topics: &[OwnPresence]) {
        self.remote.apply_snapshot(
            NODE,
            &message(number, Some(flags), topics),
            &self.publisher,
            Instant::now(),
        );
    }
}

fn message(number: u64, flags: Option<u8>, topics: &[OwnPresence]) -> Vec<u8> {
    let mut body = number.to_le_bytes().to_vec();
    body.extend(flags);
    topics.iter().for_each(|own| write_own(&mut body, own));
    body
}

fn own(topic: &str, connections: usize, members: &[(&str, &'static str, usize)]) -> OwnPresence {
    let members = members.iter().map(|(id, info, count)| (Member::new(*id).with_info(*info), *count));
    OwnPresence { topic: topic.into(), connections, members: members.collect() }
}

fn pairs(members: &[(&str, &str)]) -> Vec<(String, String)> {
    members.iter().map(|(id, info)| ((*id).to_owned(), (*info).to_owned())).collect()
}

#[test]
fn changes_are_applied_in_order() {
    let mut node = TestNode::new();
    assert!(!node.changes(1, &[own("a", 3, &[("1", "x", 1), ("2", "y", 2)]), own("b", 7, &[])]));
    assert_eq!(node.presence("a"), (3, pairs(&[("1", "x"), ("2", "y")])));
    assert_eq!(node.presence("b").0, 7);
    assert!(!node.changes(2, &[own("a", 1, &[("1", "z", 1), ("2", "", 0)]), own("b", 0, &[])]));
    assert_eq!((node.presence("a"), node.presence("b").0), ((1, pairs(&[("1", "z")])), 0));
    assert!(!node.remote.compare(NODE, 2, Instant::now()));
    node.remote.remove(NODE, &node.publisher);
    assert_eq!(node.presence("a"), (0, vec![]));
}

#[test]
fn ids_of_members_have_any_length_up_to_the_longest() {
    for length in [1, 63, 64, 85, 127, Member::ID_MAX] {
        for character in ["a", "ü", "中", "😀"] {
            let (mut node, id) = (TestNode::new(), character.repeat(length));
            assert!(!node.changes(1, &[own("a", 2, &[(&id, "x", 1), ("2", "y", 1)])]));
            assert_eq!(node.presence("a").1.len(), 2, "{length} times {character}");
            assert!(node.presence("a").1.contains(&(id, "x".to_owned())));
        }
    }
    let member = Member::new("😀".repeat(Member::ID_MAX)).with_info(vec![b'x'; Member::INFO_MAX]);
    let mut largest = Vec::new();
    let topic = "a".repeat(sinews_server::Topics::NAME_MAX).into();
    write_own(&mut largest, &OwnPresence { topic, connections: 1, members: vec![(member, 1)] });
    assert!(largest.len() <= MEMBER_BYTES_MAX, "{}", largest.len());
}

#[test]
fn missed_changes_lead_to_a_request_and_a_snapshot() {
    let mut node = TestNode::new();
    assert!(!node.changes(1, &[own("a", 2, &[("1", "", 1), ("2", "", 1)]), own("gone", 1, &[("3", "", 1)])]));
    // Number 2 is missing.
    assert!(node.changes(3, &[own("a", 3, &[("4", "", 1)])]), "it is requested");
    assert!(!node.changes(4, &[]), "once");
    node.snapshot(4, FIRST_PART, &[own("a", 2, &[("1", "", 1)])]);
    // Announced while the snapshot is sent.
    assert!(!node.changes(5, &[own("new", 1, &[("6", "", 1)])]));
    node.snapshot(4, LAST_PART, &[own("a", 2, &[("5", "", 1)])]);
    assert_eq!(node.presence("a"), (2, pairs(&[("1", ""), ("5", "")])));
    assert_eq!((node.presence("gone").0, node.presence("new")), (0, (1, pairs(&[("6", "")]))));
}

#[test]
fn heartbeat_shows_missed_changes() {
    let mut node = TestNode::new();
    let now = Instant::now();
    assert!(!node.remote.compare(NODE, 0, now), "it has announced nothing");
    assert!(node.remote.compare(NODE, 9, now) && !node.remote.compare(NODE, 9, now));
    assert!(node.remote.compare(NODE, 9, now + REQUEST_INTERVAL), "the answer was lost");
    node.snapshot(9, FIRST_PART | LAST_PART, &[own("a", 1, &[])]);
    assert!(!node.remote.compare(NODE, 9, now + REQUEST_INTERVAL * 3));
    assert!(node.remote.compare(NODE, 10, now + REQUEST_INTERVAL * 3));
}

/// Another program has sent a high number, or the process was restored from a machine snapshot.
#[test]
fn numbers_that_go_back_need_one_snapshot() {
    for forged in [u64::MAX, 80] {
        let mut node = TestNode::new();
        let now = Instant::now();
        node.snapshot(50, FIRST_PART | LAST_PART, &[own("a", 1, &[])]);
        assert!(node.changes(forged, &[]) && node.remote.compare(NODE, 51, now + REQUEST_INTERVAL * 2));
        node.snapshot(51, FIRST_PART | LAST_PART, &[own("a", 2, &[])]);
        for number in 52..60 {
            let later = now + REQUEST_INTERVAL * 2;
            assert!(!node.changes(number, &[own("a", usize::try_from(number).unwrap(), &[])]), "{forged}");
            assert!(!node.remote.compare(NODE, number, later), "{forged}: it is requested again");
        }
        assert_eq!(node.presence("a").0, 59);
    }
}

#[test]
fn snapshot_is_sent_in_parts() {
    snapshot_in_parts("i", MEMBERS_PER_MESSAGE, 32 << 10);
}

#[test]
fn parts_of_a_snapshot_fit_into_the_smallest_message_of_a_broker() {
    let max_payload = 8 << 10;
    snapshot_in_parts(
        "i".repeat(Member::INFO_MAX).leak(),
        members_per_message(max_payload),
        max_payload - crate::cluster::message::HEAD,
    );
    assert_eq!(members_per_message(1 << 20), MEMBERS_PER_MESSAGE);
}

fn snapshot_in_parts(info: &'static str, members_max: usize, bytes_max: usize) {
    let (sender, mut receiver) = (TestNode::new(), TestNode::new());
    let member = |id: usize| (Member::new(format!("m{id:03}")).with_info(info), 1);
    let members: Vec<_> = (0..700).map(member).collect();
    let large = sinews_server::PresenceSnapshot { topic: "large".to_owned(), members, anonymous: 5 };
    let small = |topic: usize| sinews_server::PresenceSnapshot {
        topic: format!("small.{topic}"),
        members: Vec::new(),
        anonymous: 1,
    };
    let topics = std::iter::once(large).chain((0..300).map(small)).collect();
    sender.publisher.restore_presence(topics, Duration::from_secs(60));
    let mut snapshot = PresenceSnapshotSender::new(Vec::new(), &sender.publisher);
    let mut parts = 0;
    loop {
        let (body, is_last) = snapshot.next(3, members_max, &sender.publisher);
        assert!(body.len() < bytes_max, "{}", body.len());
        receiver.remote.apply_snapshot(NODE, &body, &receiver.publisher, Instant::now());
        parts += 1;
        if is_last {
            break;
        }
    }
    assert!(parts >= 4, "{parts}");
    let (connections, members) = receiver.presence("large");
    assert_eq!((connections, members.len(), receiver.presence("small.299").0), (705, 700, 1));
    assert!(!receiver.remote.compare(NODE, 3, Instant::now()));
    receiver.remote.remove(NODE, &receiver.publisher);
    assert_eq!((receiver.presence("large"), receiver.presence("small.0").0), ((0, vec![]), 0));
}

#[test]
fn lost_part_of_a_snapshot_removes_no_member() {
    let all = pairs(&[("1", ""), ("2", ""), ("3", "")]);
    // Earlier versions send no numbers.
    for (numbers, lost, is_requested) in [
        ([1, 2, 3], None, false),
        ([0; 3], None, false),
        ([1, 2, 3], Some(0), false),
        ([1, 2, 3], Some(1), true),
        ([1, 2, 3], Some(2), true),
    ] {
        let [first, middle, last] = numbers.map(|number| number << PART_SHIFT);
        let parts = [(first | FIRST_PART, "1"), (middle, "2"), (last | LAST_PART, "3")];
        let (mut node, now) = (TestNode::new(), Instant::now());
        node.changes(1, &[own("a", 3, &[("1", "", 1), ("2", "", 1), ("3", "", 1)])]);
        for (_, (flags, id)) in parts.into_iter().enumerate().filter(|(at, _)| Some(*at) != lost) {
            node.snapshot(1, flags, &[own("a", 3, &[(id, "", 1)])]);
        }
        assert_eq!(node.presence("a"), (3, all.clone()), "{numbers:?} without {lost:?}");
        assert_eq!(node.remote.compare(NODE, 1, now + REQUEST_INTERVAL * 2), is_requested, "{lost:?}");
        // The answer has all its parts, and one member less.
        for (flags, id) in parts.into_iter().filter(|(_, id)| *id != "2") {
            let part = if id == "3" { 2 } else { 1 };
            let flags = flags & (FIRST_PART | LAST_PART) | part << PART_SHIFT;
            node.snapshot(1, flags, &[own("a", 2, &[(id, "", 1)])]);
        }
        assert_eq!(node.presence("a"), (2, pairs(&[("1", ""), ("3", "")])));
        assert!(!node.remote.compare(NODE, 1, now + REQUEST_INTERVAL * 4));
    }
}

#[test]
fn parts_of_a_long_snapshot_are_numbered_without_a_gap() {
    let (sender, mut receiver) = (TestNode::new(), TestNode::new());
    let topic = |topic: usize| sinews_server::PresenceSnapshot {
        topic: format!("t.{topic}"),
        members: Vec::new(),
        anonymous: 1,
    };
    sender.publisher.restore_presence((0..150).map(topic).collect(), Duration::from_secs(60));
    let mut snapshot = PresenceSnapshotSender::new(Vec::new(), &sender.publisher);
    let mut parts = 0;
    loop {
        let (body, is_last) = snapshot.next(1, 1, &sender.publisher);
        receiver.remote.apply_snapshot(NODE, &body, &receiver.publisher, Instant::now());
        parts += 1;
        if is_last {
            break;
        }
    }
    assert!(parts > 2 * usize::from(PART_MAX), "{parts}");
    assert!(!receiver.remote.compare(NODE, 1, Instant::now()));
}

#[test]
fn truncated_messages_are_ignored() {
    let whole = message(1, None, &[own("a", 2, &[("1", "info", 1), ("2", "", 1)])]);
    for end in 0..whole.len() {
        let mut node = TestNode::new();
        node.remote.apply_changes(NODE, &whole[..end], &node.publisher, Instant::now());
        assert_eq!(node.presence("a"), (0, vec![]), "{end}");
    }
}
