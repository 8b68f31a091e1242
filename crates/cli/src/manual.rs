//! `sinews completions` and `sinews man`: shell completions and manual pages.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use clap_complete::Shell;

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// Shell of the completion script
    #[arg(value_enum, value_name = "SHELL")]
    shell: Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory for the manual pages of the program and its subcommands [default: print the program's page to
    /// standard output]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
}

/// Writes a completion script to standard output.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), String> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut crate::args::command(), "sinews", &mut script);
    print(&script)
}

/// Writes manual pages.
pub(crate) fn man(args: &ManArgs) -> Result<(), String> {
    let command = crate::args::command();
    match &args.directory {
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(command).render(&mut page).map_err(|error| error.to_string())?;
            print(&page)
        }
        Some(directory) => write_pages(command, directory)
            .map_err(|error| format!("manual pages in {}: {error}", directory.display())),
    }
}

fn write_pages(command: clap::Command, directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    clap_mangen::generate_to(command, directory)
}

fn print(text: &[u8]) -> Result<(), String> {
    io::stdout().lock().write_all(text).map_err(|error| format!("standard output: {error}"))
}
