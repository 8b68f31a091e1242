//! The settings as the reference in the book lists them. A unit test keeps it equal to their definitions, so that a test over this list
//! has a new setting, too.

use crate::auth::SECRET;

/// A setting of the reference.
#[derive(Debug)]
pub(crate) struct ReferenceSetting {
    /// The name with its table, such as `webhook.*.secret_file`.
    pub(crate) name: String,
    pub(crate) table: String,
    pub(crate) key: String,
    /// The type of its values.
    pub(crate) kind: String,
    pub(crate) reloads: bool,
}

/// Settings with free text that is no secret: errors may repeat it, but no password of a URL in it. Any other setting with free text
/// counts as one that may have a secret.
const PUBLIC: [&str; 28] = [
    "admin.listen",
    "auth.audience",
    "auth.issuer",
    "auth.personal_topics",
    "auth.public_publish",
    "auth.public_subscribe",
    "cluster.node_name",
    "history",
    "hooks.headers",
    "hosts",
    "listen",
    "log",
    "origin",
    "pusher.app[].id",
    "pusher.app[].key",
    "pusher.app[].name",
    "pusher.app[].origins",
    "pusher.app[].topics",
    "pusher.app[].webhook_channels",
    "pusher.app[].webhook_channel_suffixes",
    "pusher.path_prefix",
    "streams.compact",
    "streams.fsync",
    "streams.durable_keys",
    "streams.listen",
    "streams.durable_topics",
    "trusted_proxies",
    "webhook.*.topics",
];

/// Begins of the types whose values are numbers, or words that the program knows.
const CLOSED: [&str; 5] =
    ["true or false", "a whole number", "a number of", "a string with a number", "a string of octal digits"];

/// Lists all settings.
pub(crate) fn settings() -> Vec<ReferenceSetting> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/reference/settings.md");
    let page = std::fs::read_to_string(path).unwrap();
    let read = |line: &str| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split(" | ").collect();
        let (name, kind) = (cells[0].trim_end_matches('`'), cells[1]);
        let (table, key) = name.rsplit_once('.').unwrap_or(("", name));
        let reloads = match cells[3] {
            "reload" => true,
            "restart" => false,
            other => panic!("{name}: {other}"),
        };
        let [name, table, key, kind] = [name, table, key, kind].map(str::to_owned);
        Some(ReferenceSetting { name, table, key, kind, reloads })
    };
    page.lines().filter_map(read).collect()
}

impl ReferenceSetting {
    pub(crate) fn is_file(&self) -> bool {
        self.kind.starts_with("the path of a file")
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind.starts_with("the path of a directory")
    }

    /// Whether its values may be secrets, or have one.
    pub(crate) fn may_have_secret(&self) -> bool {
        !self.is_closed() && !PUBLIC.contains(&&*self.name)
    }

    /// Whether its values are numbers, or words that the program knows.
    fn is_closed(&self) -> bool {
        // Between the words of an enumeration, there are only separators.
        let is_separator = |text: &str| ["", ",", "or", ", or a list of them"].contains(&text.trim());
        CLOSED.iter().any(|begin| self.kind.starts_with(begin))
            || self.kind.split('"').step_by(2).all(is_separator)
    }

    /// Whether only a file of settings has it.
    pub(crate) fn is_in_section(&self) -> bool {
        self.table.contains(['*', '['])
    }

    /// The setting with a value, and those without which it is invalid.
    pub(crate) fn with(&self, value: &str) -> Vec<(&str, String)> {
        let mut all = vec![(&*self.key, value.to_owned())];
        let mut needs = |key: &'static str, value: &str| {
            if all.iter().all(|(known, _)| *known != key) {
                all.push((key, value.to_owned()));
            }
        };
        let (table, key) = (&*self.table, &*self.key);
        match (table, key) {
            ("tls", "certificate") => needs("key", value),
            ("tls", "key") => needs("certificate", value),
            ("cluster", "password_file") => needs("url", "nats://ann@127.0.0.1:1"),
            ("streams", key) if key.starts_with("store_") => needs("store", "nats://ann@127.0.0.1:1"),
            ("hooks", "ca_file" | "signing_key" | "signing_key_file") => {
                needs("connect", "https://127.0.0.1:1/");
            }
            ("auth", "jwks_ca_file") => needs("jwks_url", "https://127.0.0.1:1/"),
            ("webhook.*", _) => needs("url", "https://127.0.0.1:1/"),
            ("pusher.app[]", _) => {
                needs("id", "1");
                needs("key", "k");
                if key.starts_with("webhook_") {
                    needs("webhooks", "https://app.example/");
                }
            }
            _ => {}
        }
        if self.is_in_section()
            && !["secret", "secret_file"].contains(&key)
            && !table.starts_with("namespace")
        {
            needs("secret", SECRET);
        }
        all
    }

    /// A file of settings with these keys of its table.
    pub(crate) fn file(&self, keys: &[(&str, String)]) -> String {
        let header = match &*self.table {
            "" => String::new(),
            "pusher.app[]" => "[[pusher.app]]\n".to_owned(),
            table => format!("[{}]\n", table.replace('*', "a")),
        };
        let lines: String = keys.iter().map(|(key, value)| format!("{key} = {value:?}\n")).collect();
        header + &lines
    }

    /// The flags with these keys of its table.
    pub(crate) fn flags(&self, keys: &[(&str, String)]) -> Vec<String> {
        let flag = |(key, value): &(&str, String)| {
            format!("--{}={value}", self.names(key).join("-").replace(['_', '.'], "-"))
        };
        keys.iter().map(flag).collect()
    }

    /// The environment variable of a key of its table.
    pub(crate) fn variable(&self, key: &str) -> String {
        format!("SINEWS_{}", self.names(key).join("_").to_uppercase())
    }

    fn names<'a>(&'a self, key: &'a str) -> Vec<&'a str> {
        [&*self.table, key].into_iter().filter(|name| !name.is_empty()).collect()
    }
}

#[test]
fn reference_has_settings_of_all_tables() {
    let settings = settings();
    assert!(settings.len() > 150, "{}", settings.len());
    for name in ["listen", "auth.jwks_url", "webhook.*.url", "pusher.app[].secret", "namespace.*.rpc_hook"] {
        assert!(settings.iter().any(|setting| setting.name == name), "{name}");
    }
    for name in PUBLIC {
        assert!(settings.iter().any(|setting| setting.name == name), "{name}");
    }
}
