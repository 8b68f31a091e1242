//! On Tokio.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use crate::{Error, Threads, announce, config};

pub(crate) fn runtime(threads: Threads) -> io::Result<Runtime> {
    match threads {
        Threads::One => Builder::new_current_thread().enable_all().build(),
        Threads::Multi => Builder::new_multi_thread().worker_threads(2).enable_all().build(),
    }
}

/// Accepts forever; each connection is a task.
pub(crate) fn run(address: SocketAddr, threads: Threads) -> Result<(), Error> {
    runtime(threads)?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(echo(stream));
        }
    })
}

async fn echo(stream: TcpStream) -> Result<(), Error> {
    let mut socket = sinews::accept(stream).config(config()).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_data() {
            socket.send(message).await?;
        }
    }
    Ok(())
}
