//! The broker that stores the streams.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs};

use clap::Arg;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sinews_brokers::BrokerConfigError;
use sinews_stream::broker::Broker;

use crate::config::file::ConfigFile;
use crate::config::flags::setting_args;
use crate::config::resolver::{SettingGroup, SettingNames, SettingResolver};
use crate::config::schema::settings;
use crate::config::units::Redacted;

settings! {
    /// The broker that stores the streams.
    pub(crate) struct StoreKeys in "streams", "Streams of a broker" {
        /// Broker that stores the streams, so that many nodes can serve them: kafka://host:9092,host, redis://host or
        /// nats://host; with TLS kafka+tls://, rediss:// and nats+tls://. {streams.directory} then holds a copy on this
        /// node, at most {streams.retain_bytes} (1g) of each partition; without a directory, the copy is rebuilt at
        /// each start. Each engine is a build feature of the program.
        store: Option<Redacted> {
            placeholder: "URL",
            expected: "a string such as \"kafka://host:9092\", \"redis://host\" or \"nats://host\"",
            example: "kafka://one:9092,two:9092",
            alias: "store",
        }

        /// Settings of the broker's client library, such as linger.ms=5. They may also follow the `?` of the URL. In a
        /// variable, blanks separate them.
        store_settings: Option<Vec<Redacted>> {
            placeholder: "NAME=VALUE",
            expected: "a string such as \"linger.ms=5\"",
            example: "linger.ms=5 compression.type=lz4",
            alias: "store-setting",
            separator: ' ',
        }

        /// Password of the broker's user in {streams.store}. Other users of this machine can read a command line:
        /// prefer {streams.store_password_file}, or the environment variable.
        store_password: Option<Redacted> { placeholder: "PASSWORD", example: "..." }

        /// File with the password of the broker's user; one line break at its end is ignored.
        store_password_file: Option<PathBuf> { example: "/etc/sinews/broker" }
    }
}

setting_args! {
    /// The broker of `sinews streams copy`.
    pub(crate) struct StoreArgs(StoreKeys::TABLE.args().map(target))
}

/// Describes the broker as a copy's target.
fn target(arg: Arg) -> Arg {
    if arg.get_id() != "streams_store" {
        return arg;
    }
    arg.help(
        "Broker to copy to: kafka://host:9092,host, redis://host or nats://host; with TLS kafka+tls://, rediss:// and \
         nats+tls://. Each engine is a build feature of the program",
    )
}

/// The broker's address and client settings.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    url: String,
    password: Option<PasswordSource>,
    settings: BTreeMap<String, String>,
    keys: StoreKeys,
    names: SettingNames,
}

#[derive(Clone, PartialEq, Eq)]
enum PasswordSource {
    Value(String),
    File(PathBuf),
}

impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings may be logged; URLs and client settings may contain secrets.
        f.debug_tuple("Store").field(&self.location()).finish()
    }
}

impl SettingGroup for Option<StoreSettings> {
    fn resolve(resolver: &mut SettingResolver<'_>) -> Result<Self, String> {
        let keys = StoreKeys::resolve(resolver)?;
        let names = &resolver.names;
        let Some(Redacted(url)) = keys.store.clone() else {
            let alone = [
                (SETTINGS, keys.store_settings.is_some()),
                (PASSWORD, keys.store_password.is_some()),
                (PASSWORD_FILE, keys.store_password_file.is_some()),
            ];
            return match alone.iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => Err(format!("{}: needs streams.store (--store)", names.resolve(key))),
                None => Ok(None),
            };
        };
        let password = match (keys.store_password.clone(), keys.store_password_file.clone()) {
            (Some(_), Some(_)) => {
                let given = [names.resolve(PASSWORD), names.resolve(PASSWORD_FILE)].join(", ");
                return Err(format!("{given}: only one of these may be set"));
            }
            (Some(Redacted(given)), None) => Some(PasswordSource::Value(given)),
            (None, path) => path.map(PasswordSource::File),
        };
        let mut settings = BTreeMap::new();
        for Redacted(setting) in keys.store_settings.iter().flatten() {
            let Some((key, value)) = setting.split_once('=') else {
                let name = names.resolve(SETTINGS);
                return Err(format!("{name}: expected a name and a value, such as linger.ms=5"));
            };
            settings.insert(key.trim().to_owned(), value.trim().to_owned());
        }
        Ok(Some(StoreSettings { url, password, settings, keys, names: names.clone() }))
    }

    fn list_restarts(&self, new: &Self, restarts: &mut Vec<&'static str>) {
        match (self, new) {
            (Some(old), Some(new)) => old.keys.list_restarts(&new.keys, restarts),
            (None, None) => {}
            _ => restarts.push(URL),
        }
    }
}

