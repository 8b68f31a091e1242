//! How a client of NATS connects: servers, TLS, and credentials.

use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};

use crate::error::BrokerConfigError;
use crate::url::BrokerUrl;

/// Setting names, for errors.
pub(super) const LOGIN_SETTINGS: [&str; 5] = ["credentials", "nkey", "tls.ca", "tls.cert", "tls.key"];

/// Servers and credentials of a URL.
pub(super) struct NatsLogin {
    pub(super) servers: Vec<ServerAddr>,
    user: Option<(String, String)>,
    /// File with a JWT and its key.
    credentials: Option<String>,
    /// File with the seed of a key.
    nkey: Option<String>,
    authority: Option<String>,
    certificate: Option<(String, String)>,
    has_tls: bool,
}

impl NatsLogin {
    pub(super) fn from_address(address: &mut BrokerUrl) -> Result<Self, BrokerConfigError> {
        let has_tls = address.scheme == "nats+tls";
        let mut servers = Vec::new();
        for host in &address.hosts {
            let url = format!("{}://{host}", if has_tls { "tls" } else { "nats" });
            let server = url.parse().map_err(|error| BrokerConfigError::Url {
                scheme: address.scheme.clone(),
                reason: format!("{host}: {error}"),
            })?;
            servers.push(server);
        }
        let certificate = match (address.take("tls.cert"), address.take("tls.key")) {
            (Some(certificate), Some(key)) => Some((certificate, key)),
            (None, None) => None,
            (Some(_), None) => {
                return Err(address.setting_error("tls.cert", "it needs the setting `tls.key`"));
            }
            (None, Some(_)) => {
                return Err(address.setting_error("tls.key", "it needs the setting `tls.cert`"));
            }
        };
        let login = Self {
            servers,
            user: address.user.take().map(|user| (user, address.password.take().unwrap_or_default())),
            // The second names are those of earlier versions.
            credentials: address.take("credentials").or_else(|| address.take("credentials.file")),
            nkey: address.take("nkey"),
            authority: address.take("tls.ca").or_else(|| address.take("tls.ca.file")),
            certificate,
            has_tls,
        };
        if login.credentials.is_some() && login.nkey.is_some() {
            return Err(address.setting_error("nkey", "it excludes the setting `credentials`"));
        }
        let setting = if login.authority.is_some() { "tls.ca" } else { "tls.cert" };
        if !has_tls && (login.authority.is_some() || login.certificate.is_some()) {
            return Err(address.setting_error(setting, "it needs the scheme nats+tls"));
        }
        Ok(login)
    }

    /// Options of a new connection. Files are read again, so that they can be replaced.
    pub(super) async fn options(&self, timeout: Duration) -> Result<ConnectOptions, String> {
        let mut options = ConnectOptions::new()
            .name("sinews")
            .connection_timeout(timeout)
            .request_timeout(Some(timeout))
            .require_tls(self.has_tls);
        if let Some((user, password)) = self.user.clone() {
            options = options.user_and_password(user, password);
        }
        if let Some(file) = &self.credentials {
            options = options.credentials_file(file).await.map_err(|error| format!("{file}: {error}"))?;
        }
        if let Some(file) = &self.nkey {
            let seed = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            options = options.nkey(seed.trim().to_owned());
        }
        if let Some(file) = &self.authority {
            options = options.add_root_certificates(file.into());
        }
        if let Some((certificate, key)) = &self.certificate {
            options = options.add_client_certificate(certificate.into(), key.into());
        }
        Ok(options)
    }
}
