//! The server cluster.

use std::fs;
use std::path::PathBuf;

use sinews_hub::{ClusterOptions, HubError};

use crate::config::resolver::SettingNames;
use crate::config::schema::settings;
use crate::config::units::Redacted;

settings! {
    /// A cluster of servers behind a load balancer: messages, members and commands reach the clients of all nodes, over a
    /// broker. Changes of this table need a restart.
    pub(crate) struct ClusterSettings in "cluster", "Cluster" {
        /// Broker that connects the nodes: nats://host:4222,host, redis://host, redis+unix:///path or
        /// redis+sentinel://host,host/SERVICE; with TLS nats+tls://, rediss:// and rediss+sentinel://. Behind `?`, joined by
        /// `&`: `tls.ca=FILE`, `tls.cert=FILE` and `tls.key=FILE`; at NATS `credentials=FILE` or `nkey=FILE`. Publications to a topic reach the subscribers of all nodes with the same broker and prefix (`?prefix=NAME`, by
        /// default `sinews`). Durable topics need {streams.store}. The nodes share the keys of topics; each node stores
        /// durable keys ({streams.durable_keys}) in its own {streams.directory}. Without this setting, the server has no
        /// other nodes.
        url: Option<Redacted> {
            placeholder: "URL",
            expected: "a string such as \"nats://host:4222\" or \"redis://host\"",
            example: "nats://one:4222,two:4222",
            alias: "cluster",
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
            let text = fs::read_to_string(path);
            let text = text
                .map_err(|error| format!("{}: {}: {error}", names.resolve(PASSWORD_FILE), path.display()))?;
            options = options.with_password(text.strip_suffix('\n').unwrap_or(&text).trim_end_matches('\r'));
        }
        if let Some(name) = &self.node_name {
            options = options.with_name(name).map_err(describe(NAME))?;
        }
        Ok(Some(options))
    }
}

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
