//! Real brokers, with configurations from the documentation.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::until;

/// A real broker that ends with this value.
#[derive(Debug)]
pub struct RealBroker {
    child: Child,
    /// With the user `sinews` and the password `secret`.
    pub url: String,
    _files: TempDir,
}

impl RealBroker {
    /// Starts a program with a configuration, in which `PORT` is replaced; `None` if it is not installed.
    ///
    /// # Panics
    /// If it does not listen.
    #[must_use]
    pub fn start(program: &str, scheme: &str, config: &str) -> Option<Self> {
        let files = tempfile::tempdir().expect("a directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = listener.local_addr().expect("it is bound").port();
        drop(listener);
        let path = files.path().join("broker.conf");
        std::fs::write(&path, config.replace("PORT", &port.to_string())).expect("the directory is ours");
        let mut command = Command::new(program);
        if program == "nats-server" {
            command.arg("-c");
        }
        let spawned =
            command.arg(&path).current_dir(&files).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let Ok(child) = spawned else {
            println!("skipped: {program} is not installed (apt install redis-server nats-server)");
            return None;
        };
        let broker = Self { child, url: format!("{scheme}://sinews:secret@127.0.0.1:{port}"), _files: files };
        until(format_args!("{program} listens"), || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(broker)
    }
}

impl Drop for RealBroker {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a page's first code block that contains a text, with [`RealBroker`]'s password.
///
/// # Panics
/// If there is none.
#[must_use]
pub fn documented(page: &str, text: &str) -> String {
    let mut blocks = page.split("```").skip(1).step_by(2);
    let block = blocks.find(|block| block.contains(text)).unwrap_or_else(|| panic!("{text}"));
    let (_, content) = block.split_once('\n').expect("a block has lines");
    content.replace("PASSWORD", "secret")
}

/// Defines a test for each line `name => call`. With `ignore` and a reason, the tests run on request only, such as
/// broker tests.
#[macro_export]
macro_rules! tests {
    ($($(#[$attribute:meta])* $name:ident => $call:expr;)*) => {$(
        $(#[$attribute])*
        #[test]
        fn $name() {
            $call;
        }
    )*};
    (ignore $why:literal: $($(#[$attribute:meta])* $name:ident => $call:expr;)*) => {
        $crate::tests! { $(#[ignore = $why] $(#[$attribute])* $name => $call;)* }
    };
}
