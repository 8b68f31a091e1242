//! `cargo xtask examples`: the tutorials in `examples/`, each by its own test, which starts `sinews serve` and the programs
//! of the tutorial, and prints a line per check, `ok NAME` or `FAIL NAME: why`.

use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::Outcome;
use crate::backend::Choice;
use crate::count::Count;
use crate::process;
use crate::server;
use crate::tools::{self, Missing};

#[derive(Args)]
pub(crate) struct Options {
    /// Path of the `sinews` program to test, instead of building it
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Tutorials to test, by their folders in `examples/` [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Backend of the servers. The tutorials run once, by default on io_uring where it is permitted
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
}

struct Tutorial {
    /// Folder in `examples/`.
    name: &'static str,
    prepare: fn(&str) -> Result<Command, Missing>,
}

const TUTORIALS: [Tutorial; 10] = [
    Tutorial { name: "first-steps", prepare: tools::tutorial_node },
    Tutorial { name: "notifications-express", prepare: tools::tutorial_node },
    Tutorial { name: "notifications-flask", prepare: tools::tutorial_python },
    Tutorial { name: "notifications-http", prepare: tools::tutorial_curl },
    Tutorial { name: "chat", prepare: tools::tutorial_node },
    Tutorial { name: "prices", prepare: tools::tutorial_node },
    Tutorial { name: "pusher", prepare: tools::tutorial_node },
    Tutorial { name: "three-nodes", prepare: tools::tutorial_node },
    Tutorial { name: "from-socket-io", prepare: tools::tutorial_node },
    Tutorial { name: "from-centrifugo", prepare: tools::tutorial_node },
];

/// Runs the tests of the tutorials, one after the other.
pub(crate) fn run(options: &Options) -> Outcome {
    let is_known = |name: &String| TUTORIALS.iter().any(|tutorial| tutorial.name == name);
    if let Some(unknown) = options.only.iter().find(|name| !is_known(name)) {
        return Err(format!("no such tutorial: {unknown}"));
    }
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    // The last one is io_uring, if both are permitted.
    let Some(backend) = permitted.backends.last() else { return Ok(permitted.print_skipped()) };
    let chosen = |tutorial: &&Tutorial| {
        options.only.is_empty() || options.only.iter().any(|name| name == tutorial.name)
    };
    let mut count = Count::default();
    for Tutorial { name, prepare } in TUTORIALS.iter().filter(chosen) {
        let log = process::target().join(format!("xtask/examples/{name}.log"));
        count = count
            + match prepare(name) {
                Ok(mut command) => {
                    command.env("SINEWS", &binary).env("SINEWS_BACKEND", backend.name());
                    tools::run_checks(name, &mut command, &log)
                }
                Err(missing) => missing.report(name),
            };
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tutorial_has_a_readme_a_test_and_an_entry() {
        let folder = process::root().join("examples");
        let mut found: Vec<_> = std::fs::read_dir(&folder)
            .expect("the folder exists")
            .map(|entry| entry.expect("the folder can be read").path())
            .filter(|path| path.join("README.md").is_file() && !path.join("Cargo.toml").is_file())
            .map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned())
            .collect();
        let mut listed: Vec<_> = TUTORIALS.iter().map(|tutorial| tutorial.name).collect();
        found.sort();
        listed.sort_unstable();
        assert_eq!(found, listed);
        for name in listed {
            let has_test =
                ["test.js", "test.py", "test.sh"].iter().any(|file| folder.join(name).join(file).is_file());
            assert!(has_test, "{name} has no test");
        }
    }
}
