//! The successor's side of a handover.

use std::io::{self, BufReader, BufWriter};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::parent_id;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use sinews_server::{KeptMessage, KeptTopic, Listeners, Prepared, Publisher};

use super::VARIABLE;
use super::wire::{Frame, Head, VERSION, Waiting, outbox, receive_descriptor};
use crate::hub::{Content, Hub};

/// Longest silence of the predecessor during the handover.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// The predecessor process.
pub(crate) struct Former {
    link: UnixStream,
    version: u32,
    listeners: Listeners,
}

impl Former {
    /// Returns the predecessor and its listeners, if this process was started as a successor.
    ///
    /// # Errors
    /// If the predecessor's greeting is invalid.
    pub(crate) fn find() -> Result<Option<Self>, String> {
        let parent = std::env::var(VARIABLE).ok().and_then(|id| id.parse().ok());
        if parent != Some(parent_id()) {
            return Ok(None);
        }
        Self::meet().map(Some).map_err(|error| format!("{VARIABLE}: standard input: {error}"))
    }

    fn meet() -> io::Result<Self> {
        let link = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        link.set_read_timeout(Some(SILENCE_MAX))?;
        link.set_write_timeout(Some(SILENCE_MAX))?;
        // Without a buffer, which would consume the bytes that carry descriptors.
        let Head::Hello { version, listeners: addresses } = Frame::read(&mut &link)?.head else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "Hello expected"));
        };
        let mut listeners = Listeners::default();
        for address in addresses {
            listeners.push(address.into(), receive_descriptor(&link)?)?;
        }
        Ok(Self { link, version, listeners })
    }

    pub(crate) fn take_listeners(&mut self) -> Listeners {
        std::mem::take(&mut self.listeners)
    }

    /// Reports that this process cannot serve.
    pub(crate) fn fail(&mut self, why: &str) {
        // The predecessor may have exited or given up.
        let _ = Frame::new(Head::Failed { why: why.to_owned() }).write(&mut self.link);
        let _ = self.link.shutdown(Shutdown::Write);
    }

    /// Reports that all addresses are bound, restores the predecessor's histories, and publishes for it from here on.
    ///
    /// # Errors
    /// If the handover is incomplete.
    pub(crate) fn take_over(&mut self, hub: &Arc<Hub>, publisher: &Publisher) -> Result<Serving, String> {
        self.try_take_over(hub, publisher)
            .map_err(|error| format!("handover from the predecessor process failed: {error}"))
    }

    fn try_take_over(&mut self, hub: &Arc<Hub>, publisher: &Publisher) -> io::Result<Serving> {
        Frame::new(Head::Bound { version: VERSION }).write(&mut self.link)?;
        let link = self.link.try_clone()?;
        if self.version != VERSION {
            let (theirs, ours) = (self.version, VERSION);
            tracing::warn!(
                "handover version of the predecessor differs ({theirs}, here {ours}): histories are not transferred"
            );
            return Ok(Serving { link, rest: None });
        }
        let mut input = BufReader::with_capacity(64 << 10, self.link.try_clone()?);
        restore(&mut input, publisher)?;
        self.link.set_read_timeout(None)?;
        let (outbox, waiting) = outbox();
        hub.follow(outbox);
        Ok(Serving { link, rest: Some((input, waiting, Arc::clone(hub), publisher.clone())) })
    }
}

/// Restores topics until the end mark.
fn restore(input: &mut BufReader<UnixStream>, publisher: &Publisher) -> io::Result<()> {
    let (mut topics, mut unkept) = (0, 0);
    loop {
        let Frame { head, body: epochs } = Frame::read(input)?;
        match head {
            Head::Topic { name, position, messages } => {
                let kept = (0..messages).map(|_| match Frame::read(input)? {
                    Frame { head: Head::Kept { age_ms }, body } => {
                        let age = Duration::from_millis(age_ms);
                        Ok(KeptMessage { message: Prepared::new(sinews_server::Kind::Text, body), age })
                    }
                    _ => Err(io::Error::new(io::ErrorKind::InvalidData, "a message of a history is missing")),
                });
                let messages = kept.collect::<io::Result<_>>()?;
                let restored = publisher.restore(KeptTopic { name, position: position.into(), messages });
                if restored.is_ok_and(|is_kept| is_kept) { topics += 1 } else { unkept += 1 }
            }
            Head::End if epochs.is_empty() || publisher.restore_epochs(&epochs) => break,
            Head::End => return Err(io::Error::new(io::ErrorKind::InvalidData, "invalid epochs of topics")),
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "Topic or End expected")),
        }
    }
    tracing::info!(topics, no_longer_retained = unkept, "histories of the predecessor restored");
    Ok(())
}

/// The rest of the handover, after this process serves.
pub(crate) struct Serving {
    link: UnixStream,
    rest: Option<(BufReader<UnixStream>, Waiting, Arc<Hub>, Publisher)>,
}

impl Serving {
    /// Notifies the predecessor, and executes its frames until it exits.
    pub(crate) fn begin(mut self) {
        if let Err(error) = Frame::new(Head::Serving).write(&mut self.link) {
            tracing::warn!(%error, "cannot notify the predecessor process");
        }
        let Some((input, waiting, hub, publisher)) = self.rest else {
            let _ = Frame::new(Head::Bye).write(&mut self.link);
            let _ = self.link.shutdown(Shutdown::Write);
            return;
        };
        let (output, ends) = (self.link.try_clone(), Arc::clone(&hub));
        let writer = thread::Builder::new().name("handover-out".to_owned()).spawn(move || {
            let Ok(output) = output else { return };
            if let Err(error) = waiting.write_all(&mut BufWriter::with_capacity(64 << 10, &output)) {
                tracing::debug!(%error, "cannot write to the predecessor process");
            }
            let _ = output.shutdown(Shutdown::Write);
        });
        let reader = thread::Builder::new().name("handover-in".to_owned());
        let reader = reader.spawn(move || listen(input, &hub, publisher));
        if let Err(error) = writer.and(reader) {
            tracing::error!(%error, "cannot start the handover threads");
            ends.follow_nobody();
            let _ = self.link.shutdown(Shutdown::Both);
        }
    }
}

fn listen(mut input: BufReader<UnixStream>, hub: &Hub, mut publisher: Publisher) {
    let end = loop {
        match Frame::read(&mut input) {
            Ok(Frame { head: Head::Publish { topic, kind, kept }, body }) => {
                hub.publish_for_former(&mut publisher, &topic, &Content::of(kind, body), kept);
            }
            Ok(Frame { head: Head::Bye, .. }) => break None,
            Ok(other) => break Some(format!("unexpected frame {:?}", other.head)),
            Err(error) => break Some(error.to_string()),
        }
    };
    hub.follow_nobody();
    match end {
        None => tracing::info!("handover completed"),
        Some(why) => tracing::error!("the predecessor process exited before its last frame: {why}"),
    }
}
