//! Server certificates.

use std::fs;
use std::path::{Path, PathBuf};

use sinews_server::Certificates;

use crate::config::resolver::{SettingGroup, SettingNames, SettingResolver};
use crate::config::schema::settings;

settings! {
    /// Certificates enable TLS on every TCP address: https and wss. Enabling or disabling TLS needs a restart.
    pub(crate) struct TlsKeys in "tls", "TLS" {
        /// Files with a certificate and its chain in PEM, the certificate itself first, each with its key; they enable
        /// TLS on every address. Each certificate contains its names; a client gets the first certificate for the
        /// requested name, or the first of all.
        certificate: Vec<PathBuf> {
            example: "/etc/sinews/example.com.pem,/etc/sinews/example.org.pem",
            together: PAIR,
            reloads: true,
        }

        /// Files with the private keys of the certificates in PEM, in the order of the certificates.
        key: Vec<PathBuf> {
            example: "/etc/sinews/example.com.key,/etc/sinews/example.org.key",
            together: PAIR,
            reloads: true,
        }
    }
}

const CERTIFICATE: &str = "tls.certificate";
const KEY: &str = "tls.key";

/// Files on the command line replace all files in the configuration: a certificate and a key from different sources are
/// not a pair.
const PAIR: &[&str] = &[CERTIFICATE, KEY];

/// Certificate and key files, in pairs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pairs: Vec<(PathBuf, PathBuf)>,
}

impl SettingGroup for TlsSettings {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        let TlsKeys { certificate, key } = TlsKeys::resolve(resolver)?;
        if certificate.len() != key.len() {
            return Err(format!(
                "{} names {} files and {} names {}: each certificate needs its key, in the same order",
                resolver.names.resolve(CERTIFICATE),
                certificate.len(),
                resolver.names.resolve(KEY),
                key.len()
            ));
        }
        Ok(Self { pairs: certificate.into_iter().zip(key).collect() })
    }

    /// New certificates take effect immediately.
    fn list_restarts(&self, new: &Self, restarts: &mut Vec<&'static str>) {
        restarts.extend((self.is_on() != new.is_on()).then_some("tls"));
    }
}

impl TlsSettings {
    pub(crate) fn is_on(&self) -> bool {
        !self.pairs.is_empty()
    }

    /// Reads the files.
    pub(super) fn read(&self, names: &SettingNames) -> Result<Option<Certificates>, String> {
        if !self.is_on() {
            return Ok(None);
        }
        let read = |name: &str, path: &Path| {
            fs::read(path).map_err(|error| format!("{}: {}: {error}", names.resolve(name), path.display()))
        };
        let mut certificates = Certificates::new();
        for (certificate, key) in &self.pairs {
            let pem = (read(CERTIFICATE, certificate)?, read(KEY, key)?);
            certificates = certificates.with_pem(&pem.0, &pem.1).map_err(|error| {
                let (of_certificate, of_key) = (names.resolve(CERTIFICATE), names.resolve(KEY));
                let (certificate, key) = (certificate.display(), key.display());
                format!("{of_certificate} {certificate}, {of_key} {key}: {error}")
            })?;
        }
        Ok(Some(certificates))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    fn pairs(flags: &[&str], file: &str) -> Result<Vec<(PathBuf, PathBuf)>, String> {
        settings(flags, file).map(|settings| settings.tls.pairs)
    }

    #[test]
    fn files_are_paired_in_order() {
        let pair = |certificate: &str, key: &str| (certificate.into(), key.into());
        let two = "[tls]\ncertificate = [\"a\", \"b\"]\nkey = [\"c\", \"d\"]";
        assert_eq!(pairs(&[], two), Ok(vec![pair("a", "c"), pair("b", "d")]));
        assert_eq!(
            pairs(&["--tls-certificate", "x", "--tls-key", "y"], two),
            Ok(vec![pair("x", "y")]),
            "the command line's replace the file's"
        );
        assert_eq!(pairs(&[], "[tls]\ncertificate = \"a\"\nkey = \"c\""), Ok(vec![pair("a", "c")]));
        assert!(!settings(&[], "").unwrap().tls.is_on());
    }

    #[test]
    fn certificate_without_key_is_reported() {
        for (flags, file, expected) in [
            (
                &["--tls-certificate", "x"][..],
                "[tls]\nkey = \"y\"",
                "--tls-certificate names 1 files and tls.key names 0: ",
            ),
            (
                &[],
                "[tls]\nkey = [\"a\", \"b\"]\ncertificate = \"c\"",
                "sinews.toml:3: tls.certificate names 1 files and sinews.toml:2: tls.key names 2: ",
            ),
        ] {
            let error = pairs(flags, file).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn enabling_tls_needs_a_restart() {
        let [plain, one, other] = ["", "a", "b"].map(|file| {
            let text = format!("[tls]\ncertificate = \"{file}\"\nkey = \"{file}\"");
            settings(&[], if file.is_empty() { "" } else { &text }).unwrap()
        });
        assert_eq!((plain.needs_restart(&one), one.needs_restart(&plain)), (vec!["tls"], vec!["tls"]));
        assert!(one.needs_restart(&other).is_empty());
    }
}
