//! Figures of one server.

use std::time::Instant;

use crate::redis::store::script::{ScriptName, Scripts};

/// Prints appends per second of one server by the size of a batch, and its processor time for each.
#[test]
#[ignore = "it measures"]
fn measure_appends() {
    const APPENDS: usize = 64_000;
    let server = start_server!();
    let text = Scripts::new(Default::default()).text(ScriptName::Log).to_owned();
    let mut connection =
        redis::Client::open(server.url()).and_then(|client| client.get_connection()).expect("it listens");
    let hash: String = redis::cmd("SCRIPT").arg("LOAD").arg(text).query(&mut connection).expect("a script");
    let payload = [b'x'; 200];
    let processor_time = || {
        let seconds = |field| server.info(field).trim().parse::<f64>().expect("a number");
        seconds("used_cpu_user") + seconds("used_cpu_sys")
    };
    for batch in [1, 8, 64] {
        let (started, used) = (Instant::now(), processor_time());
        // As many calls in flight as a busy node has.
        for window in (0..APPENDS / batch).collect::<Vec<_>>().chunks(16) {
            let mut pipeline = redis::pipe();
            for call in window {
                let call_arguments = pipeline.cmd("EVALSHA").arg(&hash).arg(2 * batch);
                for operation in 0..batch {
                    let topic = (call * batch + operation) % 1_000;
                    let key = format!("sinews:{{p1}}:log:topic-{topic}");
                    call_arguments.arg(format!("{key}-meta")).arg(key);
                }
                call_arguments.arg(1);
                for _ in 0..batch {
                    call_arguments.arg("append").arg(&payload).arg("100 1000000 0 600000").arg("");
                }
            }
            let _: redis::Value = pipeline.query(&mut connection).expect("they are appended");
        }
        let (elapsed, used) = (started.elapsed().as_secs_f64(), processor_time() - used);
        println!(
            "batch {batch}: {:.0} appends/s, {:.1} us of the server each",
            APPENDS as f64 / elapsed,
            used * 1e6 / APPENDS as f64
        );
    }
}
