//! Effective settings: the command line overrides the environment, which overrides the configuration file, which
//! overrides defaults.

mod connection;
mod listen;
mod server;
pub(crate) mod store;
mod streams;
mod tls;

use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use sinews_server::{Certificates, OriginPolicy};
use tracing_subscriber::EnvFilter;

use self::connection::{HttpSettings, WebSocketSettings};
use self::listen::ListenSettings;
use self::server::{LimitSettings, StopSettings};
use self::streams::StreamSettings;
use self::tls::TlsSettings;
use crate::args::{AuthArgs, Backend, Deflate, RejectBrowsers, ServeArgs};
use crate::config::units::{Bytes, Keep, OneOrMore, Wait};
use crate::config::{AuthValues, File};
use crate::hosts::Hosts;
use crate::log::{self, LogFormat};

/// Every setting of `sinews serve`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) listen: ListenSettings,
    pub(crate) threads: Option<NonZeroUsize>,
    pub(crate) backend: Backend,
    pub(crate) max_message: usize,
    pub(crate) deflate: Deflate,
    pub(crate) origin: Vec<String>,
    pub(crate) hosts: Option<Vec<String>>,
    pub(crate) reject_browsers: RejectBrowsers,
    pub(crate) history: Vec<Keep>,
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) access_log: bool,
    pub(crate) auth: AuthSettings,
    pub(crate) streams: StreamSettings,
    pub(crate) limits: LimitSettings,
    pub(crate) stop: StopSettings,
    pub(crate) tls: TlsSettings,
    pub(crate) http: HttpSettings,
    pub(crate) websocket: WebSocketSettings,
    names: Names,
}

/// Authorization settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuthSettings {
    pub(crate) keys: KeySource,
    pub(crate) audience: Option<Vec<String>>,
    pub(crate) issuer: Option<Vec<String>>,
    pub(crate) leeway: Duration,
    pub(crate) public_subscribe: Vec<String>,
    pub(crate) public_publish: Vec<String>,
}

/// Source of the keys for checking tokens.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum KeySource {
    /// No tokens: all clients may publish and subscribe.
    None,
    Secret(String),
    SecretFile(PathBuf),
    PublicKeyFile(PathBuf),
    JwksFile(PathBuf),
}

impl std::fmt::Debug for KeySource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Settings may be logged; secrets must not.
        match self {
            Self::None => f.write_str("None"),
            Self::Secret(_) => f.write_str("Secret"),
            Self::SecretFile(path) | Self::PublicKeyFile(path) | Self::JwksFile(path) => path.fmt(f),
        }
    }
}

impl Settings {
    /// Reads the configuration file, if given, and merges all settings.
    ///
    /// # Errors
    /// Returns errors of the file, and invalid values that types do not exclude.
    pub(crate) fn load(args: &ServeArgs) -> Result<Self, String> {
        let file = args.config.as_deref().map(File::read).transpose()?.unwrap_or_default();
        let settings = Self::merge(args, &file)?;
        settings.origin_policy()?;
        settings.host_policy()?;
        Ok(settings)
    }

    fn merge(args: &ServeArgs, file: &File) -> Result<Self, String> {
        let mut pick = Pick { file, names: Names::default() };
        let values = file.values.clone();
        Ok(Self {
            listen: ListenSettings::merge(&args.listen, &values, &mut pick),
            threads: threads(args, values.threads, &mut pick)?,
            backend: pick.one("backend", &args.backend, values.backend).unwrap_or(Backend::Auto),
            max_message: pick
                .one("max_message", &args.max_message, values.max_message)
                .map_or(16 << 20, |Bytes(bytes)| bytes),
            deflate: pick.one("deflate", &args.deflate, values.deflate).unwrap_or(Deflate::Shared),
            origin: pick
                .one("origin", &args.origin, strings(values.origin))
                .unwrap_or_else(|| vec!["same".to_owned()]),
            hosts: pick.one("hosts", &args.hosts, strings(values.hosts)),
            reject_browsers: pick
                .one(
                    "websocket.reject_browsers",
                    &args.websocket.websocket_reject_browsers,
                    values.websocket.reject_browsers,
                )
                .unwrap_or(RejectBrowsers::Close),
            history: pick
                .one("history", &args.history, values.history.map(|OneOrMore(list)| list))
                .unwrap_or_default(),
            log: pick.one("log", &args.log, values.log).unwrap_or_else(|| "info".to_owned()),
            log_format: pick
                .one("log_format", &args.log_format, values.log_format)
                .unwrap_or(LogFormat::Text),
            access_log: pick.one("access_log", &args.access_log, values.access_log).unwrap_or(false),
            auth: AuthSettings::merge(&args.auth, values.auth, &mut pick)?,
            streams: StreamSettings::merge(&args.streams, &values.streams, &mut pick)?,
            limits: LimitSettings::merge(&args.limits, &values.limits, &mut pick),
            stop: StopSettings::merge(&args.stop, &values.stop, &mut pick),
            http: HttpSettings::merge(&args.http, &values.http, &mut pick),
            websocket: WebSocketSettings::merge(&args.websocket, &values.websocket, &mut pick),
            tls: TlsSettings::merge(&args.tls, values.tls, &mut pick)?,
            names: pick.names,
        })
    }

