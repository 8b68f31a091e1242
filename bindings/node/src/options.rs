//! Settings from JavaScript, which has validated them.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use napi::{Error, Result, Status};
use napi_derive::napi;
use sinews_bindings::{negotiate_client, negotiate_server};
use sinews_proto::deflate::{DeflateConfig, DeflateMode};
use sinews_proto::{Config, Negotiated, PingRate, Role};

/// Limits for received messages. 0 means no limit.
#[napi(object)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitOptions {
    /// Bytes of a message, after inflating.
    pub max_payload: u32,
    /// Fragments of a message.
    pub max_fragments: u32,
}

thread_local! {
    /// The latest connection's configuration.
    static LATEST: RefCell<Option<(LimitOptions, Arc<Config>)>> = const { RefCell::new(None) };
}

impl LimitOptions {
    /// Returns the configuration, which connections with the same limits share.
    pub(crate) fn config(self) -> Arc<Config> {
        LATEST.with_borrow_mut(|latest| match latest {
            Some((limits, config)) if *limits == self => Arc::clone(config),
            _ => Arc::clone(&latest.insert((self, self.new_config())).1),
        })
    }

    /// Timeouts are JavaScript's, and each ping is answered there.
    fn new_config(self) -> Arc<Config> {
        let bytes = if self.max_payload == 0 { u32::MAX } else { self.max_payload };
        let fragments = if self.max_fragments == 0 { u32::MAX } else { self.max_fragments };
        let config = Config::default()
            .with_max_message(bytes.into())
            .with_max_frame(bytes.into())
            .with_max_fragments(fragments)
            .with_max_empty_fragments(fragments)
            .with_ping_rate(PingRate { per_second: u32::MAX, burst: u32::MAX })
            .with_idle_timeout(None)
            .with_ping_interval(None)
            .with_write_timeout(NEVER)
            .with_close_timeout(NEVER)
            .with_answers(false)
            .with_pongs(false)
            .with_high_water(usize::MAX)
            .with_max_outbound(usize::MAX);
        Arc::new(config)
    }
}

/// A century.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The parameters for permessage-deflate that JavaScript has negotiated.
#[napi(object)]
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "the parameters of RFC 7692")]
pub struct DeflateOptions {
    /// The server resets its window after each message.
    pub server_no_context_takeover: bool,
    /// The client resets its window after each message.
    pub client_no_context_takeover: bool,
    /// The server's window, 9 to 15 bits.
    pub server_max_window_bits: u8,
    /// The client's window, 9 to 15 bits.
    pub client_max_window_bits: u8,
    /// Compression level, 1 to 9.
    pub level: u8,
    /// Shorter messages are sent uncompressed.
    pub threshold: u32,
}

impl DeflateOptions {
    fn config(self) -> Result<DeflateConfig> {
        let config = DeflateConfig::new()
            .with_mode(DeflateMode::Dedicated)
            .with_threshold(self.threshold as usize)
            .with_server_no_context_takeover(self.server_no_context_takeover)
            .with_client_no_context_takeover(self.client_no_context_takeover);
        config
            .with_level(self.level)
            .and_then(|config| config.with_server_max_window_bits(self.server_max_window_bits))
            .and_then(|config| config.with_client_max_window_bits(self.client_max_window_bits))
            .map_err(|error| Error::new(Status::InvalidArg, error.to_string()))
    }

    /// The parameters as the extension's header.
    fn header(self) -> String {
        let mut header = "permessage-deflate".to_owned();
        if self.server_no_context_takeover {
            header.push_str("; server_no_context_takeover");
        }
        if self.client_no_context_takeover {
            header.push_str("; client_no_context_takeover");
        }
        header.push_str(&format!("; server_max_window_bits={}", self.server_max_window_bits));
        header.push_str(&format!("; client_max_window_bits={}", self.client_max_window_bits));
        header
    }
}

/// Returns the proof that a connection requires: JavaScript's parameters, negotiated again.
pub(crate) fn negotiated(role: Role, deflate: Option<DeflateOptions>) -> Result<Negotiated> {
    let Some(deflate) = deflate else { return Ok(Negotiated::websocket(role)) };
    let (header, config) = (deflate.header(), deflate.config()?);
    let negotiated = match role {
        Role::Server => negotiate_server(Some(&header), Some(config)).map(|(negotiated, _)| negotiated).ok(),
        Role::Client => negotiate_client(Some(&header), Some(config)).ok(),
    };
    negotiated
        .filter(|negotiated| negotiated.deflate().is_some())
        .ok_or_else(|| Error::new(Status::InvalidArg, format!("invalid parameters: {header}")))
}
