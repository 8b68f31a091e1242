//! The connection for subscriptions to one server.

use std::collections::{BTreeSet, HashSet};
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, LocalBoxFuture, select, select_all};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ProtocolVersion, RedisError, RedisResult, Value, cmd};

use super::channel::FollowedChannel;
use super::connection::{SILENCE_MAX, ServerThread};
use super::messages::PushedMessages;
use super::names::partition;
use super::settings::CONNECT_TIMEOUT;
use crate::lock::lock;
use crate::reconnect::ReconnectDelay;
use crate::redis::error::{is_answer, rejection};

/// Maximum channels in one request.
const CHANNELS_MAX: usize = 512;
/// Interval of probes.
const PROBE_INTERVAL: Duration = Duration::from_secs(5);
/// Codes of a server of a Redis Cluster that does not have the slot.
const SLOT_CODES: [&str; 4] = ["MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN"];

/// One connection's state.
struct ChannelSubscriptions {
    connection: MultiplexedConnection,
    messages: PushedMessages,
    subscribed: HashSet<FollowedChannel>,
}

/// A command for one channel.
struct ChannelCommand {
    name: &'static str,
    channel: String,
}

/// Why a connection has something to do.
enum Wakeup {
    Followed,
    Address,
    Ended(String),
}

impl ServerThread {
    /// Subscribes, and reconnects, until the store is closed.
    pub(super) async fn subscribe(self: Rc<Self>) {
        let mut delay = ReconnectDelay::default();
        loop {
            while self.address.borrow().is_none() {
                self.address_changed.notified().await;
            }
            let Err(reason) = self.listen().await else { continue };
            self.set_following(false, &format!("subscriptions: {reason}"));
            delay.wait().await;
        }
    }

    /// Subscribes and passes messages on, until the connection fails, or has to be another one.
    async fn listen(&self) -> Result<(), String> {
        let Some(address) = self.address.borrow().clone() else { return Ok(()) };
        let messages = PushedMessages::new(
            self.store.shared.names.clone(),
            self.store.sink.clone(),
            self.state.clone(),
            self.name(),
        );
        let receiver = messages.clone();
        let settings = AsyncConnectionConfig::new()
            .set_push_sender(move |push| {
                receiver.handle(push);
                Ok::<_, redis::aio::SendError>(())
            })
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(SILENCE_MAX));
        let client = self.store.settings.client(&address, ProtocolVersion::RESP3)?;
        let connected = client.get_multiplexed_async_connection_with_config(&settings).await;
        let connection = connected.map_err(|error| error.to_string())?;
        let mut probe = pin!(probe(connection.clone()));
        let mut all = ChannelSubscriptions { connection, messages, subscribed: HashSet::new() };
        self.state.take_changes();
        let wanted = lock(&self.store.shared.followed).iter().cloned().collect();
        self.apply(&mut all, wanted).await?;
        self.set_following(true, "");
        loop {
            let wakeups: [LocalBoxFuture<'_, Wakeup>; 4] = [
                Box::pin(async {
                    self.state.followed_changed.notified().await;
                    Wakeup::Followed
                }),
                Box::pin(async {
                    self.address_changed.notified().await;
                    Wakeup::Address
                }),
                Box::pin(async {
                    self.state.partitions_changed.notified().await;
                    Wakeup::Ended("its slots have changed".to_owned())
                }),
                Box::pin(async { Wakeup::Ended(all.messages.ended().await.to_owned()) }),
            ];
            let wakeup = match select(select_all(wakeups), probe.as_mut()).await {
                Either::Left(((wakeup, ..), _)) => wakeup,
                Either::Right((reason, _)) => Wakeup::Ended(reason),
            };
            match wakeup {
                Wakeup::Followed => {
                    let changes = self.state.take_changes();
                    self.apply(&mut all, changes).await?;
                }
                Wakeup::Address if self.address.borrow().as_ref() == Some(&address) => {}
                Wakeup::Address => return Err("another server is the primary".to_owned()),
                Wakeup::Ended(reason) => {
                    self.store.slots_moved.notify_one();
                    return Err(reason);
                }
            }
        }
    }

    /// Whether this server announces the changes.
    fn has(&self, followed: &FollowedChannel) -> bool {
        match followed {
            FollowedChannel::Part(part) => {
                let server = self.store.shared.servers.get(partition(&part.topic));
                server.is_ok_and(|server| std::sync::Arc::ptr_eq(&server, &self.state))
            }
            FollowedChannel::Pattern(_) => true,
        }
    }

    /// Subscribes to those that are wanted, and ends the subscriptions of the others.
    async fn apply(
        &self,
        all: &mut ChannelSubscriptions,
        changes: HashSet<FollowedChannel>,
    ) -> Result<(), String> {
        let (mut wanted, mut commands) = (Vec::new(), Vec::new());
        for followed in changes {
            let is_wanted = lock(&self.store.shared.followed).contains(&followed) && self.has(&followed);
            match (is_wanted, all.subscribed.contains(&followed)) {
                // It was unfollowed and followed again meanwhile.
                (true, true) => self.store.sink.following(&followed.part()),
                (true, false) => wanted.push(followed),
                (false, true) => {
                    commands.extend(self.commands(all, &followed, false));
                    all.subscribed.remove(&followed);
                }
                (false, false) => {}
            }
        }
        all.send(&commands).await?;
        let patterns = wanted.extract_if(.., |followed| matches!(followed, FollowedChannel::Pattern(_)));
        let patterns: Vec<_> = patterns.collect();
        for batch in wanted.chunks(CHANNELS_MAX).chain(patterns.chunks(1)) {
            let mut commands = Vec::new();
            let mut ends = Vec::new();
            for followed in batch {
                commands.extend(self.commands(all, followed, true));
                ends.push(commands.len());
            }
            let rejections = all.send(&commands).await?;
            let mut start = 0;
            for (followed, end) in batch.iter().zip(ends) {
                match rejections.get(start..end).unwrap_or_default().iter().flatten().next() {
                    None => {
                        all.subscribed.insert(followed.clone());
                        self.store.sink.following(&followed.part());
                    }
                    Some(reason) => {
                        all.messages.set_pattern(followed, false);
                        self.store.sink.not_following(&followed.part(), reason);
                    }
                }
                start = end;
            }
        }
        Ok(())
    }

    /// The commands that begin or end a subscription.
    fn commands(
        &self,
        all: &ChannelSubscriptions,
        followed: &FollowedChannel,
        begins: bool,
    ) -> Vec<ChannelCommand> {
        let (names, servers) = (&self.store.shared.names, &self.store.shared.servers);
        let is_first_or_last = all.messages.set_pattern(followed, begins);
        let name = match (servers.is_cluster, followed, begins) {
            (true, _, true) => "SSUBSCRIBE",
            (true, _, false) => "SUNSUBSCRIBE",
            (false, FollowedChannel::Part(_), true) => "SUBSCRIBE",
            (false, FollowedChannel::Part(_), false) => "UNSUBSCRIBE",
            (false, FollowedChannel::Pattern(_), true) => "PSUBSCRIBE",
            (false, FollowedChannel::Pattern(_), false) => "PUNSUBSCRIBE",
        };
        let channels: BTreeSet<String> = match followed {
            FollowedChannel::Part(part) => BTreeSet::from([names.channel(part)]),
            _ if !is_first_or_last => BTreeSet::new(),
            FollowedChannel::Pattern(_) if servers.is_cluster => {
                servers.partitions_of(&self.state).into_iter().map(|number| names.appends(number)).collect()
            }
            FollowedChannel::Pattern(pattern) => BTreeSet::from([names.glob(pattern)]),
        };
        if servers.is_cluster {
            all.messages.set_sharded(&channels, begins);
        }
        channels.into_iter().map(|channel| ChannelCommand { name, channel }).collect()
    }
}

