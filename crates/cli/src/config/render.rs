//! Documents that follow from the schema: `sinews config default`, and the reference in the book.

use super::key::{SettingKey, Tables, joined};
use super::value::Form;

/// Returns the default configuration file.
pub(crate) fn default_file(tables: &Tables) -> String {
    let mut text = String::from(
        "# Configuration of `sinews serve --config FILE`. It lists every key: with its default, or\n\
         # behind `#` with an example where there is no default.\n\
         # The command line and the environment (SINEWS_ and the key in capitals, as SINEWS_AUTH_SECRET_FILE) override\n\
         # this file. SIGHUP reloads it; keys marked (restart) take effect after a restart, or after SIGUSR2, which hands over\n\
         # to a successor process.\n",
    );
    let mut open = "";
    for table in tables {
        if table.name != open {
            open = table.name;
            let header = match table.header(table.heading) {
                Some(header) => format!("#{header}"),
                None => format!("[{open}]"),
            };
            text.push_str(&format!("\n{}{header}\n", comment(&joined(table.about))));
        }
        for key in table.keys {
            text.push_str(&format!("\n{}", entry(key)));
        }
    }
    text
}

fn entry(key: &SettingKey) -> String {
    let restart = if key.reloads { "" } else { "# (restart)\n" };
    let line = if key.default.is_empty() && (!key.kind.is_list || !key.example.is_empty()) {
        format!("#{} = {}", key.short_name(), value(key, key.example))
    } else {
        format!("{} = {}", key.short_name(), value(key, key.default))
    };
    format!("{}{restart}{line}\n", comment(&description(key)))
}

/// The description, and the behavior without a value.
fn description(key: &SettingKey) -> String {
    let (text, unset) = (key.describe(str::to_owned), key.describe_unset(str::to_owned));
    if unset.is_empty() { text } else { format!("{text} Default: {unset}.") }
}

/// A value in TOML.
pub(crate) fn value(key: &SettingKey, text: &str) -> String {
    let one = |text: &str| match key.kind.form {
        Form::Number | Form::Bool => text.to_owned(),
        Form::Text | Form::NumberOrText => format!("{text:?}"),
    };
    if !key.kind.is_list {
        return one(text);
    }
    let list = if text.is_empty() { Vec::new() } else { key.split(text) };
    format!("[{}]", list.into_iter().map(one).collect::<Vec<_>>().join(", "))
}

/// Wraps a text into comment lines.
fn comment(text: &str) -> String {
    let mut lines = String::new();
    let mut line = String::from("#");
    for word in text.split(' ') {
        if line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push_str(&line);
            lines.push('\n');
            line = String::from("#");
        }
        line.push(' ');
        line.push_str(word);
    }
    format!("{lines}{line}\n")
}

/// Columns for the file's comments.
const WIDTH: usize = 118;

/// Returns the reference in the book, in Markdown.
#[cfg(test)]
pub(crate) fn reference(tables: &Tables) -> String {
    let mut text = String::from(REFERENCE);
    let mut open = None;
    for table in tables {
        if open != Some(table.name) {
            open = Some(table.name);
            let title = match table.header(table.heading) {
                Some(header) => format!("`{header}`"),
                None if table.name.is_empty() => "Top level".to_owned(),
                None => format!("`[{}]`", table.name),
            };
            let about = if table.name.is_empty() { TOP_LEVEL.to_owned() } else { joined(table.about) };
            text.push_str(&format!("\n## {title}\n\n{about}\n"));
            text.push_str("\n| key | value | default | change by | meaning |\n|---|---|---|---|---|\n");
        }
        for key in table.keys {
            text.push_str(&row(key));
        }
    }
    text
}

#[cfg(test)]
const REFERENCE: &str = "# Settings of `sinews serve`

Each setting is a flag, an environment variable and a key of a file. The flag and the variable follow from the key:
`limits.max_connections` is `--limits-max-connections`, `SINEWS_LIMITS_MAX_CONNECTIONS`, and `max_connections` in the table `[limits]` of
the file. A flag overrides the variable, the variable overrides the file, and the file overrides the default. A flag with a list is
repeatable; flag and variable also take a list with commas. Tables that a file may have several times have neither flags nor variables.

`sinews serve --config FILE` (`SINEWS_CONFIG`) names the file, in TOML. `sinews config default` prints a file with every key, and
`sinews config check FILE` reports its errors. SIGHUP reloads the file and the files that settings name: keys with *reload* take effect; for changed keys with *restart*,
the log names the key, and the change takes effect after a restart or after SIGUSR2, which hands over to a successor process.

This page is generated from the program's schema: `SINEWS_TEST_BLESS=1 cargo test -p sinews-cli reference` writes it.
";

#[cfg(test)]
const TOP_LEVEL: &str = "Listeners, threads, messages, origins, histories and the log.";

#[cfg(test)]
fn row(key: &SettingKey) -> String {
    let code = |name: &str| format!("`{name}`");
    let default = match (key.default, key.unset) {
        ("", "") if key.kind.is_list => "none".to_owned(),
        ("", "") => "not set".to_owned(),
        ("", _) => key.describe_unset(code),
        (default, _) => format!("`{}`", value(key, default)),
    };
    let change = if key.reloads { "reload" } else { "restart" };
    let mut meaning = key.describe(code);
    if !key.alias.is_empty() {
        meaning.push_str(&format!(" The flag is also `--{}`.", key.alias));
    }
    let cells = [format!("`{}`", key.name), key.expected(), default, change.to_owned(), meaning];
    let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_wrapped_between_words() {
        let text = comment(&["word"; 60].join(" "));
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= WIDTH), "{text}");
        assert!(text.lines().all(|line| line.starts_with("# word")), "{text}");
    }
}
