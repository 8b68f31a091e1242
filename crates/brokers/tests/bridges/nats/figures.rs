//! Figures of topic stores; `cargo xtask brokers` does not run them.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use sinews_store::{KeyCommand, KeyCommands, KeyLimits, StoreAnswer, StoreError};

use super::{StoreNode, message, prefix, wait};

/// Operations in flight.
const WINDOW: usize = 512;

fn measure<T>(name: &str, count: u32, submit: impl Fn(u32) -> StoreAnswer<T>) {
    let (begun, mut flight) = (Instant::now(), VecDeque::new());
    let finish = |pending: StoreAnswer<T>| assert!(matches!(wait(pending), Ok(_) | Err(StoreError::Busy)));
    for number in 0..count {
        if flight.len() >= WINDOW {
            flight.pop_front().into_iter().for_each(finish);
        }
        flight.push_back(submit(number));
    }
    flight.into_iter().for_each(finish);
    println!("{name}: {:.0}/s", f64::from(count) / begun.elapsed().as_secs_f64());
}

#[test]
#[ignore = "figures: run it by its name, in a release build"]
fn figures_of_a_store() {
    let node = StoreNode::new(&prefix("figures"));
    let payload = "x".repeat(128);
    for topics in [1, 100] {
        measure(&format!("appends of 128 bytes, {topics} topics"), 30_000, |number| {
            node.store.append(message(&format!("t.{}", number % topics), &payload))
        });
    }
    for topics in [1, 100] {
        measure(&format!("key writes of 128 bytes, {topics} topics"), 30_000, |number| {
            let write = KeyCommand {
                key: (number % 1_000).to_string().into(),
                value: Some(Bytes::from(payload.clone())),
                ttl: None,
                condition: None,
                once: None,
            };
            let limits = KeyLimits { keys: 10_000, bytes: 16 << 20 };
            let topic = format!("k.{}", number % topics).into();
            node.store.write_keys(KeyCommands { topic, writes: vec![write], limits })
        });
    }
    let begun = Instant::now();
    (0..500).for_each(|number| drop(node.append(message("one", &number.to_string()))));
    println!("one append at a time: {:?}", begun.elapsed() / 500);
}
