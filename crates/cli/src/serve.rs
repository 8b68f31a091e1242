//! `sinews serve`.

pub(crate) mod embed;
mod notify;
mod options;
mod reload;

use std::error::Error;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;

use signal_hook::consts::SIGHUP;
use signal_hook::iterator::Signals;
use sinews_hub::{Hub, HubConfig, Predecessor};
use sinews_server::{BackendChoice, BindError, EngineConfig, Router, Server, TlsConfig, redact_urls};

use self::notify::{ServiceState, notify};
use self::options::{access_policy, build_hub, check_hub};
use self::reload::Reloader;
use crate::args::ConfigCommand;
use crate::config::render;
use crate::environment;
use crate::init::quote;
use crate::log;
use crate::output;
use crate::settings::{self, BackendSetting, DeflateSetting, KeySource, ServeArgs, ServeSettings};

/// Serves until a signal stops the server, or a successor process takes over.
pub(crate) fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    // From here on, SIGHUP waits until the server can reload.
    let signals = Signals::new([SIGHUP])?;
    output::start().map_err(|error| format!("cannot start the threads of the log: {error}"))?;
    let mut predecessor = Predecessor::find()?;
    let result = serve(args, signals, &mut predecessor);
    if let (Err(error), Some(predecessor)) = (&result, &mut predecessor) {
        predecessor.fail(&redact_urls(&error.to_string()));
    }
    output::flush();
    result
}

fn serve(
    args: ServeArgs,
    signals: Signals,
    predecessor: &mut Option<Predecessor>,
) -> Result<(), Box<dyn Error>> {
    let settings = ServeSettings::load(&args)?;
    let log = log::start(settings.log_filter()?, settings.log_format);
    environment::warn_of_unknown(&crate::args::command());
    let access = access_policy(&settings)?;
    note_line_break(&settings);
    let tls = settings.certificates()?.map(TlsConfig::new).transpose()?;
    let descriptors = raise_descriptor_limit();
    let hub = build_hub(&settings, access, predecessor.as_ref())?;
    let live = hub.config();
    let mut server = assemble(&settings, &hub, hub.mount(Router::new()), tls.as_ref());
    if let Some(threads) = settings.threads {
        server = server.threads(threads.get());
    }
    let threads = server.thread_count();
    if let Some(predecessor) = predecessor {
        server = server.inherit(predecessor.take_listeners());
    }
    let server = server.bind().map_err(|error| explain(&error))?;
    let hub = hub.start(&server)?;
    warn_if_open(server.addresses(), tls.is_some(), &live.config());
    let table =
        table(server.addresses(), threads, server.backend(), &settings, descriptors, output::has_colors());
    let restart_hashes = settings.files.restart_hashes();
    let reloader = Reloader { args, settings, live, tls, log, watches_apps: false, restart_hashes };
    reload::watch(signals, server.stop_handle(), reloader, hub.handover())?;
    // Last step: from here on, the predecessor does not publish to topics with a history.
    let serving = predecessor.as_mut().map(|predecessor| hub.take_over(predecessor)).transpose()?;
    output::print(&table);
    server.run_with(|| {
        if let Some(serving) = serving {
            serving.run();
        }
        notify(ServiceState::Ready);
    })?;
    hub.shut_down();
    tracing::info!("stopped");
    Ok(())
}

/// Assembles the server of these settings and routes, without its threads.
fn assemble(settings: &ServeSettings, hub: &Hub, router: Router, tls: Option<&TlsConfig>) -> Server {
    let server = Server::new(if settings.access_log { router.access_log("/") } else { router })
        .http(settings.http.config(settings.max_message))
        .engine(engine(settings))
        .limits(settings.limits.limits())
        .topics(settings.limits.topics());
    let server = settings.listen.apply(hub.configure(settings.stop.apply(server)), tls);
    let server = settings.admin.apply(server, &settings.listen, tls);
    settings.streams.apply(server, tls, || hub.stream_messages())
}

fn engine(settings: &ServeSettings) -> EngineConfig {
    EngineConfig::default().with_backend(backend(settings.backend))
}

fn backend(backend: BackendSetting) -> BackendChoice {
    match backend {
        BackendSetting::Auto => BackendChoice::Auto,
        BackendSetting::Poll => BackendChoice::Poll,
        BackendSetting::Uring => BackendChoice::Uring,
    }
}

/// `sinews config`.
pub(crate) fn config(command: &ConfigCommand) -> Result<(), String> {
    let (message, faults) = match command {
        ConfigCommand::Default => (render::default_file(settings::TABLES), Vec::new()),
        ConfigCommand::Check { files } => {
            let (mut good, mut faults) = (String::new(), Vec::new());
            for path in files {
                let name = path.display().to_string();
                match check_file(path) {
                    Ok(()) => good.push_str(&format!("{name}: good\n")),
                    Err(fault) if files.len() == 1 || fault.contains(&name) => faults.push(fault),
                    Err(fault) => faults.push(format!("{name}: {fault}")),
                }
            }
            (good, faults)
        }
    };
    io::stdout().lock().write_all(message.as_bytes()).map_err(|error| format!("standard output: {error}"))?;
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n")) }
}

