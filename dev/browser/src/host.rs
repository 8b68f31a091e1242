//! Resources of the machine: programs, ports, child processes that never outlive the test.

use std::{
    env, fmt, fs, io,
    net::{Ipv4Addr, TcpListener},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU16, Ordering},
    thread,
    time::{Duration, Instant},
};

use ureq::Agent;

/// Time limit of any wait in a check. Successful checks never wait this long, also on a machine that stalls.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit of a request, such as the start of a browser.
const REQUEST_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(25);

/// Reason why a check failed, for the reader of the output.
#[derive(Debug)]
pub(crate) struct Failure {
    words: String,
    /// Another attempt may succeed: the page changes.
    pub(crate) is_transient: bool,
}

impl Failure {
    pub(crate) fn new(words: impl Into<String>) -> Self {
        Self { words: words.into(), is_transient: false }
    }

    pub(crate) fn transient(words: impl Into<String>) -> Self {
        Self { words: words.into(), is_transient: true }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::new(error.to_string())
    }
}

impl From<ureq::Error> for Failure {
    fn from(error: ureq::Error) -> Self {
        Self::new(error.to_string())
    }
}

/// Polls until the answer is true; `what` completes "waited in vain until ...".
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> Result<bool, Failure>) -> Result<(), Failure> {
    let held = retry(|| if holds()? { Ok(()) } else { Err(Failure::transient("")) });
    held.map_err(|last| match (last.is_transient, &*last.words) {
        (false, _) => last,
        (true, words) => {
            let separator = if words.is_empty() { "" } else { ": " };
            Failure::new(format!("waited {} s in vain until {what}{separator}{words}", PATIENCE.as_secs()))
        }
    })
}

/// Repeats what fails because the page changes: an element is replaced, covered or not there yet.
pub(crate) fn retry<T>(mut attempt: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Err(failure) if failure.is_transient && Instant::now() < deadline => thread::sleep(POLL),
            outcome => return outcome,
        }
    }
}

pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure::new(otherwise())) }
}

/// The function of a check.
pub(crate) type Check<W> = fn(&mut W) -> Result<(), Failure>;

/// Runs all checks, with one line for each. Returns the numbers of passed and failed checks.
pub(crate) fn go_through<W>(world: &mut W, checks: &[(&str, Check<W>)]) -> [usize; 2] {
    let mut failed = 0;
    for (name, check) in checks {
        match check(world) {
            Ok(()) => println!("ok      {name}"),
            Err(failure) => {
                failed += 1;
                println!("FAILED  {name}\n        {failure}");
            }
        }
    }
    [checks.len() - failed, failed]
}

/// The browser and its driver.
pub(crate) struct Tools {
    pub(crate) browser: PathBuf,
    pub(crate) driver: PathBuf,
}

impl Tools {
    pub(crate) fn find() -> Option<Self> {
        Some(Self {
            browser: find_program(&["chromium", "chromium-browser", "google-chrome"])?,
            driver: find_program(&["chromedriver"])?,
        })
    }
}

fn find_program(names: &[&str]) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let directories: Vec<PathBuf> = env::split_paths(&path).collect();
    names.iter().find_map(|name| directories.iter().map(|d| d.join(name)).find(|p| p.is_file()))
}

/// Chromium's own sandbox does not run as root, which is the usual user in containers.
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|me| me.uid() == 0)
}

/// Returns a port that is free now, and that the system chooses for no connection. Another program could take it first; then
/// the server fails to start and prints the reason.
pub(crate) fn free_port() -> Result<u16, Failure> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Chromium rejects port 3659.
    (0..600)
        .map(|_| 3_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 600)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| Failure::new("no port from 3000 to 3600 is free"))
}

/// Creates an HTTP client with a deadline on everything; a status is an answer, not an error.
pub(crate) fn agent() -> Agent {
    Agent::config_builder()
        .timeout_global(Some(REQUEST_LIMIT))
        .http_status_as_error(false)
        .build()
        .new_agent()
}

/// A child process that is killed, by its id, on drop.
pub(crate) struct Program(Child);

impl Program {
    pub(crate) fn start(command: &mut Command) -> Result<Self, Failure> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        child.map(Self).map_err(|error| Failure::new(format!("cannot start {name}: {error}")))
    }

    /// Sends SIGTERM, like a service manager, and waits until the program has exited.
    pub(crate) fn terminate(mut self) -> Result<(), Failure> {
        let asked = Command::new("kill").args(["-TERM", &self.0.id().to_string()]).status()?;
        if !asked.success() {
            return Err(Failure::new("kill -TERM failed"));
        }
        until("the program ends after SIGTERM", || Ok(self.0.try_wait()?.is_some()))
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only if the process has exited already, which is the goal.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The server under test. Its port stays the same across restarts, so that open pages reconnect.
pub(crate) struct Server {
    binary: PathBuf,
    /// Its arguments, beside its address.
    options: Vec<String>,
    address: String,
    agent: Agent,
    running: Option<Program>,
}

impl Server {
    pub(crate) fn start(binary: &Path) -> Result<Self, Failure> {
        Self::start_with(binary, &["--history", "kept.*=10"])
    }

    pub(crate) fn start_with(binary: &Path, options: &[&str]) -> Result<Self, Failure> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let options = options.iter().map(|&option| option.to_owned()).collect();
        let mut server = Self { binary: binary.to_owned(), options, address, agent: agent(), running: None };
        server.restart()?;
        Ok(server)
    }

    /// The program.
    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    /// Starts another server of the same program.
    pub(crate) fn beside(&self, options: &[&str]) -> Result<Self, Failure> {
        Self::start_with(&self.binary, options)
    }

    pub(crate) fn restart(&mut self) -> Result<(), Failure> {
        // The kernel takes a while to close the descriptors in the ring of a killed process.
        until("the port is free", || Ok(TcpListener::bind(&*self.address).is_ok()))?;
        let mut command = Command::new(&self.binary);
        let mut program =
            Program::start(command.args(["serve", "--listen", &self.address]).args(&self.options))?;
        until("the server answers /healthz", || {
            if let Some(status) = program.0.try_wait()? {
                return Err(Failure::new(format!("the server ended at once: {status}")));
            }
            Ok(self.agent.get(self.url("healthz")).call().is_ok_and(|answer| answer.status() == 200))
        })?;
        self.running = Some(program);
        Ok(())
    }

    /// Stops the server gracefully: it can close its connections.
    pub(crate) fn stop(&mut self) -> Result<(), Failure> {
        self.running.take().map_or(Ok(()), Program::terminate)
    }

    /// Kills the server, like a crash.
    pub(crate) fn kill(&mut self) {
        self.running = None;
    }

    pub(crate) fn pid(&self) -> Result<u32, Failure> {
        self.running
            .as_ref()
            .map(|program| program.0.id())
            .ok_or_else(|| Failure::new("the server has ended"))
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Publishes by HTTP, like `curl -d <text> <url>`.
    pub(crate) fn publish(&self, url: &str, text: &str) -> Result<(), Failure> {
        let request = self.agent.post(url).content_type("application/x-www-form-urlencoded");
        let status = request.send(text)?.status();
        if status.is_success() { Ok(()) } else { Err(Failure::new(format!("POST {url} answered {status}"))) }
    }
}
