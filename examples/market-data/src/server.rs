//! Threads, each with its own runtime and listener.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use compio::net::TcpStream;
use compio::runtime::Runtime;
use sinews::Config;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::sync::watch;

use crate::{Market, client};

/// A running server. Without [`stop`](Self::stop), which shuts it down gracefully, it runs until the program
/// exits, even if dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Starts `threads` threads that share a port.
    ///
    /// # Errors
    /// The address is in use, or a runtime cannot start: io_uring is disabled, for instance.
    pub fn start(address: SocketAddr, threads: NonZero<usize>, market: &Arc<Market>) -> io::Result<Self> {
        // Checked here, where the caller receives the error.
        drop(Runtime::new()?);
        // The first listener picks a port, if `address` has port 0.
        let first = listen(address)?;
        let address = first.local_addr()?;
        let others = (1..threads.get()).map(|_| listen(address));
        let listeners = std::iter::once(Ok(first)).chain(others).collect::<io::Result<Vec<_>>>()?;
        let stop = watch::Sender::new(false);
        let start = |listener| {
            let (market, stop) = (market.clone(), stop.subscribe());
            std::thread::Builder::new()
                .name("market".to_owned())
                .spawn(|| Runtime::new()?.block_on(serve(listener, market, stop)))
        };
        let threads = listeners.into_iter().map(start).collect::<io::Result<_>>()?;
        Ok(Self { address, stop, threads })
    }

    /// Returns the listen address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Closes all connections with 1001, and waits for their end.
    ///
    /// # Errors
    /// A thread had exited before.
    pub fn stop(self) -> io::Result<()> {
        self.stop.send_replace(true);
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a thread has panicked"))??;
        }
        Ok(())
    }
}

/// Opens a listener on a port that several threads share.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    /// Updates in the kernel's buffer for a slow client are outdated, so the buffer is small: some hundred
    /// updates.
    const SEND_BUFFER: usize = 32 << 10;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// Runs one thread: accepts until `stop` is true, then waits for its clients.
async fn serve(
    listener: TcpListener,
    market: Arc<Market>,
    mut stop: watch::Receiver<bool>,
) -> io::Result<()> {
    let listener = compio::net::TcpListener::from_std(listener)?;
    let config = Config::default()
        .with_max_message(16 << 10)
        .with_max_frame(16 << 10)
        .with_write_timeout(Duration::from_secs(10));
    let config = Arc::new(config);
    // Each connection holds a receiver until it ends.
    let clients = watch::Sender::new(());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => break,
        };
        match accepted {
            Ok((stream, peer)) => {
                let (config, market, stop) = (config.clone(), market.clone(), stop.clone());
                let here = clients.subscribe();
                let client = async move {
                    if let Err(error) = welcome(stream, config, &market, stop).await {
                        tracing::info!("{peer}: {error}");
                    }
                    drop(here);
                };
                compio::runtime::spawn(client).detach();
            }
            Err(error) => {
                // Probably out of file descriptors: other connections have to close first.
                tracing::warn!("accept: {error}");
                compio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    clients.closed().await;
    Ok(())
}

async fn welcome(
    stream: TcpStream,
    config: Arc<Config>,
    market: &Market,
    stop: watch::Receiver<bool>,
) -> Result<(), Box<dyn std::error::Error>> {
    stream.set_nodelay(true)?;
    let mut websocket = sinews::compio::accept(stream).config(config).await?;
    Ok(client::serve(&mut websocket, market.watch(), stop).await?)
}