impl StoreSettings {
    /// Returns the settings for a command without a configuration file.
    pub(crate) fn from_args(args: &StoreArgs) -> Result<Option<Self>, String> {
        Option::resolve(&mut SettingResolver::new(&args.0, &ConfigFile::default()))
    }

    /// Connects in the background. Engines that do not know a stream's partitions use `partitions`.
    pub(crate) fn connect(&self, partitions: u32) -> Result<Arc<dyn Broker>, String> {
        let mut settings = self.settings.clone();
        if partitions > 1 && !self.url.to_ascii_lowercase().starts_with("kafka") {
            settings.entry("partitions".to_owned()).or_insert_with(|| partitions.to_string());
        }
        sinews_brokers::connect(&self.url_with_password()?, &settings)
            .map_err(|error| format!("{}: {}", self.names.resolve(URL), broker_fault(&error)))
    }

    fn url_with_password(&self) -> Result<String, String> {
        let is_file = matches!(self.password, Some(PasswordSource::File(_)));
        let name = self.names.resolve(if is_file { PASSWORD_FILE } else { PASSWORD });
        let password = match &self.password {
            None => return Ok(self.url.clone()),
            Some(PasswordSource::Value(password)) => password.clone(),
            Some(PasswordSource::File(path)) => {
                read_password(path).map_err(|error| format!("{name}: {error}"))?
            }
        };
        with_password(&self.url, &password)
            .ok_or_else(|| format!("{name}: {} already has a password", self.names.resolve(URL)))
    }

    /// Returns the broker's identity, without secrets.
    pub(super) fn location(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let hosts = rest.split('?').next().unwrap_or_default();
        let hosts = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
        format!("{scheme}://{}", hosts.trim_end_matches('/'))
    }

    /// Returns the name prefix at the broker.
    pub(super) fn prefix(&self) -> &str {
        let (_, query) = self.url.split_once('?').unwrap_or_default();
        let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix="));
        prefix.or_else(|| self.settings.get("prefix").map(String::as_str)).unwrap_or_default()
    }
}

/// The text of an error; for a missing feature, with the command that builds the program with it.
pub(super) fn broker_fault(error: &BrokerConfigError) -> String {
    match error {
        BrokerConfigError::NotBuilt { feature } => {
            format!("{error}: build it with `cargo install --path crates/cli --features {feature}`")
        }
        _ => error.to_string(),
    }
}

/// Reads a password; one line break at its end is ignored.
///
/// # Errors
/// The file, and the reason.
pub(super) fn read_password(path: &Path) -> Result<String, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.strip_suffix('\n').map_or(&*text, |text| text.trim_end_matches('\r')).to_owned())
}

