//! The protocol's close codes. Codes below 4100 mean that the client must not come back.

pub(super) const TLS_ONLY: u16 = 4000;
pub(super) const UNKNOWN_APP: u16 = 4001;
pub(super) const DISABLED_APP: u16 = 4003;
pub(super) const CONNECTION_QUOTA: u16 = 4004;
pub(super) const UNKNOWN_PATH: u16 = 4005;
pub(super) const INVALID_VERSION: u16 = 4006;
pub(super) const UNSUPPORTED_VERSION: u16 = 4007;
pub(super) const NO_VERSION: u16 = 4008;
pub(super) const UNAUTHORIZED: u16 = 4009;
pub(super) const OVER_CAPACITY: u16 = 4100;
pub(super) const RECONNECT: u16 = 4200;
pub(super) const NO_PONG: u16 = 4201;
/// Not for a Close: the client would not come back.
pub(super) const CLIENT_EVENT: u16 = 4301;
/// Not for a Close.
pub(super) const WATCHLIST: u16 = 4302;
