//! JSON of every kind from a client, with a model of the answers as the oracle.

use serde_json::{Value, json};
use sinews_testkit::Rng;

use super::client::{Client, KEY, hub, sign};
use super::model::ClientModel;

/// Connections, and messages on each.
const CONNECTIONS: u64 = 24;
const MESSAGES: usize = 120;

const EVENTS: [&str; 9] = [
    "pusher:ping",
    "pusher:pong",
    "pusher:subscribe",
    "pusher:subscribe",
    "pusher:unsubscribe",
    "client-a",
    "pusher_internal:subscription_succeeded",
    "pusher:",
    "",
];

const CHANNELS: [&str; 14] = [
    "a",
    "A_-=@,.;9",
    "cache-b",
    "private-a",
    "private-cache-a",
    "presence-a",
    "presence-b",
    "private-encrypted-a",
    "#server-to-user-1",
    "",
    "a b",
    "ü",
    "a\n",
    "a/b",
];

/// A value of any kind, with at most three levels.
fn any(rng: &mut Rng, depth: usize) -> Value {
    match rng.below(if depth < 3 { 9 } else { 7 }) {
        0 => Value::Null,
        1 => json!(rng.below(2) == 0),
        2 => json!(rng.below(1000) as i64 - 500),
        3 => json!(-0.25 * rng.below(9) as f64),
        4 => json!(CHANNELS[rng.below(CHANNELS.len())]),
        5 => json!("\u{0}\"\\\u{1f600}".repeat(rng.below(40))),
        6 => json!(any_object(rng, 3).to_string()),
        7 => (0..rng.below(4)).map(|_| any(rng, depth + 1)).collect(),
        _ => any_object(rng, depth),
    }
}

fn any_object(rng: &mut Rng, depth: usize) -> Value {
    let mut object = json!({});
    for name in ["event", "channel", "data", "auth", "channel_data", "user_id", "user_info", "more"] {
        if rng.below(4) == 0 {
            object[name] = any(rng, depth + 1);
        }
    }
    object
}

/// Data of a subscription, often with a valid signature.
fn subscribe_data(rng: &mut Rng, socket_id: &str) -> Value {
    let channel = CHANNELS[rng.below(CHANNELS.len())];
    let mut data = json!({ "channel": channel });
    let mut signed = format!("{socket_id}:{channel}");
    if channel.starts_with("presence-") {
        let member = match rng.below(3) {
            0 => any(rng, 1).to_string(),
            1 => json!({ "user_id": any(rng, 3), "user_info": any(rng, 2) }).to_string(),
            _ => json!({ "user_id": rng.below(9).to_string() }).to_string(),
        };
        signed.push_str(&format!(":{member}"));
        data["channel_data"] = json!(member);
    }
    if rng.below(4) > 0 {
        data["auth"] = json!(format!("{KEY}:{}", sign(&signed)));
    }
    if rng.below(4) == 0 {
        let name = ["channel", "auth", "channel_data", "more"][rng.below(4)];
        data[name] = any(rng, 1);
    }
    data
}

fn any_message(rng: &mut Rng, socket_id: &str) -> String {
    if rng.below(12) == 0 {
        return any(rng, 0).to_string();
    }
    let mut message = json!({ "event": EVENTS[rng.below(EVENTS.len())] });
    let data = if rng.below(6) == 0 { any(rng, 1) } else { subscribe_data(rng, socket_id) };
    match rng.below(4) {
        0 => message["data"] = json!(data.to_string()),
        _ => message["data"] = data,
    }
    if rng.below(8) == 0 {
        let name = ["event", "data", "channel", "more"][rng.below(4)];
        message[name] = any(rng, 1);
    }
    if rng.below(10) == 0 {
        // The fields in their order, without names.
        message = message.as_object().map(|fields| fields.values().cloned().collect()).unwrap_or_default();
    }
    let mut text = message.to_string();
    if rng.below(8) == 0 {
        // Replaces a character, or the end.
        let at: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let at = at[rng.below(at.len())];
        let with = ["{", "}", "[", "]", "\"", ":", ",", "\\", "\u{0}", " "][rng.below(10)];
        let rest: String = text[at..].chars().skip(1).filter(|_| with != " ").collect();
        text = format!("{}{with}{rest}", &text[..at]);
    }
    text
}

#[test]
fn json_of_every_kind_is_answered_as_the_model_says() {
    let hub = hub(|app| app);
    for seed in 0..CONNECTIONS {
        let mut rng = Rng::new(seed);
        let mut client = Client::new(&hub);
        let mut model = ClientModel::new(&client.socket_id, KEY, sign);
        for number in 0..MESSAGES {
            let text = any_message(&mut rng, &client.socket_id);
            client.send_text(&text);
            // An event that nobody knows ends the answers.
            let last = format!("last-{number}");
            client.send(&last, json!({}));
            let mut received = Vec::new();
            loop {
                let answer = client.receive();
                let problem = answer["data"]["message"].as_str().unwrap_or_default();
                if problem.contains(&last) {
                    break;
                }
                let code = answer["data"]["code"].as_u64().or_else(|| answer["data"]["status"].as_u64());
                received.push((
                    answer["event"].as_str().unwrap().to_owned(),
                    answer["channel"].as_str().unwrap_or_default().to_owned(),
                    code.unwrap_or_default(),
                ));
            }
            let expected = model.answers(&text);
            let expected: Vec<_> = expected
                .into_iter()
                .map(|(event, channel, code)| (event.to_owned(), channel, code))
                .collect();
            assert_eq!(received, expected, "seed {seed}, message {number}: {text}");
        }
        client.end();
    }
}
