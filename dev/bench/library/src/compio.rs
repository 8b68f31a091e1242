//! On compio: io_uring.

use std::net::SocketAddr;
use std::num::NonZero;
use std::sync::Arc;

use compio::driver::ProactorBuilder;
use compio::net::{TcpListener, TcpStream};
use compio::runtime::{Runtime, RuntimeBuilder};
use sinews::Config;

use crate::{Error, announce, config};

/// Accepts forever; each connection is a task.
pub(crate) fn run(address: SocketAddr) -> Result<(), Error> {
    runtime()?.block_on(async {
        let config = Arc::new(config());
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            compio::runtime::spawn(echo(stream, config.clone())).detach();
        }
    })
}

/// A runtime for one thread.
pub(crate) fn runtime() -> Result<Runtime, Error> {
    let mut proactor = ProactorBuilder::new();
    proactor.single_issuer(true).defer_taskrun(true);
    if let Some(buffers) = NonZero::new(BUFFERS) {
        proactor.buffer_pool_size(buffers).buffer_pool_buffer_len(BUFFER_LEN);
    }
    Ok(RuntimeBuilder::new().with_proactor(proactor).build()?)
}

/// Completed receives that the kernel may queue.
const BUFFERS: u16 = 256;

/// Receive buffer size: a 16 KiB message fits into one receive.
const BUFFER_LEN: usize = 32 << 10;

async fn echo(stream: TcpStream, config: Arc<Config>) -> Result<(), Error> {
    let mut socket = sinews::compio::accept(stream).config(config).await?;
    while let Some(message) = socket.next().await {
        let message = message?;
        if message.is_data() {
            socket.send(message).await?;
        }
    }
    Ok(())
}
