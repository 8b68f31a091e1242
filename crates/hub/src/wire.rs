//! The protocol between predecessor and successor process during a handover.
//!
//! A frame is two lengths (32 bits, big endian), a head in JSON, and a body of bytes. After [`HandoverHead::Hello`],
//! one byte follows for each listener and carries its descriptor.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::num::NonZeroU64;
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

use crate::access::auth::Revocation;

/// Version of all frames except `Hello`, `Bound` and `Failed`, which different versions exchange. `Hello` may have
/// further optional fields, which an older successor ignores. It cannot read further kinds of [`HandoverAddress`]: its
/// handover fails, and the predecessor keeps serving. [`HandoverAddress::Datagrams`], which only a predecessor with
/// HTTP/3 sends, is such a kind.
pub(crate) const VERSION: u32 = 4;

/// Longest frame: above any sensible message limit, and small enough to detect a corrupt length.
const FRAME_MAX: usize = 1 << 30;

/// Limits for the queue to the other process, in messages and bytes: some seconds of traffic while it starts.
pub(crate) const QUEUE_FRAMES_MAX: usize = 1 << 17;
pub(crate) const QUEUE_BYTES_MAX: usize = 256 << 20;

/// Maximum revocations in one frame.
const REVOCATIONS_PER_FRAME: usize = 1_024;

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "is", rename_all = "snake_case")]
pub(crate) enum HandoverHead {
    /// To the successor: the addresses of the listeners that follow, and the cluster node, if there is one.
    Hello {
        version: u32,
        listeners: Vec<HandoverAddress>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cluster_node: Option<String>,
    },
    /// To the predecessor: all addresses are bound.
    Bound { version: u32 },
    /// To the predecessor: the successor cannot serve.
    Failed { why: String },
    /// To the successor: a topic, and how many of its messages follow.
    Topic { name: String, position: HandoverPosition, messages: usize },
    /// To the successor: a message from the topic's history.
    Kept { age_ms: u64 },
    /// To the successor: a topic's presence, and how many of its members follow.
    Presence { topic: String, anonymous: usize, members: usize },
    /// To the successor: a topic member. The body is its info.
    Member { id: String, connections: usize },
    /// To the successor: a keyed topic, and how many of its keys follow.
    Keyed { topic: String, position: HandoverPosition, forgotten: u64, keys: usize },
    /// To the successor: a topic key. The body is its value.
    Key {
        key: String,
        version: u64,
        is_set: bool,
        ttl_ms: Option<u64>,
        /// The client that its memory counts toward. Absent in earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        client: Option<NonZeroU64>,
    },
    /// To the other process: token revocations. The body is their list in JSON.
    Revocations,
    /// The end of the topics. The body holds the source of the topics' epochs, or is empty.
    End {
        /// In a cluster, the last publication of each other process that the histories contain. Absent in earlier
        /// versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        delivered: Option<Vec<HandoverDelivered>>,
    },
    /// To the predecessor: the successor serves.
    Serving,
    /// To the successor: the predecessor's publication. If the topic has a history, `Published` answers it.
    Publish {
        topic: String,
        kind: ContentKind,
        kept: bool,
        #[serde(flatten)]
        sender: HandoverSender,
    },
    /// To the predecessor: a publication, perhaps as an answer.
    Published {
        topic: String,
        kind: ContentKind,
        position: Option<HandoverPosition>,
        answers: bool,
        #[serde(flatten)]
        sender: HandoverSender,
    },
    /// To the predecessor: it was too slow, and receives no more publications.
    Cut,
    /// No frame follows.
    Bye,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HandoverAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
    /// The way of HTTP/3 datagrams between both processes.
    Datagrams,
}

/// The publisher of a publication.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HandoverSender {
    /// The socket id of the app client that has published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) socket: Option<String>,
    /// The id of the connection that does not receive the publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) exclude: Option<String>,
    /// The client that has published, as a JSON object. Absent in earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) verified: Option<String>,
    /// When it was published, in milliseconds since 1970. Absent in earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<u64>,
}