    /// Name under which a setting was given, for errors about its value.
    pub(crate) fn name(&self, key: &'static str) -> &str {
        self.names.of(key)
    }

    /// Returns the policy for origins.
    pub(crate) fn origin_policy(&self) -> Result<OriginPolicy, String> {
        match &self.origin[..] {
            [one] if one == "same" => Ok(OriginPolicy::same_origin()),
            [one] if one == "any" => Ok(OriginPolicy::any()),
            list => OriginPolicy::list(list.iter().cloned())
                .map_err(|error| format!("{} {}: {error}", self.name("origin"), list.join(","))),
        }
    }

    /// Returns the policy for host names.
    pub(crate) fn host_policy(&self) -> Result<Hosts, String> {
        Hosts::new(self.hosts.as_deref(), self.listen.addresses(), &self.origin)
            .map_err(|error| format!("{}: {error}", self.name("hosts")))
    }

    /// Reads the TLS certificates from their files; `None` without TLS.
    pub(crate) fn certificates(&self) -> Result<Option<Certificates>, String> {
        self.tls.read(&self.names)
    }

    /// Returns the filter of the log.
    pub(crate) fn log_filter(&self) -> Result<EnvFilter, String> {
        log::filter(&self.log).map_err(|error| format!("{} {}: {error}", self.name("log"), self.log))
    }

    /// Names the changed settings that need a restart.
    pub(crate) fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let differs = [
            ("threads", self.threads != new.threads),
            ("backend", self.backend != new.backend),
            ("max_message", self.max_message != new.max_message),
            ("deflate", self.deflate != new.deflate),
            ("history", self.history != new.history),
            ("log_format", self.log_format != new.log_format),
            ("access_log", self.access_log != new.access_log),
            // New certificates take effect immediately.
            ("tls", self.tls.is_on() != new.tls.is_on()),
        ];
        let differs = self.listen.differs(&new.listen).into_iter().chain(differs);
        let differs = differs.chain(self.streams.differs(&new.streams));
        let differs = differs.chain(self.limits.differs(&new.limits));
        let differs = differs.chain(self.stop.differs(&new.stop)).chain(self.http.differs(&new.http));
        let differs = differs.chain(self.websocket.differs(&new.websocket));
        differs.filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

impl AuthSettings {
    fn merge(args: &AuthArgs, file: AuthValues, pick: &mut Pick<'_>) -> Result<Self, String> {
        Ok(Self {
            keys: KeySource::merge(args, &file, pick)?,
            audience: pick.one("auth.audience", &args.auth_audience, strings(file.audience)),
            issuer: pick.one("auth.issuer", &args.auth_issuer, strings(file.issuer)),
            leeway: pick
                .one("auth.leeway", &args.auth_leeway, file.leeway)
                .map_or(Duration::from_secs(30), |Wait(wait)| wait),
            public_subscribe: pick
                .one("auth.public_subscribe", &args.auth_public_subscribe, strings(file.public_subscribe))
                .unwrap_or_default(),
            public_publish: pick
                .one("auth.public_publish", &args.auth_public_publish, strings(file.public_publish))
                .unwrap_or_default(),
        })
    }
}

impl KeySource {
    /// A key of the command line replaces all keys of the file.
    fn merge(args: &AuthArgs, file: &AuthValues, pick: &mut Pick<'_>) -> Result<Self, String> {
        let of = |secret: &Option<String>, files: [&Option<PathBuf>; 3]| -> Vec<(&'static str, Self)> {
            let [secret_file, public_key_file, jwks_file] = files.map(Clone::clone);
            let all = [
                ("auth.secret", secret.clone().map(Self::Secret)),
                ("auth.secret_file", secret_file.map(Self::SecretFile)),
                ("auth.public_key_file", public_key_file.map(Self::PublicKeyFile)),
                ("auth.jwks_file", jwks_file.map(Self::JwksFile)),
            ];
            all.into_iter().filter_map(|(name, source)| Some((name, source?))).collect()
        };
        let flags =
            of(&args.auth_secret, [&args.auth_secret_file, &args.auth_public_key_file, &args.auth_jwks_file]);
        let is_flag = !flags.is_empty();
        let given = if is_flag {
            flags
        } else {
            of(&file.secret, [&file.secret_file, &file.public_key_file, &file.jwks_file])
        };
        for (name, _) in &given {
            pick.note(name, is_flag);
        }
        match <[_; 1]>::try_from(given) {
            Ok([(_, source)]) => Ok(source),
            Err(none) if none.is_empty() => Ok(Self::None),
            Err(several) => {
                let names: Vec<&str> = several.iter().map(|(name, _)| pick.names.of(name)).collect();
                Err(format!("{}: only one of these may be set", names.join(", ")))
            }
        }
    }

