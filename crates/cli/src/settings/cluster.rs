//! The server cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use clap::ValueEnum;
use sinews_brokers::BrokerConfigError;
use sinews_hub::{ClusterOptions, HubError, StoreAway};
use sinews_store::TopicStore;

use super::store::{broker_fault, read_password, with_password};
use crate::config::resolver::SettingNames;
use crate::config::schema::settings;
use crate::config::units::Redacted;
use crate::config::value::choice;

settings! {
    /// A cluster of servers behind a load balancer: messages, members and commands reach the clients of all nodes, over a
    /// broker. Changes of this table need a restart.
    pub(crate) struct ClusterSettings in "cluster", "Cluster" {
        /// Broker that connects the nodes: nats://host:4222,host, redis://host, redis+unix:///path,
        /// redis+sentinel://host,host/SERVICE or redis+cluster://host,host; with TLS nats+tls://, rediss://,
        /// rediss+sentinel:// and rediss+cluster://. Of several servers or services of Redis, as {cluster.store} has them,
        /// the first one connects the nodes. Behind `?`, joined by
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

        /// Server that stores the histories and keys of topics for all nodes: redis://host, redis+unix:///path,
        /// redis+sentinel://host,host/SERVICE, redis+cluster://host,host or nats://host,host; with TLS rediss://,
        /// rediss+sentinel://, rediss+cluster:// and nats+tls://. Topics are divided between several independent servers
        /// (redis://one,two) or services of Sentinel (/ONE,TWO), by their order. At Redis, `?replica.wait.ms=N` lets each
        /// write wait up to N milliseconds (1 to 1000) for a replica: an acknowledged write is at a replica, and any other
        /// gets 503 with `unknown`.
        /// It is Redis or Valkey from version 7.0 on, or NATS from version 2.11 on with JetStream. A client resumes at any
        /// node, and a condition on a key holds for all nodes. The URL has the options of {cluster.url} and its own user and
        /// password. `none`: each node of a cluster has its own histories, and requests for keys get 422. Redis and NATS are
        /// build features of the program: without the feature for {cluster.url}, the default is `none`. Without
        /// {cluster.url}, one server stores its histories and keys there, so that they survive a restart.
        store: Option<Redacted> {
            unset: "the broker of {cluster.url}",
            placeholder: "URL",
            expected: "a string such as \"redis://host\" or \"none\"",
            example: "redis://host:6379",
        }

        /// What happens with publications to topics with a history while {cluster.store} is away. `reject` rejects them
        /// with 503. `deliver` sends them to the connected subscribers of all nodes, without a position and a history:
        /// their acknowledgements have `"stored":false`. When the store is back, subscribers of these topics get a
        /// `reset`, and clients that resume from before get `"complete":false`. Keys are rejected in either case.
        store_away: StoreAwaySetting { default: "reject", placeholder: "ACTION" }

        /// File with the password of the broker's user in {cluster.url}; one line break at its end is ignored.
        password_file: Option<PathBuf> { example: "/etc/sinews/cluster" }

        /// Name of this node in lists of nodes.
        node_name: Option<String> { unset: "the host name", placeholder: "NAME", example: "eu-1" }
    }
}

/// Action on publications to topics with a history while the topic store is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StoreAwaySetting {
    Reject,
    Deliver,
}

choice!(StoreAwaySetting);

impl From<StoreAwaySetting> for StoreAway {
    fn from(setting: StoreAwaySetting) -> Self {
        match setting {
            StoreAwaySetting::Reject => Self::Reject,
            StoreAwaySetting::Deliver => Self::Deliver,
        }
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
        if self.password_file.is_some() {
            options.check_password().map_err(describe(PASSWORD_FILE))?;
            options = ClusterOptions::parse(&self.with_password(url, names)?).map_err(describe(URL))?;
        }
        if let Some(name) = &self.node_name {
            options = options.with_name(name).map_err(describe(NAME))?;
        }
        Ok(Some(options))
    }

    /// Creates the topic store, if there is one. It connects when it is started.
    ///
    /// # Errors
    /// Returns the invalid setting, and the reason.
    pub(crate) fn topic_store(&self, names: &SettingNames) -> Result<Option<Arc<dyn TopicStore>>, String> {
        let store = self.find_topic_store(names)?;
        if store.is_none() && self.store_away == StoreAwaySetting::Deliver {
            return Err(format!("{}: needs a topic store: cluster.store", names.resolve(STORE_AWAY)));
        }
        Ok(store)
    }

    fn find_topic_store(&self, names: &SettingNames) -> Result<Option<Arc<dyn TopicStore>>, String> {
        let (key, url) = match (&self.store, &self.url) {
            (Some(Redacted(store)), _) if store == NO_STORE => return Ok(None),
            (Some(Redacted(store)), _) => (STORE, store.clone()),
            (None, Some(Redacted(url))) => (URL, self.with_password(url, names)?),
            (None, None) => return Ok(None),
        };
        match sinews_brokers::connect_topic_store(&url, &BTreeMap::new()) {
            Ok(store) => Ok(Some(store)),
            Err(error @ BrokerConfigError::NotBuilt { .. }) if key == URL => {
                tracing::warn!("each node has its own histories, and rejects keys: {}", broker_fault(&error));
                Ok(None)
            }
            Err(error) => Err(format!("{}: {}", names.resolve(key), broker_fault(&error))),
        }
    }

    /// Adds the password in the file to the URL.
    fn with_password(&self, url: &str, names: &SettingNames) -> Result<String, String> {
        let Some(path) = &self.password_file else { return Ok(url.to_owned()) };
        let fault = |error| format!("{}: {error}", names.resolve(PASSWORD_FILE));
        let password = read_password(path).map_err(fault)?;
        with_password(url, &password)
            .ok_or_else(|| fault(format!("{} already has a password", names.resolve(URL))))
    }
}

