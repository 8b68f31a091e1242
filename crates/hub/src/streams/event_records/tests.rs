use std::sync::Arc;

use ring::hmac;
use sinews_stream::record::ValueKind;

use super::*;
use crate::apps::app::{PusherApp, PusherApps};
use crate::apps::live::LiveApps;
use crate::hub::encodings;

const TOPIC: &str = "stored.a";
const EVENT: &[u8] = br#"{"event":"e","socket_id":"1.2"}"#;

fn apps(key: &str, more: &[(&str, &str)]) -> Arc<LiveApps> {
    let app = PusherApp::new("1", key, &format!("secret of {key}")).with_topics("stored");
    let app = more.iter().fold(app, |app, (key, secret)| app.with_key(*key, secret));
    let other = PusherApp::new("2", "other", "secret of other").with_topics("other");
    let apps = LiveApps::default();
    apps.replace(&PusherApps::new([app, other]).unwrap());
    apps.into()
}

fn is_event(apps: &Arc<LiveApps>, topic: &str, value: &[u8], key: &[u8]) -> bool {
    let record = Record { offset: 0, timestamp: 0, key, value, kind: ValueKind::Json };
    let hub = HubTopics::default().with_encodings(encodings(apps));
    match sealed_content_of(&record, topic, &hub) {
        MessageContent::Event(bytes) => bytes == value,
        MessageContent::Json(bytes) => {
            assert_eq!(bytes, value);
            false
        }
        content => panic!("{content:?}"),
    }
}

#[test]
fn records_are_events_if_a_key_of_the_app_has_sealed_them() {
    let first = apps("first", &[]);
    let seal = |apps: &LiveApps, id: &str, topic: &str| apps.app(id).unwrap().options.seal(topic, EVENT);
    let sealed = event_key(&seal(&first, "1", TOPIC));
    assert!(is_event(&first, TOPIC, EVENT, &sealed));
    let forged = [
        EVENT_KEY.to_vec(),
        event_key(""),
        event_key(&"0".repeat(64)),
        event_key(&seal(&first, "2", TOPIC)),
        event_key(&seal(&first, "1", "stored.b")),
        sealed[..sealed.len() - 1].to_vec(),
        sealed.to_ascii_uppercase(),
        sealed[EVENT_KEY.len() + 1..].to_vec(),
    ];
    for key in forged {
        assert!(!is_event(&first, TOPIC, EVENT, &key), "{}", String::from_utf8_lossy(&key));
    }
    let other = br#"{"event":"e","socket_id":"1.3"}"#;
    assert!(!is_event(&first, TOPIC, other, &sealed), "another event");
    assert!(!is_event(&first, "stored.b", EVENT, &sealed), "another channel");
    assert!(!is_event(&first, "nobody.a", EVENT, &sealed), "a topic of no app");
    // A client can have texts signed by its application's server, and none of them is a seal.
    let secret = hmac::Key::new(hmac::HMAC_SHA256, b"secret of first");
    let signed = hmac::sign(&secret, &[TOPIC.as_bytes(), b"\0", EVENT].concat());
    let signed: String = signed.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!is_event(&first, TOPIC, EVENT, &event_key(&signed)));
    // During a rotation both keys are valid, afterwards only the new one.
    let rotating = apps("second", &[("first", "secret of first")]);
    assert!(is_event(&rotating, TOPIC, EVENT, &sealed));
    let resealed = event_key(&seal(&rotating, "1", TOPIC));
    let rotated = apps("second", &[]);
    assert!(is_event(&rotated, TOPIC, EVENT, &resealed) && !is_event(&rotated, TOPIC, EVENT, &sealed));
}
