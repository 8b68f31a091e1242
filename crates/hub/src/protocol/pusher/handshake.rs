//! Connection opening: the app, the protocol version, and who may connect.

use std::sync::Arc;

use sinews_server::{CloseCode, Request};

use super::code;
use crate::apps::live::{LiveApp, LiveApps};

/// Protocol versions that are spoken. Clients of the versions 5 and 6 understand all messages of version 7.
const PROTOCOLS: std::ops::RangeInclusive<u64> = 5..=7;

/// A WebSocket handshake: what to do when the connection is open. The protocol rejects connections with a Close, since
/// a script sees no status.
pub(super) enum AppHandshake {
    Accepted { app: Arc<LiveApp>, key: String },
    Rejected(ConnectionRejection),
}

/// Why a connection is closed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConnectionRejection {
    pub(super) code: u16,
    pub(super) text: String,
}

impl ConnectionRejection {
    pub(super) fn new(code: u16, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    pub(super) fn close_code(&self) -> CloseCode {
        CloseCode::new(self.code).unwrap_or(CloseCode::POLICY)
    }
}

/// The rejection of a path that is no app.
pub(super) fn unknown_path() -> AppHandshake {
    AppHandshake::Rejected(ConnectionRejection::new(
        code::UNKNOWN_PATH,
        "path not found: connect to /app/KEY",
    ))
}

/// Reads a handshake at `/app/{key}`.
pub(super) fn read(apps: &LiveApps, request: &Request<'_>) -> AppHandshake {
    let key = request.param("key").unwrap_or_default().into_owned();
    let Some(app) = apps.app_of_key(&key) else {
        return AppHandshake::Rejected(ConnectionRejection::new(code::UNKNOWN_APP, "no app has this key"));
    };
    let version = |name: &str| request.query(name);
    let checked = check_protocol(version("protocol"), version("version"), app.options.strict_protocol)
        .and_then(|()| check_app(&app, request));
    match checked {
        Ok(()) => AppHandshake::Accepted { app, key },
        Err(rejection) => {
            app.count_rejection();
            AppHandshake::Rejected(rejection)
        }
    }
}

fn check_app(app: &LiveApp, request: &Request<'_>) -> Result<(), ConnectionRejection> {
    let options = &app.options;
    if !options.is_enabled {
        return Err(ConnectionRejection::new(code::DISABLED_APP, "the app is disabled"));
    }
    if options.tls_only && !is_encrypted(request) {
        return Err(ConnectionRejection::new(code::TLS_ONLY, "the app accepts connections with TLS only"));
    }
    match &options.origins {
        Some(origins) if origins.check(request.head()).is_err() => Err(ConnectionRejection::new(
            code::UNAUTHORIZED,
            "pages of this origin may not connect to the app",
        )),
        _ => Ok(()),
    }
}

/// Whether a proxy has terminated TLS, or the server has.
fn is_encrypted(request: &Request<'_>) -> bool {
    let forwarded = request.head().header("x-forwarded-proto").next();
    request.is_encrypted() || forwarded.is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"https"))
}

/// Checks the protocol's version; without one, the major number of the library's version stands for it.
fn check_protocol(
    protocol: Option<&str>,
    version: Option<&str>,
    is_strict: bool,
) -> Result<(), ConnectionRejection> {
    let number = match (protocol, version.filter(|_| !is_strict)) {
        (Some(protocol), _) => protocol.parse().ok(),
        // Later libraries speak the protocol's last version.
        (None, Some(version)) => {
            let major = version.split('.').next().and_then(|major| major.parse::<u64>().ok());
            major.map(|major| major.min(*PROTOCOLS.end()))
        }
        (None, None) => {
            return Err(ConnectionRejection::new(code::NO_VERSION, "the query has no protocol"));
        }
    };
    match number {
        Some(number) if PROTOCOLS.contains(&number) => Ok(()),
        Some(number) => {
            let text = format!("protocol {number} is not supported: this server speaks 7");
            Err(ConnectionRejection::new(code::UNSUPPORTED_VERSION, text))
        }
        None => Err(ConnectionRejection::new(code::INVALID_VERSION, "protocol is not a number")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pusher_1_2_versions_of_the_protocol() {
        let check = |protocol, version, is_strict| {
            check_protocol(protocol, version, is_strict).map_err(|rejection| rejection.code)
        };
        for (protocol, version, expected) in [
            (Some("7"), Some("8.6.0"), Ok(())),
            (Some("5"), None, Ok(())),
            (Some("x"), Some("8.6.0"), Err(4006)),
            (Some(""), None, Err(4006)),
            (Some("8"), None, Err(4007)),
            (Some("1"), None, Err(4007)),
            (None, Some("8.6.0"), Ok(())),
            (None, Some("6.1"), Ok(())),
            (None, Some("1.12"), Err(4007)),
            (None, Some("next"), Err(4006)),
            (None, None, Err(4008)),
        ] {
            assert_eq!(check(protocol, version, false), expected, "{protocol:?} {version:?}");
        }
        assert_eq!(check(None, Some("8.6.0"), true), Err(4008));
        assert_eq!(check(Some("7"), None, true), Ok(()));
    }
}
