//! Third-party programs: found or installed, with the scripts of `dev/interop` that drive them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::count::Count;
use crate::process::{self, find_program};

/// Time limit of one installation from a package registry.
const INSTALL_LIMIT: Duration = Duration::from_secs(10 * 60);
/// Time limit of one program's checks, which need up to a minute; each check has a shorter limit of its own.
const CHECKS_LIMIT: Duration = Duration::from_secs(15 * 60);

/// Installs the packages of a lock file in the folder of the file.
const NPM_INSTALL: [&str; 4] = ["ci", "--ignore-scripts", "--no-audit", "--no-fund"];

/// Names of the browser, as `dev/browser/world.js` looks for them.
const CHROMIUM: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];

/// Copies the dependencies of a Maven project.
const MAVEN_COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies";

/// The reason why a program cannot run.
pub(crate) enum Missing {
    /// An external tool is missing: no fault of this repository.
    Tool(String),
    /// Code of this repository does not build.
    Broken(String),
}

impl Missing {
    /// Prints the reason, and counts it.
    pub(crate) fn report(&self, name: &str) -> Count {
        match self {
            Self::Tool(why) => {
                println!("skipped: {name}: {why}");
                Count::SKIPPED
            }
            Self::Broken(why) => {
                println!("FAIL {name}: {why}");
                Count::FAILED
            }
        }
    }
}

/// Runs a program that prints `ok NAME`, `skipped NAME: why` or `FAIL NAME: why` for each of its checks, and counts them.
pub(crate) fn run_checks(name: &str, command: &mut Command, log: &Path) -> Count {
    let started = Instant::now();
    let end = process::run(command, log, CHECKS_LIMIT).and_then(|end| end.check(name, log));
    let output = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let mut count = count_lines(&output);
    if end.is_err() && count.failed == 0 || count == Count::default() {
        count = count + Count::FAILED;
        println!("FAIL {}", end.err().unwrap_or_else(|| format!("{name} checked nothing")));
    }
    println!("{name}: {count} in {:.1} s", started.elapsed().as_secs_f64());
    for line in output.lines().filter(|line| line.starts_with("FAIL ") || line.starts_with("skipped ")) {
        println!("    {line}");
    }
    count
}

fn count_lines(output: &str) -> Count {
    let count = |prefix: &str| output.lines().filter(|line| line.starts_with(prefix)).count() as u64;
    Count { passed: count("ok "), failed: count("FAIL "), skipped: count("skipped ") }
}

/// A script that drives curl.
pub(crate) fn curl(script: &str) -> Result<Command, Missing> {
    need("bash", "apt-get install bash")?;
    need("curl", "apt-get install curl")?;
    let mut command = Command::new("bash");
    command.arg(source(script));
    Ok(command)
}

pub(crate) fn node(script: &str) -> Result<Command, Missing> {
    need("node", "apt-get install nodejs npm")?;
    let dir = node_directory()?;
    let mut command = Command::new("node");
    command.arg(dir.join(script));
    Ok(command)
}

/// A script for the package in `clients/pusher-recovery`, which is copied beside it.
pub(crate) fn node_with_pusher_recovery(script: &str) -> Result<Command, Missing> {
    let command = node(script)?;
    let dir = process::cache("interop").join("node");
    let copied = copy_files(&process::root().join("clients/pusher-recovery"), &dir.join("pusher-recovery"));
    copied.map_err(|error| Missing::Broken(format!("{}: {error}", dir.display())))?;
    Ok(command)
}

/// The tests of the package in `clients/js`. They need the variable `SINEWS`, the path of the program.
pub(crate) fn client_js() -> Result<Command, Missing> {
    need("node", "apt-get install nodejs npm")?;
    need("npm", "apt-get install npm")?;
    let package = process::root().join("clients/js");
    let dir = process::cache("interop").join("client-js");
    let copied = copy_files(&package, &dir).and_then(|()| {
        let tests = dir.join("test");
        // A test that no longer exists would run.
        if tests.exists() {
            fs::remove_dir_all(&tests)?;
        }
        copy_files(&package.join("test"), &tests)
    });
    copied.map_err(|error| Missing::Broken(format!("{}: {error}", dir.display())))?;
    install_locked(&dir, &package.join("package-lock.json"))?;
    let mut command = Command::new("node");
    command.arg("test/run.js").arg("--test-reporter=./test/reporter.js").current_dir(dir);
    command.env("SINEWS_BOOK", process::root().join("docs/book/src"));
    Ok(command)
}

