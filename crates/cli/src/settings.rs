//! Effective settings: the command line overrides the environment, which overrides the configuration file, which
//! overrides defaults. Each key is entered once, with `settings!`, in the file of its table; flags, variables, the
//! file's keys and the documents follow ([`config`](crate::config)).

pub(crate) mod admin;
mod api;
mod auth;
mod cluster;
mod connection;
pub(crate) mod hooks;
mod listen;
pub(crate) mod namespaces;
pub(crate) mod pusher;
mod server;
pub(crate) mod store;
mod streams;
mod tls;
mod webhooks;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use sinews_hub::HostRules;
use sinews_quic::QuicSetupError;
use sinews_server::{Certificates, OriginPolicy};
use tracing_subscriber::filter::Targets;

use self::admin::AdminSettings;
use self::api::ApiSettings;
use self::auth::AuthKeys;
pub(crate) use self::auth::{AuthSettings, KeySource};
use self::cluster::ClusterSettings;
pub(crate) use self::connection::RejectBrowsers;
use self::connection::{HttpSettings, WebSocketSettings};
use self::hooks::HookSettings;
use self::listen::ListenSettings;
use self::namespaces::{NamespaceKeys, NamespaceSettings};
use self::pusher::{PusherAppKeys, PusherKeys, PusherSettings};
use self::server::{LimitSettings, StopSettings};
use self::store::StoreKeys;
use self::streams::StreamSettings;
use self::tls::{TlsKeys, TlsSettings};
use self::webhooks::{WebhookKeys, WebhookSettings};
use crate::config::file::ConfigFile;
use crate::config::flags::{SettingFlags, setting_args};
use crate::config::key::{Table, Tables};
use crate::config::resolver::{SettingFiles, SettingGroup, SettingNames, SettingResolver};
use crate::config::schema::settings;
use crate::config::units::{ByteSize, HistorySetting, MessagesOrOff};
use crate::config::value::choice;
use crate::log::{self, LogFormat};

/// Every table in the file, in the documents' order.
pub(crate) static TABLES: &Tables = &[
    ListenSettings::TABLE,
    ServeSettings::TABLE,
    AuthKeys::TABLE,
    ApiSettings::TABLE,
    AdminSettings::TABLE,
    StreamSettings::TABLE,
    StoreKeys::TABLE,
    ClusterSettings::TABLE,
    LimitSettings::TABLE,
    TlsKeys::TABLE,
    StopSettings::TABLE,
    HttpSettings::TABLE,
    WebSocketSettings::TABLE,
    HookSettings::TABLE,
    NamespaceKeys::TABLE,
    WebhookKeys::TABLE,
    PusherKeys::TABLE,
    PusherAppKeys::TABLE,
];