/// The last publication from a process in the cluster that the predecessor has delivered to a topic with a history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HandoverDelivered {
    /// The node's id, in hexadecimal digits, and the process's start.
    pub(crate) node: String,
    pub(crate) start: u64,
    /// The message's number, and the publication's index in it.
    pub(crate) number: u64,
    pub(crate) index: u64,
}

/// A message's position.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct HandoverPosition {
    epoch: u64,
    seq: u64,
}

impl From<Position> for HandoverPosition {
    fn from(position: Position) -> Self {
        Self { epoch: position.epoch, seq: position.sequence }
    }
}

impl From<HandoverPosition> for Position {
    fn from(place: HandoverPosition) -> Self {
        Self { epoch: place.epoch, sequence: place.seq }
    }
}

/// A body's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ContentKind {
    Text,
    Json,
    Binary,
    Event,
}

impl ContentKind {
    /// All kinds, at the indexes that are their codes between nodes and in the topic store.
    const BY_CODE: [Self; 4] = [Self::Text, Self::Json, Self::Binary, Self::Event];

    pub(crate) fn code(self) -> u8 {
        self as u8
    }

    pub(crate) fn from_code(code: u8) -> Option<Self> {
        Self::BY_CODE.get(usize::from(code)).copied()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct HandoverFrame {
    pub(crate) head: HandoverHead,
    pub(crate) body: Bytes,
}

impl HandoverFrame {
    pub(crate) fn new(head: HandoverHead) -> Self {
        Self { head, body: Bytes::new() }
    }

    /// Revocations in size-limited frames.
    pub(crate) fn from_revocations(all: &[Revocation]) -> impl Iterator<Item = Self> {
        all.chunks(REVOCATIONS_PER_FRAME).map(|part| {
            // Structs of texts and numbers are always encoded.
            let body = Bytes::from(serde_json::to_vec(part).unwrap_or_default());
            Self { head: HandoverHead::Revocations, body }
        })
    }

    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let head = serde_json::to_vec(&self.head)?;
        let too_long = |_| io::Error::new(io::ErrorKind::InvalidData, "handover frame exceeds 4 GiB");
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
            return Err(io::Error::new(io::ErrorKind::InvalidData, "handover frame exceeds 1 GiB"));
        }
        let mut bytes = vec![0; head + body];
        from.read_exact(&mut bytes)?;
        let bytes = Bytes::from(bytes);
        Ok(Self { head: serde_json::from_slice(&bytes[..head])?, body: bytes.slice(head..) })
    }
}

/// Sends one descriptor with the byte that carries it.
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
    let none = || io::Error::new(io::ErrorKind::UnexpectedEof, "the descriptor of a listener is missing");
    descriptors.into_iter().next().ok_or_else(none)
}

impl From<&ListenAddress> for HandoverAddress {
    fn from(address: &ListenAddress) -> Self {
        match address {
            ListenAddress::Tcp(address) => Self::Tcp(*address),
            ListenAddress::Unix(path) => Self::Unix(path.clone()),
            ListenAddress::Datagrams => Self::Datagrams,
            // A kind of address that a later version may add; no configuration has an empty path.
            _ => Self::Unix(PathBuf::new()),
        }
    }
}

impl From<HandoverAddress> for ListenAddress {
    fn from(address: HandoverAddress) -> Self {
        match address {
            HandoverAddress::Tcp(address) => Self::Tcp(address),
            HandoverAddress::Unix(path) => Self::Unix(path),
            HandoverAddress::Datagrams => Self::Datagrams,
        }
    }
}

/// The queue to the other process. Workers add frames without waiting.
#[derive(Debug)]
pub(crate) struct FrameSender {
    frames: SyncSender<HandoverFrame>,
    shared: Arc<FrameQueueState>,
}

#[derive(Debug, Default)]
struct FrameQueueState {
    bytes: AtomicUsize,
    cut: AtomicBool,
}

