//! The whole log on a disk that fails, loses power and has a clock that is a number.

mod crash;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use crate::disk::simulated::Simulated;
use crate::record::{self, Kind, RecordBuilder, Records};
use crate::{
    AppendError, Durability, Loss, OpenError, Partition, Pending, ReadError, Streams, StreamsConfig,
};

/// A clock that is a number.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn pass(&self, micros: u64) {
        self.0.fetch_add(micros, Ordering::Relaxed);
    }
}

fn open(disk: &Simulated, config: StreamsConfig, hand: &Hand) -> Result<(Streams, Vec<Loss>), OpenError> {
    let time = hand.0.clone();
    let clock = Arc::new(move || time.load(Ordering::Relaxed));
    Streams::open_on(Arc::new(disk.clone()), Path::new("/log"), config.writers(0), clock)
}

/// Records whose values begin with these numbers.
fn numbered(numbers: impl IntoIterator<Item = u64>, size: usize) -> Records {
    let mut builder = RecordBuilder::new();
    for number in numbers {
        let mut value = number.to_le_bytes().to_vec();
        value.resize(size.max(8), number as u8);
        builder.push(number, b"key", &value, Kind::Bytes).unwrap();
    }
    builder.finish().unwrap()
}

fn poll(pending: &mut Pending, durability: Durability) -> Option<Result<u64, AppendError>> {
    match pending.poll(durability, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result.map(|appended| appended.first)),
        Poll::Pending => None,
    }
}

type Pairs = Vec<(u64, u64)>;

/// Everything that can be read, as offsets and numbers; and the gaps that damage has left, as offsets.
fn read_all(partition: &Partition, most: usize) -> (Pairs, Pairs) {
    let (mut found, mut gaps) = (Vec::new(), Vec::new());
    let mut from = partition.ends().earliest;
    loop {
        match partition.read(from, most) {
            Ok(read) if read.batches.is_empty() => return (found, gaps),
            Ok(read) => {
                for record in record::iter(&read.batches).flat_map(|batch| batch.unwrap().records()) {
                    let record = record.unwrap();
                    let number = u64::from_le_bytes(*record.value.first_chunk().unwrap());
                    assert!(record.value[8..].iter().all(|&byte| byte == number as u8));
                    found.push((record.offset, number));
                }
                assert!(read.next > from);
                from = read.next;
            }
            Err(ReadError::Damaged { resume, .. }) => {
                assert!(resume > from);
                gaps.push((from, resume));
                from = resume;
            }
            Err(error) => panic!("{error}"),
        }
    }
}
