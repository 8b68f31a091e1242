//! Facts of the TLS session of a connection.

/// Result of a TLS handshake: certificate chain of the peer, ALPN and version.
///
/// `tls_info` of a WebSocket returns it, after `accept` and after `connect`, on every runtime. Any session of rustls
/// can be converted: `TlsInfo::from(&*connection)`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsInfo {
    /// The certificates of the peer in DER, the leaf first. Empty for a client without a certificate. The libraries
    /// of platforms (`native-tls`) return only the leaf.
    pub peer_certificates: Vec<Vec<u8>>,
    /// The protocol that ALPN (RFC 7301) selected. `native-tls` does not return it.
    pub alpn: Option<Vec<u8>>,
    /// The version, `TLSv1.2` or `TLSv1.3`. `native-tls` does not return it.
    pub version: Option<&'static str>,
}

/// A transport that may be encrypted, as required by `tls_info` of a WebSocket.
///
/// Implemented for the streams of tokio-rustls, tokio-native-tls and native-tls, for [`rustls::StreamOwned`] and for the
/// transport of `connect`. Implement it for your own stream that contains one of these.
pub trait TlsTransport {
    /// The result of the TLS handshake; `None`: the transport is not encrypted.
    fn tls_info(&self) -> Option<TlsInfo>;
}

#[cfg(feature = "rustls")]
impl From<&rustls::CommonState> for TlsInfo {
    fn from(session: &rustls::CommonState) -> Self {
        let certificates = session.peer_certificates().unwrap_or_default();
        Self {
            peer_certificates: certificates.iter().map(|certificate| certificate.to_vec()).collect(),
            alpn: session.alpn_protocol().map(<[u8]>::to_vec),
            version: match session.protocol_version() {
                Some(rustls::ProtocolVersion::TLSv1_3) => Some("TLSv1.3"),
                Some(rustls::ProtocolVersion::TLSv1_2) => Some("TLSv1.2"),
                _ => None,
            },
        }
    }
}

#[cfg(feature = "rustls")]
impl<C, T, D> TlsTransport for rustls::StreamOwned<C, T>
where
    C: std::ops::DerefMut<Target = rustls::ConnectionCommon<D>>,
    T: std::io::Read + std::io::Write,
    D: rustls::SideData,
{
    fn tls_info(&self) -> Option<TlsInfo> {
        Some(TlsInfo::from(&**self.conn))
    }
}

#[cfg(feature = "tokio-rustls")]
mod tokio_rustls {
    use super::{TlsInfo, TlsTransport};

    impl<S> TlsTransport for ::tokio_rustls::client::TlsStream<S> {
        fn tls_info(&self) -> Option<TlsInfo> {
            Some(TlsInfo::from(&***self.get_ref().1))
        }
    }

    impl<S> TlsTransport for ::tokio_rustls::server::TlsStream<S> {
        fn tls_info(&self) -> Option<TlsInfo> {
            Some(TlsInfo::from(&***self.get_ref().1))
        }
    }

    impl<S> TlsTransport for ::tokio_rustls::TlsStream<S> {
        fn tls_info(&self) -> Option<TlsInfo> {
            Some(TlsInfo::from(self.get_ref().1))
        }
    }
}

#[cfg(all(feature = "native-tls", feature = "tokio"))]
impl<S> TlsTransport for tokio_native_tls::TlsStream<S>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
{
    fn tls_info(&self) -> Option<TlsInfo> {
        self.get_ref().tls_info()
    }
}

#[cfg(feature = "native-tls")]
impl<S: std::io::Read + std::io::Write> TlsTransport for native_tls::TlsStream<S> {
    fn tls_info(&self) -> Option<TlsInfo> {
        let certificate = self.peer_certificate().ok().flatten();
        let certificate = certificate.and_then(|certificate| certificate.to_der().ok());
        Some(TlsInfo { peer_certificates: certificate.into_iter().collect(), ..TlsInfo::default() })
    }
}

#[cfg(all(feature = "blocking", feature = "url-connect"))]
impl TlsTransport for crate::blocking::Stream {
    fn tls_info(&self) -> Option<TlsInfo> {
        match self {
            Self::Plain(_) => None,
            #[cfg(feature = "rustls")]
            Self::Rustls(tls) => tls.tls_info(),
            #[cfg(feature = "native-tls")]
            Self::NativeTls(tls) => tls.tls_info(),
        }
    }
}

#[cfg(all(feature = "tokio", feature = "url-connect"))]
impl TlsTransport for crate::tokio::Stream {
    fn tls_info(&self) -> Option<TlsInfo> {
        match self {
            Self::Plain(_) => None,
            #[cfg(feature = "tokio-rustls")]
            Self::Rustls(tls) => tls.tls_info(),
            #[cfg(feature = "native-tls")]
            Self::NativeTls(tls) => tls.tls_info(),
        }
    }
}

#[cfg(feature = "tokio")]
impl<S: TlsTransport> crate::tokio::WebSocket<S> {
    /// The result of the TLS handshake; `None`: the connection is not encrypted.
    #[must_use]
    pub fn tls_info(&self) -> Option<TlsInfo> {
        self.transport().tls_info()
    }
}

#[cfg(feature = "blocking")]
impl<S: TlsTransport> crate::blocking::WebSocket<S> {
    /// The result of the TLS handshake; `None`: the connection is not encrypted.
    #[must_use]
    pub fn tls_info(&self) -> Option<TlsInfo> {
        self.get_ref().tls_info()
    }
}
