use super::*;
use crate::hub::encodings;

#[test]
fn topics_have_a_name_of_their_own_in_each_encoding() {
    let encodings = encodings(&Arc::default());
    let names = encodings.iter().map(|registered| registered.topics.topic("a.*").into_owned());
    assert_eq!(names.collect::<Vec<_>>(), ["j.a.*", "r.a.*", "p.a.*", "q.a.*"]);
    for (topic, expected) in [
        ("j.a.b", Some(("a.b", 1))),
        ("r.>", Some((">", 2))),
        ("p.a", Some(("a", 4))),
        ("q.a", Some(("a", 8))),
        ("$pusher.1.c.a", Some(("$pusher.1.c.a", 4))),
        ("m.feed", None),
        ("a", None),
    ] {
        assert_eq!(encodings.split(topic), expected, "{topic}");
    }
}

#[test]
#[should_panic(expected = "two encodings have the prefix \"j.\"")]
fn encodings_with_the_same_prefix_are_rejected() {
    let mut encodings = encodings(&Arc::default());
    encodings.register(crate::protocol::json::encoding::encodings());
}

#[test]
fn encodings_of_a_protocol_are_counted_together() {
    let encodings = encodings(&Arc::default());
    let has_subscribers = || encodings.iter().map(RegisteredEncoding::has_subscribers).collect::<Vec<_>>();
    for (number, expected) in [(0, [true, false, false, false]), (3, [false, false, true, true])] {
        let topics = encodings.iter().nth(number).unwrap().topics;
        let subscriptions = encodings.subscriptions(topics).unwrap();
        subscriptions.fetch_add(1, Ordering::AcqRel);
        assert_eq!(has_subscribers(), expected);
        subscriptions.fetch_sub(1, Ordering::AcqRel);
    }
}
