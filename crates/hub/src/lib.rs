//! The real-time server as a library: topics, presence, histories, durable streams, tokens, hot restart and pages.
//!
//! [`Hub`] adds its routes to a [`Router`](sinews_server::Router), beside the routes of a program. The routes and the
//! protocols are those of `sinews serve`.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(feature = "pusher"),
    allow(dead_code, unused_imports, reason = "only the Pusher protocol uses some parts of other modules")
)]

mod access;
mod admission;
mod api;
#[cfg(feature = "pusher")]
mod apps;
mod closing;
mod cluster;
mod connections;
mod cors;
mod dashboard;
mod dial;
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
mod pages;
mod periodic;
mod policy;
mod protocol;
mod query;
mod session;
mod streams;
mod topics;
mod uncached;
mod webhooks;
mod wire;

pub use self::access::auth;
pub use self::access::hosts::HostRules;
pub use self::access::namespaces::{Namespace, Namespaces, PublishRate, TopicAccess};
#[cfg(feature = "pusher")]
pub use self::apps::app::{PusherApp, PusherApps, PusherFeatures, PusherLimits};
#[cfg(feature = "pusher")]
pub use self::apps::webhook::PusherWebhook;
pub use self::cluster::observe::{ClusterNode, observe_nodes};
pub use self::cluster::options::ClusterOptions;
pub use self::error::{HubError, HubErrorKind};
pub use self::handover::Handover;
pub use self::handover::predecessor::{Predecessor, RunningHandover};
pub use self::hub::{BuildError, Hub, HubBuilder, KeyWriteFailed, RunningHub};
pub use self::model::check_pattern;
pub use self::model::events::WebhookEventKind;
pub use self::outgoing::options::{HookFailure, HookOptions, HookTarget};
pub use self::policy::{AccessPolicy, BrowserRejection, LivePolicy};
pub use self::streams::options::StreamOptions;
pub use self::streams::quota::CreationLimits;

pub use self::topics::keys::key_value_of_json;
pub use self::webhooks::WebhookOptions;