/// # Errors
/// The first fault in the file, or in the files that it names.
fn check_file(file: &Path) -> Result<(), String> {
    let settings = ServeSettings::load(&ServeArgs { config: Some(file.to_owned()), ..ServeArgs::default() })?;
    settings.log_filter()?;
    check_hub(&settings)?;
    settings.certificates().map(drop)
}

/// Checks the hub's settings.
///
/// # Errors
/// The invalid setting, and the reason.
#[cfg(test)]
pub(crate) fn check(settings: &ServeSettings) -> Result<(), String> {
    check_hub(settings)
}

/// Other programs may sign with or without the line break at the file's end.
fn note_line_break(settings: &ServeSettings) {
    if let Some(bytes) = options::token_keys(&settings.auth.keys).and_then(|keys| keys.line_break()) {
        tracing::info!(
            "{}: the file ends in a line break ({bytes}): tokens signed with it and without it are accepted, and \
             `sinews token` signs without it",
            settings.name(settings.auth.keys.key())
        );
    }
}

/// Warns about public addresses without authorization or TLS.
fn warn_if_open(addresses: &[SocketAddr], has_tls: bool, policy: &HubConfig) {
    let Some(address) = addresses.iter().find(|address| !address.ip().is_loopback()) else { return };
    if !policy.has_auth() {
        tracing::warn!(
            %address,
            "all clients at this address can publish and subscribe to every topic: set auth.secret_file (or \
             auth.public_key_file, auth.jwks_file, auth.jwks_url) and issue tokens with `sinews token`"
        );
    }
    if !has_tls {
        tracing::warn!(
            %address,
            "this address does not use TLS: messages and tokens can be read on the network; set tls.certificate and \
             tls.key, or put a proxy that terminates TLS in front of it"
        );
    }
}

/// Each connection needs a descriptor; the usual soft limit, 1,024, is for programs that use select.
fn raise_descriptor_limit() -> Option<u64> {
    match sinews_engine::raise_descriptor_limit() {
        Ok(limit) => {
            if limit < DESCRIPTORS_MIN {
                tracing::warn!(
                    limit,
                    "few file descriptors, and each connection takes one: raise the hard limit (ulimit -Hn, \
                     LimitNOFILE= in a unit, --ulimit nofile= for a container)"
                );
            }
            Some(limit)
        }
        Err(error) => {
            tracing::warn!(%error, "cannot raise the limit of file descriptors (ulimit -n)");
            None
        }
    }
}

/// A lower limit is probably unintended for a server.
const DESCRIPTORS_MIN: u64 = 1_024;

/// Formats an error with advice.
fn explain(error: &BindError) -> String {
    if error.address().is_none() && error.io_error().kind() == io::ErrorKind::Unsupported {
        return format!("--backend uring: {}; or use auto or poll", error.io_error());
    }
    let hint = match error.io_error().kind() {
        io::ErrorKind::AddrInUse if error.path().is_some() => {
            "; choose another path with --listen, or stop the process that listens there"
        }
        io::ErrorKind::NotFound if error.path().is_some() => "; its directory must exist, see --listen",
        io::ErrorKind::PermissionDenied if error.path().is_some() => {
            "; the program's user needs write permission there, see --listen"
        }
        io::ErrorKind::AddrInUse => {
            "; choose another port with --listen, or stop the process that listens there"
        }
        io::ErrorKind::PermissionDenied => "; ports below 1024 need privileges; choose another with --listen",
        io::ErrorKind::AddrNotAvailable => "; this machine has no such address, see --listen",
        _ if error.io_error().raw_os_error() == Some(EMFILE) => {
            "; raise the limit of file descriptors (ulimit -n), or lower --threads"
        }
        _ => "",
    };
    format!("{error}{hint}")
}

/// "Too many open files" on every supported system.
const EMFILE: i32 = 24;

fn name_of(backend: BackendChoice) -> &'static str {
    if backend == BackendChoice::Uring { "io_uring" } else { "readiness" }
}

