//! What two processes of this program say to each other while one takes the other's place.
//!
//! A frame is two lengths (32 bits, big endian), a head in JSON, and a body of bytes. Behind [`Head::Hello`] every
//! listener follows as one byte that carries its descriptor.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bytes::Bytes;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use serde::{Deserialize, Serialize};
use sinews_server::{ListenAddress, Position};

/// Of all frames but `Hello`, `Bound` and `Failed`, which stay as they are: two versions of the program speak them.
pub(crate) const VERSION: u32 = 1;

/// Longest frame: more than any message that may be configured sensibly, and less than what would be a mistake.
const FRAME_MAX: usize = 1 << 30;

/// Messages that wait for the other process, at most, and their bytes: some seconds' worth, while it starts.
const WAITING_MAX: usize = 1 << 17;
const WAITING_BYTES_MAX: usize = 256 << 20;

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum Head {
    /// To the new process: whose listeners follow.
    Hello { version: u32, listeners: Vec<Address> },
    /// To the old one: everything is bound.
    Bound { version: u32 },
    /// To the old one: it will not serve.
    Failed { why: String },
    /// To the new one: a topic, and how many of its messages follow.
    Topic { name: String, position: Place, messages: usize },
    /// Such a message.
    Kept { age_ms: u64 },
    /// There are no more topics. Its body is what the epochs of topics are made of, or empty.
    End,
    /// To the old one: it serves.
    Serving,
    /// To the new one: somebody there published this. If the topic is kept, it is to be answered with `Published`.
    Publish { topic: String, kind: Kind, kept: bool },
    /// To the old one: this has been published, perhaps as an answer.
    Published { topic: String, kind: Kind, position: Option<Place>, answers: bool },
    /// To the old one: it was too slow, and is told no more.
    Cut,
    /// Nothing follows.
    Bye,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Address {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// Where a message stands.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Place {
    epoch: u64,
    seq: u64,
}

impl From<Position> for Place {
    fn from(position: Position) -> Self {
        Self { epoch: position.epoch, seq: position.sequence }
    }
}

impl From<Place> for Position {
    fn from(place: Place) -> Self {
        Self { epoch: place.epoch, sequence: place.seq }
    }
}

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    Text,
    Json,
    Binary,
}

#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) head: Head,
    pub(crate) body: Bytes,
}

impl Frame {
    pub(crate) fn new(head: Head) -> Self {
        Self { head, body: Bytes::new() }
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let head = serde_json::to_vec(&self.head)?;
        let too_long =
            |_| io::Error::new(io::ErrorKind::InvalidData, "a message is too long for the other process");
        for len in [head.len(), self.body.len()] {
            out.write_all(&u32::try_from(len).map_err(too_long)?.to_be_bytes())?;
        }
        out.write_all(&head)?;
        out.write_all(&self.body)
    }

    pub(crate) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut lens = [0; 8];
        from.read_exact(&mut lens)?;
        let [a, b, c, d, e, f, g, h] = lens;
        let (head, body) =
            (u32::from_be_bytes([a, b, c, d]) as usize, u32::from_be_bytes([e, f, g, h]) as usize);
        if head.saturating_add(body) > FRAME_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame that is none"));
        }
        let mut bytes = vec![0; head + body];
        from.read_exact(&mut bytes)?;
        let bytes = Bytes::from(bytes);
        Ok(Self { head: serde_json::from_slice(&bytes[..head])?, body: bytes.slice(head..) })
    }
}

/// Sends one descriptor, with a byte that carries it.
pub(crate) fn send_descriptor(to: &UnixStream, descriptor: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    sendmsg(to, &[IoSlice::new(b"L")], &mut control, SendFlags::empty())?;
    Ok(())
}

pub(crate) fn receive_descriptor(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(from, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    let none = || io::Error::new(io::ErrorKind::UnexpectedEof, "a listener did not arrive");
    descriptors.into_iter().next().ok_or_else(none)
}

impl From<&ListenAddress> for Address {
    fn from(address: &ListenAddress) -> Self {
        match address {
            ListenAddress::Tcp(address) => Self::Tcp(*address),
            ListenAddress::Unix(path) => Self::Unix(path.clone()),
            // Should the server come to know others: nobody asks for an empty path.
            _ => Self::Unix(PathBuf::new()),
        }
    }
}

impl From<Address> for ListenAddress {
    fn from(address: Address) -> Self {
        match address {
            Address::Tcp(address) => Self::Tcp(address),
            Address::Unix(path) => Self::Unix(path),
        }
    }
}

/// What waits to be written to the other process. Nobody waits for it: event loops put things in.
#[derive(Debug)]
pub(crate) struct Outbox {
    frames: SyncSender<Frame>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    bytes: AtomicUsize,
    cut: AtomicBool,
}

/// The end of it that is written from.
pub(crate) struct Waiting {
    frames: Receiver<Frame>,
    shared: Arc<Shared>,
}

pub(crate) fn outbox() -> (Outbox, Waiting) {
    let (sender, frames) = sync_channel(WAITING_MAX);
    let shared = Arc::<Shared>::default();
    (Outbox { frames: sender, shared: Arc::clone(&shared) }, Waiting { frames, shared })
}

impl Outbox {
    /// Whether there was room.
    pub(crate) fn put(&self, frame: Frame) -> bool {
        let len = frame.body.len();
        if self.shared.bytes.fetch_add(len, Ordering::Relaxed) + len > WAITING_BYTES_MAX
            || self.frames.try_send(frame).is_err()
        {
            self.shared.bytes.fetch_sub(len, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Puts in what must not be missing between others: when there is no room once, there is none any more, and the
    /// other process is told so.
    pub(crate) fn put_or_cut(&self, frame: Frame) {
        if self.shared.cut.load(Ordering::Relaxed) || self.put(frame) {
            return;
        }
        if !self.shared.cut.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "the former process does not keep up with what is published: its clients hear the rest when they come here"
            );
        }
    }
}

impl Waiting {
    #[cfg(test)]
    pub(crate) fn take(&self) -> Option<Frame> {
        let frame = self.frames.try_recv().ok()?;
        self.shared.bytes.fetch_sub(frame.body.len(), Ordering::Relaxed);
        Some(frame)
    }

    /// Writes until nothing more can come, and says so.
    pub(crate) fn write_all(self, out: &mut impl Write) -> io::Result<()> {
        let mut cut_told = false;
        let mut next = self.frames.recv().ok();
        while let Some(frame) = next {
            self.shared.bytes.fetch_sub(frame.body.len(), Ordering::Relaxed);
            frame.write(out)?;
            next = self.frames.try_recv().ok();
            if next.is_none() {
                if self.shared.cut.load(Ordering::Relaxed) && !std::mem::replace(&mut cut_told, true) {
                    Frame::new(Head::Cut).write(out)?;
                }
                out.flush()?;
                next = self.frames.recv().ok();
            }
        }
        Frame::new(Head::Bye).write(out)?;
        out.flush()
    }
}
