//! SETTINGS of both sides (RFC 9113 section 6.5).

use alloc::vec::Vec;

use super::config::Config;
use super::error::{Error, ErrorCode};
use super::frame::{FRAME_SIZE_MAX, FRAME_SIZE_MIN, FrameHeader, FrameType};
use super::hpack::TABLE_SIZE;
use super::window::{WINDOW_DEFAULT, WINDOW_MAX};

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;
const MAX_FRAME_SIZE: u16 = 5;
const MAX_HEADER_LIST_SIZE: u16 = 6;
const ENABLE_CONNECT_PROTOCOL: u16 = 8;

/// One setting's length in a frame.
pub(super) const SETTING_LEN: u32 = 6;

/// Settings of a server, for its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerSettings {
    /// SETTINGS_MAX_CONCURRENT_STREAMS.
    pub max_streams: u32,
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 8441 section 3).
    pub extended_connect: bool,
}

/// Settings of the peer that bind us.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerLimits {
    pub(super) header_table_size: u32,
    /// The smallest of several values of one frame: the encoder passes through it (RFC 7541 section 4.2).
    pub(super) smallest_table: u32,
    pub(super) initial_window: u32,
    pub(super) max_frame_size: u32,
    max_streams: u32,
    connect_protocol: bool,
}

impl PeerLimits {
    /// Values before the first SETTINGS.
    pub(super) const fn new() -> Self {
        Self {
            header_table_size: TABLE_SIZE as u32,
            smallest_table: TABLE_SIZE as u32,
            initial_window: WINDOW_DEFAULT,
            max_frame_size: FRAME_SIZE_MIN,
            max_streams: u32::MAX,
            connect_protocol: false,
        }
    }

    pub(super) const fn as_server(&self) -> ServerSettings {
        ServerSettings { max_streams: self.max_streams, extended_connect: self.connect_protocol }
    }

    /// Applies one peer setting. Unknown ones are ignored.
    pub(super) fn apply(
        &mut self,
        setting: [u8; SETTING_LEN as usize],
        by_client: bool,
    ) -> Result<(), Error> {
        let [a, b, c, d, e, f] = setting;
        let value = u32::from_be_bytes([c, d, e, f]);
        match u16::from_be_bytes([a, b]) {
            HEADER_TABLE_SIZE => {
                self.header_table_size = value;
                self.smallest_table = self.smallest_table.min(value);
            }
            ENABLE_PUSH if value > 1 => {
                return Err(Error::protocol("SETTINGS_ENABLE_PUSH is neither 0 nor 1"));
            }
            ENABLE_PUSH if value == 1 && !by_client => {
                return Err(Error::protocol("SETTINGS_ENABLE_PUSH of a server is not 0"));
            }
            MAX_CONCURRENT_STREAMS => self.max_streams = value,
            INITIAL_WINDOW_SIZE if value > WINDOW_MAX => {
                let reason = "SETTINGS_INITIAL_WINDOW_SIZE exceeds 2^31-1";
                return Err(Error::new(ErrorCode::FLOW_CONTROL_ERROR, reason));
            }
            INITIAL_WINDOW_SIZE => self.initial_window = value,
            MAX_FRAME_SIZE if !(FRAME_SIZE_MIN..=FRAME_SIZE_MAX).contains(&value) => {
                return Err(Error::protocol("SETTINGS_MAX_FRAME_SIZE is out of range"));
            }
            MAX_FRAME_SIZE => self.max_frame_size = value,
            ENABLE_CONNECT_PROTOCOL if value > 1 || value == 0 && self.connect_protocol => {
                return Err(Error::protocol("SETTINGS_ENABLE_CONNECT_PROTOCOL is invalid or withdrawn"));
            }
            ENABLE_CONNECT_PROTOCOL => self.connect_protocol = value == 1,
            _ => {}
        }
        Ok(())
    }
}

/// Appends our first SETTINGS.
pub(super) fn write_own(config: &Config, is_client: bool, out: &mut Vec<u8>) {
    let settings = [
        (HEADER_TABLE_SIZE, config.header_table_size, TABLE_SIZE as u32),
        (ENABLE_PUSH, u32::from(!is_client), 1),
        (MAX_CONCURRENT_STREAMS, if is_client { u32::MAX } else { config.max_streams }, u32::MAX),
        (INITIAL_WINDOW_SIZE, config.stream_window, WINDOW_DEFAULT),
        (MAX_FRAME_SIZE, config.max_frame_size, FRAME_SIZE_MIN),
        (MAX_HEADER_LIST_SIZE, u32::try_from(config.head.max_bytes()).unwrap_or(u32::MAX), u32::MAX),
        (ENABLE_CONNECT_PROTOCOL, u32::from(config.extended_connect && !is_client), 0),
    ];
    let changed = settings.iter().filter(|(_, value, default)| value != default);
    let len = changed.clone().count() as u32 * SETTING_LEN;
    FrameHeader::new(FrameType::Settings, len, 0, 0).write(&[], out);
    for (id, value, _) in changed {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}