/// Formats the startup table with all addresses.
fn table(
    addresses: &[SocketAddr],
    threads: usize,
    backend: BackendChoice,
    settings: &ServeSettings,
    descriptors: Option<u64>,
    has_colors: bool,
) -> String {
    let mut table = String::new();
    let backend = name_of(backend);
    let deflate = match settings.deflate {
        DeflateSetting::Off => "off",
        DeflateSetting::Shared => "shared",
        DeflateSetting::Dedicated => "dedicated",
    };
    let plural = if threads == 1 { "" } else { "s" };
    let version = env!("CARGO_PKG_VERSION");
    let limit = descriptors.map_or_else(String::new, |limit| format!(" · {limit} descriptors"));
    table.push_str(&format!(
        "\n  sinews {version} · {threads} thread{plural} · {backend} · deflate {deflate}{limit}\n"
    ));
    let (http, ws) = if settings.tls.is_on() { ("https", "wss") } else { ("http", "ws") };
    let (addresses, plain) = addresses.split_at(addresses.len() - settings.streams.addresses());
    let (public, admin) = addresses.split_at(addresses.len() - settings.admin.addresses().count());
    for address in public {
        let publish = publish_line(settings, &format!("{http}://{}", reachable(*address)));
        let host = reachable(*address);
        if settings.pages && !settings.admin.is_apart() {
            table.push_str(&pages_of(&format!("{http}://{host}"), &format!("{ws}://{host}")));
        }
        table.push_str(&format!(
            "\n  topics    {ws}://{host}/topics/{{name}}\n  protocol  {ws}://{host}/ws\n  \
             client    {http}://{host}/sinews.js\n  {publish}\n  \
             health    {http}://{host}/healthz\n"
        ));
    }
    for address in admin {
        let scheme = if settings.admin.tls { http } else { "http" };
        let origin = format!("{scheme}://{}", reachable(*address));
        if settings.pages {
            table.push_str(&pages_of(&origin, &origin.replacen("http", "ws", 1)));
        }
        table
            .push_str(&format!("\n  api       {origin}/api/v1/openapi.json\n  metrics   {origin}/metrics\n"));
    }
    for address in plain {
        table.push_str(&format!("\n  streams   tcp://{}\n", reachable(*address)));
    }
    for path in settings.listen.sockets() {
        table.push_str(&format!("\n  socket    {}\n", path.display()));
    }
    if matches!(settings.auth.keys, KeySource::None)
        && addresses.iter().any(|address| !address.ip().is_loopback())
    {
        let text =
            "no token is required: all clients can publish and subscribe to every topic (auth.secret_file)";
        let (red, end) = if has_colors { ("\x1b[1;31m", "\x1b[0m") } else { ("", "") };
        table.push_str(&format!("\n  {red}WARNING   {text}{end}\n"));
    }
    table.push_str("\n  Ctrl-C stops.\n\n");
    table
}

/// The lines for the pages at an origin.
fn pages_of(http: &str, ws: &str) -> String {
    format!(
        "\n  start     {http}/\n  chat      {http}/chat\n  console   {http}/console\n  dashboard {http}/dashboard\n  echo      {ws}/echo"
    )
}

/// How to publish a first message, or where tokens are required, how to make one.
fn publish_line(settings: &ServeSettings, url: &str) -> String {
    let keys = &settings.auth.keys;
    match keys {
        KeySource::SecretFile(path) => {
            let path = quote(&path.display().to_string());
            format!("token     sinews token --secret-file {path} --subscribe 'chat.>' --publish 'chat.>'")
        }
        KeySource::None => format!("publish   curl -d hello {url}/topics/lobby"),
        _ => {
            format!("publish   curl -H \"Authorization: Bearer $TOKEN\" -d hello {url}/topics/lobby")
        }
    }
}

/// Returns an address that a browser on this machine can open.
fn reachable(address: SocketAddr) -> String {
    if address.ip().is_unspecified() { format!("localhost:{}", address.port()) } else { address.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::settings;

    #[test]
    fn startup_table_lists_all_addresses() {
        let addresses = ["127.0.0.1:8080".parse().unwrap(), "[::]:9000".parse().unwrap()];
        let plain = settings(&[], "").unwrap();
        let table = |settings| table(&addresses, 2, BackendChoice::Uring, settings, Some(20_000), true);
        let encrypted = settings(&["--tls-certificate", "a", "--tls-key", "b"], "").unwrap();
        let encrypted = table(&encrypted);
        assert!(
            encrypted.contains(" https://127.0.0.1:8080/\n")
                && encrypted.contains(" wss://localhost:9000/ws")
        );
        assert!(!encrypted.contains("http:") && !encrypted.contains("ws:"), "{encrypted}");
        let table = table(&plain);
        for expected in [
            "http://127.0.0.1:8080/\n",
            "ws://localhost:9000/topics/{name}",
            "2 threads",
            "20000 descriptors",
        ] {
            assert!(table.contains(expected), "{expected} in {table}");
        }
        assert!(
            table.contains("  publish   curl -d hello ") && table.contains("\x1b[1;31mWARNING "),
            "{table}"
        );
    }

    #[test]
    fn startup_table_of_a_server_with_tokens_says_how_to_make_one() {
        let addresses = ["0.0.0.0:8080".parse().unwrap()];
        let table = |flags: &[&str]| {
            table(&addresses, 2, BackendChoice::Poll, &settings(flags, "").unwrap(), None, false)
        };
        let secret = table(&["--auth-secret-file", "/etc/a secret"]);
        let line = "  token     sinews token --secret-file '/etc/a secret' --subscribe 'chat.>' --publish 'chat.>'\n";
        assert!(secret.contains(line) && !secret.contains("WARNING") && !secret.contains("curl"), "{secret}");
        let keys = table(&["--auth-jwks-file", "keys"]);
        assert!(keys.contains("curl -H \"Authorization: Bearer $TOKEN\" -d hello"), "{keys}");
        assert!(table(&[]).contains("\n  WARNING   no token is required"), "{}", table(&[]));
    }
}
