//! `sinews app`: Pusher apps.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use ring::rand::{SecureRandom as _, SystemRandom};

#[derive(Debug, Subcommand)]
pub(crate) enum AppCommand {
    /// Make an app: print its key and secret, its table for the configuration file, and the lines for libraries.
    New(NewAppArgs),
}

#[derive(Debug, Args)]
pub(crate) struct NewAppArgs {
    /// Name of the app for people
    name: String,

    /// Id of the app: 1 to 20 letters, digits, `-` and `_`; some libraries accept digits only [default: random digits]
    #[arg(long, value_name = "ID")]
    id: Option<String>,

    /// Host name of the server, in the lines for libraries
    #[arg(long, value_name = "NAME", default_value = "127.0.0.1")]
    host: String,

    /// Port of the server, in the lines for libraries
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    port: u16,

    /// The server uses TLS
    #[arg(long)]
    tls: bool,

    /// Permit events of clients, such as the whispers of Laravel Echo
    #[arg(long)]
    client_events: bool,

    /// Directory of the server's setting `pusher.apps_directory`: write the app there, as a file ID.toml with mode 0600, instead
    /// of its table for the configuration file. An existing file is not changed
    #[arg(long, value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Runs a command.
///
/// # Errors
/// The system has no random numbers, the id or the name is invalid, the file exists or cannot be written, or standard output
/// is closed.
pub(crate) fn run(command: &AppCommand) -> Result<(), String> {
    let AppCommand::New(args) = command;
    let text = new_app(args)?;
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("standard output: {error}"))
}

/// Random bytes as hexadecimal digits.
pub(crate) fn random<const BYTES: usize>() -> Result<String, String> {
    let mut bytes = [0; BYTES];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| "the system has no random numbers".to_owned())?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// An app's id, key and secret.
struct AppIdentity {
    id: String,
    key: String,
    secret: String,
}

fn new_app(args: &NewAppArgs) -> Result<String, String> {
    let id = match &args.id {
        Some(id) => id.clone(),
        // Seven digits: libraries parse the id as a number.
        None => {
            let number = u32::from_str_radix(&random::<4>()?, 16).map_err(|error| error.to_string())?;
            (1_000_000 + number % 9_000_000).to_string()
        }
    };
    if args.name.is_empty() || args.name.chars().any(char::is_control) {
        return Err("the name is empty or has control characters".to_owned());
    }
    let identity = AppIdentity { id, key: random::<10>()?, secret: random::<20>()? };
    let app = sinews_hub::PusherApp::new(&identity.id, &identity.key, &identity.secret);
    sinews_hub::PusherApps::new([app]).map_err(|error| error.to_string())?;
    let keys = keys(args, &identity);
    let head = match &args.directory {
        None => format!(
            "# In the configuration file of `sinews serve --config FILE`; SIGHUP reloads it.\n[[pusher.app]]\n{keys}"
        ),
        Some(directory) => {
            let path = write_file(directory, &identity.id, &keys)?;
            format!("# The app is in the file {}.\n", path.display())
        }
    };
    Ok(format!("{head}\n{}", describe(args, &identity)))
}

/// Returns the app's keys, in TOML.
fn keys(args: &NewAppArgs, identity: &AppIdentity) -> String {
    let AppIdentity { id, key, secret } = identity;
    let client_events = args.client_events;
    // The name has no control characters.
    let name = args.name.replace('\\', "\\\\").replace('"', "\\\"");
    format!(
        "id = \"{id}\"\nname = \"{name}\"\nkey = \"{key}\"\nsecret = \"{secret}\"\n\
         client_events = {client_events} # whether clients may send events, such as whispers of Laravel Echo\n"
    )
}

/// Writes an app's file; returns its path.
///
/// # Errors
/// The file exists, or cannot be written.
fn write_file(directory: &Path, id: &str, text: &str) -> Result<PathBuf, String> {
    let path = directory.join(format!("{id}.toml"));
    // A link appears with the whole text, and fails if the path exists. Servers ignore hidden files.
    let hidden = directory.join(format!(".{id}.{}", random::<8>()?));
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(&hidden)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::hard_link(&hidden, &path)
    };
    let written = write();
    // The file does not exist if it could not be created.
    let _ = fs::remove_file(&hidden);
    written.map_err(|error| format!("--directory: {}: {error}", path.display()))?;
    Ok(path)
}

