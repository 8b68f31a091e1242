//! `--inspect`: a debugger for WebSocket servers.
//!
//! The library fails a connection at the first violation. Inspection tolerates all violations: requests and frames
//! may be deliberately invalid ([`handshake`], [`frame`]), received data is parsed as far as possible ([`side`]), and
//! each violation is named ([`fault`]). After an invalid frame of the client, [`judge`] checks the server's mandatory
//! reaction. [`session`] transfers the bytes; [`probes`] lists the faults to send.

mod close;
mod deflate;
mod extension;
mod fault;
mod frame;
mod handshake;
mod judge;
mod probes;
mod session;
mod show;
mod side;
mod utf8;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use self::fault::Fault;
use self::handshake::{Answer, HEAD_MAX, Request, head_end};
use self::probes::{EARLY, PROBES, Probe};
use self::session::{Found, Inspection, random};
use super::args::ConnectArgs;
use super::dial::{self, Transport, Url};
use super::end::{End, Kind, tell};
use super::output::Output;
use super::replay::Recording;
use super::{Ends, ends};

/// Shows a connection as bytes and frames.
///
/// # Errors
/// Returns an error if connecting fails.
pub(crate) async fn inspect(args: &ConnectArgs, url: &str) -> Result<End, End> {
    let url_read = Url::parse(url)?;
    let recording = args.session.replay.as_deref().map(Recording::read).transpose()?;
    let request = request(args, &url_read)?;
    let head = request.write()?;
    let io = dial::dial(args, url).await?;
    if let Some(warning) = dial::warning(args, url_read.secure) {
        tell(warning);
    }
    let mut plain = Output::open(args, None)?;
    plain.lines(&show::http('>', &head))?;
    let opened = open(args, io, &head, &request).await?;
    plain.lines(&show::http('<', &opened.head))?;
    opened.answer.faults.iter().try_for_each(|fault| plain.lines(&show::fault(fault)))?;
    if opened.answer.status != 101 {
        let body = String::from_utf8_lossy(&opened.received).into_owned();
        plain.lines(&show::http('<', &body))?;
        return Ok(End::new(
            Kind::Refused,
            format!("the server answered with status {}", opened.answer.status),
        ));
    }
    let Ends { output, input, in_console } = ends(args, recording, None)?;
    let Opened { io, received, answer, .. } = opened;
    Ok(Inspection::new(args, answer, Some(output), in_console).run(io, &received, input).await.end)
}

/// Sends faults, each over its own connection, and checks the reactions.
///
/// # Errors
/// Returns an error if connecting fails, or if a probe name is unknown.
pub(crate) async fn probe(args: &ConnectArgs, url: &str) -> Result<End, End> {
    let mut output = Output::open(args, None)?;
    let names = &args.inspect.probe;
    let is_any = |word: &str| names.iter().any(|name| name == word);
    if is_any("list") {
        PROBES.iter().try_for_each(|probe| output.lines(probe.name))?;
        return Ok(End::new(Kind::Fine, ""));
    }
    if let Some(unknown) =
        names.iter().find(|name| *name != "all" && !PROBES.iter().any(|probe| probe.name == **name))
    {
        return Err(End::trouble(format!("unknown probe {unknown:?}: --probe=list names the probes")));
    }
    if let Some(warning) = dial::warning(args, Url::parse(url)?.secure) {
        tell(warning);
    }
    let (mut count, mut failed) = (0, 0);
    for probe in PROBES.iter().filter(|probe| is_any("all") || is_any(probe.name)) {
        let faults = send(args, url, probe).await?;
        count += 1;
        failed += usize::from(!faults.is_empty());
        output.lines(&format!("{} {}", if faults.is_empty() { "ok   " } else { "FAULT" }, probe.name))?;
        faults.iter().try_for_each(|fault| output.lines(&show::fault(fault)))?;
    }
    output.lines(&format!("{count} faults sent, {failed} handled incorrectly"))?;
    Ok(if failed == 0 { End::new(Kind::Fine, "") } else { show::verdict(failed) })
}

