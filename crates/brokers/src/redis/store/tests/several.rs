//! Several independent servers.

use sinews_store::{KeyCommand, KeyCommands, KeyLimits};

use super::*;

/// Three servers, and their URL.
fn start() -> Option<([server::TestRedis; 3], String)> {
    let start = || server::TestRedis::start(&[]);
    let servers = [start()?, start()?, start()?];
    let hosts = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port)).join(",");
    Some((servers, format!("redis://{hosts}")))
}

fn topics() -> Vec<String> {
    (0..30).map(|number| format!("topic-{number}")).collect()
}

fn tops(node: &StoreNode, topics: &[String]) -> Vec<Result<Option<Position>, StoreError>> {
    let parts = topics.iter().map(|topic| TopicPart::log(topic)).collect();
    wait(node.store.tops(parts)).expect("it answers")
}

#[test]
fn topics_are_divided_between_servers() {
    let Some((servers, url)) = start() else { return };
    let (one, two) = (StoreNode::up(&url), StoreNode::up(&url));
    let topics = topics();
    two.store.follow_pattern("topic-1.*");
    for topic in &topics {
        two.follow(&TopicPart::log(topic));
        two.follow(&TopicPart::keys(topic));
        assert!(one.append(topic, "a").is_ok());
        let key = KeyCommand {
            key: "k".into(),
            value: Some("v".into()),
            ttl: Some(Duration::from_millis(50)),
            condition: None,
            once: None,
        };
        let limits = KeyLimits { keys: 9, bytes: 99 };
        let writes = KeyCommands { topic: (&**topic).into(), writes: vec![key], limits };
        assert!(wait(one.store.write_keys(writes)).is_ok());
    }
    assert!(one.append("topic-1.x", "a").is_ok());
    until("all are announced", || topics.iter().all(|topic| two.announced(topic).len() == 1));
    until("the pattern has its message", || two.announced("topic-1.x").len() == 1);
    let is_removal = |event: &StoreEvent| match event {
        StoreEvent::KeysChanged(_, update) => update.changes.iter().all(|change| change.value.is_none()),
        _ => false,
    };
    until("all servers are swept", || two.count(is_removal) == topics.len());
    let topic_counts = servers.each_ref().map(|server| server.run::<Vec<String>>("KEYS *:logmeta:*").len());
    assert_eq!(topic_counts.iter().sum::<usize>(), 31);
    assert!(topic_counts.iter().all(|count| *count > 3), "{topic_counts:?}");
    let all = tops(&one, &topics);
    assert!(all.iter().all(|top| matches!(top, Ok(Some(Position { sequence: 1, .. })))), "{all:?}");
}

#[test]
fn topics_of_other_servers_go_on_while_one_is_away() {
    let Some((servers, url)) = start() else { return };
    let node = StoreNode::up(&url);
    let topics = topics();
    assert_eq!(topics.iter().filter_map(|topic| node.append(topic, "a").err()).next(), None);
    servers[1].signal("STOP");
    let name = format!("redis://127.0.0.1:{}", servers[1].port);
    until("it is away", || match node.store.health() {
        StoreHealth::Away { reason, .. } => reason.starts_with(&*name),
        _ => false,
    });
    let states: Vec<_> = node
        .store
        .servers()
        .into_iter()
        .map(|server| (server.name.to_string(), server.health.is_up()))
        .collect();
    assert_eq!((states.len(), &states[1]), (3, &(name.clone(), false)));
    assert!(states[0].1 && states[2].1, "{states:?}");
    let mut away = 0;
    for (topic, top) in topics.iter().zip(tops(&node, &topics)) {
        let is_up = node.store.topic_health(topic).is_up();
        let appended = node.append(topic, "b");
        assert_eq!((appended.is_ok(), top.is_ok()), (is_up, is_up), "{topic}: {appended:?}");
        if let Err(error) = appended {
            assert!(matches!(&error, StoreError::Away(reason) if reason.starts_with(&*name)), "{error:?}");
            away += 1;
        }
    }
    assert!(away > 3 && away < 20, "{away}");
    servers[1].signal("CONT");
    node.wait_until_up();
    assert_eq!(topics.iter().filter_map(|topic| node.append(topic, "c").err()).next(), None);
}
