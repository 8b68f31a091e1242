//! Congestion control that does not hold back the end of a connection.
//!
//! quinn-proto counts CONNECTION_CLOSE against the congestion window while content waits. A slow client's window is
//! full, and no acknowledgement opens it again, since a closed connection handles none: the client would never learn
//! the reason. RFC 9002 section 7 limits only packets that elicit acknowledgements, and this one does not.

use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quinn_proto::congestion::{Controller, ControllerFactory, ControllerMetrics, CubicConfig};
use quinn_proto::{Connection, RttEstimator};

/// Creates CUBIC controllers (RFC 9438), quinn-proto's default, whose window [`open_window`] opens.
#[derive(Debug, Default)]
pub(crate) struct Congestion(Arc<CubicConfig>);

impl ControllerFactory for Congestion {
    fn build(self: Arc<Self>, now: Instant, mtu: u16) -> Box<dyn Controller> {
        let inner = Arc::clone(&self.0).build(now, mtu);
        Box::new(EndController { inner, is_ended: Arc::default() })
    }
}

struct EndController {
    inner: Box<dyn Controller>,
    is_ended: Arc<AtomicBool>,
}

/// Removes the limit of the congestion window from a connection that ends.
pub(crate) fn open_window(quic: &Connection) {
    if let Ok(controller) = quic.congestion_state().clone_box().into_any().downcast::<EndController>() {
        controller.is_ended.store(true, Ordering::Relaxed);
    }
}

impl Controller for EndController {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, is_persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, is_persistent, lost_bytes);
    }

    fn on_mtu_update(&mut self, mtu: u16) {
        self.inner.on_mtu_update(mtu);
    }

    fn window(&self) -> u64 {
        if self.is_ended.load(Ordering::Relaxed) { u64::MAX } else { self.inner.window() }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self { inner: self.inner.clone_box(), is_ended: Arc::clone(&self.is_ended) })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}
