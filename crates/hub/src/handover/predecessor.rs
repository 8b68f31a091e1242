//! The successor's side of a handover.

use std::io::{self, BufReader, BufWriter};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sinews_server::{
    KeySnapshot, KeyedSnapshot, Listeners, Member, Prepared, PresenceSnapshot, Publisher, RetainedMessage,
    TopicSnapshot,
};

use super::VARIABLE;
use crate::access::auth::{Revocation, Revocations};
use crate::error::{HubError, HubErrorKind};
use crate::model::MessageContent;
use crate::topics::HubTopics;
use crate::wire::{
    FrameReceiver, HandoverDelivered, HandoverFrame, HandoverHead, VERSION, frame_queue, receive_descriptor,
};

/// Longest silence of the predecessor during the handover.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The predecessor process, which this process replaces.
pub struct Predecessor {
    link: UnixStream,
    version: u32,
    listeners: Listeners,
    /// Its id in a cluster.
    cluster_node: Option<String>,
}

impl Predecessor {
    /// Returns the predecessor and its listeners, if this process was started as a successor.
    ///
    /// # Errors
    /// [`HubErrorKind::Handover`]: the predecessor's greeting cannot be read, or is invalid.
    pub fn find() -> Result<Option<Self>, HubError> {
        let parent = std::env::var(VARIABLE).ok().and_then(|id| id.parse().ok());
        if parent != Some(parent_id()) {
            return Ok(None);
        }
        let fault = |error| HubError::caused(HubErrorKind::Handover, error);
        Self::connect().map(Some).map_err(|error| fault(error).at(format_args!("{VARIABLE}: standard input")))
    }

    fn connect() -> io::Result<Self> {
        let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        link.set_read_timeout(Some(SILENCE_MAX))?;
        link.set_write_timeout(Some(SILENCE_MAX))?;
        // Without a buffer, which would consume the bytes that carry descriptors.
        let hello = HandoverFrame::read(&mut &link)?.head;
        let HandoverHead::Hello { version, listeners: addresses, cluster_node } = hello else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "Hello expected"));
        };
        let mut listeners = Listeners::default();
        for address in addresses {
            listeners.push(address.into(), receive_descriptor(&link)?)?;
        }
        Ok(Self { link, version, listeners, cluster_node })
    }

    /// Returns the node's id in a cluster, if this process takes over the state that the other nodes expect from it.
    pub(crate) fn cluster_node(&self) -> Option<String> {
        self.cluster_node.clone().filter(|_| self.version == VERSION)
    }

    /// Takes the predecessor's listeners, for [`Server::inherit`](sinews_server::Server::inherit).
    pub fn take_listeners(&mut self) -> Listeners {
        std::mem::take(&mut self.listeners)
    }

    /// Reports that this process cannot serve.
    pub fn fail(&mut self, why: &str) {
        // The predecessor may have exited or given up.
        let _ = HandoverFrame::new(HandoverHead::Failed { why: why.to_owned() }).write(&mut self.link);
        let _ = self.link.shutdown(Shutdown::Write);
    }

    /// Reports that all addresses are bound, restores the predecessor's histories, and publishes for it from here on.
    ///
    /// # Errors
    /// If the handover is incomplete.
    pub(crate) fn take_over(
        &mut self,
        hub: &Arc<HubTopics>,
        revocations: &Arc<Revocations>,
        publisher: &Publisher,
    ) -> Result<RunningHandover, HubError> {
        self.try_take_over(hub, revocations, publisher).map_err(|error| {
            let text = format!("handover from the predecessor process failed: {error}");
            HubError::new(HubErrorKind::Handover, text).with_source(error)
        })
    }

    fn try_take_over(
        &mut self,
        hub: &Arc<HubTopics>,
        revocations: &Arc<Revocations>,
        publisher: &Publisher,
    ) -> io::Result<RunningHandover> {
        let queued = hub.queued_publications();
        HandoverFrame::new(HandoverHead::Bound { version: VERSION }).write(&mut self.link)?;
        let link = self.link.try_clone()?;
        if self.version != VERSION {
            let (theirs, ours) = (self.version, VERSION);
            tracing::warn!(
                "handover version of the predecessor differs ({theirs}, here {ours}): histories are not transferred"
            );
            return Ok(RunningHandover { link, rest: None });
        }
        let mut input = BufReader::with_capacity(64 << 10, self.link.try_clone()?);
        let delivered = restore(&mut input, hub, revocations, publisher)?;
        hub.inherit_delivered(delivered.as_deref(), queued);
        self.link.set_read_timeout(None)?;
        let (sender, receiver) = frame_queue();
        hub.set_predecessor(sender);
        let target = HandoverTarget { hub: Arc::clone(hub), revocations: Arc::clone(revocations) };
        Ok(RunningHandover { link, rest: Some((input, receiver, target, publisher.clone())) })
    }
}

