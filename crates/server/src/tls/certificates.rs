//! Certificate selection by the server name of the client (SNI).

use std::fmt;
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::crypto::ring::{self, Ticketer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::hooks::describe_pem_error;

/// Certificates with their keys. A client gets the first certificate that is valid for its server name (SNI), or the
/// first of all without a server name or a match.
#[derive(Clone, Debug, Default)]
pub struct Certificates {
    keys: Vec<Arc<CertifiedKey>>,
}

impl Certificates {
    /// Creates an empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a certificate: its chain in PEM, leaf first, and its private key (PKCS #8, PKCS #1 or SEC1). Its names,
    /// wildcards included, are read from the certificate.
    ///
    /// # Errors
    /// [`InvalidTls`] if either cannot be parsed, or the key does not match the certificate.
    pub fn with_pem(mut self, chain: &[u8], key: &[u8]) -> Result<Self, InvalidTls> {
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|error| InvalidTls::new("the certificate", &describe_pem_error(&error)))?;
        if chain.is_empty() {
            return Err(InvalidTls("there is no certificate in the PEM".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(key)
            .map_err(|error| InvalidTls::new("the key", &describe_pem_error(&error)))?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider())
            .map_err(|error| InvalidTls::new("certificate and key", &error))?;
        self.keys.push(Arc::new(key));
        Ok(self)
    }

    fn find(&self, name: Option<&str>) -> Option<Arc<CertifiedKey>> {
        let name = name.and_then(|name| ServerName::try_from(name).ok());
        let is_for = |key: &Arc<CertifiedKey>, name: &ServerName<'_>| {
            let certificate = key.end_entity_cert().and_then(ParsedCertificate::try_from);
            certificate.is_ok_and(|certificate| verify_server_name(&certificate, name).is_ok())
        };
        let found = name.and_then(|name| self.keys.iter().find(|key| is_for(key, &name)));
        found.or_else(|| self.keys.first()).cloned()
    }
}

/// TLS 1.2 and 1.3 for [`Listen::with_tls`](crate::Listen::with_tls). Clones share their certificates:
/// [`replace`](Self::replace) affects all clones and their listeners.
///
/// A client that offers ALPN has to offer `http/1.1`, or `h2` unless [HTTP/2](crate::HttpConfig::with_http2) is off.
/// Sessions resume with tickets, whose keys belong to this process and rotate automatically. The handshake and the
/// first request head have to complete within [`head_timeout`](crate::HttpConfig::with_head_timeout). An idle
/// connection takes some 3.3 KB more than without TLS: the cipher state, and no buffer.
///
/// ```
/// use sinews_server::{Certificates, TlsConfig};
///
/// # let made = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
/// # let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
/// let certificates = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes())?;
/// let tls = TlsConfig::new(certificates)?;
/// // Later, after a renewal:
/// tls.replace(Certificates::new().with_pem(chain.as_bytes(), key.as_bytes())?)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct TlsConfig {
    config: Arc<ServerConfig>,
    /// Offers HTTP/2 too.
    http2_config: Arc<ServerConfig>,
    /// Offers HTTP/3 only, for QUIC.
    http3_config: Arc<ServerConfig>,
    resolver: Arc<Resolver>,
}

