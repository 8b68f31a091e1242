//! The system call in which a loop sleeps, with the arguments that the kernel reports of the thread.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use sinews_engine::{BackendChoice, Engine, ListenOptions, Listener};

use crate::ring::Echo;
use crate::support::{PATIENCE, client, config, read_exactly};

/// A system call that waits for events.
#[derive(Debug)]
struct Wait {
    call: i64,
    arguments: Vec<u64>,
}

impl Wait {
    /// Parses the kernel's line; `None` while the thread runs, and for calls that do not wait for events.
    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.split_whitespace();
        let call = fields.next()?.parse().ok()?;
        let arguments: Vec<u64> =
            fields.map_while(|field| u64::from_str_radix(field.strip_prefix("0x")?, 16).ok()).collect();
        let waits = match call {
            libc::SYS_io_uring_enter => *arguments.get(2)? > 0,
            libc::SYS_epoll_pwait => true,
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => true,
            _ => false,
        };
        waits.then_some(Self { call, arguments })
    }

    /// Waits until the thread sleeps. `None` if the kernel does not report system calls.
    fn observe(task: &Path) -> Option<Self> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let line = fs::read_to_string(task.join("syscall")).ok()?;
            if let Some(wait) = Self::parse(&line) {
                return Some(wait);
            }
            assert!(Instant::now() < deadline, "the loop does not sleep: {line}");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Any wait for further input delays the first one, so a loop that has no work wakes for the first event, however many
/// connections have sent before.
#[test]
fn loop_without_work_sleeps_until_the_first_event() {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into(), &ListenOptions::default()).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = mpsc::channel();
    let server = thread::spawn(move || {
        let mut engine = Engine::<Echo>::new(config(), vec![listener]).unwrap();
        sender.send((engine.backend(), fs::read_link("/proc/thread-self").unwrap())).unwrap();
        engine.run(&mut Echo::default()).unwrap();
    });
    let (backend, task) = receiver.recv().unwrap();
    let mut clients: Vec<TcpStream> = (0..16).map(|_| client(address)).collect();
    for _ in 0..20 {
        for client in &mut clients {
            client.write_all(b"x").unwrap();
            assert_eq!(read_exactly(client, 1), b"x");
        }
        for client in &mut clients {
            client.write_all(b"x").unwrap();
        }
        clients.iter_mut().for_each(|client| client.read_exact(&mut [0]).unwrap());
    }
    match Wait::observe(&Path::new("/proc").join(task)) {
        None => println!("skipped: the kernel does not report the system calls of threads"),
        Some(Wait { call, arguments }) if backend == BackendChoice::Uring => {
            assert_eq!((call, arguments[2]), (libc::SYS_io_uring_enter, 1), "completions to wait for");
        }
        Some(Wait { arguments, .. }) => assert_eq!(arguments[3] as i32, -1, "the timeout"),
    }
    drop(clients);
    server.join().unwrap();
}
