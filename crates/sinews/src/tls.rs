//! The TLS of `wss`.

use std::{fmt, io};

#[cfg(feature = "rustls")]
use std::sync::Arc;

/// Makes TLS connections: rustls or the library of the platform, with trusted roots.
#[derive(Clone, Debug)]
pub struct Tls(pub(crate) TlsLibrary);

#[derive(Clone, Debug)]
pub(crate) enum TlsLibrary {
    #[cfg(feature = "rustls")]
    #[cfg_attr(
        not(any(feature = "tokio-rustls", feature = "compio", feature = "blocking")),
        allow(dead_code, reason = "on Tokio, the feature tokio-rustls makes TLS")
    )]
    Rustls(Arc<rustls::ClientConfig>),
    /// Offers only HTTP/2 by ALPN, and requires that the server selects it.
    #[cfg(all(feature = "http2-client", feature = "tokio-rustls"))]
    Http2(Arc<rustls::ClientConfig>),
    #[cfg(feature = "native-tls")]
    #[cfg_attr(
        not(any(feature = "tokio", feature = "blocking")),
        allow(dead_code, reason = "on compio, TLS uses rustls")
    )]
    Native(native_tls::TlsConnector),
}

/// An error of a TLS connection.
#[derive(Debug)]
#[non_exhaustive]
pub enum TlsError {
    /// The enabled features of this crate contain no TLS with trusted roots: enable `rustls-native-roots`,
    /// `rustls-webpki-roots` or `native-tls`, or, with `rustls`, pass a configuration to `Connect::tls`.
    Unavailable,
    /// No root certificate was found on this machine, so that no server certificate can be verified.
    NoRoots,
    /// The TLS library rejects its settings.
    Setup(String),
    /// The host is neither a name nor an address for which a certificate can be issued.
    Name,
    /// The handshake failed: the certificate is not trusted or is for another name, there is no common version, or
    /// the transport ended.
    Handshake(io::Error),
    /// ALPN (RFC 7301) selected a protocol other than HTTP/1.1, which the handshake of WebSocket uses: offer only
    /// `http/1.1`, or nothing.
    Alpn(String),
    /// The server does not select HTTP/2 (`h2`) by ALPN: connect over HTTP/1.1.
    #[cfg(feature = "http2-client")]
    Http2,
}

impl Tls {
    /// The default of the enabled features: rustls with the certificates of the system (`rustls-native-roots`), of
    /// Mozilla (`rustls-webpki-roots`), or of both if both are enabled; without them the library of the platform
    /// (`native-tls`). rustls uses its provider `ring`, and is configured once for the process. Connections on Tokio use
    /// the library of the platform in place of this default where `tokio-rustls` is not enabled and `native-tls` is.
    ///
    /// # Errors
    /// [`TlsError::Unavailable`], [`TlsError::NoRoots`], [`TlsError::Setup`].
    pub fn new() -> Result<Self, TlsError> {
        #[cfg(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots"))]
        return default_rustls().map(|config| Self(TlsLibrary::Rustls(config)));
        #[cfg(not(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots")))]
        #[cfg(feature = "native-tls")]
        return Self::native();
        #[cfg(not(any(
            feature = "rustls-native-roots",
            feature = "rustls-webpki-roots",
            feature = "native-tls"
        )))]
        return Err(TlsError::Unavailable);
    }

    /// The library of the platform, with its trusted roots, even if rustls is enabled.
    ///
    /// # Errors
    /// [`TlsError::Setup`].
    #[cfg(feature = "native-tls")]
    pub fn native() -> Result<Self, TlsError> {
        let connector =
            native_tls::TlsConnector::new().map_err(|error| TlsError::Setup(error.to_string()))?;
        Ok(Self(TlsLibrary::Native(connector)))
    }
}

#[cfg(feature = "tokio")]
impl Tls {
    /// The setting or the default of a connection on Tokio, where rustls needs the feature `tokio-rustls`. Without it,
    /// the library of the platform replaces the default configuration of rustls, so that a feature for roots does not
    /// disable `native-tls`.
    pub(crate) fn on_tokio(setting: Option<&Self>) -> Result<Self, TlsError> {
        Self::with_rustls(setting, cfg!(feature = "tokio-rustls"))
    }

    /// The same, where rustls serves connections or does not.
    #[cfg_attr(
        not(feature = "native-tls"),
        allow(unused_variables, reason = "without the library of the platform there is no choice")
    )]
    fn with_rustls(setting: Option<&Self>, has_rustls: bool) -> Result<Self, TlsError> {
        #[cfg(feature = "native-tls")]
        if !has_rustls && setting.is_none_or(Self::is_default_rustls) {
            return Self::native();
        }
        setting.cloned().map_or_else(Self::new, Ok)
    }

    /// Whether [`Tls::new`] has made this configuration of rustls.
    #[cfg(feature = "native-tls")]
    fn is_default_rustls(&self) -> bool {
        match &self.0 {
            #[cfg(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots"))]
            TlsLibrary::Rustls(config) => DEFAULT.get().is_some_and(|default| Arc::ptr_eq(default, config)),
            _ => false,
        }
    }
}

