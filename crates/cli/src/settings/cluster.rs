//! The server cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use sinews_brokers::BrokerConfigError;
use sinews_hub::{ClusterOptions, HubError};
use sinews_store::TopicStore;

use super::store::{read_password, with_password};
use crate::config::resolver::SettingNames;
use crate::config::schema::settings;
use crate::config::units::Redacted;

settings! {
    /// A cluster of servers behind a load balancer: messages, members and commands reach the clients of all nodes, over a
    /// broker. Changes of this table need a restart.
    pub(crate) struct ClusterSettings in "cluster", "Cluster" {
        /// Broker that connects the nodes: nats://host:4222,host, redis://host, redis+unix:///path or
        /// redis+sentinel://host,host/SERVICE; with TLS nats+tls://, rediss:// and rediss+sentinel://. Behind `?`, joined by
        /// `&`: `tls.ca=FILE`, `tls.cert=FILE` and `tls.key=FILE`; at NATS `credentials=FILE` or `nkey=FILE`. Publications
        /// to a topic reach the subscribers of all nodes with the same broker and prefix (`?prefix=NAME`, by default
        /// `sinews`). Durable topics need {streams.store}. Histories and keys are in {cluster.store}. Without this setting,
        /// the server has no other nodes.
        url: Option<Redacted> {
            placeholder: "URL",
            expected: "a string such as \"nats://host:4222\" or \"redis://host\"",
            example: "nats://one:4222,two:4222",
            alias: "cluster",
        }

        /// Topic store, which has the histories and the keys of all nodes: redis://host, redis+sentinel://host,host/SERVICE,
        /// redis+unix:///path or nats://host; with TLS rediss:// and nats+tls://. Redis 7 or later, or NATS 2.11 or later
        /// with JetStream. A client resumes at any node, and a condition on a key holds for all nodes. With `none`, each
        /// node has its own histories, and keys cannot be written. Redis and NATS are build features of the program:
        /// without the feature of {cluster.url}, the default is `none`.
        store: Option<Redacted> {
            unset: "the broker of {cluster.url}",
            placeholder: "URL",
            expected: "a string such as \"redis://host\" or \"none\"",
            example: "redis://host:6379",
        }

        /// File with the password of the broker's user in {cluster.url}; one line break at its end is ignored.
        password_file: Option<PathBuf> { example: "/etc/sinews/cluster" }

        /// Name of this node in lists of nodes.
        node_name: Option<String> { unset: "the host name", placeholder: "NAME", example: "eu-1" }
    }
}

impl ClusterSettings {
    /// Returns the options for the hub's cluster, if it is configured.
    ///
    /// # Errors
    /// Returns the invalid setting, and the reason.
    pub(crate) fn options(&self, names: &SettingNames) -> Result<Option<ClusterOptions>, String> {
        let Some(Redacted(url)) = &self.url else {
            let alone = [(PASSWORD_FILE, self.password_file.is_some()), (NAME, self.node_name.is_some())];
            return match alone.iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => Err(format!("{}: needs cluster.url (--cluster)", names.resolve(key))),
                None => Ok(None),
            };
        };
        let describe = |key: &'static str| move |error: HubError| format!("{}: {error}", names.resolve(key));
        let mut options = ClusterOptions::parse(url).map_err(describe(URL))?;
        if let Some(path) = &self.password_file {
            options.check_password().map_err(describe(PASSWORD_FILE))?;
            let password = read_password(path);
            let password = password.map_err(|error| format!("{}: {error}", names.resolve(PASSWORD_FILE)))?;
            options = options.with_password(password);
        }
        if let Some(name) = &self.node_name {
            options = options.with_name(name).map_err(describe(NAME))?;
        }
        Ok(Some(options))
    }
}

