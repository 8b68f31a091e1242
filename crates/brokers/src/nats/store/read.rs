//! Reads from logs.
//!
//! The server's answer has a topic's messages in order, so that each names the one before it. The request begins with the
//! message that the reader has: if it is still retained, the next one is linked to it. Otherwise the first message has an
//! [unknown predecessor](first_prev), and the reader is told that it misses some.

use std::collections::VecDeque;
use std::rc::Rc;

use async_nats::Message;
use serde_json::json;
use sinews_store::{LogEntry, LogPage, LogStart, Position, ReadLog, StoreError};

use super::classes::LogClass;
use super::connection::OperationState;
use super::engine::StoreEngine;
use super::log::{ANSWER_BYTES, DirectAnswer, LogTop, first_prev};
use super::wire::{PENDING, SEQUENCE, number, stored_at};

/// Messages in one request.
const BATCH: u64 = 256;

/// A page while it is read.
struct PageReader<'a> {
    read: &'a ReadLog,
    class: &'a LogClass,
    /// Last message so far, whether it is an entry or not.
    last: Option<u64>,
    entries: VecDeque<LogEntry>,
    bytes: u64,
    is_full: bool,
}

impl StoreEngine {
    pub(super) async fn read_log(
        &self,
        operation: &OperationState,
        read: ReadLog,
    ) -> Result<LogPage, StoreError> {
        let Some((class, top)) = self.topic_top(operation, &read).await? else {
            return Ok(LogPage::default());
        };
        let connection = self.connection()?;
        self.note_top(&read.topic, class.epoch, top.sequence);
        let subject = class.subject(&read.topic);
        let mut page = PageReader::new(&read, &class);
        loop {
            let body = json!({
                "seq": page.last.unwrap_or_else(|| page.start()).max(1),
                "batch": page.batch(),
                "next_by_subj": subject,
                "max_bytes": ANSWER_BYTES,
            });
            let answer = self.direct(&connection, operation, &class.stream, &body).await?;
            let before = page.last;
            self.add_messages(&mut page, &answer);
            // A server that is behind the one that has answered about the top has fewer messages.
            let is_behind = answer.pending == 0 && page.last.is_none_or(|last| last < top.sequence);
            if page.is_full || (answer.pending == 0 && !is_behind) {
                break;
            }
            if page.last == before {
                if page.start() > top.sequence {
                    break;
                }
                tokio::time::sleep(super::log::conflict_delay(1)).await;
            }
        }
        let sequence = top.sequence.max(page.last.unwrap_or(0));
        let last = page.entries.back().map(|entry| entry.sequence);
        Ok(LogPage {
            top: Some(Position { epoch: class.epoch, sequence }),
            more: page.is_full && last.is_none_or(|last| last < sequence),
            entries: page.entries.into(),
        })
    }

    /// The topic's stream and last message, from a server that has the reader's position.
    async fn topic_top(
        &self,
        operation: &OperationState,
        read: &ReadLog,
    ) -> Result<Option<(Rc<LogClass>, LogTop)>, StoreError> {
        let connection = self.connection()?;
        let needed = if let LogStart::After(sequence) = read.start { sequence } else { 0 };
        let topics = [&*read.topic];
        let class = match self.class_of_topic(&read.topic) {
            Some(class) => class,
            None => match self.locate(&connection, operation, &topics).await?.pop().flatten() {
                None => return Ok(None),
                Some((class, top)) if top.sequence >= needed => return Ok(Some((class, top))),
                Some((class, _)) => class,
            },
        };
        let tops = self.tops_in_class(&connection, operation, &class, &topics, needed).await?;
        match tops.into_iter().next().flatten() {
            Some(top) => Ok(Some((class, top))),
            // It has expired, or the stream was created again.
            None => Ok(self.locate(&connection, operation, &topics).await?.pop().flatten()),
        }
    }

    fn add_messages(&self, page: &mut PageReader<'_>, answer: &DirectAnswer) {
        let mut previous = None;
        for message in &answer.messages {
            let Some(sequence) = number(message, SEQUENCE) else { continue };
            if page.is_full {
                return;
            }
            let is_known = page.last == Some(sequence)
                || matches!(page.read.start, LogStart::After(after) if after == sequence);
            if !is_known {
                let prev = previous.unwrap_or_else(|| first_prev(message, sequence));
                let stored_at = stored_at(message).unwrap_or(0);
                let is_expired = page.class.is_expired(stored_at, self.clock.get())
                    || number(message, PENDING).unwrap_or(0) >= page.class.retention.messages;
                if !is_expired && !page.push(message, sequence, prev, stored_at) {
                    return;
                }
            }
            page.last = Some(sequence);
            previous = Some(sequence);
        }
    }
}

impl<'a> PageReader<'a> {
    fn new(read: &'a ReadLog, class: &'a LogClass) -> Self {
        let is_full = match read.start {
            LogStart::Last(count) => count == 0,
            LogStart::After(_) => read.max_messages == 0,
        };
        Self { read, class, last: None, entries: VecDeque::new(), bytes: 0, is_full }
    }

    fn start(&self) -> u64 {
        if let LogStart::After(sequence) = self.read.start { sequence } else { 0 }
    }

    /// Messages of the next request, of which the first one may be known.
    fn batch(&self) -> u64 {
        match self.read.start {
            LogStart::After(_) => (u64::from(self.read.max_messages) + 1).min(BATCH),
            LogStart::Last(_) => BATCH,
        }
    }

    /// Adds an entry. Returns `false` if the page is full without it.
    fn push(&mut self, message: &Message, sequence: u64, prev: u64, stored_at: u64) -> bool {
        let bytes = message.payload.len() as u64;
        let entry = LogEntry { sequence, prev, time: stored_at / 1_000, payload: message.payload.clone() };
        match self.read.start {
            LogStart::After(_) => {
                let has_space = (self.entries.len() as u64) < u64::from(self.read.max_messages);
                if !has_space || (!self.entries.is_empty() && self.bytes >= self.read.max_bytes) {
                    self.is_full = true;
                    return false;
                }
                self.entries.push_back(entry);
                self.bytes += bytes;
            }
            LogStart::Last(count) => {
                self.entries.push_back(entry);
                self.bytes += bytes;
                let most = count.min(self.read.max_messages.max(1)) as usize;
                while self.entries.len() > 1
                    && (self.entries.len() > most
                        || self.bytes - self.entries[0].payload.len() as u64 >= self.read.max_bytes)
                {
                    let first = self.entries.pop_front();
                    self.bytes -= first.map_or(0, |first| first.payload.len() as u64);
                }
            }
        }
        true
    }
}
