//! Committed offsets of groups, stored by Kafka as for any of its consumers.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer};
use rdkafka::error::KafkaError;
use rdkafka::{Offset, TopicPartitionList};

use super::super::BrokerError;
use super::super::answer::Reply;
use super::super::status::Status;
use super::config::Config;
use super::failed;
use super::follow::Context;
use super::worker::Work;

/// Maximum number of cached group clients: librdkafka supports one group per client, and each client has its own
/// threads.
const CLIENTS_MAX: usize = 8;
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

pub(super) enum GroupQuestion {
    Commit { group: String, stream: String, partition: u32, offset: u64, reply: Reply<()> },
    Committed { group: String, stream: String, partition: u32, reply: Reply<Option<u64>> },
}

/// State of the thread.
pub(super) struct Groups {
    config: Config,
    status: Arc<Status>,
    /// The most recently used client is the last.
    clients: VecDeque<(String, BaseConsumer<Context>)>,
}

/// Commits of one group that were requested together and are sent together.
struct Commits {
    group: String,
    places: TopicPartitionList,
    replies: Vec<Reply<()>>,
}

impl Groups {
    pub(super) fn new(config: Config, status: Arc<Status>) -> Self {
        Self { config, status, clients: VecDeque::new() }
    }

    fn client(&mut self, group: &str) -> Result<&BaseConsumer<Context>, KafkaError> {
        let found = self.clients.iter().position(|(name, _)| name == group);
        let client = match found.and_then(|place| self.clients.remove(place)) {
            Some(client) => client,
            None => {
                let name = format!("{}{group}", self.config.prefix);
                let settings = self.config.consumer(&name);
                (group.to_owned(), settings.create_with_context(Context::new(self.status.clone()))?)
            }
        };
        if self.clients.len() == CLIENTS_MAX {
            self.clients.pop_front();
        }
        // Only events arrive: no partition is assigned.
        let _ = client.1.poll(Duration::ZERO);
        self.clients.push_back(client);
        self.clients.back().map(|(_, client)| client).ok_or(KafkaError::Canceled)
    }

    fn commit(&mut self, commits: Commits) {
        let result =
            self.client(&commits.group).and_then(|client| client.commit(&commits.places, CommitMode::Sync));
        let result = result.map_err(|error| failed(format!("group {}: {error}", commits.group)));
        for reply in commits.replies {
            // The requester may have dropped the answer.
            let _ = reply.send(result.clone());
        }
    }

    fn committed(&mut self, group: &str, stream: &str, partition: u32) -> Result<Option<u64>, BrokerError> {
        let mut places = TopicPartitionList::new();
        self.place(&mut places, stream, partition, Offset::Invalid)?;
        let client = self.client(group).map_err(failed)?;
        let answer = client.committed_offsets(places, ANSWER_WITHIN);
        let answer = answer.map_err(|error| failed(format!("group {group}: {error}")))?;
        let found = answer.elements().first().map(|element| element.offset());
        Ok(found.and_then(|offset| match offset {
            Offset::Offset(offset) => u64::try_from(offset).ok(),
            _ => None,
        }))
    }

    fn place(
        &self,
        places: &mut TopicPartitionList,
        stream: &str,
        partition: u32,
        offset: Offset,
    ) -> Result<(), BrokerError> {
        let topic = self.config.topic(stream).map_err(failed)?;
        let partition = i32::try_from(partition).map_err(|_| failed("Kafka has no such partition"))?;
        if places.find_partition(&topic, partition).is_some() {
            // A later commit of the same partition.
            return places.set_partition_offset(&topic, partition, offset).map_err(failed);
        }
        places.add_partition_offset(&topic, partition, offset).map_err(failed)
    }

    /// Adds a commit to the other commits of its group.
    fn gather(
        &self,
        all: &mut Vec<Commits>,
        group: String,
        stream: &str,
        partition: u32,
        offset: u64,
        reply: Reply<()>,
    ) {
        let place = all.iter().position(|commits| commits.group == group).unwrap_or_else(|| {
            all.push(Commits { group, places: TopicPartitionList::new(), replies: Vec::new() });
            all.len() - 1
        });
        let commits = &mut all[place];
        let offset = Offset::Offset(i64::try_from(offset).unwrap_or(i64::MAX));
        match self.place(&mut commits.places, stream, partition, offset) {
            Ok(()) => commits.replies.push(reply),
            Err(error) => {
                let _ = reply.send(Err(error));
            }
        }
    }
}

impl Work for Groups {
    type Question = GroupQuestion;

    const IDLE: Duration = Duration::from_secs(60);

    fn answer(&mut self, questions: Vec<GroupQuestion>) {
        let mut commits = Vec::new();
        let mut asked = Vec::new();
        for question in questions {
            match question {
                GroupQuestion::Commit { group, stream, partition, offset, reply } => {
                    self.gather(&mut commits, group, &stream, partition, offset, reply);
                }
                GroupQuestion::Committed { group, stream, partition, reply } => {
                    asked.push((group, stream, partition, reply));
                }
            }
        }
        commits.into_iter().for_each(|commits| self.commit(commits));
        for (group, stream, partition, reply) in asked {
            let _ = reply.send(self.committed(&group, &stream, partition));
        }
    }

    fn look_around(&mut self) {
        for (_, client) in &self.clients {
            let _ = client.poll(Duration::ZERO);
        }
    }
}
