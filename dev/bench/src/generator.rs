//! The load: `sinews bench` as a library, one thread on the load's core.

use std::net::SocketAddr;
use std::time::Duration;

use sinews_bench::{BenchArgs, OpenLoad};

use crate::Error;
use crate::round::{Done, Work};

/// An open load on a server.
#[derive(Debug)]
pub(crate) struct Generator(OpenLoad);

impl Generator {
    /// Opens the connections of a load: a URL, with the options of `sinews bench`.
    pub(crate) fn open(url: &str, options: &[&str]) -> Result<Self, Error> {
        let fixed = ["--timeout", "60s"];
        let arguments = [url].into_iter().chain(options.iter().copied()).chain(fixed);
        Ok(Self(OpenLoad::open(&BenchArgs::parse(arguments)?)?))
    }

    /// Opens the connections of a load in rounds, and sends messages for a moment: the server's buffers grow, and each
    /// answer is verified, as later.
    pub(crate) fn warm(url: &str, options: &[&str]) -> Result<Self, Error> {
        // Polls without sleeping: a wakeup of this process would be charged to the server, which sends.
        let mut load = Self::open(url, &[options, &["--busy-poll", "--backend", "poll"]].concat())?;
        load.run(WARM_UP)?;
        Ok(load)
    }

    /// Sends one burst on each connection, or on the publisher, at most `together` connections at a time.
    pub(crate) fn burst(&mut self, together: usize) -> Result<Done, Error> {
        let done = self.0.run_once(together)?;
        Ok(Done { units: done.messages, elapsed: done.elapsed })
    }

    /// Quantiles of the latency in all windows. Closes the connections.
    pub(crate) fn latencies(self, quantiles: &[f64]) -> Result<Vec<Duration>, Error> {
        Ok(self.0.latencies(quantiles)?)
    }
}

impl Work for Generator {
    fn run(&mut self, window: Duration) -> Result<Done, Error> {
        let done = self.0.run(window)?;
        Ok(Done { units: done.messages, elapsed: done.elapsed })
    }
}

/// Options for more connections than the descriptor limit and the ports of one address allow: several rings, whose
/// sockets are no descriptors, and several source addresses.
pub(crate) fn many(connections: usize) -> Vec<String> {
    let threads = connections.div_ceil(CONNECTIONS_PER_THREAD);
    let mut options = vec!["--connections".to_owned(), connections.to_string()];
    if threads > 1 {
        let sources = format!("127.0.0.1-{threads}");
        options.extend(["--threads".to_owned(), threads.to_string(), "--source".to_owned(), sources]);
    }
    options
}

/// URL of a topic at which a publisher does not receive its own messages.
pub(crate) fn topic(address: SocketAddr) -> String {
    format!("ws://{address}/topics/{{topic}}?self=false")
}

/// A ring has as many direct descriptors as the limit of open files, often 20,000.
const CONNECTIONS_PER_THREAD: usize = 15_000;

const WARM_UP: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_connections_take_several_rings_and_sources() {
        assert_eq!(many(10), ["--connections", "10"]);
        let source = "127.0.0.1-7";
        assert_eq!(many(100_000), ["--connections", "100000", "--threads", "7", "--source", source]);
    }
}
