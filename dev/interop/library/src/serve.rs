//! The echo server.

use std::path::Path;

use sinews::{DeflateConfig, DeflateMode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use crate::Error;

/// Serves until it is ended.
pub(crate) async fn run(folder: Option<&Path>) -> Result<(), Error> {
    let tls = folder.map(crate::server_config).transpose()?.map(TlsAcceptor::from);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let tls = tls.clone();
        tokio::spawn(async move {
            let done = match tls {
                Some(tls) => match tls.accept(stream).await {
                    Ok(stream) => echo(stream).await,
                    Err(error) => Err(error.into()),
                },
                None => echo(stream).await,
            };
            if let Err(error) = done {
                println!("{peer}: {error}");
            }
        });
    }
}

async fn echo<S: AsyncRead + AsyncWrite + Unpin>(stream: S) -> Result<(), Error> {
    let deflate = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
    let mut ws = sinews::accept(stream).subprotocols(["echo"]).deflate(deflate).await?;
    while let Some(message) = ws.next().await {
        let message = message?;
        if message.is_data() {
            ws.send(message).await?;
        }
    }
    Ok(())
}
