//! Waiters are woken once, and their number is limited.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use super::{TestLog, numbered, poll};
use crate::disk::simulated::{DiskFault, SimulatedDisk};
use crate::{AppendError, Durability, PartitionEvent, Pending, StreamConfig, StreamState, StreamsConfig};

#[derive(Default)]
struct CountingWaker(AtomicUsize);

impl Wake for CountingWaker {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counting_waker() -> (Arc<CountingWaker>, Waker) {
    let counting_waker = Arc::new(CountingWaker::default());
    (counting_waker.clone(), counting_waker.into())
}

impl CountingWaker {
    fn wakes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

#[test]
fn readers_are_woken_by_new_records() {
    let one = TestLog::new(&StreamConfig::default());
    let ((first, first_waker), (second, second_waker)) = (counting_waker(), counting_waker());
    assert!(!one.partition.watch(PartitionEvent::Readable(0), &first_waker));
    assert!(!one.partition.watch(PartitionEvent::Readable(1), &second_waker));
    one.partition.append(numbered([0], 8)).unwrap();
    assert_eq!(first.wakes(), 0);
    one.work();
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    assert!(
        one.partition.watch(PartitionEvent::Readable(0), &first_waker)
            && one.partition.watch(PartitionEvent::Durable(0), &first_waker)
    );
    one.fill(1..5, 8);
    assert_eq!((first.wakes(), second.wakes(), one.partition.statistics().waiters), (1, 1, 0));
}

#[test]
fn waiters_are_woken_when_no_more_records_can_be_written() {
    let one = TestLog::new(&StreamConfig::default());
    let (counting_waker, waker) = counting_waker();
    for event in [PartitionEvent::Readable(0), PartitionEvent::Durable(0)] {
        assert!(!one.partition.watch(event, &waker));
    }
    one.disk.replace_lock();
    one.streams.tick();
    assert_eq!((counting_waker.wakes(), one.partition.statistics().waiters), (2, 0));
}

#[test]
fn producers_are_woken_when_the_queue_has_space() {
    let limits = StreamsConfig::default().with_max_pending(1000);
    let one = TestLog::on(SimulatedDisk::new(1), limits, &StreamConfig::default());
    let (counting_waker, waker) = counting_waker();
    assert!(one.partition.watch(PartitionEvent::QueueSpace, &waker));
    while one.partition.append(numbered([0], 100)).is_ok() {}
    assert!(!one.partition.watch(PartitionEvent::QueueSpace, &waker));
    one.work();
    assert_eq!((counting_waker.wakes(), one.partition.watch(PartitionEvent::QueueSpace, &waker)), (1, true));
}

#[test]
fn queue_space_suffices_for_a_batch_above_half_of_the_queue() {
    let limits = StreamsConfig::default().with_max_pending(1000);
    let one = TestLog::on(SimulatedDisk::new(1), limits, &StreamConfig::default());
    let (counting_waker, waker) = counting_waker();
    // Nearly half of the queue; neither batch fits into the other half.
    one.partition.append(numbered([0], 400)).unwrap();
    for bytes in [700, 5000] {
        assert!(one.partition.watch(PartitionEvent::QueueSpace, &waker));
        let records = numbered([1], bytes);
        assert!(one.partition.has_queue_space([&records]));
        one.partition.append(records).unwrap();
        // More than half: the next batch of this size waits for the write.
        let records = numbered([2], bytes);
        assert!(!one.partition.has_queue_space([&records]));
        assert_eq!(one.partition.append(records).unwrap_err(), AppendError::Busy);
        let before = counting_waker.wakes();
        assert!(!one.partition.watch(PartitionEvent::QueueSpace, &waker));
        one.work();
        assert_eq!(counting_waker.wakes(), before + 1);
        one.partition.append(numbered([3], 400)).unwrap();
    }
}

#[test]
fn waiter_above_max_waiters_wakes_the_oldest() {
    let limits = StreamsConfig::default().with_max_waiters(3);
    let one = TestLog::on(SimulatedDisk::new(1), limits, &StreamConfig::default());
    let wakers: Vec<_> = (0..5).map(|_| counting_waker()).collect();
    for (_, waker) in &wakers {
        assert!(!one.partition.watch(PartitionEvent::Readable(0), waker));
    }
    assert_eq!(
        wakers.iter().map(|(counting_waker, _)| counting_waker.wakes()).collect::<Vec<_>>(),
        [1, 1, 0, 0, 0]
    );
    one.fill(0..1, 8);
    assert!(wakers.iter().all(|(counting_waker, _)| counting_waker.wakes() == 1));
}

#[test]
fn partition_forgets_readers_that_have_left_and_closes_idle() {
    let one = TestLog::new(&StreamConfig::default());
    one.fill(0..1, 8);
    // A waker of its own for each reader, as each subscription has.
    let mut wakers = Vec::new();
    for _ in 0..100 {
        let (counting_waker, waker) = counting_waker();
        let watcher = one.stream.partition(0).unwrap().watcher();
        assert!(!watcher.watch(PartitionEvent::Readable(1), &waker));
        // A second registration replaces the first.
        assert!(!watcher.watch(PartitionEvent::Readable(1), &waker));
        assert_eq!(one.partition.statistics().waiters, 1);
        wakers.push(counting_waker);
    }
    assert_eq!(one.partition.statistics().waiters, 0);
    assert!(wakers.iter().all(|waker| Arc::strong_count(waker) == 1), "no waker is kept");
    let (counting_waker, waker) = counting_waker();
    let watcher = one.partition.watcher();
    assert!(!watcher.watch(PartitionEvent::Readable(1), &waker));
    one.fill(1..2, 8);
    assert_eq!((counting_waker.wakes(), watcher.watch(PartitionEvent::Readable(1), &waker)), (1, true));
    assert!(!watcher.watch(PartitionEvent::Readable(2), &waker));
    drop(watcher);

    let TestLog { clock, streams, stream, partition, .. } = one;
    drop((stream, partition));
    clock.advance(60_000_001);
    streams.pool().release_unused();
    while streams.work() {}
    assert_eq!(streams.describe("s").unwrap().state, StreamState::Closed);
}

#[test]
fn waiters_are_woken_once_by_failure_or_close() {
    for fails in [false, true] {
        let one = TestLog::new(&StreamConfig::default());
        let ((reader, reader_waker), (producer, producer_waker)) = (counting_waker(), counting_waker());
        assert!(!one.partition.watch(PartitionEvent::Readable(0), &reader_waker));
        let mut pending = if fails {
            one.disk.plan(1, DiskFault::Failure);
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
        assert_eq!((reader.wakes(), producer.wakes()), (1, usize::from(fails)));
        assert!(!one.partition.watch(PartitionEvent::Readable(0), &reader_waker));
        assert!(one.partition.watch(PartitionEvent::QueueSpace, &producer_waker));
    }
}

#[test]
fn append_without_interest_in_success_wakes_on_failure_only() {
    let (counting_waker, waker) = counting_waker();
    let mut cx = Context::from_waker(&waker);
    let (completer, mut pending) = Pending::channel(1);
    assert!(pending.poll_failure(Durability::Broker, &mut cx).is_pending());
    completer.reached(Durability::Broker, 40);
    assert_eq!(counting_waker.wakes(), 0);
    assert!(
        matches!(pending.poll_failure(Durability::Broker, &mut cx), Poll::Ready(Ok(done)) if done.first == 40)
    );
    let (completer, mut pending) = Pending::channel(1);
    assert!(pending.poll_failure(Durability::Broker, &mut cx).is_pending());
    completer.fail(AppendError::Busy);
    assert_eq!(counting_waker.wakes(), 1);
    assert!(matches!(pending.poll_failure(Durability::Broker, &mut cx), Poll::Ready(Err(AppendError::Busy))));
    // The last poll decides.
    let (completer, mut pending) = Pending::channel(1);
    assert!(pending.poll_failure(Durability::Broker, &mut cx).is_pending());
    assert!(pending.poll(Durability::Broker, &mut cx).is_pending());
    completer.reached(Durability::Broker, 40);
    assert_eq!(counting_waker.wakes(), 2);
}

#[test]
fn completer_reports_each_durability() {
    let (counting_waker, waker) = counting_waker();
    let mut cx = Context::from_waker(&waker);
    let (completer, mut pending) = Pending::channel(3);
    assert!(pending.poll(Durability::Memory, &mut cx).is_pending());
    completer.reached(Durability::Memory, 40);
    assert_eq!((counting_waker.wakes(), poll(&mut pending, Durability::Memory)), (1, Some(Ok(40))));
    assert!(pending.poll(Durability::Broker, &mut cx).is_pending());
    completer.reached(Durability::Disk, 40);
    assert_eq!(counting_waker.wakes(), 1);
    completer.fail(AppendError::Busy);
    assert_eq!(counting_waker.wakes(), 2);
    // A reached durability is final.
    assert_eq!(poll(&mut pending, Durability::Disk), Some(Ok(40)));
    assert_eq!(poll(&mut pending, Durability::Broker), Some(Err(AppendError::Busy)));
    let (completer, mut pending) = Pending::channel(1);
    let other = std::thread::spawn(move || completer.reached(Durability::Broker, 9));
    assert_eq!(pending.block(Durability::Broker).map(|appended| appended.first), Ok(9));
    other.join().unwrap();
}