settings! {
    /// Every setting of `sinews serve`.
    pub(crate) struct ServeSettings in "", "" {
        /// Threads, each with its own event loop; at most 64, or 4 per processor if that is more.
        threads: Option<NonZeroUsize> { unset: "one per processor", example: "4" }

        /// I/O backend: `uring` is Linux's io_uring, `poll` is epoll or kqueue; `auto` uses io_uring if the system
        /// permits it, and logs the reason otherwise.
        backend: BackendSetting { default: "auto" }

        /// Maximum size of a message or request body, in bytes; `k`, `m` and `g` mean KiB, MiB and GiB.
        max_message: ByteSize { default: "16m" }

        /// Compression (permessage-deflate), if the client offers it: `shared` keeps no memory per connection between
        /// messages, `dedicated` keeps a context per connection and compresses better.
        deflate: DeflateSetting { default: "shared", placeholder: "MODE" }

        /// Origins whose pages may connect and publish: `same` (pages of this server), `any`, or origins such as
        /// `https://example.com`, or `https://*.example.com` for all its subdomains.
        origin: Vec<String> {
            default: "same",
            placeholder: "ORIGIN",
            expected: "\"same\", \"any\", an origin such as \"https://example.com\"",
            reloads: true,
        }

        /// Host names of this server, such as `ws.example.com` or `*.example.com`, or `any` to disable the check.
        /// Requests with another host are rejected with 421, which prevents DNS rebinding by web pages. Addresses,
        /// localhost and the hosts of {origin} are always accepted. Behind a local proxy, list the public host.
        hosts: Option<Vec<String>> {
            unset: "any name, but requests from this machine only with names of this machine unless {listen} has a \
                    wildcard address",
            placeholder: "NAME",
            expected: "\"any\", a name such as \"ws.example.com\" or \"*.example.net\"",
            example: "ws.example.com,*.example.net",
            reloads: true,
        }

        /// Topics with a history, as a pattern and a number of messages: `chat.>=100`; the most specific matching pattern
        /// applies, as for namespaces. Clients of `/ws` receive retained messages after a reconnect or on request. At
        /// most 1 MiB is retained per topic, and {limits.max_history_memory} in total.
        history: Vec<HistorySetting> {}

        /// Messages that each room of the chat page retains: the topics `sinews.chat.*`. `off` retains none. Topics that
        /// {history}, a namespace with a history, or durable topics cover follow these options.
        chat_history: MessagesOrOff { default: "100" }

        /// Serve the pages: the start page at `/`, the chat, the console and the dashboard, and `/echo`. `/sinews.js` is
        /// served in any case.
        pages: bool { default: "true" }

        /// Lowest level to log (error, warn, info, debug, trace, off), or a filter such as `sinews_engine=debug`.
        /// Targets that the filter does not name are logged from info on.
        log: String {
            default: "info",
            placeholder: "LEVEL",
            expected: "a level (\"error\", \"warn\", \"info\", \"debug\", \"trace\", \"off\") or a filter such as \
                       \"sinews_engine=debug\"",
            reloads: true,
        }

        /// Log format: `text` is human-readable, `json` is one JSON object per line.
        log_format: LogFormat { default: "text", placeholder: "FORMAT" }

        /// Log each response at level info: client, request and status.
        access_log: bool { default: "false" }
    }
    with {
        listen: ListenSettings,
        auth: AuthSettings,
        api: ApiSettings,
        admin: AdminSettings,
        streams: StreamSettings,
        cluster: ClusterSettings,
        limits: LimitSettings,
        tls: TlsSettings,
        stop: StopSettings,
        http: HttpSettings,
        websocket: WebSocketSettings,
        hooks: HookSettings,
        namespaces: NamespaceSettings,
        webhooks: WebhookSettings,
        pusher: PusherSettings,
        names: SettingNames,
        files: SettingFiles,
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendSetting {
    Auto,
    Poll,
    Uring,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum DeflateSetting {
    Off,
    Shared,
    Dedicated,
}

choice!(BackendSetting, DeflateSetting, LogFormat);

/// Arguments of `sinews serve`.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Configuration file in TOML. Command line and environment override it. `sinews config default` prints a default
    /// file. SIGHUP reloads the file, and the files that settings name. SIGUSR2 starts the installed program with all settings of the file and hands over
    /// to it, without refusing connections
    #[arg(long, value_name = "FILE", env = "SINEWS_CONFIG")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) flags: SettingArgs,
}

setting_args! {
    /// All settings of `sinews serve`, as flags and environment variables.
    pub(crate) struct SettingArgs(TABLES.iter().copied().flat_map(Table::args))
}

impl ServeSettings {
    /// Reads the configuration file and the app directory, if given, and merges all settings.
    ///
    /// # Errors
    /// Returns errors in the files, and invalid values that types do not exclude.
    pub(crate) fn load(args: &ServeArgs) -> Result<Self, String> {
        let file = args.config.as_deref().map(|path| ConfigFile::read(path, TABLES));
        Self::load_file(&args.flags.0, &file.transpose()?.unwrap_or_default())
    }

    /// Merges all settings, and reads the app directory, if given.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub(crate) fn load_file(flags: &SettingFlags, file: &ConfigFile) -> Result<Self, String> {
        let mut settings = Self::merge(flags, file)?;
        settings.pusher.read_directory(settings.names.resolve("pusher.apps_directory"))?;
        settings.origin_policy()?;
        settings.host_policy()?;
        Ok(settings)
    }

    fn merge(flags: &SettingFlags, file: &ConfigFile) -> Result<Self, String> {
        let settings = Self::resolve(&mut SettingResolver::new(flags, file))?;
        settings.check_threads()?;
        settings.check_http3(sinews_quic::IS_BUILT)?;
        settings.streams.check(&settings.names)?;
        settings.check_namespaces()?;
        settings.pusher.check()?;
        Ok(settings)
    }

    /// # Errors
    /// Returns an error if the thread count exceeds this machine's limit.
    fn check_threads(&self) -> Result<(), String> {
        let processors = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        let most = THREADS_MAX.max(processors.saturating_mul(THREADS_PER_PROCESSOR_MAX));
        match self.threads {
            Some(threads) if threads.get() > most => Err(format!(
                "{} {threads} exceeds the limit of {most} threads on this machine of {processors} processors",
                self.name("threads")
            )),
            _ => Ok(()),
        }
    }

    /// # Errors
    /// Returns an error if HTTP/3 is enabled in a program without it, without TLS, or with invalid limits.
    fn check_http3(&self, is_built: bool) -> Result<(), String> {
        if self.http.http3 && !is_built {
            let why = QuicSetupError::NotBuilt;
            return Err(format!("{}: {why}", self.name("http.http3")));
        }
        if self.http.http3 && !self.tls.is_on() {
            let (http3, certificate) = (self.name("http.http3"), self.name("tls.certificate"));
            return Err(format!("{http3} requires {certificate}: QUIC includes TLS"));
        }
        if self.http.http3 { self.http.check_http3(|key| self.name(key)) } else { Ok(()) }
    }

    /// Name under which a setting was given, for errors about its value.
    pub(crate) fn name(&self, key: &'static str) -> &str {
        self.names.resolve(key)
    }

    /// Returns the policy for origins.
    pub(crate) fn origin_policy(&self) -> Result<OriginPolicy, String> {
        match &self.origin[..] {
            [one] if one == "same" => Ok(OriginPolicy::same_origin()),
            [one] if one == "any" => Ok(OriginPolicy::any()),
            list => OriginPolicy::list(list.iter().cloned()).map_err(|error| {
                let bad = list.iter().find(|origin| OriginPolicy::list([origin.as_str()]).is_err());
                let bad = bad.map_or("", String::as_str);
                format!(
                    "{} {bad}: {error}; expected \"same\" or \"any\" alone, or origins such as https://example.com, \
                     http://localhost:3000 or https://*.example.com, without a path",
                    self.name("origin")
                )
            }),
        }
    }

    /// Returns the policy for host names.
    pub(crate) fn host_policy(&self) -> Result<HostRules, String> {
        let addresses = self.listen.addresses().chain(self.admin.addresses());
        HostRules::new(self.hosts.as_deref(), addresses, &self.origin)
            .map_err(|error| format!("{}: {error}", self.name("hosts")))
    }

    /// Reads the TLS certificates from their files; `None` without TLS.
    pub(crate) fn certificates(&self) -> Result<Option<Certificates>, String> {
        self.tls.read(&self.names)
    }

    /// Returns the log filter.
    pub(crate) fn log_filter(&self) -> Result<Targets, String> {
        log::filter(&self.log).map_err(|error| format!("{} {}: {error}", self.name("log"), self.log))
    }

    /// Names the changed settings that need a restart.
    pub(crate) fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        let mut restarts = Vec::new();
        self.list_restarts(new, &mut restarts);
        restarts
    }
}

/// Threads permitted on every machine: a large machine's configuration also works on a small one.
const THREADS_MAX: usize = 64;

/// Threads per processor, beyond which a thread costs memory without benefit.
const THREADS_PER_PROCESSOR_MAX: usize = 4;

#[cfg(test)]
pub(crate) mod tests;
