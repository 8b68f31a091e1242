//! Committed offsets of groups, stored by Kafka as for any of its consumers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};

use sinews_stream::broker::{BrokerError, BrokerResponder};

use super::config::Config;
use super::consumer::ConsumerCallbacks;
use super::report;
use super::request_thread::RequestHandler;
use crate::status::Status;

/// Maximum group clients: librdkafka supports one group per client, and each client has its own threads.
const CLIENTS_MAX: usize = 32;
/// Time without a request after which the client of another group may replace a client. Creating one takes the thread,
/// and its first request, some hundred milliseconds: names that follow each other must not delay all other groups.
const CLIENT_IDLE: Duration = Duration::from_secs(10);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum client events that are handled at once.
const EVENTS_MAX: usize = 100;

pub(super) enum GroupRequest {
    Commit { group: String, stream: String, partition: u32, offset: u64, reply: BrokerResponder<()> },
    Committed { group: String, stream: String, partition: u32, reply: BrokerResponder<Option<u64>> },
}

/// State of the thread.
pub(super) struct KafkaGroups {
    config: Config,
    status: Arc<Status>,
    /// The most recently used client is the last.
    clients: VecDeque<GroupClient>,
}

struct GroupClient {
    group: String,
    used: Instant,
    consumer: BaseConsumer<ConsumerCallbacks>,
    /// The denial of the group since the last successful operation. librdkafka reports it once.
    denied: Option<KafkaError>,
}

/// Commits of one group that were requested together and are sent together.
struct CommitBatch {
    group: String,
    offsets: TopicPartitionList,
    replies: Vec<BrokerResponder<()>>,
}

impl KafkaGroups {
    pub(super) fn new(config: Config, status: Arc<Status>) -> Self {
        Self { config, status, clients: VecDeque::new() }
    }

    fn client(&mut self, group: &str) -> Result<&mut GroupClient, BrokerError> {
        let found = self.clients.iter().position(|client| client.group == group);
        let mut client = match found.and_then(|index| self.clients.remove(index)) {
            Some(client) => client,
            None => self.create(group)?,
        };
        client.used = Instant::now();
        client.poll();
        self.clients.push_back(client);
        self.clients.back_mut().ok_or(BrokerError::Closed)
    }

    /// Creates the client of a group, in place of the one that has been idle for the longest time.
    fn create(&mut self, group: &str) -> Result<GroupClient, BrokerError> {
        if self.clients.len() >= CLIENTS_MAX {
            let is_idle = self.clients.front().is_some_and(|oldest| oldest.used.elapsed() >= CLIENT_IDLE);
            if !is_idle {
                return Err(BrokerError::failed(format!(
                    "group {group}: {CLIENTS_MAX} other groups, the maximum, have used Kafka within the last {} seconds; \
                     retry later",
                    CLIENT_IDLE.as_secs()
                )));
            }
            self.clients.pop_front();
        }
        let settings = self.config.consumer(&format!("{}{group}", self.config.prefix));
        let consumer = settings.create_with_context(ConsumerCallbacks::new(self.status.clone()));
        let consumer =
            consumer.map_err(|error: KafkaError| BrokerError::failed(format!("group {group}: {error}")))?;
        Ok(GroupClient { group: group.to_owned(), used: Instant::now(), consumer, denied: None })
    }

    fn commit(&mut self, commits: CommitBatch) {
        let result = self.client(&commits.group).and_then(|client| {
            let committed = client.consumer.commit(&commits.offsets, CommitMode::Sync);
            client.check(committed)
        });
        for reply in commits.replies {
            reply.send(result.clone());
        }
    }

    fn committed(&mut self, group: &str, stream: &str, partition: u32) -> Result<Option<u64>, BrokerError> {
        let mut offsets = TopicPartitionList::new();
        self.add_offset(&mut offsets, stream, partition, Offset::Invalid)?;
        let client = self.client(group)?;
        let answer = client.consumer.committed_offsets(offsets, REQUEST_TIMEOUT);
        let answer = client.check(answer)?;
        let found = answer.elements().first().map(|element| element.offset());
        Ok(found.and_then(|offset| match offset {
            Offset::Offset(offset) => u64::try_from(offset).ok(),
            _ => None,
        }))
    }

    fn add_offset(
        &self,
        offsets: &mut TopicPartitionList,
        stream: &str,
        partition: u32,
        offset: Offset,
    ) -> Result<(), BrokerError> {
        let topic = self.config.topic(stream).map_err(BrokerError::failed)?;
        let partition =
            i32::try_from(partition).map_err(|_| BrokerError::failed("Kafka has no such partition"))?;
        if offsets.find_partition(&topic, partition).is_some() {
            // A later commit for the same partition.
            return offsets.set_partition_offset(&topic, partition, offset).map_err(BrokerError::failed);
        }
        offsets.add_partition_offset(&topic, partition, offset).map_err(BrokerError::failed)
    }

    /// Adds a commit to the other commits of its group.
    fn add_commit(
        &self,
        all: &mut Vec<CommitBatch>,
        group: String,
        stream: &str,
        partition: u32,
        offset: u64,
        reply: BrokerResponder<()>,
    ) {
        let index = all.iter().position(|commits| commits.group == group).unwrap_or_else(|| {
            all.push(CommitBatch { group, offsets: TopicPartitionList::new(), replies: Vec::new() });
            all.len() - 1
        });
        let commits = &mut all[index];
        let offset = Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        match self.add_offset(&mut commits.offsets, stream, partition, offset) {
            Ok(()) => commits.replies.push(reply),
            Err(error) => reply.send(Err(error)),
        }
    }
}

impl GroupClient {
    /// Handles the client's events. No other messages arrive: no partition is assigned.
    fn poll(&mut self) {
        let events = std::iter::from_fn(|| self.consumer.poll(Duration::ZERO)).take(EVENTS_MAX);
        if let Some(denied) = events.filter_map(Result::err).filter(report::is_denied_group).last() {
            self.denied = Some(denied);
        }
    }

    /// Describes a failed operation. Without a coordinator, librdkafka's error only says that there is none, or that none
    /// answered in time. The client's events have the cause.
    fn check<T>(&mut self, result: KafkaResult<T>) -> Result<T, BrokerError> {
        self.poll();
        match result {
            Ok(answer) => {
                self.denied = None;
                Ok(answer)
            }
            Err(error) => {
                let cause = self.denied.as_ref().unwrap_or(&error);
                Err(BrokerError::failed(format!("group {}: {}", self.group, report::described(cause))))
            }
        }
    }
}

impl RequestHandler for KafkaGroups {
    type Request = GroupRequest;

    const IDLE: Duration = Duration::from_secs(60);

    fn handle(&mut self, requests: Vec<GroupRequest>) {
        let mut commits = Vec::new();
        let mut queries = Vec::new();
        for request in requests {
            match request {
                GroupRequest::Commit { group, stream, partition, offset, reply } => {
                    self.add_commit(&mut commits, group, &stream, partition, offset, reply);
                }
                GroupRequest::Committed { group, stream, partition, reply } => {
                    queries.push((group, stream, partition, reply));
                }
            }
        }
        commits.into_iter().for_each(|commits| self.commit(commits));
        for (group, stream, partition, reply) in queries {
            reply.send(self.committed(&group, &stream, partition));
        }
    }

    fn run_periodic(&mut self) {
        self.clients.iter_mut().for_each(GroupClient::poll);
    }
}
