//! The echo servers.

use std::net::SocketAddr;
use std::path::Path;

use futures_util::{SinkExt as _, StreamExt as _};
use sinews::compio::TlsStream;
use sinews::{DeflateConfig, DeflateMode};
use tokio_rustls::TlsAcceptor;

use crate::Error;
use crate::runtime::Socket;

/// Serves on Tokio until the process is killed.
pub(crate) async fn on_tokio(folder: Option<&Path>) -> Result<(), Error> {
    let tls = folder.map(crate::server_config).transpose()?.map(TlsAcceptor::from);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let tls = tls.clone();
        tokio::spawn(async move {
            let done = async {
                match tls {
                    Some(tls) => {
                        let stream = tls.accept(stream).await?;
                        echo(sinews::accept(stream).deflate(deflate()).await?).await
                    }
                    None => echo(sinews::accept(stream).deflate(deflate()).await?).await,
                }
            };
            report(peer, done.await);
        });
    }
}

/// Serves on compio until the process is killed.
pub(crate) async fn on_compio(folder: Option<&Path>) -> Result<(), Error> {
    let tls = folder.map(crate::server_config).transpose()?;
    let listener = compio::net::TcpListener::bind("127.0.0.1:0").await?;
    println!("listening on {}", listener.local_addr()?);
    loop {
        let (stream, peer) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let tls = tls.clone();
        let connection = async move {
            let done = async {
                match tls {
                    Some(tls) => {
                        let stream = TlsStream::accept(stream, tls).await?;
                        echo(sinews::compio::accept(stream).deflate(deflate()).await?).await
                    }
                    None => echo(sinews::compio::accept(stream).deflate(deflate()).await?).await,
                }
            };
            report(peer, done.await);
        };
        compio::runtime::spawn(connection).detach();
    }
}

fn deflate() -> DeflateConfig {
    DeflateConfig::new().with_mode(DeflateMode::Dedicated)
}

async fn echo(mut ws: impl Socket) -> Result<(), Error> {
    while let Some(message) = ws.next().await {
        let message = message?;
        if message.is_data() {
            ws.send(message).await?;
        }
    }
    Ok(())
}

fn report(peer: SocketAddr, done: Result<(), Error>) {
    if let Err(error) = done {
        println!("{peer}: {error}");
    }
}
