//! State of a store on its thread, and the connection's life.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sinews_store::{StoreError, StoreHealth, StoreSink};
use tokio::sync::mpsc;

use super::classes::LogClasses;
use super::connection::{StoreConnection, StoreConnectionEvent};
use super::follow::FollowedParts;
use super::key_streams::KeyStreams;
use super::known_tops::KnownTops;
use super::lanes::Lanes;
use super::settings::NatsStoreSettings;
use super::shared::StoreShared;
use super::wire::ServerClock;
use crate::lock::lock;
use crate::reconnect::ReconnectDelay;

/// Interval at which a new connection is prepared again.
const PREPARE_INTERVAL: Duration = Duration::from_millis(250);

/// A store on its thread.
pub(super) struct StoreEngine {
    pub(super) settings: NatsStoreSettings,
    pub(super) shared: Arc<StoreShared>,
    pub(super) sink: RefCell<Option<Arc<dyn StoreSink>>>,
    /// `None` while the store is away.
    connection: RefCell<Option<Rc<StoreConnection>>>,
    away: RefCell<Arc<str>>,
    pub(super) clock: Cell<Option<ServerClock>>,
    pub(super) lanes: Lanes,
    pub(super) classes: LogClasses,
    pub(super) tops: KnownTops,
    pub(super) followed: FollowedParts,
    pub(super) keys: KeyStreams,
    pub(super) key_lanes: Lanes,
    /// Epoch of the stream for values that are stored once.
    pub(super) once_epoch: Cell<Option<u64>>,
}

impl StoreEngine {
    pub(super) fn new(settings: NatsStoreSettings, shared: Arc<StoreShared>) -> Self {
        Self {
            settings,
            shared,
            sink: RefCell::default(),
            connection: RefCell::default(),
            away: RefCell::new("not connected yet".into()),
            clock: Cell::default(),
            lanes: Lanes::default(),
            classes: LogClasses::default(),
            tops: KnownTops::default(),
            followed: FollowedParts::default(),
            keys: KeyStreams::default(),
            key_lanes: Lanes::default(),
            once_epoch: Cell::default(),
        }
    }

    /// The open connection.
    pub(super) fn connection(&self) -> Result<Rc<StoreConnection>, StoreError> {
        let connection = self.connection.borrow().clone();
        connection.ok_or_else(|| StoreError::Away(self.away.borrow().clone()))
    }

    pub(super) fn sink(&self) -> Option<Arc<dyn StoreSink>> {
        self.sink.borrow().clone()
    }

    /// Connects, and reconnects, until the thread ends.
    pub(super) async fn run(self: Rc<Self>) {
        let mut delay = ReconnectDelay::default();
        loop {
            let reason = match self.serve().await {
                Ok(reason) => reason,
                Err(reason) => reason.into(),
            };
            self.set_away(reason);
            delay.wait().await;
        }
    }

    /// Serves one connection, until it is lost. Returns the reason.
    async fn serve(self: &Rc<Self>) -> Result<Arc<str>, String> {
        let (sender, mut events) = mpsc::unbounded_channel();
        let connection = Rc::new(StoreConnection::open(&self.settings, sender).await?);
        let prepared = async {
            // The servers may elect leaders.
            while let Err(error) = self.prepare(&connection).await {
                self.set_away(error.to_string().into());
                tokio::time::sleep(PREPARE_INTERVAL).await;
            }
            self.connection.replace(Some(connection.clone()));
            self.set_health(StoreHealth::Up);
            self.follow_parts(&connection).await.map_err(|error| error.to_string())
        };
        let watched = async {
            while let Some(event) = events.recv().await {
                match event {
                    StoreConnectionEvent::Lost(reason) => return reason,
                    StoreConnectionEvent::SubscriptionDenied { subject, reason } => {
                        self.subscription_denied(&subject, &reason);
                    }
                }
            }
            "the connection was closed".into()
        };
        tokio::select! {
            biased;
            reason = watched => Ok(reason),
            failed = prepared => failed.map(|()| "the connection was closed".into()),
        }
    }

    /// Everything that operations need.
    async fn prepare(self: &Rc<Self>, connection: &Rc<StoreConnection>) -> Result<(), StoreError> {
        let max = u64::try_from(connection.client.server_info().max_payload).unwrap_or(u64::MAX);
        self.shared.set_max_payload(max);
        self.once_epoch.set(None);
        self.reload_classes(connection).await?;
        self.once_epoch(connection).await?;
        self.start_keys(connection).await?;
        self.follow_all(connection).await
    }

    fn set_away(&self, reason: Arc<str>) {
        self.connection.replace(None);
        self.away.replace(reason.clone());
        self.end_subscriptions();
        self.end_keys();
        let since = match &*lock(&self.shared.health) {
            StoreHealth::Away { since, .. } => *since,
            _ => Instant::now(),
        };
        self.set_health(StoreHealth::Away { since, reason });
    }

    fn set_health(&self, health: StoreHealth) {
        let previous = std::mem::replace(&mut *lock(&self.shared.health), health.clone());
        if previous == health {
            return;
        }
        if previous.is_up() != health.is_up() {
            match &health {
                StoreHealth::Away { reason, .. } => {
                    tracing::warn!("{} does not answer: {reason}", self.settings.name);
                }
                _ => tracing::info!("{} answers", self.settings.name),
            }
        }
        if let Some(sink) = self.sink() {
            sink.health_changed(health);
        }
    }
}