#[cfg(feature = "http2-client")]
impl Tls {
    /// The same TLS for HTTP/2, with `h2` as the only protocol of ALPN.
    pub(crate) fn for_http2(self) -> Result<Self, TlsError> {
        match self.0 {
            #[cfg(feature = "tokio-rustls")]
            TlsLibrary::Rustls(config) | TlsLibrary::Http2(config) => {
                let mut config = Arc::unwrap_or_clone(config);
                config.alpn_protocols = vec![HTTP2.to_vec()];
                Ok(Self(TlsLibrary::Http2(Arc::new(config))))
            }
            #[cfg(all(feature = "rustls", not(feature = "tokio-rustls")))]
            TlsLibrary::Rustls(_) => Err(TlsError::Unavailable),
            #[cfg(feature = "native-tls")]
            TlsLibrary::Native(_) => {
                let why = "HTTP/2 needs rustls (feature tokio-rustls): Connect::tls takes its configuration";
                Err(TlsError::Setup(why.to_owned()))
            }
        }
    }
}

#[cfg(feature = "rustls")]
impl From<Arc<rustls::ClientConfig>> for Tls {
    fn from(config: Arc<rustls::ClientConfig>) -> Self {
        Self(TlsLibrary::Rustls(config))
    }
}

#[cfg(feature = "rustls")]
impl From<rustls::ClientConfig> for Tls {
    fn from(config: rustls::ClientConfig) -> Self {
        Arc::new(config).into()
    }
}

#[cfg(feature = "native-tls")]
impl From<native_tls::TlsConnector> for Tls {
    fn from(connector: native_tls::TlsConnector) -> Self {
        Self(TlsLibrary::Native(connector))
    }
}

/// Cached: reading the roots of a system takes milliseconds, and sessions resume only within one configuration.
#[cfg(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots"))]
static DEFAULT: std::sync::OnceLock<Arc<rustls::ClientConfig>> = std::sync::OnceLock::new();

#[cfg(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots"))]
fn default_rustls() -> Result<Arc<rustls::ClientConfig>, TlsError> {
    if let Some(config) = DEFAULT.get() {
        return Ok(config.clone());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Setup(error.to_string()))?;
    let mut config = builder.with_root_certificates(roots()?).with_no_client_auth();
    config.alpn_protocols = vec![HTTP11.to_vec()];
    Ok(DEFAULT.get_or_init(|| Arc::new(config)).clone())
}

#[cfg(any(feature = "rustls-native-roots", feature = "rustls-webpki-roots"))]
fn roots() -> Result<rustls::RootCertStore, TlsError> {
    let mut roots = rustls::RootCertStore::empty();
    #[cfg(feature = "rustls-native-roots")]
    {
        // Some stores contain a certificate that cannot be parsed; it is skipped.
        let found = rustls_native_certs::load_native_certs();
        roots.add_parsable_certificates(found.certs);
    }
    #[cfg(feature = "rustls-webpki-roots")]
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    if roots.is_empty() { Err(TlsError::NoRoots) } else { Ok(roots) }
}

/// The name of HTTP/1.1 in ALPN.
#[cfg(feature = "rustls")]
#[cfg_attr(
    not(any(feature = "tokio-rustls", feature = "compio", feature = "blocking")),
    allow(dead_code, reason = "on Tokio, the feature tokio-rustls makes TLS")
)]
pub(crate) const HTTP11: &[u8] = b"http/1.1";

/// The name of HTTP/2 over TLS in ALPN.
#[cfg(all(feature = "http2-client", feature = "tokio-rustls"))]
const HTTP2: &[u8] = b"h2";

/// Whether ALPN selected HTTP/2.
#[cfg(all(feature = "http2-client", feature = "tokio-rustls"))]
pub(crate) fn check_http2(chosen: Option<&[u8]>) -> Result<(), TlsError> {
    if chosen == Some(HTTP2) { Ok(()) } else { Err(TlsError::Http2) }
}

/// An error of a handshake that offered only HTTP/2: a server without HTTP/2 ends it by an alert (RFC 7301 section
/// 3.2).
#[cfg(all(feature = "http2-client", feature = "tokio-rustls"))]
pub(crate) fn http2_error(error: io::Error) -> TlsError {
    let alert = rustls::Error::AlertReceived(rustls::AlertDescription::NoApplicationProtocol);
    let is_alert = error
        .get_ref()
        .and_then(|cause| cause.downcast_ref::<rustls::Error>())
        .is_some_and(|cause| *cause == alert);
    if is_alert { TlsError::Http2 } else { TlsError::Handshake(error) }
}

