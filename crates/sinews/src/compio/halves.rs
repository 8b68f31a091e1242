//! A pair of a reader and a writer: each moves into its operation, and is returned with the result.
#![allow(private_interfaces, unnameable_types, reason = "the other side of a sealed trait")]

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use compio::buf::{BufResult, IntoInner as _, IoBuf as _, IoVectoredBuf};
use compio::io::{AsyncRead, AsyncWrite};
use sinews_session::Chain;

use super::transport::sealed::Duplex;
use super::transport::{Came, Left, Sink, Source};
use crate::link::Room;

/// An operation with its output: the half, and the result.
type InFlight<T, R> = Pin<Box<dyn Future<Output = (T, R)>>>;

/// Size of the buffer in which a reader waits. Small, as every idle connection has one.
const SMALL: usize = 1 << 10;

/// Slices in one send; further slices follow in the next.
const SLICES: usize = 64;

impl<R: AsyncRead + 'static, W: AsyncWrite + 'static> Duplex for (R, W) {
    type Source = Reader<R>;
    type Sink = Writer<W>;

    fn open(self) -> (Reader<R>, Writer<W>) {
        (Reader { state: Reading::Idle(self.0), full: false }, Writer { writer: Some(self.1), op: None })
    }
}

/// The receiving side.
pub struct Reader<R> {
    state: Reading<R>,
    /// The last receive filled its room: more data may be available.
    full: bool,
}

enum Reading<R> {
    Idle(R),
    /// Into a room of the caller, or into the reader's own memory.
    Receiving {
        op: InFlight<R, (Room, io::Result<usize>)>,
        own: bool,
    },
    /// Bytes received into the reader's own memory, from an offset on.
    Held {
        reader: R,
        memory: Vec<u8>,
        at: usize,
    },
    /// Only during a transition between states.
    Away,
}

impl<R: AsyncRead + 'static> Reader<R> {
    fn receive(mut reader: R, room: Room) -> InFlight<R, (Room, io::Result<usize>)> {
        Box::pin(async move {
            let (memory, most, direct) = match room {
                Room::Block(block) => {
                    let most = block.capacity() - block.len();
                    (block, most, false)
                }
                Room::Message(memory, most) => (memory, most, true),
            };
            let (start, end) = (memory.len(), memory.len() + most);
            let BufResult(result, slice) = reader.read(memory.slice(start..end)).await;
            let memory = slice.into_inner();
            let room = if direct { Room::Message(memory, most) } else { Room::Block(memory) };
            (reader, (room, result))
        })
    }

    fn came(&mut self, reader: R, room: Room, result: io::Result<usize>, own: bool) -> Came {
        let most = match &room {
            Room::Block(_) if own => SMALL,
            Room::Block(_) => crate::resources::BLOCK,
            Room::Message(_, most) => *most,
        };
        self.full = result.as_ref().is_ok_and(|&count| count == most);
        match (room, result) {
            (Room::Block(memory), Ok(count)) if own && count > 0 => {
                self.state = Reading::Held { reader, memory, at: 0 };
                Came::Held
            }
            (_, result) if own => {
                self.state = Reading::Idle(reader);
                Came::Over(result.err())
            }
            (room, result) => {
                self.state = Reading::Idle(reader);
                Came::Filled(room, result)
            }
        }
    }
}

impl<R: AsyncRead + 'static> Source for Reader<R> {
    fn is_direct(&self) -> bool {
        true
    }

    fn wants_block(&self) -> bool {
        self.full
    }

    fn is_busy(&self) -> bool {
        !matches!(self.state, Reading::Idle(_))
    }

    fn start(&mut self, room: Option<Room>) {
        if let Reading::Idle(reader) = std::mem::replace(&mut self.state, Reading::Away) {
            let own = room.is_none();
            let room = room.unwrap_or_else(|| Room::Block(Vec::with_capacity(SMALL)));
            self.state = Reading::Receiving { op: Self::receive(reader, room), own };
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Came> {
        match &mut self.state {
            Reading::Held { .. } => Poll::Ready(Came::Held),
            Reading::Receiving { op, own } => {
                let own = *own;
                let (reader, (room, result)) = ready!(op.as_mut().poll(cx));
                Poll::Ready(self.came(reader, room, result, own))
            }
            Reading::Idle(_) | Reading::Away => Poll::Ready(Came::Nothing),
        }
    }

    fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let Reading::Held { memory, at, .. } = &mut self.state else { return 0 };
        let count = most.min(memory.len() - *at);
        into.extend_from_slice(&memory[*at..*at + count]);
        *at += count;
        if *at == memory.len()
            && let Reading::Held { reader, .. } = std::mem::replace(&mut self.state, Reading::Away)
        {
            self.state = Reading::Idle(reader);
        }
        count
    }
}

/// The sending side.
pub struct Writer<W> {
    /// `None` while an operation has it.
    writer: Option<W>,
    op: Option<InFlight<W, Left>>,
}

struct Pieces(Box<Chain>);

impl IoVectoredBuf for Pieces {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        self.0.pieces().take(SLICES)
    }
}

impl<W: AsyncWrite + 'static> Sink for Writer<W> {
    fn is_busy(&self) -> bool {
        self.op.is_some()
    }

    /// A writer may buffer, so that written bytes are flushed before they count as sent.
    fn start(&mut self, chain: Option<Box<Chain>>) {
        let Some(chain) = chain else { return };
        let Some(mut writer) = self.writer.take() else { return };
        self.op = Some(Box::pin(async move {
            let BufResult(mut result, Pieces(chain)) = writer.write_vectored(Pieces(chain)).await;
            if result.is_ok()
                && let Err(error) = writer.flush().await
            {
                result = Err(error);
            }
            (writer, Left::Sent(Some(chain), result))
        }));
    }

    fn start_shut(&mut self) {
        let Some(mut writer) = self.writer.take() else { return };
        self.op = Some(Box::pin(async move {
            let result = writer.shutdown().await;
            (writer, Left::Shut(result))
        }));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Left> {
        let Some(op) = &mut self.op else { return Poll::Pending };
        let (writer, left) = ready!(op.as_mut().poll(cx));
        self.writer = Some(writer);
        self.op = None;
        Poll::Ready(left)
    }
}