impl ChannelSubscriptions {
    /// Sends commands, and returns the server's rejections. A channel has a command of its own, so that one rejection leaves
    /// the others.
    ///
    /// # Errors
    /// The connection has failed, or the server does not have the slot.
    async fn send(&mut self, commands: &[ChannelCommand]) -> Result<Vec<Option<String>>, String> {
        let mut rejections = Vec::with_capacity(commands.len());
        for batch in commands.chunks(CHANNELS_MAX) {
            let mut pipeline = redis::pipe();
            pipeline.ignore_errors();
            for command in batch {
                pipeline.cmd(command.name).arg(&command.channel);
            }
            let answers: RedisResult<Vec<RedisResult<Value>>> =
                pipeline.query_async(&mut self.connection).await;
            let answers = answers.map_err(|error| error.to_string())?;
            for (command, answer) in batch.iter().zip(answers) {
                let error = match answer {
                    Ok(Value::ServerError(error)) => RedisError::from(error),
                    Err(error) => error,
                    Ok(_) => {
                        rejections.push(None);
                        continue;
                    }
                };
                let reason = rejection(&cmd(command.name), &error);
                if !is_answer(&error) || error.code().is_some_and(|code| SLOT_CODES.contains(&code)) {
                    return Err(reason);
                }
                rejections.push(Some(reason));
            }
        }
        Ok(rejections)
    }
}

/// Probes a connection until it is silent. Returns the reason.
async fn probe(mut connection: MultiplexedConnection) -> String {
    loop {
        tokio::time::sleep(PROBE_INTERVAL).await;
        match cmd("PING").query_async::<Value>(&mut connection).await {
            Err(error) if error.code().is_none() => return error.to_string(),
            _ => {}
        }
    }
}