/// Whether ALPN selected HTTP/1.1, or no protocol.
#[cfg(feature = "rustls")]
#[cfg_attr(
    not(any(feature = "tokio-rustls", feature = "compio", feature = "blocking")),
    allow(dead_code, reason = "on Tokio, the feature tokio-rustls makes TLS")
)]
pub(crate) fn check_alpn(chosen: Option<&[u8]>) -> Result<(), TlsError> {
    match chosen {
        Some(other) if other != HTTP11 => Err(TlsError::Alpn(String::from_utf8_lossy(other).into_owned())),
        _ => Ok(()),
    }
}

impl TlsError {
    /// Whether the server selected another protocol than the client needs.
    pub(crate) const fn is_of_server(&self) -> bool {
        match self {
            Self::Alpn(_) => true,
            #[cfg(feature = "http2-client")]
            Self::Http2 => true,
            _ => false,
        }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => f.write_str(
                "wss needs one of the features rustls-native-roots, rustls-webpki-roots and native-tls of the crate \
                 sinews, or the feature rustls and a configuration (Connect::tls); on Tokio, rustls needs the feature tokio-rustls",
            ),
            Self::NoRoots => f.write_str(
                "no root certificates on this machine; enable the feature rustls-webpki-roots of the crate sinews",
            ),
            Self::Setup(error) => write!(f, "settings: {error}"),
            Self::Name => f.write_str("the host is not a valid name for a certificate"),
            Self::Handshake(error) => match explain(error) {
                Some(sentence) => write!(f, "{sentence} ({error})"),
                None => error.fmt(f),
            },
            #[cfg(feature = "http2-client")]
            Self::Http2 => f.write_str("the server does not select HTTP/2 (h2) by ALPN; connect over HTTP/1.1"),
            Self::Alpn(chosen) => write!(f, "ALPN selected {chosen:?}; offer only http/1.1, or nothing"),
        }
    }
}

impl std::error::Error for TlsError {
    /// The source behind the error that [`Display`](fmt::Display) already includes.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Handshake(error) => error.source(),
            _ => None,
        }
    }
}

const NO_TLS: &str = "the server does not speak TLS on this port; ws:// connects without TLS";
const ENDED: &str = "the server ended the connection during the TLS handshake; a port without TLS may do so";
#[cfg(feature = "rustls")]
const CA_AS_SERVER: &str = "the server presents the certificate of a certificate authority (CA) as its own; it needs a \
                            certificate that the CA has signed, with basicConstraints CA:FALSE";
#[cfg(feature = "rustls")]
const UNKNOWN_ISSUER: &str = "no trusted root has signed the server's certificate";

/// An explanation of failures whose own text names only a detail of TLS.
fn explain(error: &io::Error) -> Option<&'static str> {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Some(ENDED);
    }
    let cause = error.get_ref()?;
    #[cfg(feature = "rustls")]
    if let Some(cause) = cause.downcast_ref() {
        return explain_rustls(cause);
    }
    // The libraries of the platforms return only a text.
    let text = cause.to_string();
    let is_plain = ["wrong version number", "packet length too long", "http request"];
    is_plain.iter().any(|part| text.contains(part)).then_some(NO_TLS)
}

#[cfg(feature = "rustls")]
fn explain_rustls(error: &rustls::Error) -> Option<&'static str> {
    use rustls::{CertificateError, Error};
    match error {
        Error::InvalidMessage(_) => Some(NO_TLS),
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => Some(UNKNOWN_ISSUER),
        // rustls wraps this error as a value of webpki, and exports no type for it.
        Error::InvalidCertificate(CertificateError::Other(other))
            if other.to_string().contains("CaUsedAsEndEntity") =>
        {
            Some(CA_AS_SERVER)
        }
        _ => None,
    }
}

#[cfg(test)]
#[cfg(all(
    feature = "tokio",
    feature = "native-tls",
    any(feature = "rustls-native-roots", feature = "rustls-webpki-roots")
))]
mod tests {
    use super::*;

    /// A build without `tokio-rustls` and a build with it.
    #[test]
    fn roots_of_rustls_do_not_disable_native_tls_on_tokio() {
        let is_native = |setting: Option<&Tls>, has_rustls| {
            matches!(Tls::with_rustls(setting, has_rustls).expect("TLS").0, TlsLibrary::Native(_))
        };
        assert!(is_native(None, false));
        if let Ok(default) = Tls::new() {
            assert!(is_native(Some(&default), false));
            assert!(!is_native(None, true) && !is_native(Some(&default), true));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().expect("versions");
        let roots = rustls::RootCertStore::empty();
        let own = Tls::from(builder.with_root_certificates(roots).with_no_client_auth());
        assert!(!is_native(Some(&own), false), "a configuration of the caller is not replaced");
        let platform = Tls::native().expect("TLS");
        assert!(is_native(Some(&platform), true), "nor is the library of the platform");
    }
}
