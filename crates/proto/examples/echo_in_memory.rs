//! Echoes messages in memory, for counting instructions: the difference of two runs with different `ROUNDS`
//! is the cost of the messages.
//!
//! `echo_in_memory SIZE ROUNDS text|binary deliver|echo` prints the number of messages per round.

use sinews_proto::PerThread;

mod support;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [size, rounds, kind, what] = &arguments[..] else {
        panic!("usage: echo_in_memory SIZE ROUNDS text|binary deliver|echo");
    };
    let size: usize = size.parse().expect("SIZE is a number");
    let rounds: u64 = rounds.parse().expect("ROUNDS is a number");
    let (input, count) = support::burst(if kind == "text" { 1 } else { 2 }, size);
    let mut connection = support::server();
    let mut shared = PerThread::new(|| [0; 4]);
    let (mut chunk, mut out) = (input.clone(), Vec::with_capacity(1 << 17));
    let mut delivered = 0;
    for _ in 0..rounds {
        chunk.copy_from_slice(&input);
        out.clear();
        delivered +=
            support::handle(&mut connection, &mut chunk, &mut shared, (what == "echo").then_some(&mut out));
    }
    assert_eq!(delivered as u64, rounds * count * size as u64);
    println!("{count}");
}
