//! The plain echo on io_uring: a completion server's minimum work, without any code of ours.
//!
//! Bytes are sent from the buffer that received them. Connections are accepted into direct descriptors; each
//! has one multishot receive into an incremental buffer ring (a few big buffers that fill up gradually). The
//! bytes that a turn received on a connection leave in one send. One enter at the turn's end submits all connections'
//! sends.
//!
//! Sends are tried: `MSG_DONTWAIT` makes them complete within the enter, `MSG_WAITALL` reports a short send,
//! and `SKIP_SUCCESS` omits the completion of a full send. So when an enter returns without a failure in the
//! completion queue, all bytes have left. A connection whose peer takes less falls *behind*: the rest is
//! copied and leaves by ordinary sends, one at a time, and receiving is paused until it has left.
//!
//! It is a limit and not a product: it has no timers, no fairness between connections, no accept pause, no
//! shutdown.
#![allow(unsafe_code)]

mod buffers;

use std::io::{self, Write};
use std::mem;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use io_uring::types::{Fd, Fixed};
use io_uring::{Builder, IoUring, SubmissionQueue, Submitter, cqueue, opcode, squeue};

use self::buffers::{Buffers, GROUP, Range};
use crate::Error;

/// Serves on 127.0.0.1 until standard input is closed.
pub(crate) fn run(port: u16) -> Result<(), Error> {
    let listener = listen(port)?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    serve(&listener, io::stdin().as_fd())
}

fn listen(port: u16) -> io::Result<TcpListener> {
    let listener = TcpListener::bind(("127.0.0.1", port))?;
    // Accepted connections inherit it.
    socket2::SockRef::from(&listener).set_tcp_nodelay(true)?;
    Ok(listener)
}

/// Echoes until `stop` is closed.
fn serve(listener: &TcpListener, stop: BorrowedFd<'_>) -> Result<(), Error> {
    let mut ring = builder().setup_cqsize(COMPLETIONS).build(SUBMISSIONS)?;
    ring.submitter().register_files_sparse(descriptors()?)?;
    let buffers = Buffers::register(&ring.submitter())?;
    let (mut submitter, submissions, mut completions) = ring.split();
    submitter.register_ring_fd()?;
    let mut echo = Echo {
        submitter,
        submissions,
        // Never freed: the kernel tears the ring down asynchronously, and still accesses pending operations' memory.
        connections: mem::ManuallyDrop::new(Vec::new()),
        buffers,
        ready: Vec::new(),
        to_receive: Vec::new(),
        vectors: Vec::new(),
        listener: Fd(listener.as_raw_fd()),
        stop: Fd(stop.as_raw_fd()),
        stop_byte: Box::leak(Box::new(0)),
    };
    echo.accept()?;
    echo.watch_stop()?;
    loop {
        // Without publishing the consumed head first, the kernel takes the handled completions for new
        // completions and returns at once: two enters a turn.
        completions.sync();
        echo.submissions.sync();
        match echo.submitter.submit_and_wait(1) {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
            _ => {}
        }
        echo.submissions.sync();
        completions.sync();
        // The sends from these buffers have completed. Failed sends are among the pending completions, and
        // their buffers stay unwritten until the next enter, unless the completion queue has overflowed.
        if !echo.submissions.cq_overflow() {
            echo.buffers.give_back();
        }
        for completion in &mut completions {
            if echo.handle(&completion)? {
                return Ok(());
            }
        }
        echo.finish_turn()?;
    }
}

fn builder() -> Builder<squeue::Entry, cqueue::Entry> {
    let mut builder = IoUring::builder();
    builder.setup_single_issuer().setup_defer_taskrun().setup_submit_all().setup_no_sqarray();
    builder
}

/// Direct descriptors count toward the limit of open files for each ring.
fn descriptors() -> io::Result<u32> {
    Ok(sinews_engine::raise_descriptor_limit()?.min(DESCRIPTORS) as u32)
}

struct Echo<'a> {
    submitter: Submitter<'a>,
    submissions: SubmissionQueue<'a>,
    /// Connections by direct descriptor.
    connections: mem::ManuallyDrop<Vec<Connection>>,
    buffers: Buffers,
    /// Connections to send on at the turn's end.
    ready: Vec<u32>,
    /// Connections that start a receive at the turn's end, after the sends: a failed send's completion then precedes
    /// the next receive.
    to_receive: Vec<u32>,
    /// Vectors that the messages in this turn's submissions point at.
    vectors: Vec<Vector>,
    listener: Fd,
    stop: Fd,
    stop_byte: *mut u8,
}

