//! A NATS server for the nodes of a cluster, by `dev/brokers/nats.sh`.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    host::{Failure, Server, free_port},
    streams::Directory,
};

/// Exit status of the script on a machine without the broker.
const UNAVAILABLE: i32 = 77;

/// A running broker, which is stopped on drop.
pub(crate) struct Broker {
    port: u16,
    folder: Directory,
}

impl Broker {
    /// Starts the broker. `None` if the machine has none: a line says how to install it.
    pub(crate) fn start(name: &str) -> Result<Option<Self>, Failure> {
        let broker = Self { port: free_port()?, folder: Directory::new(name)? };
        let output = broker.command("up").stderr(Stdio::piped()).output()?;
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        match output.status.code() {
            Some(0) => Ok(Some(broker)),
            Some(UNAVAILABLE) => {
                println!("SKIPPED checks of nodes: {words}");
                Ok(None)
            }
            _ => Err(Failure::new(format!("nats.sh up: {words}"))),
        }
    }

    /// Ends the broker like a crash.
    pub(crate) fn kill(&self) -> Result<(), Failure> {
        self.run("kill")
    }

    /// Starts it again, at the same port.
    pub(crate) fn restart(&self) -> Result<(), Failure> {
        self.run("up")
    }

    /// Starts a node of the cluster, with more options.
    pub(crate) fn node(&self, binary: &Path, name: &str, options: &[&str]) -> Result<Server, Failure> {
        let url = format!("nats://127.0.0.1:{}", self.port);
        Server::start_with(binary, &[&["--cluster", &url, "--cluster-node-name", name], options].concat())
    }

    fn run(&self, action: &str) -> Result<(), Failure> {
        let status = self.command(action).status()?;
        if status.success() { Ok(()) } else { Err(Failure::new(format!("nats.sh {action}: {status}"))) }
    }

    fn command(&self, action: &str) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../brokers/nats.sh");
        let mut command = Command::new("bash");
        command.arg(script).arg(action).env("BROKER_PORT", self.port.to_string());
        command.env("BROKER_RUN", format!("{}/run", self.folder.path()));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // The broker ends by itself after 15 minutes otherwise.
        let _ = self.run("down");
    }
}