/// The test of a tutorial in `examples/` for Node.js, with the packages of all tutorials installed beside it.
pub(crate) fn tutorial_node(name: &str) -> Result<Command, Missing> {
    need("node", "apt-get install nodejs npm")?;
    need("npm", "apt-get install npm")?;
    let tutorials = process::root().join("examples");
    install_beside(&tutorials, &process::cache("tutorials"))?;
    let mut command = Command::new("node");
    command.args(["../testing/run.js", "test.js"]).current_dir(tutorials.join(name));
    Ok(command)
}

/// The test of a tutorial for Python, with the packages of its `requirements.txt`.
pub(crate) fn tutorial_python(name: &str) -> Result<Command, Missing> {
    let folder = process::root().join("examples").join(name);
    let packages =
        python_packages(&process::cache("tutorials").join(name), &folder.join("requirements.txt"))?;
    let mut command = Command::new("python3");
    command.args(["-B", "test.py"]).env("PYTHONPATH", packages).current_dir(folder);
    Ok(command)
}

/// The test of a tutorial for curl.
pub(crate) fn tutorial_curl(name: &str) -> Result<Command, Missing> {
    need("bash", "apt-get install bash")?;
    need("curl", "apt-get install curl")?;
    let mut command = Command::new("bash");
    command.arg("test.sh").current_dir(process::root().join("examples").join(name));
    Ok(command)
}

/// The checks of the pages in `dev/browser`, with their packages installed beside them: Playwright drives the browser of
/// the machine, and fetches none.
pub(crate) fn browser() -> Result<Command, Missing> {
    if CHROMIUM.iter().all(|name| find_program(name).is_none()) {
        return Err(Missing::Tool(format!("no {} (apt-get install chromium)", CHROMIUM[0])));
    }
    need("node", "apt-get install nodejs npm")?;
    need("npm", "apt-get install npm")?;
    let checks = process::root().join("dev/browser");
    install_beside(&checks, &process::cache("browser"))?;
    let mut command = Command::new("node");
    command.arg(checks.join("run.js"));
    Ok(command)
}

/// Installs the packages of a lock file beside it, unless the same ones are there. `dir` has the log.
fn install_beside(folder: &Path, dir: &Path) -> Result<(), Missing> {
    let lock = folder.join("package-lock.json");
    let mut install = Command::new("npm");
    install.args(NPM_INSTALL).current_dir(folder);
    if folder.join("node_modules").is_dir() {
        once(dir, &lock, &mut install)
    } else {
        install_now(dir, &lock, &mut install)
    }
}

/// The scripts of `dev/interop/node`, with their packages.
fn node_directory() -> Result<PathBuf, Missing> {
    need("npm", "apt-get install npm")?;
    // Node resolves modules beside the script, so the scripts are copied beside the modules.
    let dir = process::cache("interop").join("node");
    let lock = source("node/package-lock.json");
    let copied = copy_files(&source("node"), &dir);
    copied.map_err(|error| Missing::Broken(format!("{}: {error}", dir.display())))?;
    install_locked(&dir, &lock)?;
    Ok(dir)
}

/// Installs the packages of a lock file.
fn install_locked(dir: &Path, lock: &Path) -> Result<(), Missing> {
    let mut install = Command::new("npm");
    install.args(NPM_INSTALL).current_dir(dir);
    once(dir, lock, &mut install)
}

/// Returns the interpreter with the installed packages, and arguments: a script of ours, or a third-party
/// module.
pub(crate) fn python(arguments: &[&str]) -> Result<Command, Missing> {
    let packages =
        python_packages(&process::cache("interop").join("python"), &source("python/requirements.txt"))?;
    let mut command = Command::new("python3");
    command.arg("-B").args(arguments).env("PYTHONPATH", packages).current_dir(source("python"));
    Ok(command)
}

