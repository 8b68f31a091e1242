//! The schema of all settings: sources, precedence, errors and documents.

use std::time::Duration;

use clap::Parser;

use super::*;
use crate::args::Cli;
use crate::config::file::ConfigSource;
use crate::config::key::{self, SettingKey};
use crate::config::render;

pub(crate) fn settings(flags: &[&str], file: &str) -> Result<ServeSettings, String> {
    let args = Cli::try_parse_from(std::iter::once(&"sinews").chain(flags));
    let args = args.map_err(|error| error.to_string())?.serve;
    let file = ConfigFile::parse(file, &ConfigSource::File("sinews.toml".into()), TABLES)?;
    ServeSettings::merge(&args.flags.0, &file)
}

#[test]
fn default_file_contains_the_defaults() {
    let defaults = settings(&[], "").unwrap();
    assert_eq!(settings(&[], &render::default_file(TABLES)).unwrap(), defaults);
    assert_eq!((defaults.max_message, defaults.threads), (16 << 20, None));
    assert_eq!(defaults.auth.keys, KeySource::None);
}

#[test]
fn command_line_overrides_the_file() {
    let file =
        "listen = \"[::1]:1\"\nlog = \"warn\"\ndeflate = \"off\"\n[auth]\nsecret = \"file\"\nleeway = \"1s\"";
    let both = settings(&["--log", "error", "--auth-jwks-file", "keys"], file).unwrap();
    assert_eq!((both.log.as_str(), both.deflate), ("error", DeflateSetting::Off));
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
fn every_file_of_a_setting_is_reloaded_or_needs_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    for key in key::keys(TABLES).filter(|key| key.placeholder == "FILE") {
        std::fs::write(&path, "one").unwrap();
        let file = path.display().to_string();
        let mut flags = vec![key.flag(), file.clone()];
        if key.name.starts_with("tls.") {
            flags = vec!["--tls-certificate".to_owned(), file.clone(), "--tls-key".to_owned(), file.clone()];
        }
        if key.name.starts_with("streams.") {
            flags.extend(["--store".to_owned(), "nats://a".to_owned()]);
        }
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let files = settings(&flags, "").unwrap().files;
        let is_reloaded = files.reloaded().any(|shown| shown == format!("{} {file}", key.flag()));
        let before = files.restart_hashes();
        std::fs::write(&path, "two").unwrap();
        let needs_restart = before.get(key.name) != files.restart_hashes().get(key.name);
        assert_eq!((is_reloaded, needs_restart), (key.reloads, !key.reloads), "{}", key.name);
    }
    let file =
        "[webhook.a]\nsecret_file = \"x\"\n[[pusher.app]]\nid = \"1\"\nkey = \"k\"\nsecret_file = \"y\"";
    let files: Vec<String> = settings(&[], file).unwrap().files.reloaded().collect();
    assert_eq!(
        files,
        ["sinews.toml:2: webhook.\"a\".secret_file x", "sinews.toml:6: pusher.app.secret_file y"]
    );
}

