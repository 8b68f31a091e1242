//! The client: checks the answers of an echo server, and the path through a proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use futures_util::{SinkExt as _, StreamExt as _};
use sinews::client::ConnectPhase;
use sinews::{CloseCode, CloseFrame, Connect, ConnectError, DeflateConfig, DeflateMode, Message};

use crate::Error;
use crate::runtime::{Runtime, Socket};

#[derive(Args)]
pub(crate) struct Options {
    /// URL of the server
    pub(crate) url: String,
    /// Folder with certificate.pem, which the server must present
    #[arg(long)]
    trust: Option<PathBuf>,
    /// URL of the proxy
    #[arg(long, requires = "proxy_address")]
    proxy: Option<String>,
    /// Address of the proxy, to which the TCP connection must lead
    #[arg(long)]
    proxy_address: Option<SocketAddr>,
    /// Expect the proxy to reject the connection
    #[arg(long, requires = "proxy")]
    refused: bool,
}

/// Prints `ok NAME` or `FAIL NAME: why` for each check.
pub(crate) async fn run<R: Runtime>(options: &Options, connect: Connect<R>) -> Result<ExitCode, Error> {
    let client = Client { connect: options.set(connect)?, proxy: options.proxy_address };
    let mut checks = Checks { way: options.way(), failed: false };
    if options.refused {
        checks.record::<R>("refused", client.refused()).await;
        return Ok(checks.end());
    }
    for len in [0, 1, 125, 126, 65_535, 65_536, 1 << 20] {
        checks.record::<R>(&format!("text of {len}"), client.echo(Message::text(letters(len)))).await;
        checks.record::<R>(&format!("binary of {len}"), client.echo(Message::binary(octets(len)))).await;
    }
    checks.record::<R>("many in flight", client.many_in_flight()).await;
    checks.record::<R>("ping", client.ping()).await;
    checks.record::<R>("deflate", client.deflate()).await;
    checks.record::<R>("close 4001 with a reason", client.close()).await;
    Ok(checks.end())
}

impl Options {
    fn set<R: Runtime>(&self, connect: Connect<R>) -> Result<Connect<R>, Error> {
        let mut connect = connect.no_proxy();
        if let Some(folder) = &self.trust {
            connect = connect.tls(crate::client_config(folder)?);
        }
        if let Some(proxy) = &self.proxy {
            connect = connect.proxy(proxy);
        }
        Ok(connect)
    }

    /// Returns the path in the names of the checks: schemes, without credentials.
    fn way(&self) -> String {
        let scheme = |url: &str| url.split("://").next().unwrap_or_default().to_owned();
        match &self.proxy {
            Some(proxy) => format!("{} by {}", scheme(&self.url), scheme(proxy)),
            None => scheme(&self.url),
        }
    }
}

struct Checks {
    way: String,
    failed: bool,
}

impl Checks {
    async fn record<R: Runtime>(&mut self, name: &str, check: impl Future<Output = Result<(), Error>>) {
        match R::limit(check).await {
            Ok(()) => println!("ok {}: {name}", self.way),
            Err(error) => {
                self.failed = true;
                println!("FAIL {}: {name}: {error}", self.way);
            }
        }
    }

    fn end(self) -> ExitCode {
        if self.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}

struct Client<R> {
    connect: Connect<R>,
    proxy: Option<SocketAddr>,
}

impl<R: Runtime> Client<R> {
    async fn open(&self) -> Result<R::Socket, Error> {
        let (ws, _) = R::open(self.connect.clone()).await?;
        match (self.proxy, R::leads_to(&ws)) {
            (Some(proxy), Some(peer)) if proxy != peer => Err(format!("{peer} is not the proxy").into()),
            _ => Ok(ws),
        }
    }

    async fn echo(&self, message: Message) -> Result<(), Error> {
        let mut ws = self.open().await?;
        ws.send(message.clone()).await?;
        expect(&mut ws, &message).await?;
        end(&mut ws, CloseCode::NORMAL, "").await
    }

    async fn many_in_flight(&self) -> Result<(), Error> {
        let mut ws = self.open().await?;
        let message = |at: u32| Message::text(format!("message {at}"));
        for at in 0..1000 {
            ws.feed(message(at)).await?;
        }
        ws.flush().await?;
        for at in 0..1000 {
            expect(&mut ws, &message(at)).await?;
        }
        end(&mut ws, CloseCode::NORMAL, "").await
    }

    async fn ping(&self) -> Result<(), Error> {
        let mut ws = self.open().await?;
        for payload in [&b"beat"[..], &[7; 125]] {
            ws.send(Message::Ping(payload.to_vec().into())).await?;
            expect(&mut ws, &Message::Pong(payload.to_vec().into())).await?;
        }
        end(&mut ws, CloseCode::NORMAL, "").await
    }

    /// The same message twice: the second uses the window of the first.
    async fn deflate(&self) -> Result<(), Error> {
        let deflate = DeflateConfig::new().with_mode(DeflateMode::Dedicated);
        let connect = self.connect.clone().deflate(deflate);
        let (mut ws, response) = R::open(connect).await?;
        let agreed = response.headers().get("sec-websocket-extensions").map(|value| value.as_bytes());
        if !agreed.is_some_and(|agreed| agreed.starts_with(b"permessage-deflate")) {
            return Err(format!("no permessage-deflate: {agreed:?}").into());
        }
        let text = Message::text(letters(100_000));
        for message in [text.clone(), text, Message::text("short"), Message::binary(octets(70_000))] {
            ws.send(message.clone()).await?;
            expect(&mut ws, &message).await?;
        }
        end(&mut ws, CloseCode::NORMAL, "").await
    }

    async fn close(&self) -> Result<(), Error> {
        let mut ws = self.open().await?;
        end(&mut ws, CloseCode::new(4001).ok_or("4001 is a code")?, "because").await
    }

    async fn refused(&self) -> Result<(), Error> {
        match R::open(self.connect.clone()).await {
            // Some proxies reject with an answer, some close the connection.
            Err(ConnectError::Proxy { .. } | ConnectError::Transport { phase: ConnectPhase::Proxy, .. }) => {
                Ok(())
            }
            Err(error) => Err(format!("another error: {error}").into()),
            Ok(_) => Err("the proxy did not reject the connection".into()),
        }
    }
}

async fn expect(ws: &mut impl Socket, wanted: &Message) -> Result<(), Error> {
    let message = ws.next().await.ok_or("closed in place of a message")??;
    if message == *wanted { Ok(()) } else { Err(format!("{message:?} in place of {wanted:?}").into()) }
}

/// Checks that the other end answers with the same code, and that the connection closes cleanly.
async fn end(ws: &mut impl Socket, code: CloseCode, reason: &str) -> Result<(), Error> {
    ws.send(Message::Close(Some(CloseFrame::new(code, reason)))).await?;
    match ws.next().await.ok_or("the end in place of a Close")?? {
        Message::Close(Some(frame)) if frame.code() == code => {}
        other => return Err(format!("{other:?} in place of a Close with {code:?}").into()),
    }
    match ws.next().await {
        None => Ok(()),
        Some(more) => Err(format!("{more:?} behind the Close").into()),
    }
}

fn letters(len: usize) -> String {
    "abcdefghijklmnopqrstuvwxyz 0123456789 ".chars().cycle().take(len).collect()
}

fn octets(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 31 + (at >> 8)) as u8).collect()
}