/// Time for the predecessor's clients to return: then their presence ends. Well above the time in which the predecessor
/// closes them (`drain_window`) and their delay before the next attempt.
const PRESENCE_GRACE: Duration = Duration::from_secs(30);

/// Restores topics and their presence until the end mark. Returns the mark: other nodes' publications that the
/// histories contain.
fn restore(
    input: &mut BufReader<UnixStream>,
    hub: &HubTopics,
    revocations: &Revocations,
    publisher: &Publisher,
) -> io::Result<Option<Vec<HandoverDelivered>>> {
    let (mut topics, mut not_restored) = (0, 0);
    let mut presence = Vec::new();
    let delivered = loop {
        let HandoverFrame { head, body: epochs } = HandoverFrame::read(input)?;
        match head {
            HandoverHead::Topic { name, position, messages } => {
                let kept = (0..messages).map(|_| match HandoverFrame::read(input)? {
                    HandoverFrame { head: HandoverHead::Kept { age_ms }, body } => {
                        let age = Duration::from_millis(age_ms);
                        Ok(RetainedMessage { message: Prepared::new(sinews_server::Kind::Text, body), age })
                    }
                    _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a message of a history is missing")),
                });
                let messages = kept.collect::<io::Result<_>>()?;
                let restored = publisher.restore(TopicSnapshot { name, position: position.into(), messages });
                if restored.is_ok_and(|is_kept| is_kept) { topics += 1 } else { not_restored += 1 }
            }
            HandoverHead::Presence { topic, anonymous, members } => {
                let members = (0..members).map(|_| match HandoverFrame::read(input)? {
                    HandoverFrame { head: HandoverHead::Member { id, connections }, body } => {
                        Ok((Member::new(id).with_info(body), connections))
                    }
                    _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a member of a topic is missing")),
                });
                let members = members.collect::<io::Result<_>>()?;
                presence.push(PresenceSnapshot { topic, members, anonymous });
            }
            HandoverHead::Keyed { topic, position, forgotten, keys } => {
                let keys = (0..keys).map(|_| read_key(input)).collect::<io::Result<_>>()?;
                let keyed =
                    KeyedSnapshot { topic, position: position.into(), forgotten, keys, recent: Vec::new() };
                // A predecessor without a topic store may have had keys.
                if hub.shared_keys().is_none() {
                    restore_keyed(keyed, publisher);
                }
            }
            HandoverHead::Revocations => revoke(&epochs, hub, revocations)?,
            HandoverHead::End { delivered } if epochs.is_empty() || publisher.restore_epochs(&epochs) => {
                break delivered;
            }
            HandoverHead::End { .. } => {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "invalid epochs of topics"));
            }
            _ => {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "Topic, Presence, Keyed or End expected",
                ));
            }
        }
    };
    publisher.restore_presence(presence, PRESENCE_GRACE);
    tracing::info!(topics, no_longer_retained = not_restored, "histories of the predecessor restored");
    Ok(delivered)
}

/// Revokes the tokens that the predecessor has revoked.
fn revoke(body: &[u8], hub: &HubTopics, revocations: &Revocations) -> io::Result<()> {
    let all: Vec<Revocation> = serde_json::from_slice(body)?;
    hub.connections().revoke(revocations, &all);
    Ok(())
}