#[test]
fn settings_that_can_never_match_are_rejected() {
    let check = |flags: &[&str], file: &str| -> Result<(), String> {
        let settings = settings(flags, file)?;
        settings.origin_policy()?;
        settings.host_policy()?;
        settings.webhook_options()?;
        crate::serve::check(&settings)
    };
    let secret = "secret = \"0123456789abcdef0123456789abcdef\"";
    let webhook = |topics: &str| format!("[webhook.a]\nurl = \"http://a/\"\n{secret}\ntopics = \"{topics}\"");
    let app = |lines: &str| {
        let keys = "id = \"1\"\nkey = \"k\"\nsecret = \"s\"\nwebhooks = \"http://a/\"";
        format!("[[pusher.app]]\n{keys}\nwebhook_private = true\n{lines}")
    };
    for (flags, file, part) in [
        (&["--origin", "https://a.example/"][..], String::new(), "--origin https://a.example/: "),
        (&["--origin", "https://a,b.example"], String::new(), "--origin b.example: "),
        (&["--origin", "same,https://a.example"], String::new(), "--origin same: "),
        (&["--origin", "https://a.*.example"], String::new(), "https://*.example.com"),
        (&["--hosts", "https://a.example"], String::new(), "is not a host name"),
        (&["--hosts", "a.example:8080"], String::new(), "without scheme and port"),
        (&["--hosts", "any,a.example"], String::new(), "any stands alone"),
        (
            &["--trusted-proxies", "10.0.0.5/8"],
            String::new(),
            "write 10.0.0.0/8, or 10.0.0.5 for one address",
        ),
        (&["--trusted-proxies", "fd00::1/64"], String::new(), "write fd00::/64"),
        (&["--trusted-proxies", "::ffff:10.0.0.0/104"], String::new(), "write 10.0.0.0/8"),
        (&["--history", "chat.*x=5"], String::new(), "\"*x\" would match the part \"*x\" only"),
        (&["--streams", "d", "--streams-durable-topics", "a.>x"], String::new(), "wildcard is a whole part"),
        (&["--auth-public-subscribe", "chat.x*"], String::new(), "--auth-public-subscribe: \"chat.x*\": "),
        (&["--auth-public-publish", "a..b"], String::new(), "--auth-public-publish: \"a..b\": "),
        (&["--auth-personal-topics", "{sub}.*x"], String::new(), "--auth-personal-topics: \"{sub}.*x\": "),
        (
            &["--auth-issuer", " https://a"],
            String::new(),
            "--auth-issuer: \" https://a\" is empty or has blanks",
        ),
        (&["--auth-audience", ""], String::new(), "--auth-audience: \"\" is empty"),
        (&["--streams", "d", "--streams-compact", "a.*x"], String::new(), "a wildcard is a whole part"),
        (&["--streams", "d", "--streams-durable-keys", "*x"], String::new(), "a wildcard is a whole part"),
        (&["--auth-jwks-url", " https://a=https://b/"], String::new(), "has blanks around it"),
        // The hub's own topics.
        (&["--history", "$pusher.>=5"], String::new(), "names that begin with $pusher are reserved"),
        (&["--auth-public-subscribe", "$pusher.a"], String::new(), "are reserved for channels of apps"),
        (&[], "[namespace.\"$pusher.>\"]".to_owned(), "are reserved for channels of apps"),
        (&[], webhook("$pusher.>"), "topics: \"$pusher.>\": names that begin with $pusher are reserved"),
        // They are no patterns.
        (&[], app("webhook_channels = \"private-*\""), "\"private-*\" is part of no channel's name"),
        (&[], app("webhook_channel_suffixes = [\"-eu\", \"a b\"]"), "\"a b\" is part of no channel's name"),
        (
            &[],
            app("webhook_channels = \"abcd\"\nmax_channel_name = 3"),
            "a channel's name has 1 to 3 letters",
        ),
        (&[], "[namespace.\"chat.*x\"]".to_owned(), "namespace.\"chat.*x\": "),
        (&[], webhook("chat.*x"), "topics: \"chat.*x\": "),
    ] {
        let error = check(flags, &file).expect_err(part);
        assert!(error.contains(part), "{error}");
    }
    for (flags, file) in [
        (&["--origin", "https://*.example.com,http://localhost:80,https://a:443,null"][..], String::new()),
        (&["--trusted-proxies", "10.0.0.0/8,10.0.0.5,fd00::/64,::/0,unix"], String::new()),
        (&["--history", "chat.*=5", "--hosts", "*.example.com,a"], webhook("chat.*,>")),
    ] {
        assert_eq!(check(flags, &file.replace(",>", "")), Ok(()), "{flags:?}");
    }
}

#[test]
fn origins_are_validated_at_startup() {
    let with = |origin: &str| settings(&["--origin", origin], "").unwrap().origin_policy();
    assert!(with("same").is_ok() && with("any").is_ok() && with("https://example.com").is_ok());
    assert!(with("https://example.com/path").unwrap_err().starts_with("--origin https://example.com/path"));
    let file = settings(&[], "\norigin = \"example.com\"").unwrap().origin_policy().unwrap_err();
    assert!(file.starts_with("sinews.toml:2: origin example.com: "), "{file}");
}

