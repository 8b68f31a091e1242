//! Environment variables that resemble settings.

use std::ffi::OsString;

use clap::Command;

/// Logs a warning for each variable that [`unknown`] finds.
pub(crate) fn warn_of_unknown(command: &Command) {
    for warning in unknown(command, std::env::vars_os().map(|(name, _)| name)) {
        tracing::warn!("{warning}");
    }
}

/// Returns a warning for each variable that begins with `SINEWS_` and that no option reads, with the most similar
/// variable.
fn unknown(command: &Command, variables: impl Iterator<Item = OsString>) -> Vec<String> {
    let mut known = Vec::new();
    collect(command, &mut known);
    let variables = variables.filter_map(|name| name.into_string().ok());
    let unknown = variables.filter(|name| {
        name.starts_with(PREFIX)
            && !known.iter().any(|known| known == name)
            && !OTHERS.iter().any(|other| name.starts_with(other))
            && !is_service_link(name)
    });
    let mut warnings: Vec<String> = unknown.map(|name| warning(&name, &known)).collect();
    warnings.sort();
    warnings
}

const PREFIX: &str = "SINEWS_";

/// Variables for the program's own processes, its tests and its build, which `cargo run` passes on.
const OTHERS: [&str; 5] =
    ["SINEWS_HANDOVER", "SINEWS_TEST_", "SINEWS_STREAM_SEED", "SINEWS_COMMIT", "SINEWS_TARGET"];

fn collect(command: &Command, known: &mut Vec<String>) {
    known.extend(
        command.get_arguments().filter_map(|argument| argument.get_env()?.to_str().map(str::to_owned)),
    );
    for command in command.get_subcommands() {
        collect(command, known);
    }
}

/// Kubernetes sets such variables in every container next to a service named "sinews".
fn is_service_link(name: &str) -> bool {
    let rest = &name[PREFIX.len()..];
    rest == "PORT"
        || rest.starts_with("PORT_")
        || rest.starts_with("SERVICE_HOST")
        || rest.starts_with("SERVICE_PORT")
}

fn warning(name: &str, known: &[String]) -> String {
    let alike = |known: &&String| strsim::jaro(name, known);
    let near = known.iter().max_by(|a, b| alike(a).total_cmp(&alike(b)));
    let hint = near
        .filter(|near| alike(near) > 0.9)
        .map_or_else(String::new, |near| format!("; did you mean {near}?"));
    format!("the environment variable {name} is not a setting and is ignored{hint}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_variables_are_named_with_the_nearest_setting() {
        let names = [
            "SINEWS_LISTN",
            "SINEWS_LISTEN",
            "SINEWS_PORT_80_TCP",
            "SINEWS_SERVICE_PORT_HTTP",
            "PATH",
            "SINEWS_X",
        ];
        let warnings = unknown(&crate::args::command(), names.into_iter().map(OsString::from));
        assert_eq!(
            warnings,
            [
                "the environment variable SINEWS_LISTN is not a setting and is ignored; did you mean SINEWS_LISTEN?",
                "the environment variable SINEWS_X is not a setting and is ignored",
            ]
        );
    }

    /// `cargo run` passes them to the program.
    #[test]
    fn variables_of_the_build_are_known() {
        let build = include_str!("../build.rs");
        let names = build.split("rustc-env=").skip(1).map(|rest| rest.split('=').next().unwrap());
        let names: Vec<OsString> = names.map(OsString::from).collect();
        assert!(!names.is_empty());
        assert_eq!(unknown(&crate::args::command(), names.into_iter()), Vec::<String>::new());
    }
}
