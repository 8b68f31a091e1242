//! Threads, each with a runtime and a listener of its own.

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

/// A server that runs. Dropped, it goes on until the program ends; [`stop`](Self::stop) ends it in order.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Server {
    /// Starts so many threads that share a port.
    ///
    /// # Errors
    /// The address is taken, or there can be no runtime: io_uring is switched off, for instance.
    pub fn start(address: SocketAddr, threads: NonZero<usize>, market: &Arc<Market>) -> io::Result<Self> {
        // Asked here, where somebody can be told.
        drop(Runtime::new()?);
        // The first one finds a port, if `address` leaves that open.
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

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Tells every client that it goes (1001), and waits until they are gone.
    ///
    /// # Errors
    /// A thread had to end before.
    pub fn stop(self) -> io::Result<()> {
        self.stop.send_replace(true);
        for thread in self.threads {
            thread.join().map_err(|_| io::Error::other("a thread has panicked"))??;
        }
        Ok(())
    }
}

/// A listener on a port that several threads may listen on.
fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    /// What the kernel holds for a client that does not read is older than what we would send it, so that it should be
    /// little: some hundred updates.
    const SEND_BUFFER: usize = 32 << 10;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(true)?;
    socket.set_send_buffer_size(SEND_BUFFER)?;
    socket.bind(&address.into())?;
    socket.listen(1024)?;
    Ok(socket.into())
}

/// One thread: accepts until `stop` is true, then waits for its clients.
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
    // Each connection holds a receiver until it is over.
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
                // Out of file descriptors, most likely: others have to go first.
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