/// The queue's consuming end, which writes frames to the other process.
pub(crate) struct FrameReceiver {
    frames: Receiver<HandoverFrame>,
    shared: Arc<FrameQueueState>,
}

pub(crate) fn frame_queue() -> (FrameSender, FrameReceiver) {
    let (sender, frames) = sync_channel(QUEUE_FRAMES_MAX);
    let shared = Arc::<FrameQueueState>::default();
    (FrameSender { frames: sender, shared: Arc::clone(&shared) }, FrameReceiver { frames, shared })
}

impl FrameSender {
    /// Queues a frame; returns whether the queue had capacity.
    pub(crate) fn try_send(&self, frame: HandoverFrame) -> bool {
        let len = frame.body.len();
        if self.shared.bytes.fetch_add(len, Ordering::Relaxed) + len > QUEUE_BYTES_MAX
            || self.frames.try_send(frame).is_err()
        {
            self.shared.bytes.fetch_sub(len, Ordering::Relaxed);
            return false;
        }
        true
    }

    /// Queues a frame of a sequence without gaps. When the queue overflows, it accepts no further frames, and the other
    /// process receives `Cut`.
    pub(crate) fn send_or_cut(&self, frame: HandoverFrame) {
        if self.shared.cut.load(Ordering::Relaxed) || self.try_send(frame) {
            return;
        }
        if !self.shared.cut.swap(true, Ordering::Relaxed) {
            tracing::error!(
                "queue to the predecessor process is full: its clients receive further messages after they reconnect"
            );
        }
    }
}

impl FrameReceiver {
    #[cfg(test)]
    pub(crate) fn take(&self) -> Option<HandoverFrame> {
        let frame = self.frames.try_recv().ok()?;
        self.shared.bytes.fetch_sub(frame.body.len(), Ordering::Relaxed);
        Some(frame)
    }

    /// Writes until the queue is closed, and then the end mark.
    pub(crate) fn write_all(self, out: &mut impl Write) -> io::Result<()> {
        let mut cut_sent = false;
        let mut next = self.frames.recv().ok();
        while let Some(frame) = next {
            self.shared.bytes.fetch_sub(frame.body.len(), Ordering::Relaxed);
            frame.write(out)?;
            next = self.frames.try_recv().ok();
            if next.is_none() {
                if self.shared.cut.load(Ordering::Relaxed) && !std::mem::replace(&mut cut_sent, true) {
                    HandoverFrame::new(HandoverHead::Cut).write(out)?;
                }
                out.flush()?;
                next = self.frames.recv().ok();
            }
        }
        HandoverFrame::new(HandoverHead::Bye).write(out)?;
        out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_is_exchanged_with_earlier_versions() {
        /// As an earlier version knows it.
        #[derive(Deserialize)]
        #[serde(tag = "is", rename_all = "snake_case")]
        enum Earlier {
            End,
        }
        let of_earlier = serde_json::from_str(r#"{"is":"end"}"#).unwrap();
        assert!(matches!(of_earlier, HandoverHead::End { delivered: None }));
        let last =
            HandoverDelivered { node: format!("{:032x}", u128::MAX), start: 1, number: u64::MAX, index: 2 };
        let end = serde_json::to_string(&HandoverHead::End { delivered: Some(vec![last.clone()]) }).unwrap();
        assert!(matches!(serde_json::from_str(&end).unwrap(), Earlier::End), "{end}");
        let HandoverHead::End { delivered } = serde_json::from_str(&end).unwrap() else { panic!("{end}") };
        assert_eq!(delivered, Some(vec![last]));
    }

    #[test]
    fn keys_of_an_earlier_version_may_have_an_owner() {
        let earlier = r#"{"is":"keyed","topic":"t","position":{"epoch":1,"seq":2},"forgotten":0,"keys":1,
            "owner":{"node":"0f","term":3}}"#;
        let head = serde_json::from_str(earlier).unwrap();
        assert!(matches!(head, HandoverHead::Keyed { keys: 1, .. }));
    }
}