    /// Name of the key setting in the file.
    pub(crate) fn key(&self) -> &'static str {
        match self {
            Self::None => "auth",
            Self::Secret(_) => "auth.secret",
            Self::SecretFile(_) => "auth.secret_file",
            Self::PublicKeyFile(_) => "auth.public_key_file",
            Self::JwksFile(_) => "auth.jwks_file",
        }
    }
}

/// # Errors
/// Returns an error if the number of threads exceeds the limit of this machine.
fn threads(
    args: &ServeArgs,
    file: Option<NonZeroUsize>,
    pick: &mut Pick<'_>,
) -> Result<Option<NonZeroUsize>, String> {
    let threads = pick.one("threads", &args.threads, file);
    let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let most = THREADS_MAX.max(processors.saturating_mul(THREADS_PER_PROCESSOR_MAX));
    match threads {
        Some(threads) if threads.get() > most => Err(format!(
            "{} {threads} exceeds the limit of {most} threads on this machine of {processors} processors",
            pick.names.of("threads")
        )),
        _ => Ok(threads),
    }
}

/// Number of threads permitted on every machine: the configuration of a large machine also works on a small one.
const THREADS_MAX: usize = 64;

/// Threads per processor, beyond which a thread costs memory without benefit.
const THREADS_PER_PROCESSOR_MAX: usize = 4;

fn strings(values: Option<OneOrMore<String>>) -> Option<Vec<String>> {
    values.map(|OneOrMore(list)| list)
}