/// Adds a password to a broker's URL; `None` if it has one.
pub(super) fn with_password(url: &str, password: &str) -> Option<String> {
    let Some((scheme, rest)) = url.split_once("://") else { return Some(url.to_owned()) };
    let (hosts, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
    // The path of a socket may have an `@`.
    let user_end = if hosts.starts_with('/') { None } else { hosts.find("@/").or_else(|| hosts.rfind('@')) };
    let (user, hosts) = user_end.map_or(("", hosts), |at| (&hosts[..at], &hosts[at + 1..]));
    let password = utf8_percent_encode(password, NON_ALPHANUMERIC);
    (!user.contains(':')).then(|| format!("{scheme}://{user}:{password}@{hosts}{query}"))
}

const URL: &str = "streams.store";
const SETTINGS: &str = "streams.store_settings";
const PASSWORD: &str = "streams.store_password";
const PASSWORD_FILE: &str = "streams.store_password_file";

#[cfg(test)]
mod tests {
    use super::super::tests::settings;
    use super::*;

    fn store(flags: &[&str], file: &str) -> StoreSettings {
        settings(flags, file).unwrap().streams.store().cloned().unwrap()
    }

    #[test]
    fn password_comes_from_any_source_and_is_never_printed() {
        let whole = |flags: &[&str]| store(flags, "").url_with_password();
        assert_eq!(whole(&["--store", "redis://a"]), Ok("redis://a".to_owned()));
        let password = ["--streams-store-password", "p@s/s"];
        let given = |url| whole(&[&["--store", url][..], &password].concat());
        assert_eq!(given("kafka://ann@a:1,b?x=1"), Ok("kafka://ann:p%40s%2Fs@a:1,b?x=1".to_owned()));
        assert_eq!(given("redis://a"), Ok("redis://:p%40s%2Fs@a".to_owned()));
        assert_eq!(given("redis+unix:///a@b"), Ok("redis+unix://:p%40s%2Fs@/a@b".to_owned()));
        assert_eq!(given("redis+unix://ann@/a@b"), Ok("redis+unix://ann:p%40s%2Fs@/a@b".to_owned()));
        assert_eq!(
            given("redis://ann:b@a").unwrap_err(),
            "--streams-store-password: --streams-store already has a password"
        );
        let shown = format!("{:?}", settings(&["--store", "nats://u:secret@h?token=secret"], "").unwrap());
        assert!(shown.contains("nats://h") && !shown.contains("secret"), "{shown}");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("password");
        fs::write(&path, "word\n").unwrap();
        let file = format!("[streams]\nstore = \"redis://a\"\nstore_password_file = {path:?}");
        assert_eq!(store(&[], &file).url_with_password(), Ok("redis://:word@a".to_owned()));
    }

    #[test]
    fn broker_settings_need_a_restart() {
        let with = |line: &str| settings(&[], &format!("[streams]\nstore = \"redis://a\"\n{line}")).unwrap();
        let old = with("");
        for (line, name) in [
            ("store_settings = \"maxlen=7\"", "streams.store_settings"),
            ("store_password = \"a\"", "streams.store_password"),
            ("store_password_file = \"a\"", "streams.store_password_file"),
        ] {
            assert_eq!(old.needs_restart(&with(line)), [name]);
        }
    }

    #[test]
    fn invalid_settings_are_reported_with_their_source() {
        for (flags, message) in [
            (&["--streams-store-password", "a"][..], "--streams-store-password: needs streams.store"),
            (
                &["--store", "redis://a", "--store-setting", "maxlen"],
                "--streams-store-settings: expected a name",
            ),
        ] {
            let error = settings(flags, "").unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        let error = store(&["--store", "mqtt://a"], "").connect(1).err().unwrap();
        assert!(error.starts_with("--streams-store: ") && error.contains("kafka"), "{error}");
    }

    #[test]
    #[cfg(not(feature = "redis"))]
    fn missing_engine_is_reported_with_the_build_command() {
        let error = store(&["--store", "redis://a"], "").connect(1).err().unwrap();
        assert!(error.contains("cargo install --path crates/cli --features redis"), "{error}");
    }

    #[test]
    fn location_and_prefix_identify_the_broker() {
        let identity = |flags: &[&str]| {
            let store = store(flags, "");
            (store.location(), store.prefix().to_owned())
        };
        let one = ("redis://one".to_owned(), "a".to_owned());
        assert_eq!(identity(&["--store", "redis://u:p@one?prefix=a"]), one);
        assert_eq!(identity(&["--store", "redis://one", "--store-setting", "prefix=a"]), one);
        assert_eq!(identity(&["--store", "redis://one"]), ("redis://one".to_owned(), String::new()));
    }
}
