use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use serde_json::from_str;
use sinews_server::TopicPattern;

use super::watcher::QUEUE_MAX;
use super::*;

#[derive(Default)]
struct CountedWakes(AtomicUsize);

impl Wake for CountedWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn watcher(filter: ActivityFilter) -> Arc<ActivityWatcher> {
    Arc::new(ActivityWatcher::new(filter, Waker::noop().clone()))
}

fn topic_filter(pattern: &str) -> ActivityFilter {
    let topic = TopicPattern::parse(pattern.to_owned()).ok();
    ActivityFilter { topic, ..ActivityFilter::default() }
}

fn publish(topic: &str) -> Activity<'_> {
    Activity { kind: ActivityKind::Publish, topic: Some(topic), user: Some("anna"), ..Activity::default() }
}

fn lines(watcher: &ActivityWatcher) -> Vec<Value> {
    std::iter::from_fn(|| watcher.take_line()).map(|line| from_str(&line).unwrap()).collect()
}

#[test]
fn actions_are_not_described_without_a_viewer() {
    let monitor = ActivityMonitor::default();
    let described = AtomicUsize::new(0);
    let observe = || {
        monitor.observe(|| {
            described.fetch_add(1, Ordering::Relaxed);
            publish("a")
        });
        described.load(Ordering::Relaxed)
    };
    assert_eq!(observe(), 0);
    let watcher = watcher(ActivityFilter::default());
    assert!(monitor.add(&watcher));
    assert_eq!(observe(), 1);
    monitor.remove(&watcher);
    assert_eq!(observe(), 1);
}

#[test]
fn filters_select_by_topic_user_connection_and_kind() {
    let mut of_kinds = ActivityFilter::default();
    assert!(of_kinds.add_kind("subscribe") && of_kinds.add_kind("close") && !of_kinds.add_kind("sub"));
    let of_user = |user: &str| ActivityFilter { user: Some(user.to_owned()), ..ActivityFilter::default() };
    let of_connection = ActivityFilter { connection: Some("a-1".to_owned()), ..ActivityFilter::default() };
    let publication = publish("chat.room");
    let subscription = Activity { kind: ActivityKind::Subscribe, ..publish("chat.>") };
    let close = Activity {
        kind: ActivityKind::Close,
        topic: None,
        connection: Some("a-1".to_owned()),
        ..publish("")
    };
    for (filter, expected) in [
        (ActivityFilter::default(), [true, true, true]),
        // A subscription to a pattern receives the messages of the topic.
        (topic_filter("chat.room"), [true, true, false]),
        (topic_filter("chat.*"), [true, true, false]),
        (topic_filter("news.>"), [false, false, false]),
        (of_kinds, [false, true, true]),
        (of_user("anna"), [true, true, true]),
        (of_user("ben"), [false, false, false]),
        (of_connection, [false, false, true]),
    ] {
        let watcher = watcher(filter.clone());
        let is_received = [&publication, &subscription, &close].map(|activity| {
            watcher.offer(activity, Instant::now(), || activity.to_json().into());
            watcher.take_line().is_some()
        });
        assert_eq!(is_received, expected, "{filter:?}");
    }
}

#[test]
fn frequent_actions_are_sampled_and_counted_by_kind() {
    let watcher = watcher(ActivityFilter::default());
    let start = Instant::now();
    let activity = publish("a");
    // 1,000 a second for 10 s.
    for at in 0..10_000 {
        watcher.offer(&activity, start + Duration::from_millis(at), || "1".into());
    }
    let received = lines(&watcher).len();
    assert!((230..=250).contains(&received), "{received} for a burst of 40 and 20 a second");
    let rejection = Activity { kind: ActivityKind::Reject, ..publish("a") };
    watcher.offer(&rejection, start + Duration::from_secs(10), || "2".into());
    assert_eq!(lines(&watcher), [json!(2)], "publications do not displace other kinds");
    assert_eq!(watcher.take_omitted(), Some(json!({ "publish": 10_000 - received })));
    assert_eq!(watcher.take_omitted(), None);
}

#[test]
fn queue_is_bounded_and_wakes_its_viewer_once() {
    let wakes = Arc::new(CountedWakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let watcher = ActivityWatcher::new(ActivityFilter::default(), waker);
    let start = Instant::now();
    for at in 0..QUEUE_MAX as u64 + 7 {
        watcher.offer(&publish("a"), start + Duration::from_secs(at), || "1".into());
    }
    assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
    assert_eq!(watcher.take_omitted(), Some(json!({ "publish": 7 })));
    assert_eq!(lines(&watcher).len(), QUEUE_MAX);
}

#[test]
fn viewers_are_limited() {
    let monitor = ActivityMonitor::default();
    let watchers: Vec<_> = (0..=WATCHERS_MAX).map(|_| watcher(ActivityFilter::default())).collect();
    let added = watchers.iter().filter(|watcher| monitor.add(watcher)).count();
    assert_eq!(added, WATCHERS_MAX);
    monitor.remove(&watchers[0]);
    assert!(monitor.add(&watchers[WATCHERS_MAX]));
}

#[test]
fn contents_are_cut_between_characters() {
    let of = |content: MessageContent| {
        let activity = Activity { content: Some(ActivityContent::Message(&content)), ..publish("a") };
        from_str::<Value>(&activity.to_json()).unwrap()
    };
    let short = of(MessageContent::Json("{\"a\":1}".into()));
    assert_eq!(
        (&short["json"], &short["bytes"], &short["cut"]),
        (&json!("{\"a\":1}"), &json!(7), &Value::Null)
    );
    assert_eq!(short["user"], "anna");
    let long = of(MessageContent::Text(format!("a{}", "é".repeat(PREVIEW_MAX)).into()));
    assert_eq!(long["text"].as_str().unwrap().len(), PREVIEW_MAX - 1);
    assert_eq!((&long["bytes"], &long["cut"]), (&json!(2 * PREVIEW_MAX + 1), &json!(true)));
    let value = MessageContent::Json("[1]".into()).into_key_value();
    let activity = Activity { content: Some(ActivityContent::KeyValue(&value)), ..publish("a") };
    let value = from_str::<Value>(&activity.to_json()).unwrap();
    assert_eq!((&value["json"], &value["bytes"]), (&json!("[1]"), &json!(3)));
    let bytes = of(MessageContent::Binary(vec![0xff; 3].into()));
    assert_eq!(bytes["b64"], "////");
}
