//! On Tokio.

use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Builder;

use crate::{Error, announce, config};

pub(crate) enum Threads {
    One,
    Many,
}

/// Accepts for ever; each connection is a task.
pub(crate) fn run(address: SocketAddr, threads: Threads) -> Result<(), Error> {
    let mut runtime = match threads {
        Threads::One => Builder::new_current_thread(),
        Threads::Many => Builder::new_multi_thread(),
    };
    runtime.enable_all().build()?.block_on(async {
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