fn read_key(input: &mut BufReader<UnixStream>) -> io::Result<KeySnapshot> {
    match HandoverFrame::read(input)? {
        HandoverFrame { head: HandoverHead::Key { key, version, is_set, ttl_ms, client }, body } => {
            let (value, ttl) = (is_set.then_some(body), ttl_ms.map(Duration::from_millis));
            Ok(KeySnapshot { key, version, value, ttl, client })
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a key of a topic is missing")),
    }
}

fn restore_keyed(keyed: KeyedSnapshot, publisher: &Publisher) {
    let topic = keyed.topic.clone();
    if let Ok(Some(left_out @ 1..)) = publisher.restore_keyed_topic(keyed) {
        tracing::error!(topic, left_out, "keys of the predecessor exceed the limits of this process");
    }
}

/// State that the predecessor's frames change.
struct HandoverTarget {
    hub: Arc<HubTopics>,
    revocations: Arc<Revocations>,
}

/// The rest of the handover, after this process serves.
pub struct RunningHandover {
    link: UnixStream,
    rest: Option<(BufReader<UnixStream>, FrameReceiver, HandoverTarget, Publisher)>,
}

impl RunningHandover {
    /// Notifies the predecessor, and executes its frames until it exits.
    pub fn run(mut self) {
        if let Err(error) = HandoverFrame::new(HandoverHead::Serving).write(&mut self.link) {
            tracing::warn!(%error, "cannot notify the predecessor process");
        }
        let Some((input, receiver, target, publisher)) = self.rest else {
            let _ = HandoverFrame::new(HandoverHead::Bye).write(&mut self.link);
            let _ = self.link.shutdown(Shutdown::Write);
            return;
        };
        let (output, ends) = (self.link.try_clone(), Arc::clone(&target.hub));
        let writer = thread::Builder::new().name("handover-out".to_owned()).spawn(move || {
            let Ok(output) = output else { return };
            if let Err(error) = receiver.write_all(&mut BufWriter::with_capacity(64 << 10, &output)) {
                tracing::debug!(%error, "cannot write to the predecessor process");
            }
            let _ = output.shutdown(Shutdown::Write);
        });
        let reader = thread::Builder::new().name("handover-in".to_owned());
        let reader = reader.spawn(move || handle_frames(input, &target, publisher));
        if let Err(error) = writer.and(reader) {
            tracing::error!(%error, "cannot start the handover threads");
            ends.clear_predecessor();
            let _ = self.link.shutdown(Shutdown::Both);
        }
    }
}

fn handle_frames(
    mut input: BufReader<UnixStream>,
    HandoverTarget { hub, revocations }: &HandoverTarget,
    mut publisher: Publisher,
) {
    let end = loop {
        match HandoverFrame::read(&mut input) {
            Ok(HandoverFrame { head: HandoverHead::Publish { topic, kind, kept, sender }, body }) => {
                let content = MessageContent::from_wire(kind, body);
                hub.publish_from_predecessor(&mut publisher, &topic, &content, kept, &sender);
            }
            Ok(HandoverFrame { head: HandoverHead::Revocations, body }) => {
                if let Err(error) = revoke(&body, hub, revocations) {
                    break Some(error.to_string());
                }
            }
            Ok(HandoverFrame { head: HandoverHead::Bye, .. }) => break None,
            Ok(other) => break Some(format!("unexpected frame {:?}", other.head)),
            Err(error) => break Some(error.to_string()),
        }
    };
    hub.clear_predecessor();
    revocations.set_file_shared(false);
    match end {
        None => tracing::info!("handover completed"),
        Some(why) => tracing::error!("the predecessor process exited before its last frame: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use sinews_server::{Position, Router, Server};

    use super::*;
    use crate::topics::shared_keys::KeysWithoutStore;
    use crate::wire::HandoverPosition;

    #[test]
    fn keys_are_restored_unless_the_nodes_of_a_cluster_share_them() {
        for is_shared in [false, true] {
            let server =
                Server::new(Router::new()).threads(1).listen(([127, 0, 0, 1], 0).into()).bind().unwrap();
            let publisher = server.publisher();
            let hub = HubTopics::default();
            if is_shared {
                hub.set_shared_keys(Arc::new(KeysWithoutStore));
            }
            let (mut predecessor, link) = UnixStream::pair().unwrap();
            let position = HandoverPosition::from(Position { epoch: 7, sequence: 3 });
            let key = HandoverHead::Key {
                key: "k".to_owned(),
                version: 3,
                is_set: true,
                ttl_ms: None,
                client: None,
            };
            for head in [
                HandoverHead::Keyed { topic: "t".to_owned(), position, forgotten: 0, keys: 1 },
                key,
                HandoverHead::End { delivered: None },
            ] {
                HandoverFrame::new(head).write(&mut predecessor).unwrap();
            }
            restore(&mut BufReader::new(link), &hub, &Revocations::default(), &publisher).unwrap();
            let restored: Vec<String> =
                publisher.keyed_topics().into_iter().map(|keyed| keyed.topic).collect();
            assert_eq!(restored, if is_shared { &[][..] } else { &["t"] });
        }
    }
}
