//! Repeated crowds of more clients than a server has descriptors.

use crate::Fault;
use crate::bench::{CROWD, ECHO, ONE};
use crate::server::{Server, Setup};
use crate::verdict::Verdict;

/// Crowds of clients connect and disconnect. The server must answer clients within its capacity, at once or
/// after other clients have left.
pub(crate) fn run(setup: &Setup<'_>, verdict: &mut Verdict) -> Result<(), Fault> {
    println!("\n{CLIENTS} clients connect to a server with {DESCRIPTORS} descriptors, {ROUNDS} times");
    let server = Server::start(setup)?;
    let before = server.sample()?;
    let mut most = 0;
    let mut answered = Ok(());
    for _ in 0..ROUNDS {
        let clients = CLIENTS.to_string();
        let mut crowd = CROWD.start(setup.binary, server.address(), &["-c", &clients, "-d", "600s"])?;
        let least = DESCRIPTORS as usize / 2;
        let full = server.sample_until(|sample| sample.descriptors >= before.descriptors + least)?;
        most = most.max(full.descriptors - before.descriptors);
        // The kernel has accepted them behind the crowd.
        let waiting = ECHO.start(setup.binary, server.address(), &["-c", "32", "-n", "32"])?;
        crowd.kill();
        let new = ONE.start(setup.binary, server.address(), &[])?;
        answered = answered.and_then(|()| waiting.result().and_then(|_| new.result()).map(|_| ()));
    }
    let some = DESCRIPTORS as usize / 4..CLIENTS;
    verdict.check(
        "clients held at once",
        most,
        format!("{} to {}", some.start, some.end),
        some.contains(&most),
    );
    verdict.result("waiting and new clients are answered", &answered);
    let after = server.sample_until(|sample| sample.descriptors <= before.descriptors)?.descriptors;
    verdict.check("descriptors in the end", after, before.descriptors, after <= before.descriptors);
    verdict.complaints(&server.complaints()?);
    server.ask_to_end()?;
    verdict.result("SIGTERM ends it with success", &server.wait());
    Ok(())
}

/// The server's limit: more than it needs for itself.
pub(crate) const DESCRIPTORS: u32 = 128;
/// Far above the limit, also where each of two threads has its own file table; below the backlog.
const CLIENTS: usize = 600;
const ROUNDS: usize = 3;
