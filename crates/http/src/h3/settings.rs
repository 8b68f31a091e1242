//! SETTINGS of both sides (RFC 9114 section 7.2.4).

use alloc::vec::Vec;

use super::config::Config;
use super::error::{Error, H3Code};
use super::frame::SETTINGS;
use super::varint::{VarintReader, write_varint};

const QPACK_MAX_TABLE_CAPACITY: u64 = 1;
const MAX_FIELD_SECTION_SIZE: u64 = 6;
const QPACK_BLOCKED_STREAMS: u64 = 7;
const ENABLE_CONNECT_PROTOCOL: u64 = 8;
const H3_DATAGRAM: u64 = 0x33;
/// WebTransport, drafts 02 to 06.
const ENABLE_WEBTRANSPORT: u64 = 0x2b60_3742;
/// WebTransport, drafts 07 to 12.
const WEBTRANSPORT_MAX_SESSIONS: u64 = 0xc671_706a;
/// WebTransport, drafts 13 and 14, with which Safari 26 begins.
const WT_MAX_SESSIONS: u64 = 0x14e9_cd29;
/// WebTransport, from draft 15 on.
const WT_ENABLED: u64 = 0x2c7c_f000;

/// Settings of the peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerSettings {
    /// SETTINGS_ENABLE_CONNECT_PROTOCOL (RFC 9220 section 3).
    pub extended_connect: bool,
    /// SETTINGS_H3_DATAGRAM (RFC 9297 section 2.1.1).
    pub datagrams: bool,
    /// WebTransport, in any known draft's setting.
    pub webtransport: bool,
    /// SETTINGS_MAX_FIELD_SECTION_SIZE: advice.
    pub max_field_section_size: Option<u64>,
}

impl PeerSettings {
    fn apply(&mut self, id: u64, value: u64) -> Result<(), Error> {
        let flag = match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::new(H3Code::H3_SETTINGS_ERROR, "setting is neither 0 nor 1")),
        };
        match id {
            // RFC 9114 sections 7.2.4.1 and 11.2.2: HTTP/2 settings.
            0 | 2..=5 => return Err(Error::new(H3Code::H3_SETTINGS_ERROR, "setting of HTTP/2")),
            MAX_FIELD_SECTION_SIZE => self.max_field_section_size = Some(value),
            ENABLE_CONNECT_PROTOCOL => self.extended_connect = flag?,
            H3_DATAGRAM => self.datagrams = flag?,
            ENABLE_WEBTRANSPORT => self.webtransport |= flag?,
            WEBTRANSPORT_MAX_SESSIONS | WT_MAX_SESSIONS => self.webtransport |= value > 0,
            WT_ENABLED => self.webtransport |= flag?,
            _ => {}
        }
        Ok(())
    }
}

/// SETTINGS that arrive.
#[derive(Debug, Default)]
pub(super) struct SettingsReader {
    pub(super) settings: PeerSettings,
    number: VarintReader,
    id: Option<u64>,
    /// Identifiers of the frame, which has at most [`Config::SETTINGS_LEN_MAX`] bytes.
    seen: Vec<u64>,
}

impl SettingsReader {
    /// Reads a piece of the payload.
    pub(super) fn receive(&mut self, mut input: &[u8]) -> Result<(), Error> {
        while let Some(number) = self.number.read(&mut input) {
            let Some(id) = self.id.take() else {
                if self.seen.contains(&number) {
                    return Err(Error::new(H3Code::H3_SETTINGS_ERROR, "setting occurs twice"));
                }
                self.seen.push(number);
                self.id = Some(number);
                continue;
            };
            self.settings.apply(id, number)?;
        }
        Ok(())
    }

    /// Whether the payload may end here.
    pub(super) const fn is_complete(&self) -> bool {
        self.id.is_none() && !self.number.is_partial()
    }
}

/// Appends our SETTINGS.
pub(super) fn write_own(config: &Config, out: &mut Vec<u8>) {
    let settings = [
        (MAX_FIELD_SECTION_SIZE, config.head.max_bytes() as u64),
        // The defaults, which other implementations announce too.
        (QPACK_MAX_TABLE_CAPACITY, 0),
        (QPACK_BLOCKED_STREAMS, 0),
        (ENABLE_CONNECT_PROTOCOL, config.extended_connect.into()),
        (H3_DATAGRAM, config.webtransport().into()),
        (ENABLE_WEBTRANSPORT, config.webtransport().into()),
        (WEBTRANSPORT_MAX_SESSIONS, config.max_sessions.into()),
        // A larger number would promise session flow control (draft-ietf-webtrans-http3-14 section 5.1).
        (WT_MAX_SESSIONS, config.max_sessions.min(1).into()),
    ];
    let mut payload = Vec::new();
    for (id, value) in settings.into_iter().filter(|(id, value)| *id < ENABLE_CONNECT_PROTOCOL || *value > 0)
    {
        write_varint(id, &mut payload);
        write_varint(value, &mut payload);
    }
    write_varint(SETTINGS, out);
    write_varint(payload.len() as u64, out);
    out.extend_from_slice(&payload);
}
