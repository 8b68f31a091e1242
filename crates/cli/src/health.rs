//! `sinews health`: asks a server whether it serves, for container images and scripts.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use clap::Args;
use sinews_server::escape::escape_line;

use crate::config::units::PositiveDuration;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes:\n  0  the server answers with status 200\n  1  it does not answer in time, or with another status"
)]
pub(crate) struct HealthArgs {
    /// Address of the server: http://HOST:PORT. A path replaces /healthz
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080", env = "SINEWS_HEALTH_URL")]
    url: String,

    /// Ask for /readyz: whether the server accepts new clients
    #[arg(long)]
    ready: bool,

    /// Timeout of the answer
    #[arg(long, value_name = "TIME", default_value = "3s")]
    timeout: PositiveDuration,
}

/// Longest answer, in bytes.
const ANSWER_MAX: u64 = 64 << 10;

/// Asks the server once.
///
/// # Errors
/// The server does not answer with 200, or the URL is invalid.
pub(crate) fn run(args: &HealthArgs) -> Result<(), String> {
    let (authority, path) = parse(&args.url, args.ready)?;
    let (status, reason) =
        ask(authority, path, args.timeout.0).map_err(|error| format!("{}: {error}", args.url))?;
    if status != 200 {
        return Err(format!("{}: {path} answers {status}: {}", args.url, escape_line(reason.trim())));
    }
    io::stdout().lock().write_all(b"ok\n").map_err(|error| format!("standard output: {error}"))
}

/// A URL's authority and path.
fn parse(url: &str, ready: bool) -> Result<(&str, &str), String> {
    let rest = match url.split_once("://") {
        Some(("http" | "ws", rest)) => rest,
        None => url,
        Some((scheme, _)) => {
            return Err(format!(
                "{url}: the scheme is {scheme}, and a health check uses http: ask an address without TLS"
            ));
        }
    };
    let default = if ready { "/readyz" } else { "/healthz" };
    match rest.find('/') {
        Some(at) if rest.len() > at + 1 => Ok((&rest[..at], &rest[at..])),
        Some(at) => Ok((&rest[..at], default)),
        None => Ok((rest, default)),
    }
}

/// An answer's status, and the beginning of its body.
fn ask(authority: &str, path: &str, timeout: Duration) -> io::Result<(u16, String)> {
    let deadline = Instant::now() + timeout;
    let has_port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
    let target = if has_port { authority.to_owned() } else { format!("{authority}:80") };
    let mut failure = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    for address in target.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(deadline)?) {
            Ok(stream) => return exchange(stream, authority, path, deadline),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time (--timeout)"))
    } else {
        Ok(left)
    }
}

fn exchange(
    mut stream: TcpStream,
    authority: &str,
    path: &str,
    deadline: Instant,
) -> io::Result<(u16, String)> {
    stream.set_write_timeout(Some(left(deadline)?))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {authority}\r\nConnection: close\r\n\r\n")?;
    let mut answer = BufReader::new(stream).take(ANSWER_MAX);
    let mut head = String::new();
    loop {
        answer.get_ref().get_ref().set_read_timeout(Some(left(deadline)?))?;
        let read = answer.read_line(&mut head).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                io::Error::new(io::ErrorKind::TimedOut, "no answer in time (--timeout)")
            }
            _ => error,
        })?;
        if read == 0 || head.ends_with("\r\n\r\n") {
            break;
        }
    }
    let status = head.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
    let status =
        status.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))?;
    let mut body = String::new();
    // It explains another status than 200.
    let _ = answer.take(1024).read_to_string(&mut body);
    Ok((status, body))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_has_an_authority_and_perhaps_a_path() {
        assert_eq!(parse("http://a:1", false), Ok(("a:1", "/healthz")));
        assert_eq!(parse("a:1/", true), Ok(("a:1", "/readyz")));
        assert_eq!(parse("http://[::1]:8080/x?y", true), Ok(("[::1]:8080", "/x?y")));
        assert!(parse("https://a", false).unwrap_err().contains("without TLS"));
    }
}
