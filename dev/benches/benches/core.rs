//! Nanoseconds per message through the state machine, in memory: parse, unmask, deliver, echo.
#![allow(missing_docs, reason = "criterion's macro makes the function")]

use std::hint::black_box;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sinews_proto::{Kind, PerThread};

#[path = "../../../crates/proto/examples/support/mod.rs"]
mod support;

use support::{burst, handle, server};

fn echo(c: &mut Criterion) {
    for (kind, opcode) in [(Kind::Text, 1), (Kind::Binary, 2)] {
        for reply in [false, true] {
            let name = format!("{}_{kind:?}", if reply { "echo" } else { "deliver" }).to_lowercase();
            let mut group = c.benchmark_group(name);
            group.measurement_time(Duration::from_millis(500)).warm_up_time(Duration::from_millis(200));
            group.sample_size(20);
            for size in [16, 125, 1024, 16 << 10] {
                let (input, count) = burst(opcode, size);
                group.throughput(Throughput::Elements(count));
                group.bench_function(BenchmarkId::from_parameter(size), |b| {
                    let mut connection = server();
                    let mut shared = PerThread::new(|| [0; 4]);
                    let (mut chunk, mut out) = (input.clone(), Vec::with_capacity(1 << 17));
                    b.iter(|| {
                        // Refilled like a receive buffer: the result includes the cost of the copy.
                        chunk.copy_from_slice(&input);
                        out.clear();
                        let out = reply.then_some(&mut out);
                        black_box(handle(&mut connection, &mut chunk, &mut shared, out))
                    });
                });
            }
            group.finish();
        }
    }
}

criterion_group!(benches, echo);
criterion_main!(benches);