/// Installs the packages of a list of requirements below the folder, and returns their folder.
fn python_packages(dir: &Path, requirements: &Path) -> Result<PathBuf, Missing> {
    need("python3", "apt-get install python3 python3-pip")?;
    let packages = dir.join("packages");
    let mut install = Command::new("python3");
    install.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(&packages);
    once(dir, requirements, install.arg("--requirement").arg(requirements))?;
    Ok(packages)
}

pub(crate) fn go(program: &str) -> Result<Command, Missing> {
    need("go", "https://go.dev/dl")?;
    let dir = process::cache("interop").join("go");
    let modules = source("go");
    // Does nothing when Go's own cache has the modules.
    let mut download = Command::new("go");
    download.args(["mod", "download"]).current_dir(&modules);
    execute(&mut download, &dir.join("download.log")).map_err(Missing::Tool)?;
    let binary = dir.join(program);
    let mut build = Command::new("go");
    build
        .args(["build", "-mod=readonly", "-o"])
        .arg(&binary)
        .arg(format!("./{program}"))
        .current_dir(&modules);
    execute(&mut build, &dir.join(format!("{program}.log"))).map_err(Missing::Broken)?;
    Ok(Command::new(binary))
}

/// The program of a module of Go of its own.
pub(crate) fn go_module(module: &str) -> Result<Command, Missing> {
    need("go", "https://go.dev/dl")?;
    let (dir, module) = (process::cache("interop").join(module), source(module));
    let binary = dir.join("client");
    let mut download = Command::new("go");
    execute(download.args(["mod", "download"]).current_dir(&module), &dir.join("download.log"))
        .map_err(Missing::Tool)?;
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-o"]).arg(&binary).arg(".").current_dir(&module);
    execute(&mut build, &dir.join("build.log")).map_err(Missing::Broken)?;
    Ok(Command::new(binary))
}

/// Helm, which reads the chart: the program on the path, or one that is built from its module.
pub(crate) fn helm() -> Result<PathBuf, Missing> {
    if let Some(found) = find_program("helm") {
        return Ok(found);
    }
    need("go", "https://go.dev/dl")?;
    let (dir, module) = (process::cache("interop").join("helm"), source("helm"));
    let binary = dir.join("helm");
    let mut build = Command::new("go");
    build.args(["build", "-mod=readonly", "-o"]).arg(&binary).arg("helm.sh/helm/v3/cmd/helm");
    once(&dir, &module.join("go.sum"), build.current_dir(&module))?;
    Ok(binary)
}

/// A program of `dev/interop/java`, with the libraries of its `pom.xml`.
pub(crate) fn java(class: &str) -> Result<Command, Missing> {
    need("javac", "apt-get install openjdk-17-jdk-headless")?;
    let (dir, sources) = (process::cache("interop").join("java"), source("java"));
    let (jars, classes) = (jars("java")?, dir.join("classes"));
    let files = fs::read_dir(&sources).map_err(|error| broken(&sources, &error))?;
    let files = files.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut compile = Command::new("javac");
    compile.arg("-d").arg(&classes).arg("-cp").arg(jars.join("*"));
    compile.args(files.filter(|path| path.extension().is_some_and(|extension| extension == "java")));
    execute(&mut compile, &dir.join("compile.log")).map_err(Missing::Broken)?;
    let mut command = Command::new("java");
    command.arg("-cp").arg(format!("{}:{}", classes.display(), jars.join("*").display())).arg(class);
    Ok(command)
}

/// The script that runs h3spec from its jar.
pub(crate) fn h3spec() -> Result<Command, Missing> {
    if !cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Err(Missing::Tool("h3spec is published for Linux on x86-64 only".to_owned()));
    }
    let jars = jars("h3spec")?;
    let mut command = python(&["h3spec.py"])?;
    command.arg(jars);
    Ok(command)
}

