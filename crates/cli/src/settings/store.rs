//! The broker that stores the streams, and the directory with a node's copy.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sinews_stream::broker::{self, Broker, ConnectError};
use sinews_stream::{OpenError, Streams, StreamsConfig};
use tempfile::TempDir;

use super::{Names, Pick};
use crate::args::StoreArgs;
use crate::config::units::{Hidden, OneOrMore};
use crate::config::{File, StreamValues};

/// Address and client settings of the broker.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct StoreSettings {
    url: String,
    password: Option<Password>,
    settings: BTreeMap<String, String>,
    /// Names under which the settings were given.
    url_name: String,
    password_name: String,
}

#[derive(Clone, PartialEq, Eq)]
enum Password {
    Given(String),
    File(PathBuf),
}

impl fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Settings may be logged; URLs and client settings may contain secrets.
        f.debug_tuple("Store").field(&self.place()).finish()
    }
}

impl StoreSettings {
    pub(super) fn merge(
        args: &StoreArgs,
        file: &StreamValues,
        pick: &mut Pick<'_>,
    ) -> Result<Option<Self>, String> {
        let listed = file.store_settings.clone().map(|OneOrMore(list)| list);
        let url = pick.one(URL, &args.streams_store, file.store.clone());
        let settings = pick.one(SETTINGS, &args.streams_store_settings, listed);
        let given = pick.one(PASSWORD, &args.streams_store_password, file.store_password.clone());
        let path =
            pick.one(PASSWORD_FILE, &args.streams_store_password_file, file.store_password_file.clone());
        let name = |key: &'static str| pick.names.of(key).to_owned();
        let is_alone =
            [(SETTINGS, settings.is_some()), (PASSWORD, given.is_some()), (PASSWORD_FILE, path.is_some())];
        let Some(Hidden(url)) = url else {
            return match is_alone.iter().find(|(_, is_given)| *is_given) {
                Some((key, _)) => Err(format!("{}: needs streams.store (--store)", name(key))),
                None => Ok(None),
            };
        };
        let password = match (given, path) {
            (Some(_), Some(_)) => {
                let names = [name(PASSWORD), name(PASSWORD_FILE)].join(", ");
                return Err(format!("{names}: only one of these may be set"));
            }
            (Some(Hidden(given)), None) => Some(Password::Given(given)),
            (None, path) => path.map(Password::File),
        };
        let password_name =
            name(if matches!(password, Some(Password::File(_))) { PASSWORD_FILE } else { PASSWORD });
        let mut known = BTreeMap::new();
        for Hidden(setting) in settings.unwrap_or_default() {
            let Some((key, value)) = setting.split_once('=') else {
                return Err(format!("{}: expected a name and a value, such as linger.ms=5", name(SETTINGS)));
            };
            known.insert(key.trim().to_owned(), value.trim().to_owned());
        }
        Ok(Some(Self { url, password, settings: known, url_name: name(URL), password_name }))
    }

    /// Returns the settings of a command without a configuration file.
    pub(crate) fn of(args: &StoreArgs) -> Result<Option<Self>, String> {
        let mut pick = Pick { file: &File::default(), names: Names::default() };
        Self::merge(args, &StreamValues::default(), &mut pick)
    }

    /// Connects in the background. Engines that do not know a stream's partitions use `partitions`.
    pub(crate) fn connect(&self, partitions: u32) -> Result<Arc<dyn Broker>, String> {
        let mut settings = self.settings.clone();
        if partitions > 1 && !self.url.to_ascii_lowercase().starts_with("kafka") {
            settings.entry("partitions".to_owned()).or_insert_with(|| partitions.to_string());
        }
        broker::connect(&self.url_with_password()?, &settings).map_err(|error| {
            let name = &self.url_name;
            match error {
                ConnectError::NotBuilt { feature } => format!(
                    "{name}: {error}: build it with `cargo install --path crates/cli --features {feature}`"
                ),
                _ => format!("{name}: {error}"),
            }
        })
    }

    fn url_with_password(&self) -> Result<String, String> {
        let name = &self.password_name;
        let password = match &self.password {
            None => return Ok(self.url.clone()),
            Some(Password::Given(password)) => password.clone(),
            Some(Password::File(path)) => {
                let text = fs::read_to_string(path);
                let text = text.map_err(|error| format!("{name}: {}: {error}", path.display()))?;
                text.strip_suffix('\n').map_or(&*text, |text| text.trim_end_matches('\r')).to_owned()
            }
        };
        let whole = |user: &str, scheme: &str, rest: &str| {
            format!("{scheme}://{user}:{}@{rest}", utf8_percent_encode(&password, NON_ALPHANUMERIC))
        };
        let Some((scheme, rest)) = self.url.split_once("://") else { return Ok(self.url.clone()) };
        let (hosts, query) = rest.split_at(rest.find('?').unwrap_or(rest.len()));
        match hosts.rsplit_once('@') {
            None => Ok(whole("", scheme, rest)),
            Some((user, _)) if user.contains(':') => {
                Err(format!("{name}: {} already has a password", self.url_name))
            }
            Some((user, hosts)) => Ok(whole(user, scheme, &format!("{hosts}{query}"))),
        }
    }

