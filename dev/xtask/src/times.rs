//! Where the time of `cargo xtask test` goes: a line for each step, each compilation and each longer command, in
//! `target/xtask/times.tsv`.

use std::cell::RefCell;
use std::env;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::process;

/// Tells tasks that a step starts as processes which step they belong to.
pub(crate) const STEP_VARIABLE: &str = "XTASK_STEP";
/// Commands that take less are not recorded: there are thousands.
const SHORTEST: Duration = Duration::from_secs(1);
/// Number of entries in the summary.
const LONGEST: usize = 10;
const HEAD: &str = "step\twhat\tseconds\tcpu\n";

thread_local! {
    static STEP: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// A step's or command's wall time and processor time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Spent {
    pub(crate) wall: Duration,
    /// Processor time in seconds, `None` on systems without `/proc`.
    pub(crate) cpu: Option<f64>,
}

/// Begins an empty file.
pub(crate) fn begin() {
    let file = file();
    let folder = file.parent().map_or(Ok(()), fs::create_dir_all);
    warn(folder.and_then(|()| fs::write(&file, HEAD)));
}

/// Names the step for all commands that this thread runs from now on. `None`: its commands are not recorded.
pub(crate) fn enter(step: Option<&str>) {
    STEP.with_borrow_mut(|entered| *entered = step.map(str::to_owned));
}

/// The step that this thread, or this process, belongs to.
pub(crate) fn step() -> Option<String> {
    STEP.with_borrow(Clone::clone).or_else(|| env::var(STEP_VARIABLE).ok())
}

/// Records a command that has ended, by its log's name; and the compilation in it, if it is a cargo command.
pub(crate) fn record_command(command: &Command, log: &Path, spent: Spent) {
    let Some(step) = step() else { return };
    let program = Path::new(command.get_program()).file_stem().unwrap_or_default();
    // A task in this program records its own commands.
    if program == "xtask" || spent.wall < SHORTEST {
        return;
    }
    let what = log.file_stem().unwrap_or_default().to_string_lossy();
    let compiled = || compilation(&process::read(log)).filter(|wall| *wall >= SHORTEST);
    if let Some(wall) = (program == "cargo").then(compiled).flatten() {
        record(&step, &format!("compile {what}"), Spent { wall, cpu: None });
    }
    record(&step, &what, spent);
}

/// Adds a line.
pub(crate) fn record(step: &str, what: &str, spent: Spent) {
    // Unit tests' steps do not belong to the run.
    if cfg!(test) {
        return;
    }
    let cpu = spent.cpu.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.1}"));
    let line = format!("{step}\t{what}\t{:.1}\t{cpu}\n", spent.wall.as_secs_f64());
    // One write for each line: several processes add to the file.
    let file = OpenOptions::new().append(true).create(true).open(file());
    warn(file.and_then(|mut file| file.write_all(line.as_bytes())));
}

/// Prints the longest compilations and commands. The steps have a table of their own.
pub(crate) fn print_longest() {
    let text = process::read(&file());
    println!("\nlongest, of {}:", file().display());
    for [step, what, seconds, cpu] in longest(&text) {
        println!("{seconds:>8} s, cpu {cpu:>7} s  {step}: {what}");
    }
}

fn longest(text: &str) -> Vec<[&str; 4]> {
    let fields = |line| <[&str; 4]>::try_from(str::split(line, '\t').collect::<Vec<_>>()).ok();
    let is_command = |line: &[&str; 4]| line[1] != WHOLE_STEP;
    let mut lines: Vec<_> = text.lines().skip(1).filter_map(fields).filter(is_command).collect();
    let seconds = |line: &[&str; 4]| line[2].parse().unwrap_or(0.0);
    lines.sort_by(|one, other| f64::total_cmp(&seconds(other), &seconds(one)));
    lines.truncate(LONGEST);
    lines
}

/// Stands for a whole step.
pub(crate) const WHOLE_STEP: &str = "step";

/// The time that cargo names when it has compiled: `Finished … target(s) in 1m 02s`.
fn compilation(text: &str) -> Option<Duration> {
    let line = text.lines().find(|line| line.trim_start().starts_with("Finished "))?;
    let (_, time) = line.rsplit_once(" in ")?;
    let seconds = time.split_whitespace().map(|part| {
        let (number, unit) = part.split_at(part.find(char::is_alphabetic)?);
        let factor = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            _ => return None,
        };
        Some(number.parse::<f64>().ok()? * factor)
    });
    Duration::try_from_secs_f64(seconds.sum::<Option<f64>>()?).ok()
}

fn file() -> PathBuf {
    process::target().join("xtask/times.tsv")
}

/// A run without its times is complete otherwise.
fn warn(written: std::io::Result<()>) {
    if let Err(error) = written {
        println!("{}: {error}", file().display());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_compilation_is_read_from_cargo() {
        let of = |line: &str| compilation(&format!("   Compiling a v1.0.0\n{line}\nrunning 1 test"));
        let dev = "    Finished `dev` profile [unoptimized] target(s) in";
        assert_eq!(of(&format!("{dev} 0.52s")), Some(Duration::from_millis(520)));
        assert_eq!(of(&format!("{dev} 12m 04s")), Some(Duration::from_secs(724)));
        assert_eq!(of("error: could not compile"), None);
        assert_eq!(of("    Finished in no time"), None);
    }

    #[test]
    fn longest_commands_come_first_and_steps_do_not_count() {
        let text = "step\twhat\tseconds\tcpu\n\
                    tests\tstep\t90.0\t-\ntests\ta\t9.5\t1.0\ntests\tb\t10.0\t-\nincomplete\n";
        assert_eq!(longest(text), [["tests", "b", "10.0", "-"], ["tests", "a", "9.5", "1.0"]]);
        let many = format!("{HEAD}{}", "s\tw\t1.0\t-\n".repeat(LONGEST + 1));
        assert_eq!(longest(&many).len(), LONGEST);
    }
}
