//! Tests every option of `sinews connect` and `sinews bench` against servers and clients of other projects.
//! The scripts start the program themselves, with their own servers.

use std::fs;
use std::path::Path;

use crate::Outcome;
use crate::count::Count;
use crate::library;
use crate::process;
use crate::server;
use crate::tools;

struct Peer {
    name: &'static str,
    prepare: fn() -> Result<std::process::Command, tools::Missing>,
}

const PEERS: [Peer; 4] = [
    Peer { name: "connect-ws", prepare: || tools::node("connect.mjs") },
    Peer { name: "connect-python", prepare: || tools::python(&["connect.py"]) },
    Peer { name: "bench-ws", prepare: || tools::node("bench.mjs") },
    Peer { name: "bench-python", prepare: || tools::python(&["bench.py"]) },
];

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    PEERS.iter().map(|peer| peer.name)
}

/// Runs the chosen peers.
pub(crate) fn run(binary: &Path, wants: impl Fn(&str) -> bool) -> Outcome {
    println!("sinews connect, sinews bench");
    let folder = process::target().join("xtask/interop/connect");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    library::make_certificate(&server::build_debug("sinews-interop")?, &folder)?;
    let mut count = Count::default();
    for peer in PEERS.iter().filter(|peer| wants(peer.name)) {
        let log = folder.join(format!("{}.log", peer.name));
        count = count
            + match (peer.prepare)() {
                Ok(mut command) => tools::run_checks(peer.name, command.arg(binary).arg(&folder), &log),
                Err(missing) => missing.report(peer.name),
            };
    }
    Ok(count)
}
