//! `cargo xtask browser`: the pages and the client of `sinews serve` in Chromium, which Playwright drives. `dev/browser` has
//! the checks. It prints a line per check, `ok NAME`, `skipped NAME: why` or `FAIL NAME: why`.

use std::path::{self, PathBuf};

use clap::Args;

use crate::Outcome;
use crate::backend::Choice;
use crate::certificate::Certificate;
use crate::process;
use crate::server;
use crate::tools;

#[derive(Args)]
pub(crate) struct Options {
    /// Path of the `sinews` program to test, instead of building it
    #[arg(long)]
    binary: Option<PathBuf>,
    /// Parts to check, by their names in `dev/browser/parts.js` [default: all]
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Write the pictures of the documents to this folder instead of checking
    #[arg(long, value_name = "DIRECTORY", conflicts_with = "only")]
    pictures: Option<PathBuf>,
    /// Backend of the servers: the checks run once for each
    #[arg(long, value_enum, default_value_t = Choice::Both)]
    backend: Choice,
}

/// Parts with the page of 1,000 prices, an example of the hub.
const WITH_PRICES: [&str; 2] = ["axe", "prices"];

pub(crate) fn run(options: &Options) -> Outcome {
    let mut command = match tools::browser() {
        Ok(command) => command,
        Err(missing) => return Ok(missing.report("browser")),
    };
    let binary = server::binary(options.binary.as_deref())?;
    let permitted = options.backend.permitted(&binary)?;
    let mut count = permitted.print_skipped();
    let folder = process::target().join("xtask/browser");
    Certificate::make(&folder)?;
    command.env("SINEWS", &binary).env("SINEWS_CERTIFICATE", &folder);
    let mut backends = permitted.backends;
    if let Some(pictures) = &options.pictures {
        let pictures =
            path::absolute(pictures).map_err(|error| format!("{}: {error}", pictures.display()))?;
        command.arg("pictures").env("SINEWS_PICTURES", pictures);
        backends.truncate(1);
    } else if options.only.is_empty() || options.only.iter().any(|name| WITH_PRICES.contains(&&**name)) {
        command.env("SINEWS_PRICES", server::build_example("keys")?);
    }
    command.args(&options.only);
    for backend in backends {
        let name = format!("browser on {}", backend.name());
        let log = folder.join(format!("{}.log", backend.name()));
        command.env("SINEWS_BACKEND", backend.name());
        count = count + tools::run_checks(&name, &mut command, &log);
    }
    Ok(count)
}