#[derive(Debug, Default)]
struct Connection {
    /// Ranges to send at the turn's end, unless the connection is behind.
    queued: Vec<Range>,
    /// Ranges in the last tried send.
    tried: Vec<Range>,
    behind: Option<Behind>,
    receiving: bool,
    /// The receiving side is closed.
    ended: bool,
    /// The sending side has failed.
    dead: bool,
}

/// Bytes that a tried send left over.
#[derive(Debug)]
struct Behind {
    /// Owned by an ordinary send until it completes.
    in_flight: Vec<u8>,
    /// Bytes in it that are sent.
    done: usize,
    /// Bytes received since. Few: the receive is being cancelled.
    waiting: Vec<u8>,
}

/// A message in pieces, boxed since the message vector may move.
struct Vector {
    message: Box<libc::msghdr>,
    /// The pieces that the message points at.
    _pieces: Box<[libc::iovec]>,
}

impl Echo<'_> {
    /// Handles a completion. Returns whether it was the last completion.
    fn handle(&mut self, completion: &cqueue::Entry) -> Result<bool, Error> {
        let (result, slot) = (completion.result(), completion.user_data() as u32);
        match completion.user_data() & !u64::from(u32::MAX) {
            ACCEPT => self.accepted(result, cqueue::more(completion.flags()))?,
            RECEIVE => self.received(slot, completion)?,
            TRIED => self.fell_behind(slot, result)?,
            IN_FLIGHT => self.flew(slot, result)?,
            STOP if result <= 0 => return Ok(true),
            STOP => self.watch_stop()?,
            _ => {}
        }
        Ok(false)
    }

    fn accepted(&mut self, result: i32, more: bool) -> Result<(), Error> {
        if !more {
            self.accept()?;
        }
        if result == -libc::ECONNABORTED {
            return Ok(());
        }
        let slot = succeeded(result)? as usize;
        let slots = self.connections.len().max(slot + 1);
        self.connections.resize_with(slots, Connection::default);
        self.connections[slot] = Connection::default();
        self.to_receive.push(slot as u32);
        Ok(())
    }

    fn received(&mut self, slot: u32, completion: &cqueue::Entry) -> Result<(), Error> {
        let connection = &mut self.connections[slot as usize];
        match (completion.result(), cqueue::buffer_select(completion.flags())) {
            (bytes @ 1.., Some(buffer)) => {
                let range = self.buffers.fill(buffer, bytes as u32, cqueue::buffer_more(completion.flags()));
                match &mut connection.behind {
                    Some(behind) => behind.waiting.extend_from_slice(self.buffers.bytes(range)),
                    None if connection.dead => {}
                    None => {
                        if connection.queued.is_empty() {
                            self.ready.push(slot);
                        }
                        range.append_to(&mut connection.queued);
                    }
                }
            }
            // Out of buffers, which the next turn returns; or cancelled since the connection is behind.
            (result, _) if result == -libc::ENOBUFS || result == -libc::ECANCELED => {}
            (0, _) => connection.ended = true,
            _ => (connection.ended, connection.dead) = (true, true),
        }
        if !cqueue::more(completion.flags()) {
            connection.receiving = false;
            self.go_on(slot)?;
        }
        Ok(())
    }

    /// Decides a connection's next step after a receive has ended, or after it has caught up.
    fn go_on(&mut self, slot: u32) -> Result<(), Error> {
        let connection = &mut self.connections[slot as usize];
        if connection.receiving || connection.behind.is_some() {
            return Ok(());
        }
        if !connection.ended && !connection.dead {
            self.to_receive.push(slot);
            return Ok(());
        }
        if connection.queued.is_empty() || connection.dead {
            connection.queued.clear();
            return self.push(opcode::Close::new(Fixed(slot)).build().user_data(CLOSE | u64::from(slot)));
        }
        // The last bytes must have left before the socket is closed.
        let words = mem::take(&mut connection.queued);
        let in_flight = words.iter().flat_map(|range| self.buffers.bytes(*range)).copied().collect();
        connection.behind = Some(Behind { in_flight, done: 0, waiting: Vec::new() });
        self.fly(slot)
    }

    /// Handles a tried send that failed after `result` bytes, or at once.
    fn fell_behind(&mut self, slot: u32, result: i32) -> Result<(), Error> {
        let connection = &mut self.connections[slot as usize];
        let queued = mem::take(&mut connection.queued);
        if result < 0 && result != -libc::EAGAIN {
            // The receive reports the same error and ends.
            connection.dead = true;
            return Ok(());
        }
        let all = connection.tried.iter().chain(&queued).flat_map(|range| self.buffers.bytes(*range));
        let in_flight = all.copied().skip(result.max(0) as usize).collect();
        connection.behind = Some(Behind { in_flight, done: 0, waiting: Vec::new() });
        if connection.receiving {
            let cancel = opcode::AsyncCancel::new(RECEIVE | u64::from(slot)).build();
            self.push(cancel.user_data(CANCEL).flags(squeue::Flags::SKIP_SUCCESS))?;
        }
        self.fly(slot)
    }

    /// Submits an ordinary send of the bytes in flight.
    fn fly(&mut self, slot: u32) -> Result<(), Error> {
        let Some(behind) = &self.connections[slot as usize].behind else { return Ok(()) };
        let rest = &behind.in_flight[behind.done..];
        let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let send = opcode::Send::new(Fixed(slot), rest.as_ptr(), length);
        let send = send.flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL).build();
        self.push(send.user_data(IN_FLIGHT | u64::from(slot)))
    }

    /// Handles an ordinary send's completion.
    fn flew(&mut self, slot: u32, result: i32) -> Result<(), Error> {
        let connection = &mut self.connections[slot as usize];
        let Some(behind) = &mut connection.behind else { return Ok(()) };
        if result < 0 {
            connection.dead = true;
        }
        behind.done += result.max(0) as usize;
        if behind.done == behind.in_flight.len() {
            (behind.in_flight, behind.done) = (mem::take(&mut behind.waiting), 0);
        }
        if connection.dead || behind.in_flight.is_empty() {
            connection.behind = None;
            return self.go_on(slot);
        }
        self.fly(slot)
    }

    /// Queues the turn's submissions.
    fn finish_turn(&mut self) -> Result<(), Error> {
        // The last turn's vectors have been submitted.
        self.vectors.clear();
        let mut ready = mem::take(&mut self.ready);
        ready.drain(..).try_for_each(|slot| self.try_to_send(slot))?;
        let mut to_receive = mem::take(&mut self.to_receive);
        to_receive.drain(..).try_for_each(|slot| self.receive(slot))?;
        (self.ready, self.to_receive) = (ready, to_receive);
        Ok(())
    }

    fn try_to_send(&mut self, slot: u32) -> Result<(), Error> {
        let connection = &mut self.connections[slot as usize];
        mem::swap(&mut connection.tried, &mut connection.queued);
        connection.queued.clear();
        let flags = libc::MSG_WAITALL | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let send = match &connection.tried[..] {
            [] => return Ok(()),
            [range] => {
                opcode::Send::new(Fixed(slot), self.buffers.start(*range), range.length).flags(flags).build()
            }
            ranges => {
                let vector = Vector::new(&self.buffers, ranges);
                let message = &raw const *vector.message;
                self.vectors.push(vector);
                opcode::SendMsg::new(Fixed(slot), message).flags(flags as u32).build()
            }
        };
        self.push(send.user_data(TRIED | u64::from(slot)).flags(squeue::Flags::SKIP_SUCCESS))
    }

    fn receive(&mut self, slot: u32) -> Result<(), Error> {
        self.connections[slot as usize].receiving = true;
        let receive = opcode::RecvMulti::new(Fixed(slot), GROUP).build();
        self.push(receive.user_data(RECEIVE | u64::from(slot)))
    }

    fn accept(&mut self) -> Result<(), Error> {
        let accept = opcode::AcceptMulti::new(self.listener).allocate_file_index(true).build();
        self.push(accept.user_data(ACCEPT))
    }

    fn watch_stop(&mut self) -> Result<(), Error> {
        self.push(opcode::Read::new(self.stop, self.stop_byte, 1).build().user_data(STOP))
    }

    fn push(&mut self, entry: squeue::Entry) -> Result<(), Error> {
        // SAFETY: an entry's memory outlives its operation. The buffers' memory and the stop byte are leaked. A tried
        // send has completed when its enter returns, before buffers are given back and vectors dropped. The bytes in
        // flight stay untouched until their completion, and connections are never freed.
        while unsafe { self.submissions.push(&entry) }.is_err() {
            self.submissions.sync();
            self.submitter.submit()?;
            self.submissions.sync();
        }
        Ok(())
    }
}