impl TlsConfig {
    /// Creates a configuration with these certificates.
    ///
    /// # Errors
    /// [`InvalidTls`] without certificates, or if the system has no randomness for ticket keys.
    pub fn new(certificates: Certificates) -> Result<Self, InvalidTls> {
        let resolver = Arc::new(Resolver(RwLock::new(some(certificates)?)));
        let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| InvalidTls::new("the versions", &error))?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::clone(&resolver) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        config.ticketer = Ticketer::new().map_err(|error| InvalidTls::new("the keys of tickets", &error))?;
        let mut http2_config = config.clone();
        http2_config.alpn_protocols.insert(0, b"h2".to_vec());
        let mut http3_config = config.clone();
        http3_config.alpn_protocols = vec![b"h3".to_vec()];
        let [config, http2_config, http3_config] = [config, http2_config, http3_config].map(Arc::new);
        Ok(Self { config, http2_config, http3_config, resolver })
    }

    /// Replaces the certificates for later handshakes. Open connections are not affected.
    ///
    /// # Errors
    /// [`InvalidTls`] without certificates; the previous ones stay in use.
    pub fn replace(&self, certificates: Certificates) -> Result<(), InvalidTls> {
        let certificates = some(certificates)?;
        *self.resolver.0.write() = certificates;
        Ok(())
    }

    /// Returns the configuration of QUIC, without early data: a request in it could be repeated by others.
    pub(crate) fn http3(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.http3_config)
    }

    pub(crate) fn current(&self, http2: bool) -> Arc<ServerConfig> {
        Arc::clone(if http2 { &self.http2_config } else { &self.config })
    }
}

fn some(certificates: Certificates) -> Result<Certificates, InvalidTls> {
    if certificates.keys.is_empty() {
        return Err(InvalidTls("there are no certificates".to_owned()));
    }
    Ok(certificates)
}

/// Locked once per handshake, which costs some hundred times as much as the lock.
#[derive(Debug)]
struct Resolver(RwLock<Certificates>);

impl ResolvesServerCert for Resolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().find(hello.server_name())
    }
}

/// Error of certificates or keys that are unusable for TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidTls(String);

impl InvalidTls {
    fn new(what: &str, error: &dyn fmt::Display) -> Self {
        Self(format!("{what}: {error}"))
    }
}

impl fmt::Display for InvalidTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for InvalidTls {}

#[cfg(test)]
mod tests {
    use super::*;

    fn pem(names: &[&str]) -> (String, String) {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn first_certificate_for_the_server_name_is_chosen() {
        let mut certificates = Certificates::new();
        assert!(certificates.find(Some("a.example")).is_none());
        for names in [&["default.example"][..], &["a.example", "b.example"], &["*.wild.example"]] {
            let (chain, key) = pem(names);
            certificates = certificates.with_pem(chain.as_bytes(), key.as_bytes()).unwrap();
        }
        for (name, place) in [
            (None, 0),
            (Some("default.example"), 0),
            (Some("b.example"), 1),
            (Some("x.wild.example"), 2),
            (Some("wild.example"), 0),
            (Some("unknown.example"), 0),
            (Some("no name at all"), 0),
        ] {
            let found = certificates.find(name).unwrap();
            assert!(Arc::ptr_eq(&found, &certificates.keys[place]), "{name:?}");
        }
    }

    /// The library's errors repeat lines of the file.
    #[test]
    fn error_of_a_malformed_key_does_not_repeat_it() {
        let (chain, key) = pem(&["a.example"]);
        let secret = key.lines().nth(1).unwrap();
        let bytes: Vec<String> = secret.bytes().take(8).map(|byte| byte.to_string()).collect();
        for bad in
            [key.replace('\n', " "), key.replace("-----END", "---END"), key.replace(&secret[..4], "!!!!")]
        {
            for (chain, key) in [(&*chain, &*bad), (&*bad, &*key)] {
                let error = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes()).unwrap_err();
                for shown in [error.to_string(), format!("{error:?}")] {
                    let leaks = shown.contains(&secret[8..16]) || shown.contains(&bytes.join(", "));
                    assert!(!leaks, "{shown}");
                }
            }
        }
    }

    #[test]
    fn unusable_certificates_are_rejected_with_a_reason() {
        let ((chain, key), (_, other)) = (pem(&["a.example"]), pem(&["a.example"]));
        for (chain, key, word) in [
            ("", &*key, "no certificate"),
            (&*chain, "", "the key"),
            (&*chain, &*other, "certificate and key"),
            ("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n", &*key, "the certificate"),
        ] {
            let error = Certificates::new().with_pem(chain.as_bytes(), key.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(word), "{error}");
        }
        assert!(TlsConfig::new(Certificates::new()).is_err());
    }
}
