//! Waiters are woken once, and their number is limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Wake, Waker};

use super::{One, numbered, poll};
use crate::disk::simulated::{Fault, Simulated};
use crate::{AppendError, Durability, Past, Pending, StreamConfig, StreamsConfig};

#[derive(Default)]
struct Bell(AtomicUsize);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn bell() -> (Arc<Bell>, Waker) {
    let bell = Arc::new(Bell::default());
    (bell.clone(), bell.into())
}

impl Bell {
    fn rung(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn readers_are_woken_by_new_records() {
    let one = One::new(&StreamConfig::default());
    let ((first, first_waker), (second, second_waker)) = (bell(), bell());
    assert!(!one.partition.watch(Past::Readable(0), &first_waker));
    assert!(!one.partition.watch(Past::Readable(1), &second_waker));
    one.partition.append(numbered([0], 8)).unwrap();
    assert_eq!(first.rung(), 0);
    one.work();
    assert_eq!((first.rung(), second.rung()), (1, 0));
    assert!(
        one.partition.watch(Past::Readable(0), &first_waker)
            && one.partition.watch(Past::Durable(0), &first_waker)
    );
    one.fill(1..5, 8);
    assert_eq!((first.rung(), second.rung(), one.partition.statistics().waiters), (1, 1, 0));
}

#[test]
fn producers_are_woken_when_the_queue_has_space() {
    let limits = StreamsConfig::default().max_pending(1000);
    let one = One::on(Simulated::new(1), limits, &StreamConfig::default());
    let (bell, waker) = bell();
    assert!(one.partition.watch(Past::Room, &waker));
    while one.partition.append(numbered([0], 100)).is_ok() {}
    assert!(!one.partition.watch(Past::Room, &waker));
    one.work();
    assert_eq!((bell.rung(), one.partition.watch(Past::Room, &waker)), (1, true));
}

#[test]
fn waiter_above_max_waiters_wakes_the_oldest() {
    let limits = StreamsConfig::default().max_waiters(3);
    let one = One::on(Simulated::new(1), limits, &StreamConfig::default());
    let bells: Vec<_> = (0..5).map(|_| bell()).collect();
    for (_, waker) in &bells {
        assert!(!one.partition.watch(Past::Readable(0), waker));
    }
    assert_eq!(bells.iter().map(|(bell, _)| bell.rung()).collect::<Vec<_>>(), [1, 1, 0, 0, 0]);
    one.fill(0..1, 8);
    assert!(bells.iter().all(|(bell, _)| bell.rung() == 1));
}

#[test]
fn waiters_are_woken_once_by_failure_or_close() {
    for fails in [false, true] {
        let one = One::new(&StreamConfig::default());
        let ((reader, reader_waker), (producer, producer_waker)) = (bell(), bell());
        assert!(!one.partition.watch(Past::Readable(0), &reader_waker));
        let mut pending = if fails {
            one.disk.plan(1, Fault::Failure);
            one.partition.append(numbered([0], 8)).unwrap()
        } else {
            Pending::channel(1).1
        };
        let mut cx = Context::from_waker(&producer_waker);
        // The sender of the channel was dropped.
        assert_eq!(pending.poll(Durability::Disk, &mut cx).is_ready(), !fails);
        one.work();
        if !fails {
            one.streams.close();
        }
        assert_eq!((reader.rung(), producer.rung()), (1, usize::from(fails)));
        assert!(!one.partition.watch(Past::Readable(0), &reader_waker));
        assert!(one.partition.watch(Past::Room, &producer_waker));
    }
}

#[test]
fn completer_reports_each_durability() {
    let (bell, waker) = bell();
    let mut cx = Context::from_waker(&waker);
    let (completer, mut pending) = Pending::channel(3);
    assert!(pending.poll(Durability::Memory, &mut cx).is_pending());
    completer.reached(Durability::Memory, 40);
    assert_eq!((bell.rung(), poll(&mut pending, Durability::Memory)), (1, Some(Ok(40))));
    assert!(pending.poll(Durability::Broker, &mut cx).is_pending());
    completer.reached(Durability::Disk, 40);
    assert_eq!(bell.rung(), 1);
    completer.fail(AppendError::Busy);
    assert_eq!(bell.rung(), 2);
    // A reached durability is final.
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(40)));
    assert_eq!(poll(&mut pending, Durability::Broker), Some(Err(AppendError::Busy)));
    let (completer, mut pending) = Pending::channel(1);
    let other = std::thread::spawn(move || completer.reached(Durability::Broker, 9));
    assert_eq!(pending.block(Durability::Broker).map(|appended| appended.first), Ok(9));
    other.join().unwrap();
}
