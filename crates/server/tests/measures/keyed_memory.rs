//! Memory of keys, as the allocator counts it and as the limit of keys counts it.

use sinews_server::{KeyWrite, KeyedConfig, Monitor, Router, Server, TopicConfig};
use sinews_testkit::{live_bytes, measure_alone};

use crate::backend;

/// Writes keys; returns the bytes that the limit counts for them, and the bytes at the allocator.
fn written(monitor: &Monitor, count: usize, write: &dyn Fn(usize)) -> (f64, f64) {
    let counted = || monitor.metrics().keyed_bytes as f64;
    // Tables double: the measurement goes from one power of two to another.
    (0..count).for_each(write);
    let before = (counted(), live_bytes() as f64);
    (count..2 * count).for_each(write);
    (counted() - before.0, live_bytes() as f64 - before.1)
}

#[test]
fn limit_counts_the_memory_that_keys_take() {
    let _alone = measure_alone();
    let router = Router::new();
    let monitor = router.monitor();
    let keyed = KeyedConfig::default().with_max_total_bytes(1 << 30);
    let server = Server::new(router)
        .topics(TopicConfig::default().with_keyed(keyed))
        .engine(backend::engine())
        .threads(2);
    let server = server.listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
    let publisher = server.publisher();
    let set = |topic: &str, key: &str, value: usize| {
        publisher.write_key(topic, &KeyWrite::set(key, vec![b'x'; value])).unwrap();
    };
    for (case, count, write) in [
        ("topics of one small key", 8_192, &(|at| set(&format!("room.{at}"), "k", 8)) as &dyn Fn(usize)),
        ("topics of two keys", 4_096, &|at| {
            set(&format!("pair.{at}"), "a", 8);
            set(&format!("pair.{at}"), "b", 8);
        }),
        ("topics of one key of 100 bytes", 4_096, &|at| set(&format!("mid.{at}"), "k", 100)),
        ("small keys of one topic", 2_048, &|at| set("all", &format!("key-{at}"), 8)),
        ("keys of 4 KiB", 256, &|at| set("large", &format!("key-{at}"), 4_096)),
    ] {
        let (counted, live) = written(&monitor, count, write);
        println!("{case}: counted {:.0}, live {:.0}", counted / count as f64, live / count as f64);
        assert!(live <= counted * 1.1, "{case}: {live} bytes live, {counted} counted");
        assert!(live >= counted * 0.4, "{case}: {live} bytes live, {counted} counted");
    }
}
