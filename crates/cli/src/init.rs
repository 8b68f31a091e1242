//! `sinews init`: a new server's files, and its first secrets.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::{app, token};

#[derive(Debug, Args)]
pub(crate) struct InitArgs {
    /// Directory of the files, which is created if it does not exist
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

/// File mode for secrets.
const SECRET_MODE: u32 = 0o600;
const CONFIG: &str = "sinews.toml";
const SECRET: &str = "sinews.secret";
const API_KEYS: &str = "sinews.api-keys";

/// Writes the configuration, a secret for tokens and a key of the HTTP API; prints a token and the key.
///
/// # Errors
/// A file exists or cannot be written, or the system has no random numbers. Nothing is overwritten.
pub(crate) fn run(args: &InitArgs) -> Result<(), String> {
    let directory = &args.directory;
    let [config, secret, api_keys] = [CONFIG, SECRET, API_KEYS].map(|name| join(directory, name));
    for path in [&config, &secret, &api_keys] {
        if fs::symlink_metadata(path).is_ok() {
            return Err(format!("{}: it exists already, and is not overwritten", path.display()));
        }
    }
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let key = app::random::<32>()?;
    write_new(&secret, SECRET_MODE, &app::random::<32>()?)?;
    write_new(&api_keys, SECRET_MODE, &format!("backend {key} admin\n"))?;
    write_new(&config, 0o644, &configuration(&secret, &api_keys)?)?;
    let token = token::for_development(&secret)?;
    let text = describe(&[config, secret, api_keys], &key, &token);
    io::stdout().lock().write_all(text.as_bytes()).map_err(|error| format!("standard output: {error}"))
}

/// A path in the directory, as short as the directory is given.
fn join(directory: &Path, name: &str) -> PathBuf {
    if directory == Path::new(".") { PathBuf::from(name) } else { directory.join(name) }
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), String> {
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|error: io::Error| format!("{}: {error}", path.display()))
}

/// The configuration, which refers to the other files by absolute paths: servers start in any directory.
fn configuration(secret: &Path, api_keys: &Path) -> Result<String, String> {
    let absolute = |path: &Path| {
        let path = std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = path.to_str().filter(|text| !text.chars().any(char::is_control));
        let text = text.ok_or_else(|| format!("{}: the path is not plain text", path.display()))?;
        // TOML has JSON's escapes.
        Ok::<_, String>(serde_json::Value::from(text).to_string())
    };
    Ok(format!(
        "# Written by `sinews init`. `sinews config default` lists every key, `sinews config check` checks this file.\n\
         listen = [\"127.0.0.1:8080\"]\n\
         # New subscribers of these topics may ask for the last messages.\n\
         history = [\"chat.>=100\"]\n\n\
         [auth]\n# Clients need a token: `sinews token` makes one.\nsecret_file = {}\n\n\
         [api]\n# Backends need a key of this file.\nkeys_file = {}\n",
        absolute(secret)?,
        absolute(api_keys)?
    ))
}

fn describe(files: &[PathBuf; 3], key: &str, token: &str) -> String {
    let [config, secret, api_keys] = files.each_ref().map(|path| quote(&path.display().to_string()));
    format!(
        "Wrote {config}, {secret} and {api_keys}. The files have the secrets; this text is printed once.\n\n\
         # 1. Start the server.\n\
         sinews --config {config}\n\n\
         # 2. In another terminal, subscribe with a token that permits all topics for 7 days.\n\
         export SINEWS_TOKEN={token}\n\
         sinews sub 'chat.>'\n\n\
         # 3. Publish with the token, and as a backend with the API key.\n\
         sinews pub chat.room '{{\"text\":\"hello\"}}'\n\
         curl -H 'Authorization: Bearer {key}' -d '{{\"topic\":\"chat.room\",\"data\":\"hello\"}}' http://127.0.0.1:8080/api/v1/publish\n\n\
         # A token for one user.\n\
         sinews token --secret-file {secret} --subject anna --subscribe 'chat.>' --publish 'chat.>'\n"
    )
}

/// A shell's word.
pub(crate) fn quote(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_shell_are_quoted() {
        assert_eq!(quote("/etc/sinews.toml"), "/etc/sinews.toml");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), "'it'\\''s'");
    }
}
