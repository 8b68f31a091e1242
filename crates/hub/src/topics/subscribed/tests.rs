use super::*;
use crate::hub::encodings;

#[test]
fn topics_are_counted_once_in_all_encodings() {
    let topics = Arc::new(SubscribedTopics::default());
    let observer = Arc::clone(&topics) as Arc<dyn TopicObserver>;
    let names = PublicNames { encodings: encodings(&Arc::default()).into(), observer };
    for name in ["j.a", "r.a", "r.a", "j.b.*", "m.feed", "p.a"] {
        names.subscribed(&name.into());
    }
    assert_eq!(topics.len(), 2);
    for (name, left) in [("j.a", 2), ("r.a", 2), ("j.c", 2), ("j.b.*", 1), ("p.a", 0), ("p.a", 0)] {
        names.unsubscribed(&name.into());
        assert_eq!(topics.len(), left, "{name}");
    }
}