/// The folder with the jars of a `pom.xml` in a folder of `dev/interop`.
fn jars(name: &str) -> Result<PathBuf, Missing> {
    let (dir, versions) = (process::cache("interop").join(name), source(name).join("pom.xml"));
    let jars = dir.join("jars");
    if fs::read(dir.join("installed")).ok() != fs::read(&versions).ok() {
        need("mvn", "apt-get install maven")?;
        // A class path is all of the folder: jars of other versions must not remain.
        if jars.exists() {
            fs::remove_dir_all(&jars).map_err(|error| broken(&jars, &error))?;
        }
    }
    let mut fetch = Command::new("mvn");
    fetch.args(["--quiet", "--batch-mode", "--file"]).arg(&versions);
    fetch.arg(property("maven.repo.local", &dir.join("repository")));
    fetch.args([MAVEN_COPY, "-DincludeScope=runtime"]).arg(property("outputDirectory", &jars));
    once(&dir, &versions, &mut fetch)?;
    Ok(jars)
}

/// A program of `dev/interop/php` with the sources of a library: a copy in the folder that a variable names, or the package
/// of `composer.json`, which Composer installs.
pub(crate) fn php(script: &str, copy: &str) -> Result<Command, Missing> {
    need("php", "apt-get install php-cli php-curl php-guzzlehttp-guzzle php-psr-log")?;
    let sources = match std::env::var_os(copy) {
        Some(sources) => PathBuf::from(sources),
        None => composer_packages(copy)?,
    };
    let mut command = Command::new("php");
    command.arg(source("php").join(script)).arg(sources);
    Ok(command)
}

/// The folder with the packages of `dev/interop/php/composer.json`.
fn composer_packages(copy: &str) -> Result<PathBuf, Missing> {
    let remedy = format!("apt-get install composer, or set {copy} to a folder with a copy of the library");
    need("composer", &remedy)?;
    let (dir, versions) = (process::cache("interop").join("php"), source("php/composer.json"));
    copy_files(&source("php"), &dir).map_err(|error| broken(&dir, &error))?;
    let mut install = Command::new("composer");
    install.args(["update", "--no-interaction", "--no-progress", "--no-scripts", "--prefer-dist"]);
    once(&dir, &versions, install.current_dir(&dir))?;
    Ok(dir)
}

/// An argument of Maven that sets a property.
fn property(name: &str, value: &Path) -> String {
    format!("-D{name}={}", value.display())
}

fn copy_files(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

/// Runs the installation unless it has completed for the same list of versions.
fn once(dir: &Path, versions: &Path, install: &mut Command) -> Result<(), Missing> {
    let wanted = fs::read(versions).map_err(|error| broken(versions, &error))?;
    if fs::read(dir.join("installed")).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    install_now(dir, versions, install)
}

/// Runs the installation, and notes the list of versions.
fn install_now(dir: &Path, versions: &Path, install: &mut Command) -> Result<(), Missing> {
    let wanted = fs::read(versions).map_err(|error| broken(versions, &error))?;
    let stamp = dir.join("installed");
    execute(install, &dir.join("install.log")).map_err(Missing::Tool)?;
    fs::write(&stamp, wanted).map_err(|error| broken(&stamp, &error))
}

fn broken(path: &Path, error: &io::Error) -> Missing {
    Missing::Broken(format!("{}: {error}", path.display()))
}

fn execute(command: &mut Command, log: &Path) -> Result<(), String> {
    let what = command.get_program().to_string_lossy().into_owned();
    process::run(command, log, INSTALL_LIMIT)?.check(&what, log)
}

pub(crate) fn need(program: &str, remedy: &str) -> Result<(), Missing> {
    let found = find_program(program).map(|_| ());
    found.ok_or_else(|| Missing::Tool(format!("no {program} ({remedy})")))
}

pub(crate) fn source(path: &str) -> PathBuf {
    process::root().join("dev/interop").join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_lines_of_a_client_are_counted() {
        let output = "ok text of 1\nnoise\nFAIL ping: late\nskipped trace: refused\nok close\n";
        assert_eq!(count_lines(output), Count { passed: 2, failed: 1, skipped: 1 });
    }
}