impl Vector {
    fn new(buffers: &Buffers, ranges: &[Range]) -> Self {
        let piece = |range: &Range| libc::iovec {
            iov_base: buffers.start(*range).cast_mut().cast(),
            iov_len: range.length as usize,
        };
        let mut pieces: Box<[libc::iovec]> = ranges.iter().map(piece).collect();
        // SAFETY: all fields are integers or pointers, for which zero is a value.
        let mut message: Box<libc::msghdr> = Box::new(unsafe { mem::zeroed() });
        (message.msg_iov, message.msg_iovlen) = (pieces.as_mut_ptr(), pieces.len() as _);
        Self { message, _pieces: pieces }
    }
}

/// Returns a result's value, or its error.
fn succeeded(result: i32) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

// An operation's kind, above the connection number.
const ACCEPT: u64 = 1 << 32;
const RECEIVE: u64 = 2 << 32;
const TRIED: u64 = 3 << 32;
const IN_FLIGHT: u64 = 4 << 32;
const CANCEL: u64 = 5 << 32;
const CLOSE: u64 = 6 << 32;
const STOP: u64 = 7 << 32;

/// Submissions that force an early enter.
const SUBMISSIONS: u32 = 4096;
/// Completions in a turn; the kernel stores more at the cost of an allocation.
const COMPLETIONS: u32 = 16 << 10;
/// Connections, up to the open file limit.
const DESCRIPTORS: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    /// Runs the server beside the test, or prints that the kernel denies io_uring.
    fn with_server(test: impl FnOnce(SocketAddr)) {
        let probe: io::Result<IoUring> = builder().build(1);
        if let Err(error) = probe.and_then(|ring| Buffers::register(&ring.submitter())) {
            println!("skipped: no io_uring: {error}");
            return;
        }
        let listener = listen(0).unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let serving =
            thread::spawn(move || serve(&listener, stopped.as_fd()).map_err(|error| error.to_string()));
        test(address);
        drop(stop);
        serving.join().unwrap().unwrap();
    }

    fn noise(bytes: u32) -> Vec<u8> {
        (0..bytes).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
    }

    /// Sends all bytes, closes the sending side, and reads the echo after `read` returns.
    fn echo(mut reader: TcpStream, sent: &[u8], read: impl FnOnce()) -> Vec<u8> {
        let mut writer = reader.try_clone().unwrap();
        thread::scope(|scope| {
            scope.spawn(move || {
                writer.write_all(sent).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            read();
            let mut back = Vec::new();
            reader.read_to_end(&mut back).unwrap();
            back
        })
    }

    #[test]
    fn late_reader_receives_every_byte() {
        with_server(|address| {
            // More than both directions of the sockets hold, so sends fall short and the receive is
            // cancelled. Another connection works meanwhile, and shows when the transfer has stalled.
            let sent = noise(24 << 20);
            let reader = TcpStream::connect(address).unwrap();
            let mut other = TcpStream::connect(address).unwrap();
            let back = echo(reader, &sent, || {
                for round in 0..2000_u32 {
                    other.write_all(&round.to_le_bytes()).unwrap();
                    let mut answer = [0; 4];
                    other.read_exact(&mut answer).unwrap();
                    assert_eq!(answer, round.to_le_bytes());
                }
            });
            assert!(back == sent, "{} of {} bytes", back.len(), sent.len());
        });
    }

    #[test]
    fn connections_that_fill_all_buffers_receive_their_own_bytes() {
        with_server(|address| {
            thread::scope(|scope| {
                for number in 1..=8 {
                    scope.spawn(move || {
                        let sent: Vec<u8> = noise(6 << 20).iter().map(|byte| byte ^ number).collect();
                        let back = echo(TcpStream::connect(address).unwrap(), &sent, || {});
                        assert!(back == sent, "{} of {} bytes", back.len(), sent.len());
                    });
                }
            });
        });
    }

    #[test]
    fn reset_does_not_affect_other_connections() {
        with_server(|address| {
            for _ in 0..100 {
                let mut stream = TcpStream::connect(address).unwrap();
                stream.write_all(&noise(300 << 10)).unwrap();
                // The unread echoes turn this close into a reset.
                drop(stream);
            }
            let back = echo(TcpStream::connect(address).unwrap(), b"still there", || {});
            assert_eq!(back, b"still there");
        });
    }
}
