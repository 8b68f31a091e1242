//! A temporary `sinews serve` process with its own directory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

/// A child server process. Dropping it kills the process and removes the directory.
pub(crate) struct StreamServer {
    child: Child,
    directory: PathBuf,
    pub(crate) url: String,
    pub(crate) tcp: SocketAddr,
}

impl StreamServer {
    pub(crate) fn start(parent: Option<&Path>, cores: Option<&str>, more: &[String]) -> Result<Self, String> {
        let parent = parent.map_or_else(std::env::temp_dir, Path::to_owned);
        let directory = parent.join(format!("sinews-bench-durable-{}", std::process::id()));
        fs::create_dir_all(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
        let program = std::env::current_exe().map_err(|error| format!("path of this executable: {error}"))?;
        let mut command = match cores {
            // taskset replaces itself with the server.
            Some(cores) => {
                let mut taskset = Command::new("taskset");
                taskset.args(["--cpu-list", cores]).arg(program);
                taskset
            }
            None => Command::new(program),
        };
        command.args(["serve", "--listen", "127.0.0.1:0", "--streams-listen", "127.0.0.1:0"]);
        command.arg("--streams-directory").arg(&directory).args(more);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let child = spawned.map_err(|error| {
            let _ = fs::remove_dir_all(&directory);
            format!("starting a server: {error}")
        })?;
        let mut server =
            Self { child, directory, url: String::new(), tcp: SocketAddr::from(([127, 0, 0, 1], 0)) };
        server.read_table()?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Reads the server's addresses from its first output.
    fn read_table(&mut self) -> Result<(), String> {
        let stdout = self.child.stdout.take().ok_or("server has no standard output")?;
        let mut lines = BufReader::new(stdout).lines();
        let (mut http, mut tcp) = (None, None);
        while http.is_none() || tcp.is_none() {
            let Some(Ok(line)) = lines.next() else { return Err("server exited during startup".to_owned()) };
            http = http.or_else(|| Some(line.split_once("http://")?.1.split('/').next()?.to_owned()));
            tcp = tcp.or_else(|| line.split_once("tcp://")?.1.trim().parse().ok());
        }
        // Read to the end, so that the server never writes to a closed pipe.
        thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        self.url = format!("ws://{}", http.unwrap_or_default());
        self.tcp = tcp.ok_or("server has no plain TCP listener")?;
        Ok(())
    }
}

impl Drop for StreamServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.directory);
    }
}
