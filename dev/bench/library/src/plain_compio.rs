//! The plain echo on compio: a server's minimum work on this runtime, without any code of ours.

use std::net::SocketAddr;

use compio::buf::BufResult;
use compio::io::{AsyncRead, AsyncWriteExt};
use compio::net::{TcpListener, TcpStream};

use crate::compio::runtime;
use crate::{Error, announce};

/// Accepts forever; each connection is a task with its own buffer.
pub(crate) fn run(address: SocketAddr) -> Result<(), Error> {
    runtime()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        announce(listener.local_addr()?)?;
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            compio::runtime::spawn(echo(stream)).detach();
        }
    })
}

async fn echo(mut stream: TcpStream) -> Result<(), Error> {
    let mut buffer = Vec::with_capacity(BUFFER);
    loop {
        let BufResult(received, full) = stream.read(buffer).await;
        if received? == 0 {
            return Ok(());
        }
        let BufResult(sent, sent_buffer) = stream.write_all(full).await;
        sent?;
        buffer = sent_buffer;
        buffer.clear();
    }
}

/// A 16 KiB message fits into one receive.
const BUFFER: usize = 32 << 10;
