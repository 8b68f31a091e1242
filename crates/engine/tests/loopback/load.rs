//! Load counters of a loop, identical on both backends.

use std::io::{IoSlice, Read, Write};
use std::time::{Duration, Instant};

use sinews_engine::{App, ConnId, Engine, Flow, Io, ListenOptions, Listener, SendChain};

use crate::support::{client, config};

/// Bytes of an answer: they fit the send buffer of a socket.
const ANSWER: usize = 64 << 10;

/// Answers each byte with a large payload that costs no work to create. All of its work is kernel time.
struct LargeAnswers {
    bytes: &'static [u8],
    wanted: bool,
}

struct StaticChain(&'static [u8]);

impl SendChain for StaticChain {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn slices<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        out[0] = IoSlice::new(self.0);
        usize::from(!self.0.is_empty())
    }
    fn advance(&mut self, bytes: usize) {
        self.0 = &self.0[bytes..];
    }
}

impl App for LargeAnswers {
    type Chain = StaticChain;
    type Mail = ();

    fn received(&mut self, io: &mut Io, conn: ConnId, _: &mut [u8]) -> Flow {
        self.wanted = true;
        io.send(conn);
        Flow::Continue
    }
    fn ended(&mut self, io: &mut Io, _: ConnId) {
        io.stop();
    }
    fn start_send(&mut self, _: ConnId) -> Option<StaticChain> {
        std::mem::take(&mut self.wanted).then_some(StaticChain(self.bytes))
    }
    fn finish_may_wait(&self, _: ConnId) -> bool {
        true
    }
}

/// CPU time of this thread according to the system's accounting.
fn scheduler_cpu_time() -> Option<Duration> {
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

#[test]
fn kernel_time_counts_as_load_and_sleep_does_not() {
    // One turn in sixteen is timed, and its values represent the whole, unless the machine is busy in such a turn.
    let mut attempts = (0..5).map_while(|_| loads());
    let all: Vec<_> = attempts.by_ref().take_while(|(timed, load)| *timed <= load / 2.0).collect();
    assert!(all.len() < 5, "load in timed turns, and in total: {all:?}");
}

/// The load in timed turns, and in total. `None` if the system has no CPU accounting.
fn loads() -> Option<(f64, f64)> {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let asking = std::thread::spawn(move || {
        let (mut stream, mut answer) = (client(address), vec![0; ANSWER]);
        for _ in 0..3_000 {
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut answer).unwrap();
        }
        // Sleep: no load.
        std::thread::sleep(Duration::from_millis(300));
    });
    let mut engine = Engine::<LargeAnswers>::new(config(), vec![listener]).unwrap();
    let (begun, before) = (Instant::now(), scheduler_cpu_time());
    engine.run(&mut LargeAnswers { bytes: vec![7; ANSWER].leak(), wanted: false }).unwrap();
    let (passed, after) = (begun.elapsed(), scheduler_cpu_time());
    asking.join().unwrap();
    let (Some(before), Some(after)) = (before, after) else {
        println!("skipped: the system has no CPU accounting per thread");
        return None;
    };
    let (stats, used) = (engine.stats(), after - before);
    let cpu = stats.cpu.expect("CPU time is available");
    assert!(cpu <= after && after - cpu < Duration::from_millis(50) + used / 10, "{cpu:?} of {after:?}");
    let load = used.as_secs_f64() / passed.as_secs_f64();
    let timed = stats.timed_busy.as_secs_f64() / (stats.timed_busy + stats.timed_waiting).as_secs_f64();
    assert!(passed - used > Duration::from_millis(200), "it slept");
    Some((timed, load))
}