    pub(super) fn differ(old: Option<&Self>, new: Option<&Self>) -> [(&'static str, bool); 3] {
        let (Some(a), Some(b)) = (old, new) else {
            return [(URL, old != new), (SETTINGS, false), (PASSWORD, false)];
        };
        [(URL, a.url != b.url), (SETTINGS, a.settings != b.settings), (PASSWORD, a.password != b.password)]
    }

    /// Identity of the broker, without secrets.
    pub(super) fn place(&self) -> String {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", &self.url));
        let hosts = rest.split('?').next().unwrap_or_default();
        let hosts = hosts.rsplit_once('@').map_or(hosts, |(_, hosts)| hosts);
        format!("{scheme}://{}", hosts.trim_end_matches('/'))
    }

    /// Content of the marker file in a directory with a copy of the streams.
    fn marker(&self) -> String {
        let (_, query) = self.url.split_once('?').unwrap_or_default();
        let prefix = query.split('&').find_map(|pair| pair.strip_prefix("prefix="));
        let prefix = prefix.or_else(|| self.settings.get("prefix").map(String::as_str));
        format!("{}\n{}\n", self.place(), prefix.unwrap_or_default())
    }
}

/// A directory of streams.
pub(super) enum Place<'a> {
    Given(PathBuf, Option<&'a StoreSettings>),
    /// Temporary, for the lifetime of this process.
    Made(TempDir),
}

/// Reason why a directory cannot be opened.
pub(super) enum Unopened {
    /// Another process has it open.
    Locked,
    Failed(String),
}

impl fmt::Display for Unopened {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Locked => f.write_str("another process has it open"),
            Self::Failed(why) => f.write_str(why),
        }
    }
}

impl Place<'_> {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Given(path, _) => path,
            Self::Made(made) => made.path(),
        }
    }

    /// Opens the directory. A copy of one broker is never mixed with another broker's, nor with local streams.
    pub(super) fn open(&self, max_streams: usize) -> Result<Streams, Unopened> {
        let path = self.path();
        // Losses are reported in the log.
        let config = StreamsConfig::default().max_waiters(READERS_MAX).max_streams(max_streams);
        let (streams, _) = Streams::open(path, config).map_err(|error| match error {
            OpenError::Locked(_) => Unopened::Locked,
            error => Unopened::Failed(error.to_string()),
        })?;
        if let Self::Given(_, store) = self {
            check_marker(path, *store, &streams).map_err(Unopened::Failed)?;
        }
        Ok(streams)
    }
}

fn check_marker(path: &Path, store: Option<&StoreSettings>, streams: &Streams) -> Result<(), String> {
    let marker = path.join(MARKER);
    let found = match fs::read_to_string(&marker) {
        Ok(found) => Some(found),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(format!("{}: {error}", marker.display())),
    };
    let place = |found: &str| found.lines().next().unwrap_or_default().to_owned();
    match (found, store) {
        (None, None) => Ok(()),
        (Some(found), Some(store)) if found == store.marker() => Ok(()),
        (Some(found), _) => Err(format!(
            "{} has a copy of the streams of {}: name that broker with --store, or remove the directory",
            path.display(),
            place(&found)
        )),
        (None, Some(store)) if streams.count() == 0 => {
            write_whole(&marker, &store.marker()).map_err(|error| format!("{}: {error}", marker.display()))
        }
        (None, Some(_)) => Err(format!(
            "{} has streams that are not copies of a broker's: name another directory, and copy them with `sinews streams copy`",
            path.display()
        )),
    }
}

/// Writes atomically: after a crash, the file is complete or missing.
fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let made = path.with_extension("new");
    let mut file = fs::File::create(&made)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(made, path)
}

/// Maximum number of readers that wait for one partition. Another reader would evict a waiting reader, which returns
/// immediately: with fewer slots than readers, this never ends. A slot takes about 40 bytes, only while in use.
const READERS_MAX: usize = 1 << 20;

/// The file that identifies the broker of a copy.
const MARKER: &str = "store";

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
            ("store_password_file = \"a\"", "streams.store_password"),
        ] {
            assert_eq!(old.needs_restart(&with(line)), [name]);
        }
    }

    #[test]
    fn invalid_settings_are_reported_with_their_source() {
        for (flags, words) in [
            (&["--streams-store-password", "a"][..], "--streams-store-password: needs streams.store"),
            (
                &["--store", "redis://a", "--store-setting", "maxlen"],
                "--streams-store-settings: expected a name",
            ),
        ] {
            let error = settings(flags, "").unwrap_err();
            assert!(error.contains(words), "{error}");
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
    fn directory_belongs_to_one_broker() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let open = |store: Option<&StoreSettings>| {
            Place::Given(path.clone(), store)
                .open(10)
                .map(|streams| streams.close())
                .map_err(|why| why.to_string())
        };
        let one = store(&["--store", "redis://u:p@one?prefix=a"], "");
        assert_eq!(open(Some(&one)), Ok(()));
        assert_eq!(
            open(Some(&store(&["--store", "redis://one", "--store-setting", "prefix=a"], ""))),
            Ok(())
        );
        for other in
            [None, Some(store(&["--store", "redis://two"], "")), Some(store(&["--store", "redis://one"], ""))]
        {
            let error = open(other.as_ref()).unwrap_err();
            assert!(error.contains("a copy of the streams of redis://one"), "{error}");
        }
        let own = tempfile::tempdir().unwrap();
        let streams = Place::Given(own.path().to_owned(), None).open(10).ok().unwrap();
        streams.create("s", &sinews_stream::StreamConfig::default()).unwrap();
        streams.close();
        let error = Place::Given(own.path().to_owned(), Some(&one)).open(10).err().unwrap().to_string();
        assert!(error.contains("streams that are not copies of a broker's"), "{error}");
    }
}
