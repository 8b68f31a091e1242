//! Certificates and keys for a broker connection, from the files that its URL names.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use sinews_server::describe_pem_error;

use super::nkey::NatsKey;
use super::options::BrokerKind;
use crate::outgoing::http::{client_config_builder, trusted_certificates};

/// Largest file in bytes: hundreds of certificates.
const FILE_MAX: u64 = 1 << 20;

/// The files, by their settings in the URL.
#[derive(Clone, Debug, Default)]
pub(crate) struct SecurityFiles {
    /// Certificate authorities in place of the system's.
    authorities: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    /// JWT and seed of a NATS user.
    credentials: Option<PathBuf>,
    /// Seed of a NATS user.
    nkey: Option<PathBuf>,
}

impl SecurityFiles {
    /// Returns the file of a setting; `None` if the setting is unknown.
    pub(super) fn setting(&mut self, name: &str) -> Option<&mut Option<PathBuf>> {
        Some(match name {
            "tls.ca" => &mut self.authorities,
            "tls.cert" => &mut self.certificate,
            "tls.key" => &mut self.key,
            "credentials" => &mut self.credentials,
            "nkey" => &mut self.nkey,
            _ => return None,
        })
    }

    /// Checks that each setting has an effect on this connection.
    ///
    /// # Errors
    /// The reason, with the setting.
    pub(super) fn check_use(&self, engine: BrokerKind, has_tls: bool, has_login: bool) -> Result<(), String> {
        let tls = [("tls.ca", &self.authorities), ("tls.cert", &self.certificate), ("tls.key", &self.key)];
        if let Some((name, _)) = tls.iter().find(|(_, file)| file.is_some() && !has_tls) {
            return Err(format!("`{name}` needs TLS: nats+tls://, rediss:// or rediss+sentinel://"));
        }
        match (&self.certificate, &self.key) {
            (Some(_), None) => {
                return Err("`tls.cert` needs `tls.key`, the key of the certificate".to_owned());
            }
            (None, Some(_)) => {
                return Err("`tls.key` needs `tls.cert`, the certificate of the key".to_owned());
            }
            _ => {}
        }
        let name = match (&self.credentials, &self.nkey) {
            (None, None) => return Ok(()),
            (Some(_), Some(_)) => return Err("`credentials` and `nkey`: only one can be used".to_owned()),
            (Some(_), None) => "credentials",
            (None, Some(_)) => "nkey",
        };
        if engine != BrokerKind::Nats {
            return Err(format!("`{name}` is for NATS"));
        }
        match has_login {
            true => Err(format!("`{name}` and the user in the URL: only one can be used")),
            false => Ok(()),
        }
    }

    /// Whether a NATS user's key is in a file.
    pub(super) fn has_nats_key(&self) -> bool {
        self.credentials.is_some() || self.nkey.is_some()
    }

    /// Whether the files can be used.
    ///
    /// # Errors
    /// The reason, with the setting and the path, and without the content.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.authorities.is_some() || self.certificate.is_some() {
            self.tls()?;
        }
        self.nats_key().map(drop)
    }

    /// Reads the options of TLS.
    ///
    /// # Errors
    /// The reason, with the setting and the path, and without the content.
    pub(super) fn tls(&self) -> Result<Arc<ClientConfig>, String> {
        let authorities = match &self.authorities {
            Some(path) => {
                let pem = read("tls.ca", path)?;
                Some(trusted_certificates(&pem).map_err(|error| describe("tls.ca", path, error))?)
            }
            None => None,
        };
        let builder = client_config_builder(authorities.as_deref());
        let builder = match (builder, &self.authorities) {
            (Ok(builder), _) => builder,
            (Err(error), Some(path)) => return Err(describe("tls.ca", path, error)),
            (Err(error), None) => return Err(error.to_string()),
        };
        let (Some(certificate), Some(key)) = (&self.certificate, &self.key) else {
            return Ok(Arc::new(builder.with_no_client_auth()));
        };
        let pem = read("tls.cert", certificate)?;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let chain = chain.map_err(|error| describe("tls.cert", certificate, describe_pem_error(&error)))?;
        let pem = read("tls.key", key)?;
        let pem = PrivateKeyDer::from_pem_slice(&pem);
        let private = pem.map_err(|error| describe("tls.key", key, describe_pem_error(&error)))?;
        let config = builder.with_client_auth_cert(chain, private);
        config.map(Arc::new).map_err(|error| describe("tls.cert", certificate, error))
    }

    /// Reads the key of a NATS user, if there is one.
    ///
    /// # Errors
    /// The reason, with the setting and the path, and without the content.
    pub(super) fn nats_key(&self) -> Result<Option<NatsKey>, String> {
        let (name, path) = match (&self.credentials, &self.nkey) {
            (Some(path), _) => ("credentials", path),
            (None, Some(path)) => ("nkey", path),
            (None, None) => return Ok(None),
        };
        let content = read(name, path)?;
        let text = str::from_utf8(&content).map_err(|_| describe(name, path, "it is no text"))?;
        let key = NatsKey::parse(text).map_err(|fault| describe(name, path, fault))?;
        match (name, key.jwt()) {
            ("credentials", None) => {
                Err(describe(name, path, "it has no JWT; a file with a seed alone is for `nkey`"))
            }
            ("nkey", Some(_)) => Err(describe(name, path, "it has a JWT: use `credentials`")),
            _ => Ok(Some(key)),
        }
    }
}

fn read(setting: &str, path: &Path) -> Result<Vec<u8>, String> {
    let size = fs::metadata(path).map_err(|error| describe(setting, path, error))?.len();
    if size > FILE_MAX {
        return Err(describe(setting, path, format!("{size} bytes exceed the limit of {FILE_MAX}")));
    }
    fs::read(path).map_err(|error| describe(setting, path, error))
}

fn describe(setting: &str, path: &Path, fault: impl std::fmt::Display) -> String {
    format!("{setting}: {}: {fault}", path.display())
}

#[cfg(test)]
mod tests;
