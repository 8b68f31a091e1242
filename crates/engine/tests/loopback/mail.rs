//! Mail from other threads.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use sinews_engine::{Engine, Flow, ListenOptions, Listener};

use crate::support::{Event, Host, Kind, PATIENCE, Probe, config};

fn mail(app: &Probe) -> Vec<u64> {
    let bursts = app.events.iter().filter_map(|event| match event {
        Event::Mail(burst) => Some(burst.as_slice()),
        _ => None,
    });
    bursts.collect::<Vec<_>>().concat()
}

#[test]
fn mail_of_four_threads_arrives_once_and_in_order() {
    const THREADS: u64 = 4;
    const PIECES: u64 = 10_000;
    let mut host = Host::new(Probe::echo());
    let threads: Vec<_> = (0..THREADS)
        .map(|thread| {
            let post = host.engine.post();
            std::thread::spawn(move || {
                for piece in 0..PIECES {
                    post.send(thread << 32 | piece).unwrap();
                }
            })
        })
        .collect();
    while mail(&host.app).len() < (THREADS * PIECES) as usize {
        let begun = Instant::now();
        host.engine.turn(&mut host.app, Some(PATIENCE)).unwrap();
        // Mail that overtakes its wake-up causes empty turns, at most one per thread; a lost wake-up would
        // let the loop sleep without limit.
        assert!(begun.elapsed() < PATIENCE, "a wake-up was lost");
    }
    for thread in threads {
        thread.join().unwrap();
    }
    let mail = mail(&host.app);
    for thread in 0..THREADS {
        let pieces = mail.iter().filter(|piece| *piece >> 32 == thread).map(|piece| piece & 0xFFFF_FFFF);
        assert!(pieces.eq(0..PIECES), "thread {thread}");
    }
    let stats = host.engine.stats();
    assert!(stats.wakes <= stats.turns, "{stats:?}");
}

#[test]
fn burst_of_mail_wakes_the_loop_once() {
    let mut host = Host::new(Probe::echo());
    let post = host.engine.post();
    host.settle();
    // The loop counts as awake, so no wake-up is needed.
    for piece in 0..1000 {
        post.send(piece).unwrap();
    }
    host.engine.turn(&mut host.app, Some(PATIENCE)).unwrap();
    assert_eq!((mail(&host.app).len(), host.app.count(Kind::Mail)), (1000, 1));
    assert_eq!(host.engine.stats().wakes, 0);
}

#[test]
fn sleeping_loop_is_woken_for_each_mail() {
    const ROUNDS: u64 = 2000;
    let (answer, answered) = mpsc::channel();
    let mut host = Host::new(Probe::new(move |_, _, event| {
        if let Event::Mail(mail) = event {
            answer.send(mail.len()).unwrap();
        }
        Flow::Continue
    }));
    let post = host.engine.post();
    let poster = std::thread::spawn(move || {
        for round in 0..ROUNDS {
            post.send(round).unwrap();
            assert_eq!(answered.recv_timeout(PATIENCE), Ok(1));
        }
    });
    while mail(&host.app).len() < ROUNDS as usize {
        host.engine.turn(&mut host.app, None).unwrap();
    }
    poster.join().unwrap();
    assert!(host.engine.stats().wakes > 0);
}

#[test]
fn full_mailbox_returns_mail_to_sender() {
    let config = config().with_mailbox(3).unwrap();
    let mut host = Host::with(config, ListenOptions::default(), Probe::echo());
    let post = host.engine.post();
    for piece in 0..3 {
        post.send(piece).unwrap();
    }
    assert_eq!(post.send(3), Err(3));
    host.engine.turn(&mut host.app, Some(Duration::ZERO)).unwrap();
    post.clone().send(4).unwrap();
    host.engine.turn(&mut host.app, Some(Duration::ZERO)).unwrap();
    assert_eq!(mail(&host.app), [0, 1, 2, 4]);
}

#[test]
fn mail_to_dropped_engine_is_returned() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let engine = Engine::<Probe>::new(config(), vec![listener]).unwrap();
    let post = engine.post();
    assert!(!post.is_closed());
    post.send(1).unwrap();
    drop(engine);
    assert!(post.is_closed());
    assert_eq!(post.send(2), Err(2));
}