#[test]
fn settings_that_need_a_restart_are_named() {
    let old = settings(&[], "").unwrap();
    let new = settings(&[], "threads = 3\nlog = \"debug\"\n[auth]\nleeway = \"2s\"").unwrap();
    assert_eq!(old.needs_restart(&new), ["threads"]);
    for key in key::keys(TABLES).filter(|key| !key.reloads) {
        let old = settings(&[], &needs(key, None)).unwrap();
        let new = settings(&[], &needs(key, Some(other_value(key)))).unwrap();
        assert_eq!(old.needs_restart(&new), [key.name]);
    }
}

/// A flag, a key in the file and no value: each reaches the settings, in the same form.
#[test]
fn every_key_is_read_from_flag_and_file() {
    for key in key::keys(TABLES) {
        let value = other_value(key);
        let without = settings(&[], &needs(key, None));
        let file = settings(&[], &needs(key, Some(value))).unwrap();
        assert_ne!(without, Ok(file.clone()), "{}: the file's value has no effect", key.name);
        if key.name.starts_with("tls.") {
            // A certificate and its key have the same source.
            continue;
        }
        let flag = settings(&[&format!("{}={value}", key.flag())], &needs(key, None)).unwrap();
        assert_eq!((flag.name(key.name), &flag), (&*key.flag(), &file), "{}", key.name);
        if !key.default.is_empty() {
            let both = settings(&[&format!("{}={}", key.flag(), key.default)], &needs(key, Some(value)));
            assert_eq!(both, without, "{}: the flag overrides the file", key.name);
        }
    }
}

/// A file with this value, and with the keys without which it is invalid.
fn needs(key: &SettingKey, value: Option<&str>) -> String {
    let base = match key.name {
        "streams.directory" | "streams.store" => "",
        "tls.certificate" => "tls.key = \"a\"\n",
        "tls.key" => "tls.certificate = \"a\"\n",
        "http.http3" => "tls.certificate = \"a\"\ntls.key = \"a\"\n",
        name if name.starts_with("streams.store_") => "streams.store = \"redis://a\"\n",
        name if name.starts_with("streams.") => "streams.directory = \"data\"\n",
        _ => "",
    };
    let line = value.map(|value| format!("{} = {}\n", key.name, render::value(key, value)));
    format!("{base}{}", line.unwrap_or_default())
}

/// A valid value that is not the default.
fn other_value(key: &SettingKey) -> &'static str {
    let values = ["7", "7s", "a=7", "10.0.0.7", "true", "off", "json", "drop-newest", "forwarded", "poll"];
    let mut values = values.into_iter().chain(["reject", "status", "open", "http://a", "false", "deliver"]);
    let is_setting = key.placeholder == "NAME=VALUE";
    let fits = |value: &&str| (key.kind.check)(value).is_ok() && *value != key.default;
    let found = values.find(|value| fits(value) && (!is_setting || value.contains('=')));
    found.unwrap_or_else(|| panic!("a value for {}", key.name))
}

fn parse(text: &str) -> Result<ConfigFile, String> {
    ConfigFile::parse(text, &ConfigSource::File("sinews.toml".into()), TABLES)
}