impl ClusterSettings {
    /// Connects to the topic store in the background, if there is one.
    ///
    /// # Errors
    /// Returns the invalid setting, and the reason.
    pub(crate) fn topic_store(&self, names: &SettingNames) -> Result<Option<Arc<dyn TopicStore>>, String> {
        let is_own = self.store.is_some();
        let Some(Redacted(url)) = self.store.as_ref().or(self.url.as_ref()) else { return Ok(None) };
        if is_own && url == NO_STORE {
            return Ok(None);
        }
        let url = match (&self.password_file, is_own) {
            (Some(path), false) => {
                let password = read_password(path)
                    .map_err(|error| format!("{}: {error}", names.resolve(PASSWORD_FILE)))?;
                with_password(url, &password).unwrap_or_else(|| url.clone())
            }
            _ => url.clone(),
        };
        match sinews_brokers::connect_topic_store(&url, &BTreeMap::new()) {
            Ok(store) => Ok(Some(store)),
            Err(BrokerConfigError::NotBuilt { feature }) if !is_own => {
                tracing::warn!(
                    "each node has its own histories, and rejects keys: this build has no topic store for {feature} \
                     (`cargo build --features {feature}`)"
                );
                Ok(None)
            }
            Err(BrokerConfigError::NotBuilt { feature }) => Err(format!(
                "{}: this build has no topic store for {feature}: build it with `cargo build --features {feature}`",
                names.resolve(STORE)
            )),
            Err(error) => Err(format!("{}: {error}", names.resolve(if is_own { STORE } else { URL }))),
        }
    }
}

/// The value of the setting for no topic store.
const NO_STORE: &str = "none";

const STORE: &str = "cluster.store";
const URL: &str = "cluster.url";
const PASSWORD_FILE: &str = "cluster.password_file";
const NAME: &str = "cluster.node_name";

#[cfg(test)]
mod tests {
    use crate::settings::tests::settings;

    fn options(flags: &[&str]) -> Result<Option<String>, String> {
        let settings = settings(flags, "")?;
        Ok(settings.cluster.options(&settings.names)?.map(|options| options.to_string()))
    }

    #[test]
    fn cluster_has_a_valid_url() {
        assert_eq!(options(&[]), Ok(None));
        let url = ["--cluster", "nats://u:secret@one,two"];
        assert_eq!(options(&url), Ok(Some("nats://one:4222,two:4222".to_owned())));
        assert!(!format!("{:?}", settings(&url, "").unwrap().cluster).contains("secret"));
        let error = options(&["--cluster", "kafka://one"]).unwrap_err();
        assert!(error.starts_with("--cluster") && error.contains("nats"), "{error}");
        let url = ["--cluster", "rediss+sentinel://:secret@one,two/main"];
        let shown = "rediss+sentinel://one:26379,two:26379/main".to_owned();
        assert_eq!(options(&url), Ok(Some(shown)));
        let error = options(&["--cluster", "rediss://:secret@one?tls.ca=/nonexistent"]).unwrap_err();
        assert!(error.starts_with("--cluster"), "{error}");
        assert!(error.contains("tls.ca: /nonexistent: ") && !error.contains("secret"), "{error}");
        let file = tempfile::NamedTempFile::new().unwrap();
        let seed = "SUACSSL3UAHUDXKFSNVUZRF5UHPMWZ6BFDTJ7M6USDXIEDNPPQYYYCU3VY";
        std::fs::write(&file, seed).unwrap();
        let url = format!("nats://one?nkey={}", file.path().display());
        assert_eq!(options(&["--cluster", &url]), Ok(Some("nats://one:4222".to_owned())));
        let error = options(&["--cluster", &url, "--cluster-password-file", "/x"]).unwrap_err();
        assert!(error.starts_with("--cluster-password-file: the login is by"), "{error}");
        let error = options(&["--cluster-node-name", "a"]).unwrap_err();
        assert!(error.starts_with("--cluster-node-name: needs"), "{error}");
        let error = options(&["--cluster", "nats://a", "--cluster-node-name", ""]).unwrap_err();
        assert!(error.starts_with("--cluster-node-name: "), "{error}");
        let error =
            options(&["--cluster", "nats://a", "--cluster-password-file", "/nonexistent"]).unwrap_err();
        assert!(error.starts_with("--cluster-password-file: /nonexistent"), "{error}");
    }
}
