//! The real-time server as a library: topics, presence, histories, durable streams, tokens, hot restart and pages.
//!
//! [`Hub`] adds its routes to a [`Router`](sinews_server::Router), beside a program's own routes. `sinews serve` has
//! the same routes and protocols.
//!
//! # Features
//!
//! A feature that is left out is not compiled: its builder methods are missing, and so are its routes and metrics.
//!
//! * `cluster` (default): `HubBuilder::cluster`, nodes that share publications and presence over NATS or Redis.
//! * `pages` (default): the start page, the chat, the console, the dashboard and its feed, and the script `/sinews.js`.
//! * `pusher` (default): the Pusher protocol, `/app/{key}`, and its HTTP API at `/apps/{id}`.
//! * `webhooks` (default): `HubConfig::with_webhooks` and `PusherApp::with_webhook`, event reports to the
//!   application.
//! * `http3`: HTTP/3, which is experimental.
#![forbid(unsafe_code)]
// What only an omitted feature uses is dead code. The build with all features finds dead code.
#![cfg_attr(
    not(all(feature = "cluster", feature = "pages", feature = "pusher", feature = "webhooks")),
    allow(dead_code, unreachable_pub, unused_imports)
)]

mod access;
mod activity;
mod admission;
mod api;
#[cfg(feature = "pusher")]
mod apps;
mod background;
mod closing;
#[cfg_attr(not(feature = "cluster"), path = "cluster/absent.rs")]
mod cluster;
mod config;
mod connections;
mod cors;
#[cfg_attr(not(feature = "pages"), path = "dashboard/absent.rs")]
mod dashboard;
mod error;
mod handover;
mod hooks;
mod http;
mod hub;
mod keys;
mod model;
mod node;
mod options;
mod outgoing;
#[cfg(feature = "pages")]
mod pages;
mod protocol;
mod query;
mod session;
mod streams;
mod topics;
mod uncached;
mod waiting_tasks;
#[cfg_attr(not(feature = "webhooks"), path = "webhooks/absent.rs")]
mod webhooks;
mod wire;

pub use self::access::auth;
pub use self::access::hosts::HostRules;
pub use self::access::namespaces::{Namespace, Namespaces, PublishRate, TopicAccess};
#[cfg(feature = "pusher")]
pub use self::apps::app::{PusherApp, PusherApps, PusherFeatures, PusherLimits};
#[cfg(all(feature = "pusher", feature = "webhooks"))]
pub use self::apps::webhook::PusherWebhook;
#[cfg(feature = "cluster")]
pub use self::cluster::{node::ClusterNode, observe::observe_nodes, options::ClusterOptions};
pub use self::config::{BrowserRejection, ConfigHandle, HubConfig};
pub use self::error::{HubError, HubErrorKind};
pub use self::handover::Handover;
pub use self::handover::predecessor::{Predecessor, RunningHandover};
pub use self::hub::{
    BuildError, Hub, HubBuilder, ProgramMessage, ProgramSubscriber, ProgramTopics, RequestFailed, RunningHub,
};
pub use self::model::check_pattern;
#[cfg(feature = "webhooks")]
pub use self::model::events::WebhookEventKind;
pub use self::outgoing::options::{HookFailure, HookOptions, HookTarget};
pub use self::streams::options::StreamOptions;
pub use self::streams::quota::CreationLimits;

pub use self::topics::keys::key_value_of_json;
pub use self::topics::stored::StoreAway;
#[cfg(feature = "webhooks")]
pub use self::webhooks::WebhookOptions;
