//! Redis Sentinel: asks for the address of a service's primary.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;

use super::redis::{RedisReply, command, read_reply};
use super::transport::server_name;
use crate::model::brief::without_secret;
use crate::outgoing::dial;

/// Time limit for one sentinel: the others are asked meanwhile.
const SENTINEL_TIMEOUT: Duration = Duration::from_secs(2);

/// Largest reply in bytes: an address, or an error.
const REPLY_MAX: usize = 4 << 10;

/// Question for the primary of a service.
pub(super) struct SentinelQuery<'a> {
    pub(super) service: &'a str,
    pub(super) user: Option<&'a str>,
    pub(super) password: Option<&'a str>,
    pub(super) tls: Option<Arc<ClientConfig>>,
}

impl SentinelQuery<'_> {
    /// Returns the address from the first sentinel that knows it: `host:port`. The next sentinel is asked after a
    /// moment, or when one has failed.
    ///
    /// # Errors
    /// The last error, if no sentinel knows the service.
    pub(super) async fn find_primary(&self, sentinels: &[String]) -> Result<String, String> {
        let ask = |sentinel| async move {
            let late = || Err(format!("no answer within {} s", SENTINEL_TIMEOUT.as_secs()));
            let answer = timeout(SENTINEL_TIMEOUT, self.ask(sentinel)).await.unwrap_or_else(|_| late());
            answer.map_err(|fault| io::Error::other(format!("sentinel {sentinel}: {fault}")))
        };
        let found = dial::race(sentinels.iter().map(String::as_str), ask, || sleep(dial::STAGGER)).await;
        found.map_err(|error| error.to_string())
    }

    async fn ask(&self, sentinel: &str) -> Result<String, String> {
        let describe = |error: io::Error| error.to_string();
        let addresses = dial::resolve(sentinel).await.map_err(describe)?;
        let targets = addresses.into_iter().map(|address| ((), address)).collect();
        let ((), stream) = dial::connect(targets).await.map_err(describe)?;
        match &self.tls {
            Some(config) => {
                let connector = TlsConnector::from(Arc::clone(config));
                let stream = connector.connect(server_name(sentinel)?, stream).await;
                self.query(stream.map_err(describe)?).await
            }
            None => self.query(stream).await,
        }
    }

    async fn query(&self, mut stream: impl AsyncRead + AsyncWrite + Unpin) -> Result<String, String> {
        let question = [&b"SENTINEL"[..], b"get-master-addr-by-name", self.service.as_bytes()];
        let mut reply = execute(&mut stream, &question).await?;
        // The sentinel has a password of its own, or none.
        if let (RedisReply::Error(text), Some(password)) = (&reply, self.password)
            && text.starts_with("NOAUTH")
        {
            let login = [Some("AUTH"), self.user, Some(password)].into_iter().flatten();
            let login: Vec<&[u8]> = login.map(str::as_bytes).collect();
            if let RedisReply::Error(text) = execute(&mut stream, &login).await? {
                return Err(without_secret(&text, self.password));
            }
            reply = execute(&mut stream, &question).await?;
        }
        match reply {
            RedisReply::Texts(texts) => match &texts[..] {
                [host, port] if port.parse::<u16>().is_ok() && !host.is_empty() => {
                    Ok(if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") })
                }
                _ => Err(format!("it does not know the service {}", self.service)),
            },
            RedisReply::Error(text) => Err(text),
            RedisReply::Other => Err(format!("it does not know the service {}", self.service)),
        }
    }
}

/// Sends a command, and reads its reply.
async fn execute(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    arguments: &[&[u8]],
) -> Result<RedisReply, String> {
    let mut bytes = Vec::new();
    command(&mut bytes, arguments);
    stream.write_all(&bytes).await.map_err(|error| error.to_string())?;
    stream.flush().await.map_err(|error| error.to_string())?;
    bytes.clear();
    loop {
        let count = stream.read_buf(&mut bytes).await.map_err(|error| error.to_string())?;
        match read_reply(&bytes)? {
            Some(reply) => return Ok(reply),
            None if count == 0 => return Err("it has closed the connection".to_owned()),
            None if bytes.len() > REPLY_MAX => return Err(format!("its reply exceeds {REPLY_MAX} bytes")),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests;