/// File mode: the file has a secret.
const FILE_MODE: u32 = 0o600;

/// The lines for libraries.
fn describe(args: &NewAppArgs, identity: &AppIdentity) -> String {
    let NewAppArgs { host, port, tls, .. } = args;
    let AppIdentity { id, key, secret } = identity;
    let (scheme, reverb) = if *tls { ("https", "https") } else { ("http", "http") };
    let ports = format!("wsPort: {port}, wssPort: {port}");
    format!(
        r#"# Laravel, in .env (BROADCAST_CONNECTION=pusher)
PUSHER_APP_ID={id}
PUSHER_APP_KEY={key}
PUSHER_APP_SECRET={secret}
PUSHER_HOST={host}
PUSHER_PORT={port}
PUSHER_SCHEME={reverb}

# pusher-js
new Pusher("{key}", {{
  wsHost: "{host}", {ports}, forceTLS: {tls},
  enabledTransports: ["ws", "wss"], disableStats: true, cluster: "",
}});

# Node: npm install pusher
new Pusher({{ appId: "{id}", key: "{key}", secret: "{secret}", host: "{host}", port: "{port}", useTLS: {tls} }});

# Python: pip install pusher
pusher.Pusher(app_id="{id}", key="{key}", secret="{secret}", host="{host}", port={port}, ssl={python})

# Go: github.com/pusher/pusher-http-go/v5
pusher.Client{{AppID: "{id}", Key: "{key}", Secret: "{secret}", Host: "{host}:{port}", Secure: {tls}}}

# Others: {scheme}://{key}:{secret}@{host}:{port}/apps/{id}
"#,
        python = if *tls { "True" } else { "False" },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(id: Option<&str>) -> NewAppArgs {
        let id = id.map(str::to_owned);
        NewAppArgs {
            name: "shop".to_owned(),
            id,
            host: "127.0.0.1".to_owned(),
            port: 8080,
            tls: false,
            client_events: false,
            directory: None,
        }
    }

    #[test]
    fn new_app_is_written_to_a_directory_and_replaces_no_file() {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().unwrap();
        let name = "a \"new\" \\ app \u{2060}".to_owned();
        let of = |id: &str| NewAppArgs {
            name: name.clone(),
            directory: Some(directory.path().into()),
            ..args(Some(id))
        };
        let text = new_app(&of("7")).unwrap();
        let path = directory.path().join("7.toml");
        assert!(
            text.starts_with(&format!("# The app is in the file {}.\n\n# Laravel", path.display())),
            "{text}"
        );
        assert!(!text.contains("[[pusher.app]]"), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        let flag = format!("--pusher-apps-directory={}", directory.path().display());
        let mut settings = crate::settings::tests::settings(&[&flag], "").unwrap();
        settings.pusher.read_directory("").unwrap();
        assert_eq!((settings.pusher.len(), settings.pusher.apps().unwrap().is_empty()), (1, false));
        let written = fs::read_to_string(&path).unwrap();
        let error = new_app(&of("7")).unwrap_err();
        assert!(error.starts_with(&format!("--directory: {}: ", path.display())), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), written);
        let names: Vec<_> =
            fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["7.toml"], "no other file remains");
    }

    #[test]
    fn pusher_4_12_new_app_is_a_valid_table_of_the_file() {
        let text = new_app(&args(None)).unwrap();
        let id = text.lines().find_map(|line| line.strip_prefix("id = \"")?.strip_suffix('"')).unwrap();
        assert!(id.len() == 7 && id.bytes().all(|byte| byte.is_ascii_digit()), "{id}");
        assert!(text.contains("\nclient_events = false #"), "{text}");
        let permitted = new_app(&NewAppArgs { client_events: true, ..args(None) }).unwrap();
        assert!(permitted.contains("\nclient_events = true #"), "{permitted}");
        let table: String =
            text.lines().take_while(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect();
        let settings = crate::settings::tests::settings(&[], &table).unwrap();
        assert!(!settings.pusher.apps().unwrap().is_empty());
        assert_ne!(new_app(&args(None)).unwrap(), text, "keys are random");
        assert!(new_app(&args(Some("my-app"))).unwrap().contains("PUSHER_APP_ID=my-app\n"));
        assert!(new_app(&args(Some("a.b"))).unwrap_err().contains("the id has"));
    }
}
