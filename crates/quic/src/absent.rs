//! The endpoint in a build without the feature `quinn`: none can be created, so that no call reaches it. `endpoint.rs`
//! and `exchanges.rs` document its calls. So server, hub and bench have no conditions: about 40 places would need them.
#![allow(missing_docs, clippy::missing_errors_doc, clippy::must_use_candidate)]

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use sinews_http::h3::{Config, H3Code, H3SendError, PeerSettings, QuicStreamId, RequestTarget};

use crate::app::{DatagramSend, Http3App, Outgoing};
use crate::ids::{ConnectionRoutes, WorkerRoute};
use crate::limits::{QuicConnectError, QuicLimits, QuicSetupError};

/// Has no value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Never {}

/// An endpoint's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AbsentKey(Never);

/// An application's calls on a connection.
pub struct AbsentExchanges<'a> {
    never: Never,
    lifetime: PhantomData<&'a mut ()>,
}

/// One worker's HTTP/3 connections.
pub struct AbsentEndpoint {
    never: Never,
}

impl AbsentEndpoint {
    pub fn new(
        _: Arc<rustls::ServerConfig>,
        _: Config,
        _: QuicLimits,
        _: ConnectionRoutes,
        _: WorkerRoute,
    ) -> Result<Self, QuicSetupError> {
        Err(QuicSetupError::NotBuilt)
    }

    pub fn client(_: Arc<rustls::ClientConfig>, _: Config, _: QuicLimits) -> Result<Self, QuicSetupError> {
        Err(QuicSetupError::NotBuilt)
    }

    pub fn connect(&mut self, _: SocketAddr, _: &str, _: Instant) -> Result<AbsentKey, QuicConnectError> {
        match self.never {}
    }

    pub fn connections(&self) -> usize {
        match self.never {}
    }

    pub const fn handshakes(&self) -> usize {
        match self.never {}
    }

    pub fn take_refused(&mut self) -> u64 {
        match self.never {}
    }

    pub fn requests(&self) -> usize {
        match self.never {}
    }

    pub fn receive(
        &mut self,
        _: BytesMut,
        _: SocketAddr,
        _: Option<IpAddr>,
        _: u8,
        _: &mut dyn Http3App,
        _: Instant,
    ) {
        match self.never {}
    }

    pub fn with_connection<A: Http3App, T>(
        &mut self,
        _: AbsentKey,
        _: &mut A,
        _: Instant,
        _: impl FnOnce(&mut A, &mut AbsentExchanges<'_>) -> T,
    ) -> Option<T> {
        match self.never {}
    }

    pub fn next_timeout(&self) -> Option<Instant> {
        match self.never {}
    }

    pub fn expire(&mut self, _: &mut dyn Http3App, _: Instant) {
        match self.never {}
    }

    pub fn transmit(
        &mut self,
        _: &mut Vec<u8>,
        _: usize,
        _: &mut dyn Http3App,
        _: Instant,
    ) -> Option<Outgoing> {
        match self.never {}
    }

    pub fn shut_down(&mut self, _: &mut dyn Http3App, _: Instant) {
        match self.never {}
    }

    pub fn close(&mut self, _: &'static str, _: &mut dyn Http3App, _: Instant) {
        match self.never {}
    }
}

impl AbsentExchanges<'_> {
    pub const fn connection(&self) -> AbsentKey {
        match self.never {}
    }

    pub const fn now(&self) -> Instant {
        match self.never {}
    }

    pub const fn peer_settings(&self) -> Option<PeerSettings> {
        match self.never {}
    }

    pub fn send_request<'f>(
        &mut self,
        _: &RequestTarget<'_>,
        _: impl IntoIterator<Item = (&'f str, &'f str)>,
        _: bool,
    ) -> Result<Option<QuicStreamId>, H3SendError> {
        match self.never {}
    }

    pub fn send_head<'f>(
        &mut self,
        _: QuicStreamId,
        _: u16,
        _: impl IntoIterator<Item = (&'f str, &'f str)>,
        _: bool,
    ) -> Result<(), H3SendError> {
        match self.never {}
    }

    pub fn send_data(&mut self, _: QuicStreamId, _: Bytes, _: bool) -> Result<(), H3SendError> {
        match self.never {}
    }

    pub fn open_session_stream(
        &mut self,
        _: QuicStreamId,
        _: bool,
    ) -> Result<Option<QuicStreamId>, H3SendError> {
        match self.never {}
    }

    pub fn reject_session_stream(&mut self, _: QuicStreamId, _: u32) {
        match self.never {}
    }

    pub fn reset_session_stream(&mut self, _: QuicStreamId, _: H3Code) {
        match self.never {}
    }

    pub fn send_bytes(&mut self, _: QuicStreamId, _: Bytes, _: bool) {
        match self.never {}
    }

    pub fn send_datagram(&mut self, _: QuicStreamId, _: &[&[u8]]) -> Result<DatagramSend, H3SendError> {
        match self.never {}
    }

    pub fn datagram_max(&mut self, _: QuicStreamId) -> usize {
        match self.never {}
    }

    pub fn pause_reads(&mut self, _: QuicStreamId) {
        match self.never {}
    }

    pub fn resume_reads(&mut self, _: QuicStreamId) {
        match self.never {}
    }

    pub fn pause_all_reads(&mut self, _: bool) {
        match self.never {}
    }

    pub fn close_session(&mut self, _: QuicStreamId, _: u32, _: &str) -> Result<(), H3SendError> {
        match self.never {}
    }

    pub fn reset(&mut self, _: QuicStreamId, _: H3Code) {
        match self.never {}
    }

    pub fn cancel(&mut self, _: QuicStreamId, _: H3Code) {
        match self.never {}
    }

    pub const fn queued(&self) -> usize {
        match self.never {}
    }

    pub fn queued_on(&self, _: QuicStreamId) -> usize {
        match self.never {}
    }

    pub fn is_blocked(&self, _: QuicStreamId) -> bool {
        match self.never {}
    }

    pub fn remote_address(&self) -> SocketAddr {
        match self.never {}
    }

    pub fn unacknowledged(&mut self) -> (usize, u64) {
        match self.never {}
    }

    pub fn awaits_head_since(&mut self) -> Option<Instant> {
        match self.never {}
    }

    pub fn expire_heads(&mut self, _: Instant) {
        match self.never {}
    }

    pub fn retained(&self) -> usize {
        match self.never {}
    }

    pub fn memory(&mut self) -> usize {
        match self.never {}
    }

    pub fn take_rejected(&mut self) -> u32 {
        match self.never {}
    }

    pub fn shut_down(&mut self) {
        match self.never {}
    }

    pub fn is_drained(&self) -> bool {
        match self.never {}
    }

    pub fn close(&mut self, _: H3Code, _: &'static str) {
        match self.never {}
    }
}