/// The value of the setting for no topic store.
const NO_STORE: &str = "none";

const STORE: &str = "cluster.store";
const STORE_AWAY: &str = "cluster.store_away";
const URL: &str = "cluster.url";
const PASSWORD_FILE: &str = "cluster.password_file";
const NAME: &str = "cluster.node_name";

#[cfg(test)]
mod tests {
    use crate::settings::ServeSettings;
    use crate::settings::tests::settings;

    fn options(flags: &[&str]) -> Result<Option<String>, String> {
        let settings = settings(flags, "")?;
        Ok(settings.cluster.options(&settings.names)?.map(|options| options.to_string()))
    }

    /// Whether there is a topic store.
    fn has_store(flags: &[&str]) -> Result<bool, String> {
        let settings = settings(flags, "")?;
        Ok(settings.cluster.topic_store(&settings.names)?.is_some())
    }

    #[test]
    fn topic_store_is_the_broker_of_the_cluster_by_default() {
        assert_eq!(has_store(&[]), Ok(false));
        for (url, is_built) in [
            ("nats://u:secret@one,two", cfg!(feature = "nats")),
            ("redis+sentinel://one,two/main?prefix=a", cfg!(feature = "redis")),
        ] {
            let cluster = ["--cluster", url];
            assert_eq!(has_store(&cluster), Ok(is_built), "{url}");
            assert_eq!(has_store(&[&cluster[..], &["--cluster-store", "none"]].concat()), Ok(false));
            // Without a cluster, the histories and keys of one server are there.
            let own = has_store(&["--cluster-store", url]);
            match is_built {
                true => assert_eq!(own, Ok(true)),
                false => assert!(own.is_err_and(|error| {
                    error.starts_with("--cluster-store: this program was built without the feature `")
                        && error.contains("cargo install --path crates/cli --features ")
                        && !error.contains("secret")
                })),
            }
        }
        assert!(
            !format!("{:?}", settings(&["--cluster-store", "nats://u:secret@a"], "").unwrap())
                .contains("secret")
        );
    }

    #[test]
    fn action_while_the_store_is_away_needs_a_store() {
        for store in [&[][..], &["--cluster-store", "none"]] {
            let error = has_store(&[store, &["--cluster-store-away", "deliver"]].concat()).unwrap_err();
            assert!(error.starts_with("--cluster-store-away: needs a topic store: cluster.store"), "{error}");
            assert_eq!(has_store(&[store, &["--cluster-store-away", "reject"]].concat()), Ok(false));
        }
    }

    #[test]
    fn book_names_the_promises_of_each_store() {
        let book = include_str!("../../../../docs/book/src/operate/cluster.md");
        for (url, is_built) in [("redis://a", cfg!(feature = "redis")), ("nats://a", cfg!(feature = "nats"))]
        {
            if !is_built {
                continue;
            }
            let settings = settings(&["--cluster-store", url], "").unwrap();
            let store = settings.cluster.topic_store(&settings.names).unwrap().unwrap();
            let promises = store.capabilities().to_string();
            let line = format!("| `{}` |", promises.replacen(": ", "` | `", 1).replace("; ", "` | `"));
            assert!(book.contains(&line), "the book has no row {line}");
        }
    }

    #[test]
    fn invalid_url_of_the_topic_store_is_reported_without_its_password() {
        let mut faults =
            vec![("kafka://u:secret@a", "the schemes are redis"), ("u:secret@a", "the schemes are redis")];
        if cfg!(feature = "redis") {
            faults.push(("redis://u:secret@a/3", "path"));
            faults.push(("redis://u:secret@a?prefx=b", "prefix"));
            faults.push(("redis://u:secret", "port"));
        }
        if cfg!(feature = "nats") {
            faults.push(("nats://u:secret@a?prefix=b.c", "letters, digits and dashes"));
        }
        for (url, reason) in faults {
            let error = has_store(&["--cluster-store", url]).unwrap_err();
            assert!(error.starts_with("--cluster-store: ") && error.contains(reason), "{error}");
            assert!(!error.contains("secret"), "{error}");
        }
        // The bus permits this prefix.
        let error = has_store(&["--cluster", "nats://u:secret@a?prefix=b_c"]);
        assert_eq!(error.clone().is_err(), cfg!(feature = "nats"));
        assert!(error.err().is_none_or(|error| error.starts_with("--cluster") && !error.contains("secret")));
    }

    #[test]
    fn password_file_is_for_the_bus_and_the_default_topic_store() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, "p@ss\n").unwrap();
        let path = file.path().display().to_string();
        let url = |flags: &[&str]| {
            let flags = [flags, &["--cluster-password-file", &path]].concat();
            let ServeSettings { cluster, names, .. } = settings(&flags, "").unwrap();
            cluster.options(&names)?;
            cluster.with_password(&cluster.url.as_ref().unwrap().0, &names)
        };
        assert_eq!(
            url(&["--cluster", "redis://ann@a?prefix=b"]),
            Ok("redis://ann:p%40ss@a?prefix=b".to_owned())
        );
        assert_eq!(
            url(&["--cluster", "redis://ann:secret@a"]),
            Err("--cluster-password-file: --cluster-url already has a password".to_owned())
        );
        let missing = ["--cluster", "redis://a", "--cluster-password-file", "/nonexistent"];
        assert!(has_store(&missing).unwrap_err().starts_with("--cluster-password-file: /nonexistent"));
        // The store's own URL has its own password.
        let own =
            ["--cluster-store", "none", "--cluster", "redis://a", "--cluster-password-file", "/nonexistent"];
        assert_eq!(has_store(&own), Ok(false));
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
