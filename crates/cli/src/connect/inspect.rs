//! `--inspect`: a debugger for WebSocket servers.
//!
//! The library fails a connection at the first violation. Inspection tolerates all violations: requests and frames
//! may be deliberately invalid ([`handshake`], [`frame`]), received data is parsed as far as possible ([`parser`]), and
//! each violation is named ([`violation`]). After an invalid frame from the client, [`reactions`] checks the server's
//! mandatory reaction. [`session`] transfers the bytes; [`probes`] lists the faults to send.

mod close;
mod deflate;
mod extension;
mod frame;
mod handshake;
mod parser;
mod probes;
mod reactions;
mod session;
mod show;
mod utf8;
mod violation;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use self::handshake::{HEAD_MAX, InspectRequest, InspectResponse, head_end};
use self::probes::{EARLY, PROBES, Probe};
use self::session::{Inspection, InspectionResult, random};
use self::violation::Violation;
use super::args::ConnectArgs;
use super::dial::{self, ByteStream, ServerUrl};
use super::end::{EndKind, RunEnd, print_error};
use super::output::Output;
use super::replay::Recording;
use super::{ProgramIo, program_io};

/// Shows a connection as bytes and frames.
///
/// # Errors
/// Returns an error if connecting fails.
pub(crate) async fn inspect(args: &ConnectArgs, url: &str) -> Result<RunEnd, RunEnd> {
    let url_read = ServerUrl::parse(url)?;
    let recording = args.session.replay.as_deref().map(Recording::read).transpose()?;
    let request = request(args, &url_read)?;
    let head = request.write()?;
    let io = dial::dial(args, url).await?;
    if let Some(warning) = dial::warning(args, url_read.secure) {
        print_error(warning);
    }
    let mut plain = Output::open(args, None)?;
    plain.lines(&show::http('>', &head))?;
    let opened = open(args, io, &head, &request).await?;
    plain.lines(&show::http('<', &opened.head))?;
    opened.answer.violations.iter().try_for_each(|violation| plain.lines(&show::violation(violation)))?;
    if opened.answer.status != 101 {
        let body = String::from_utf8_lossy(&opened.received).into_owned();
        plain.lines(&show::http('<', &body))?;
        return Ok(RunEnd::new(
            EndKind::Rejected,
            format!("the server answered with status {}", opened.answer.status),
        ));
    }
    let ProgramIo { output, input, in_console } = program_io(args, recording, None)?;
    let OpenedConnection { io, received, answer, .. } = opened;
    Ok(Inspection::new(args, answer, Some(output), in_console).run(io, &received, input).await.end)
}

/// Sends faults, each over its own connection, and checks the reactions.
///
/// # Errors
/// Returns an error if connecting fails, or if a probe name is unknown.
pub(crate) async fn probe(args: &ConnectArgs, url: &str) -> Result<RunEnd, RunEnd> {
    let mut output = Output::open(args, None)?;
    let names = &args.inspect.probe;
    let is_any = |word: &str| names.iter().any(|name| name == word);
    if is_any("list") {
        PROBES.iter().try_for_each(|probe| output.lines(probe.name))?;
        return Ok(RunEnd::new(EndKind::Success, ""));
    }
    if let Some(unknown) =
        names.iter().find(|name| *name != "all" && !PROBES.iter().any(|probe| probe.name == **name))
    {
        return Err(RunEnd::failed(format!("unknown probe {unknown:?}: --probe=list names the probes")));
    }
    if let Some(warning) = dial::warning(args, ServerUrl::parse(url)?.secure) {
        print_error(warning);
    }
    let (mut count, mut failed) = (0, 0);
    for probe in PROBES.iter().filter(|probe| is_any("all") || is_any(probe.name)) {
        let violations = send(args, url, probe).await?;
        count += 1;
        failed += usize::from(!violations.is_empty());
        output.lines(&format!("{} {}", if violations.is_empty() { "ok   " } else { "FAULT" }, probe.name))?;
        violations.iter().try_for_each(|violation| output.lines(&show::violation(violation)))?;
    }
    output.lines(&format!("{count} faults sent, {failed} handled incorrectly"))?;
    Ok(if failed == 0 { RunEnd::new(EndKind::Success, "") } else { show::verdict(failed) })
}

/// Returns the server's violations in reaction to a fault.
async fn send(args: &ConnectArgs, url: &str, probe: &'static Probe) -> Result<Vec<Violation>, RunEnd> {
    let mut request = request(args, &ServerUrl::parse(url)?)?;
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
        Err(end) if end.kind == EndKind::Rejected && !request.is_sound() => return Ok(Vec::new()),
        Err(end) => return Err(end),
    };
    if opened.answer.status != 101 || probe.is_request() {
        // A valid request gives no reason for a rejection.
        return Ok(opened.answer.violations);
    }
    let OpenedConnection { io, received, answer, .. } = opened;
    let mut inspection = Inspection::new(args, answer, output, false).with_wait(args.inspect.probe_wait.0);
    if let Some(violation) = probe.expected() {
        inspection.expect_end(&violation);
    }
    inspection.record_early(&early)?;
    let InspectionResult { violations, .. } = inspection.run(io, &received, probe.input()).await;
    Ok(violations)
}

/// A connection after its handshake, if the handshake succeeded.
struct OpenedConnection {
    io: Box<dyn ByteStream>,
    head: String,
    answer: InspectResponse,
    /// Data received after the head.
    received: Vec<u8>,
}

fn request(args: &ConnectArgs, url: &ServerUrl) -> Result<InspectRequest, RunEnd> {
    let mut key = [0; 16];
    random(&mut key)?;
    Ok(InspectRequest::new(args, url, &key))
}

async fn open(
    args: &ConnectArgs,
    io: Box<dyn ByteStream>,
    head: &str,
    request: &InspectRequest,
) -> Result<OpenedConnection, RunEnd> {
    exchange(args, io, head.as_bytes(), request).await
}

/// Sends a request, and reads the response head.
async fn exchange(
    args: &ConnectArgs,
    mut io: Box<dyn ByteStream>,
    bytes: &[u8],
    request: &InspectRequest,
) -> Result<OpenedConnection, RunEnd> {
    let limit = args.limits.connect_timeout.0;
    let failed = |error| RunEnd::io("the handshake", &error);
    let refused =
        |message: &str| RunEnd::new(EndKind::Rejected, format!("{message} (RFC 6455 section 4.2.2)"));
    let read = async {
        io.write_all(bytes).await.map_err(failed)?;
        io.flush().await.map_err(failed)?;
        let mut received = Vec::new();
        loop {
            if let Some(end) = head_end(&received) {
                let head = String::from_utf8_lossy(&received[..end]).into_owned();
                received.drain(..end);
                let answer = InspectResponse::read(&head, request);
                // 1xx responses are interim: the final response follows (RFC 9110 section 15.2).
                if !answer.is_interim() {
                    return Ok(OpenedConnection { io, head, answer, received });
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
                Err(error) => return Err(failed(error)),
            }
        }
    };
    let late = || RunEnd::new(EndKind::TimedOut, format!("no answer to the handshake within {limit:?}"));
    timeout(limit, read).await.unwrap_or_else(|_| Err(late()))
}
