//! Keyed topics in Sinews, and map subscriptions in Centrifugo: what clients send.

use clap::ValueEnum;

/// A server, by its protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Dialect {
    Sinews,
    /// With the configuration `dev/bench/centrifugo-keys.json`
    Centrifugo,
}

impl Dialect {
    /// Returns the WebSocket path.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Sinews => "/ws",
            Self::Centrifugo => "/connection/websocket",
        }
    }

    /// Returns a client's first message.
    pub(super) const fn first(self) -> Option<&'static str> {
        match self {
            Self::Sinews => None,
            Self::Centrifugo => Some(r#"{"id":1,"connect":{}}"#),
        }
    }

    /// Sets a key to a value.
    pub(super) fn set(self, key: &str, data: &str) -> String {
        match self {
            Self::Sinews => format!(r#"{{"op":"set","topic":"prices","key":"{key}","data":{data}}}"#),
            Self::Centrifugo => format!(
                r#"{{"id":3,"publish":{{"channel":"keyed:prices","type":1,"key":"{key}","data":{data}}}}}"#
            ),
        }
    }

    /// Subscribes to all keys, with an interval in milliseconds, which Centrifugo does not have.
    pub(super) fn subscribe(self, interval: u32) -> String {
        match self {
            Self::Sinews => {
                let interval =
                    if interval > 0 { format!(r#","interval":{interval}"#) } else { String::new() };
                format!(r#"{{"op":"subscribe","id":1,"topic":"prices","keys":true{interval}}}"#)
            }
            Self::Centrifugo => {
                r#"{"id":2,"subscribe":{"channel":"keyed:prices","type":1,"phase":2,"limit":1000}}"#
                    .to_owned()
            }
        }
    }
}