#[test]
fn errors_name_line_key_and_expected_value() {
    for (text, expected) in [
        ("\nlissten = 1", "sinews.toml:2: unknown key lissten; did you mean listen?"),
        ("max-message = 1", "sinews.toml:1: unknown key max-message; did you mean max_message?"),
        (
            "[auth]\n\nsecret_flie = \"a\"",
            "sinews.toml:3: unknown key auth.secret_flie; did you mean auth.secret_file?",
        ),
        ("secret_file = \"a\"", "sinews.toml:1: unknown key secret_file; did you mean auth.secret_file?"),
        ("[auht]\nleeway = 1", "sinews.toml:1: unknown key auht; did you mean auth?"),
        ("auth = 1", "sinews.toml:1: auth is a table: [auth]"),
        (
            "# x\nbackend = \"epoll\"",
            "sinews.toml:2: backend must be \"auto\", \"poll\" or \"uring\", not \"epoll\"",
        ),
        ("threads = 0", "sinews.toml:1: threads must be a whole number of at least 1, not 0"),
        ("threads = \"4\"", "sinews.toml:1: threads must be a whole number of at least 1, not \"4\""),
        (
            "listen = [\n  \"nowhere\"]",
            "sinews.toml:2: listen must be an address such as \"127.0.0.1:8080\" or \"unix:/run/sinews.sock\", or a \
             list of them, not \"nowhere\"",
        ),
        (
            "[auth]\nleeway = 30",
            "sinews.toml:2: auth.leeway must be a string with a number and a unit, such as \"30s\" or \"1m\", not \
             30",
        ),
    ] {
        assert_eq!(parse(text).map(drop), Err(expected.to_owned()), "{text}");
    }
    let syntax = parse("listen = \"a\nlog = 1").unwrap_err();
    assert!(syntax.starts_with("sinews.toml:1: ") && syntax.lines().count() == 1, "{syntax}");
    let secret = parse("[auth]\nsecret = 12345").unwrap_err();
    assert_eq!(
        secret, "sinews.toml:2: auth.secret must be a string of at least 32 bytes",
        "it is not printed"
    );
    let host = parse("listen = \"80830\"").unwrap_err();
    assert!(host.ends_with("not \"80830\": port 80830 exceeds 65535"), "{host}");
    let both = parse("threads = 0\n[stop]\ngrace = 1").unwrap_err();
    assert!(
        both.lines().count() == 2 && both.contains(":3: stop.grace must be"),
        "every fault is reported: {both}"
    );
    let twice = parse("zzzz = 1\nlogg = 2\n").unwrap_err();
    assert_eq!(twice.lines().count(), 2, "every unknown key is reported: {twice}");
    assert!(parse("zzzz = 1").unwrap_err().starts_with("sinews.toml:1: unknown key zzzz"));
}

#[test]
fn single_value_needs_no_list() {
    let one = parse("listen = \"[::1]:1\"\nmax_message = 7").unwrap();
    let settings = ServeSettings::merge(&SettingFlags::default(), &one).unwrap();
    assert!(settings.listen.addresses().eq(["[::1]:1".parse().unwrap()]));
    assert_eq!(settings.max_message, 7);
    assert_eq!(one.location("max_message"), "sinews.toml:2: max_message");
    assert_eq!(one.location("log"), "log");
}

/// The file contains every key, including keys with only an example.
#[test]
fn every_key_is_accepted() {
    let whole: String = render::default_file(TABLES)
        .lines()
        .map(|line| if line.starts_with("# ") { "" } else { line.trim_start_matches('#') })
        .map(|line| format!("{line}\n"))
        .collect();
    let file = parse(&whole).unwrap();
    for key in key::keys(TABLES) {
        assert!(file.location(key.name).ends_with(&format!(": {}", key.name)), "{}", key.name);
    }
}

#[test]
fn every_key_is_documented_and_names_existing_keys() {
    for key in key::keys(TABLES) {
        let exists = |name: &str| {
            assert!(key::keys(TABLES).any(|key| key.name == name), "{} names {name}", key.name);
            name.to_owned()
        };
        let text = key.describe(exists) + &key.describe_unset(exists);
        assert!(text.contains('.') && !text.contains(['{', '}']), "{}: {text}", key.name);
        let defaults = [!key.default.is_empty(), !key.unset.is_empty(), !key.example.is_empty()];
        assert!(!(defaults[0] && (defaults[1] || defaults[2])), "{}: a default and none", key.name);
        let values = key.split(key.default).into_iter().chain(key.split(key.example));
        for value in values.filter(|value| !value.is_empty()) {
            assert_eq!((key.kind.check)(value), Ok(()), "{}", key.name);
        }
    }
}

/// `SINEWS_TEST_BLESS=1` writes the page.
#[test]
fn reference_in_the_book_matches_the_schema() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/book/src/reference/settings.md");
    let page = render::reference(TABLES);
    if std::env::var_os("SINEWS_TEST_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(found == page, "{path} is out of date: SINEWS_TEST_BLESS=1 cargo test -p sinews-cli reference");
}