/// Name under which each setting was given.
#[derive(Clone, Debug, Default)]
struct Names(HashMap<&'static str, String>);

impl Names {
    fn of<'a>(&'a self, key: &'a str) -> &'a str {
        self.0.get(key).map_or(key, |name| name)
    }
}

/// The source of a value does not affect equality.
impl PartialEq for Names {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

/// Selects the value with the highest precedence, and records its source.
struct Pick<'a> {
    file: &'a File,
    names: Names,
}

impl Pick<'_> {
    fn one<T: Clone>(&mut self, key: &'static str, flag: &Option<T>, file: Option<T>) -> Option<T> {
        if flag.is_some() || file.is_some() {
            self.note(key, flag.is_some());
        }
        flag.clone().or(file)
    }

    fn note(&mut self, key: &'static str, is_flag: bool) {
        let name = if is_flag { format!("--{}", key.replace(['.', '_'], "-")) } else { self.file.place(key) };
        self.names.0.insert(key, name);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;

    use clap::Parser;

    use super::*;
    use crate::args::Cli;
    use crate::config::keys;

    pub(crate) fn settings(flags: &[&str], file: &str) -> Result<Settings, String> {
        let args = Cli::parse_from(std::iter::once(&"sinews").chain(flags)).serve;
        let file = File::parse(file, Path::new("sinews.toml"))?;
        Settings::merge(&args, &file)
    }

    #[test]
    fn default_file_contains_the_defaults() {
        let defaults = settings(&[], "").unwrap();
        assert_eq!(settings(&[], &keys::default_file()).unwrap(), defaults);
        assert_eq!((defaults.max_message, defaults.threads), (16 << 20, None));
        assert_eq!(defaults.auth.keys, KeySource::None);
    }

    #[test]
    fn command_line_overrides_the_file() {
        let file = "listen = \"[::1]:1\"\nlog = \"warn\"\ndeflate = \"off\"\n[auth]\nsecret = \"file\"\nleeway = \"1s\"";
        let both = settings(&["--log", "error", "--auth-jwks-file", "keys"], file).unwrap();
        assert_eq!((both.log.as_str(), both.deflate), ("error", Deflate::Off));
        assert_eq!(both.auth.leeway, Duration::from_secs(1));
        assert_eq!(both.auth.keys, KeySource::JwksFile("keys".into()), "it replaces the file's key");
        assert_eq!((both.name("log"), both.name("deflate")), ("--log", "sinews.toml:3: deflate"));
        assert!(!format!("{:?}", settings(&[], file).unwrap()).contains("\"file\""), "secrets are not shown");
    }

    #[test]
    fn setting_several_keys_is_rejected() {
        let two = settings(&[], "[auth]\nsecret = \"a\"\njwks_file = \"b\"").unwrap_err();
        assert_eq!(
            two,
            "sinews.toml:2: auth.secret, sinews.toml:3: auth.jwks_file: only one of these may be set"
        );
    }

    #[test]
    fn origins_are_validated_at_startup() {
        let with = |origin: &str| settings(&["--origin", origin], "").unwrap().origin_policy();
        assert!(with("same").is_ok() && with("any").is_ok() && with("https://example.com").is_ok());
        assert!(
            with("https://example.com/path").unwrap_err().starts_with("--origin https://example.com/path")
        );
        let file = settings(&[], "\norigin = \"example.com\"").unwrap().origin_policy().unwrap_err();
        assert!(file.starts_with("sinews.toml:2: origin example.com: "), "{file}");
    }

    #[test]
    fn settings_that_need_a_restart_are_named() {
        let old = settings(&[], "").unwrap();
        let new = settings(&[], "threads = 3\nlog = \"debug\"\n[auth]\nleeway = \"2s\"").unwrap();
        assert_eq!(old.needs_restart(&new), ["threads"]);
        for key in keys::KEYS.iter().filter(|key| !key.reloads) {
            if key.name.starts_with("streams.") && key.name != "streams.directory" {
                continue;
            }
            let line = match key.name {
                "listen" => "listen = \"[::1]:1\"".to_owned(),
                "unix_mode" => "unix_mode = \"0600\"".to_owned(),
                "log_format" => "log_format = \"json\"".to_owned(),
                "proxy_protocol" | "access_log" => format!("{} = true", key.name),
                "trusted_proxies" => "trusted_proxies = \"10.0.0.1\"".to_owned(),
                "trusted_header" => "trusted_header = \"forwarded\"".to_owned(),
                "threads" => "threads = 17".to_owned(),
                "backend" => "backend = \"poll\"".to_owned(),
                "max_message" => "max_message = 1".to_owned(),
                "deflate" => "deflate = \"off\"".to_owned(),
                "history" => "history = \"a=1\"".to_owned(),
                "limits.when_full" => "[limits]\nwhen_full = \"refuse\"".to_owned(),
                "limits.max_memory" => "[limits]\nmax_memory = \"4g\"".to_owned(),
                "limits.max_history_memory" => "[limits]\nmax_history_memory = \"77m\"".to_owned(),
                "http.min_upload_rate" => "[http]\nmin_upload_rate = 77".to_owned(),
                "websocket.overflow" => "[websocket]\noverflow = \"drop-newest\"".to_owned(),
                "websocket.high_water" | "websocket.max_outbound" => {
                    format!("[websocket]\n{} = \"77k\"", key.name.replace("websocket.", ""))
                }
                name => match name.split_once('.') {
                    // A key whose default differs from its example.
                    Some((table, name)) if !key.example.is_empty() => {
                        format!("[{table}]\n{name} = {}", key.example)
                    }
                    Some((table, name)) => format!("[{table}]\n{name} = \"77s\""),
                    _ => panic!("a line for {name}"),
                },
            };
            assert_eq!(old.needs_restart(&settings(&[], &line).unwrap()), [key.name]);
        }
        // Storage settings need streams.
        let old = settings(&[], STREAMS).unwrap();
        for key in keys::KEYS.iter().filter(|key| key.name.starts_with("streams.") && !key.reloads) {
            let line = match key.name {
                "streams.directory" => continue,
                // Settings of a broker need a broker: tested in `store`.
                name if name.starts_with("streams.store_") => continue,
                "streams.listen" => "listen = \"[::1]:1\"".to_owned(),
                "streams.partitions" => "partitions = 7".to_owned(),
                name if name.starts_with("streams.max_") => format!("{} = 77", &name[8..]),
                name => format!("{} = \"77{}\"", &name[8..], if name.ends_with("bytes") { "m" } else { "s" }),
            };
            assert_eq!(old.needs_restart(&settings(&[], &format!("{STREAMS}{line}")).unwrap()), [key.name]);
        }
    }

    const STREAMS: &str = "[streams]\ndirectory = \"data\"\n";
}
