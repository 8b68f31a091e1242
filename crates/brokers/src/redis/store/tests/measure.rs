//! Figures of one server.

use std::time::Instant;

use sinews_store::{KeyCommand, KeyCommands, KeyLimits};

use super::*;
use crate::redis::store::keys::write_request;
use crate::redis::store::log::append_request;
use crate::redis::store::queue::OperationRequest;
use crate::redis::store::script::{ScriptName, Scripts};

/// Prints operations per second of one server by the size of a batch, and its processor time for each.
fn measure(
    server: &server::TestRedis,
    script: ScriptName,
    what: &str,
    operation: impl Fn(usize) -> OperationRequest,
) {
    const OPERATIONS: usize = 32_000;
    let text = Scripts::new(Default::default()).text(script).to_owned();
    let mut connection =
        redis::Client::open(server.url()).and_then(|client| client.get_connection()).expect("it listens");
    let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).expect("a script");
    let processor_time = || {
        let seconds = |field| server.info(field).trim().parse::<f64>().expect("a number");
        seconds("used_cpu_user") + seconds("used_cpu_sys")
    };
    for batch in [1, 8, 64] {
        let (started, used) = (Instant::now(), processor_time());
        // As many calls in flight as a busy node has.
        for window in (0..OPERATIONS / batch).collect::<Vec<_>>().chunks(16) {
            let mut pipeline = redis::pipe();
            for call in window {
                let operations: Vec<_> = (0..batch).map(|number| operation(call * batch + number)).collect();
                let keys = operations.iter().flat_map(OperationRequest::keys);
                let arguments = operations.iter().flat_map(OperationRequest::arguments);
                let command = pipeline.cmd("EVALSHA").arg(&hash).arg(keys.clone().count());
                for key in keys {
                    command.arg(key);
                }
                command.arg(1);
                for argument in arguments {
                    command.arg(&argument[..]);
                }
            }
            let answers: Vec<redis::Value> = pipeline.query(&mut connection).expect("they are executed");
            assert!(!format!("{answers:?}").contains("ERR"), "{answers:?}");
        }
        let (elapsed, used) = (started.elapsed().as_secs_f64(), processor_time() - used);
        println!(
            "{what}, batch {batch}: {:.0}/s, {:.1} us of the server each",
            OPERATIONS as f64 / elapsed,
            used * 1e6 / OPERATIONS as f64
        );
    }
}

#[test]
#[ignore = "it measures"]
fn measure_appends() {
    let server = start_server!();
    let names = settings(&server.url()).names;
    measure(&server, ScriptName::Log, "appends of 200 bytes to 1,000 topics", |number| {
        let append = LogAppend {
            payload: vec![b'x'; 200].into(),
            retention: Retention { messages: 100, ..RETENTION },
            ..message(&format!("topic-{}", number % 1_000), "")
        };
        append_request(&names, append)
    });
}

#[test]
#[ignore = "it measures"]
fn measure_key_writes() {
    let write = |number: usize, ttl| KeyCommand {
        key: format!("key-{}", number % 1_000).into(),
        value: Some(vec![b'x'; 100].into()),
        ttl,
        condition: None,
        once: None,
    };
    let minute = Some(Duration::from_secs(60));
    for (what, topics, ttl) in [
        ("key writes of 100 bytes to 100 topics", 100, None),
        ("key writes of 100 bytes to 1 topic", 1, None),
        ("key writes of 100 bytes with a ttl to 100 topics", 100, minute),
    ] {
        let server = start_server!();
        let names = settings(&server.url()).names;
        measure(&server, ScriptName::Keys, what, |number| {
            let topic = format!("topic-{}", number % topics).into();
            let limits = KeyLimits { keys: 10_000, bytes: 16 << 20 };
            let writes = vec![write(number / topics, ttl)];
            write_request(&names, KeyCommands { topic, writes, limits })
        });
    }
}