/// Returns the server's violations in reaction to a fault.
async fn send(args: &ConnectArgs, url: &str, probe: &'static Probe) -> Result<Vec<Fault>, End> {
    let mut request = request(args, &Url::parse(url)?)?;
    for (name, value) in probe.headers {
        request.replace(name, value);
    }
    let head = request.write()?;
    let early = if probe.early_ping {
        let mut key = [0; 4];
        random(&mut key)?;
        frame::write(0x89, Some(key), None, EARLY)
    } else {
        Vec::new()
    };
    let output = if args.output.verbose { Some(Output::open(args, None)?) } else { None };
    let io = dial::dial(args, url).await?;
    let bytes = [head.as_bytes(), &early].concat();
    let opened = match exchange(args, io, &bytes, &request).await {
        Ok(opened) => opened,
        // Closing without an answer counts as rejecting the request.
        Err(end) if end.kind == Kind::Refused && !request.is_sound() => return Ok(Vec::new()),
        Err(end) => return Err(end),
    };
    if opened.answer.status != 101 || probe.is_request() {
        // A valid request gives no reason for a rejection.
        return Ok(opened.answer.faults);
    }
    let Opened { io, received, answer, .. } = opened;
    let mut inspection = Inspection::new(args, answer, output, false).with_wait(args.inspect.probe_wait.0);
    if let Some(fault) = probe.expected() {
        inspection.expect_end(&fault);
    }
    inspection.sent_early(&early)?;
    let Found { faults, .. } = inspection.run(io, &received, probe.input()).await;
    Ok(faults)
}

/// A connection after its handshake, if the handshake succeeded.
struct Opened {
    io: Box<dyn Transport>,
    head: String,
    answer: Answer,
    /// Data received after the head.
    received: Vec<u8>,
}

fn request(args: &ConnectArgs, url: &Url) -> Result<Request, End> {
    let mut key = [0; 16];
    random(&mut key)?;
    Ok(Request::new(args, url, &key))
}

async fn open(
    args: &ConnectArgs,
    io: Box<dyn Transport>,
    head: &str,
    request: &Request,
) -> Result<Opened, End> {
    exchange(args, io, head.as_bytes(), request).await
}

/// Sends a request, and reads the head of the response.
async fn exchange(
    args: &ConnectArgs,
    mut io: Box<dyn Transport>,
    bytes: &[u8],
    request: &Request,
) -> Result<Opened, End> {
    let limit = args.limits.connect_timeout.0;
    let fault = |error| End::io("the handshake", &error);
    let refused = |words: &str| End::new(Kind::Refused, format!("{words} (RFC 6455 section 4.2.2)"));
    let read = async {
        io.write_all(bytes).await.map_err(fault)?;
        io.flush().await.map_err(fault)?;
        let mut received = Vec::new();
        loop {
            if let Some(end) = head_end(&received) {
                let head = String::from_utf8_lossy(&received[..end]).into_owned();
                received.drain(..end);
                let answer = Answer::read(&head, request);
                // 1xx responses are interim: the final response follows (RFC 9110 section 15.2).
                if !answer.is_interim() {
                    return Ok(Opened { io, head, answer, received });
                }
                continue;
            }
            if received.len() > HEAD_MAX {
                return Err(refused("the response head is too long"));
            }
            match io.read_buf(&mut received).await {
                Ok(0) if received.is_empty() => {
                    return Err(refused("the transport ended without a response"));
                }
                Ok(0) => return Err(refused("the transport ended within the response head")),
                Ok(_) => {}
                Err(error) if received.is_empty() => return Err(refused(&format!("no answer: {error}"))),
                Err(error) => return Err(fault(error)),
            }
        }
    };
    let late = || End::new(Kind::TimedOut, format!("no answer to the handshake within {limit:?}"));
    timeout(limit, read).await.unwrap_or_else(|_| Err(late()))
}
