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
use super::transport::{ReceiveResult, SendResult, Sink, Source};
use crate::link::ReceiveBuffer;

/// An operation with its output: the half, and the result.
type HalfOperation<T, R> = Pin<Box<dyn Future<Output = (T, R)>>>;

/// Size of the buffer in which a reader waits. Small, as every idle connection has one.
const SMALL: usize = 1 << 10;

/// Slices in one send; further slices follow in the next.
const SLICES: usize = 64;

impl<R: AsyncRead + 'static, W: AsyncWrite + 'static> Duplex for (R, W) {
    type Source = ReaderSource<R>;
    type Sink = WriterSink<W>;

    fn open(self) -> (ReaderSource<R>, WriterSink<W>) {
        (
            ReaderSource { state: ReaderState::Idle(self.0), full: false },
            WriterSink { writer: Some(self.1), op: None },
        )
    }
}

/// The receiving side.
pub struct ReaderSource<R> {
    state: ReaderState<R>,
    /// The last receive filled its room: more data may be available.
    full: bool,
}

enum ReaderState<R> {
    Idle(R),
    /// Into a room of the caller, or into the reader's own memory.
    Receiving {
        op: HalfOperation<R, (ReceiveBuffer, io::Result<usize>)>,
        own: bool,
    },
    /// Bytes received into the reader's own memory, from an offset on.
    Buffered {
        reader: R,
        memory: Vec<u8>,
        at: usize,
    },
    /// Only during a transition between states.
    Moved,
}

impl<R: AsyncRead + 'static> ReaderSource<R> {
    fn receive(mut reader: R, buffer: ReceiveBuffer) -> HalfOperation<R, (ReceiveBuffer, io::Result<usize>)> {
        Box::pin(async move {
            let (memory, most, direct) = match buffer {
                ReceiveBuffer::Block(block) => {
                    let most = block.capacity() - block.len();
                    (block, most, false)
                }
                ReceiveBuffer::Message(memory, most) => (memory, most, true),
            };
            let (start, end) = (memory.len(), memory.len() + most);
            let BufResult(result, slice) = reader.read(memory.slice(start..end)).await;
            let memory = slice.into_inner();
            let buffer =
                if direct { ReceiveBuffer::Message(memory, most) } else { ReceiveBuffer::Block(memory) };
            (reader, (buffer, result))
        })
    }

    fn handle_received(
        &mut self,
        reader: R,
        buffer: ReceiveBuffer,
        result: io::Result<usize>,
        own: bool,
    ) -> ReceiveResult {
        let most = match &buffer {
            ReceiveBuffer::Block(_) if own => SMALL,
            ReceiveBuffer::Block(_) => crate::resources::BLOCK,
            ReceiveBuffer::Message(_, most) => *most,
        };
        self.full = result.as_ref().is_ok_and(|&count| count == most);
        match (buffer, result) {
            (ReceiveBuffer::Block(memory), Ok(count)) if own && count > 0 => {
                self.state = ReaderState::Buffered { reader, memory, at: 0 };
                ReceiveResult::Buffered
            }
            (_, result) if own => {
                self.state = ReaderState::Idle(reader);
                ReceiveResult::Ended(result.err())
            }
            (buffer, result) => {
                self.state = ReaderState::Idle(reader);
                ReceiveResult::Filled(buffer, result)
            }
        }
    }
}

impl<R: AsyncRead + 'static> Source for ReaderSource<R> {
    fn is_direct(&self) -> bool {
        true
    }

    fn wants_block(&self) -> bool {
        self.full
    }

    fn is_busy(&self) -> bool {
        !matches!(self.state, ReaderState::Idle(_))
    }

    fn start(&mut self, buffer: Option<ReceiveBuffer>) {
        if let ReaderState::Idle(reader) = std::mem::replace(&mut self.state, ReaderState::Moved) {
            let own = buffer.is_none();
            let buffer = buffer.unwrap_or_else(|| ReceiveBuffer::Block(Vec::with_capacity(SMALL)));
            self.state = ReaderState::Receiving { op: Self::receive(reader, buffer), own };
        }
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ReceiveResult> {
        match &mut self.state {
            ReaderState::Buffered { .. } => Poll::Ready(ReceiveResult::Buffered),
            ReaderState::Receiving { op, own } => {
                let own = *own;
                let (reader, (buffer, result)) = ready!(op.as_mut().poll(cx));
                Poll::Ready(self.handle_received(reader, buffer, result, own))
            }
            ReaderState::Idle(_) | ReaderState::Moved => Poll::Ready(ReceiveResult::Nothing),
        }
    }

    fn drain(&mut self, into: &mut Vec<u8>, most: usize) -> usize {
        let ReaderState::Buffered { memory, at, .. } = &mut self.state else { return 0 };
        let count = most.min(memory.len() - *at);
        into.extend_from_slice(&memory[*at..*at + count]);
        *at += count;
        if *at == memory.len()
            && let ReaderState::Buffered { reader, .. } =
                std::mem::replace(&mut self.state, ReaderState::Moved)
        {
            self.state = ReaderState::Idle(reader);
        }
        count
    }
}

/// The sending side.
pub struct WriterSink<W> {
    /// `None` while an operation has it.
    writer: Option<W>,
    op: Option<HalfOperation<W, SendResult>>,
}

struct ChainPieces(Box<Chain>);

impl IoVectoredBuf for ChainPieces {
    fn iter_slice(&self) -> impl Iterator<Item = &[u8]> {
        self.0.pieces().take(SLICES)
    }
}

impl<W: AsyncWrite + 'static> Sink for WriterSink<W> {
    fn is_busy(&self) -> bool {
        self.op.is_some()
    }

    /// A writer may buffer, so that written bytes are flushed before they count as sent.
    fn start(&mut self, chain: Option<Box<Chain>>) {
        let Some(chain) = chain else { return };
        let Some(mut writer) = self.writer.take() else { return };
        self.op = Some(Box::pin(async move {
            let BufResult(mut result, ChainPieces(chain)) = writer.write_vectored(ChainPieces(chain)).await;
            if result.is_ok()
                && let Err(error) = writer.flush().await
            {
                result = Err(error);
            }
            (writer, SendResult::Sent(Some(chain), result))
        }));
    }

    fn start_shut(&mut self) {
        let Some(mut writer) = self.writer.take() else { return };
        self.op = Some(Box::pin(async move {
            let result = writer.shutdown().await;
            (writer, SendResult::Shut(result))
        }));
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<SendResult> {
        let Some(op) = &mut self.op else { return Poll::Pending };
        let (writer, left) = ready!(op.as_mut().poll(cx));
        self.writer = Some(writer);
        self.op = None;
        Poll::Ready(left)
    }
}
