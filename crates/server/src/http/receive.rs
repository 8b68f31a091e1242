//! Receives requests: heads, bodies, and discarded bodies.

use sinews_proto::handshake::Refusal;
use sinews_proto::http::{HeaderSlots, RequestHead, Version};

use super::answer::Asked;
use super::{Http, Service, Stage, Upgrade};
use crate::chunked::{ChunkError, ChunkedBody};
use crate::request::Response;

/// Head and the received part of a chunked body.
#[derive(Debug)]
pub(super) struct Upload {
    head: Vec<u8>,
    body: ChunkedBody,
    /// The request is answered, and the body is discarded.
    pub(super) unwanted: bool,
}

impl Upload {
    /// Returns the received bytes of the body.
    pub(super) fn len(&self) -> usize {
        self.body.bytes().len()
    }
}

/// Result of handling a piece of input.
pub(super) enum Step {
    /// Number of consumed bytes.
    Used(usize),
    /// More input is needed, or the connection is closing.
    NeedMore,
    /// A WebSocket begins after this number of bytes.
    Upgrade(Upgrade, usize),
}

impl Http {
    /// Handles one unit of the input.
    pub(super) fn step(&mut self, input: &[u8], service: &mut Service<'_>) -> Step {
        match &mut self.stage {
            Stage::Head => match self.scanner.scan(input, &service.config.head) {
                Ok(Some(head_len)) => self.receive_head(input, head_len, service),
                Ok(None) => Step::NeedMore,
                Err(error) => self.refuse(&Refusal::from(error), service),
            },
            &mut Stage::Body { head, whole } => self.receive_body(input, head, whole, service),
            Stage::Upload(upload) => {
                let received = upload.body.receive(input);
                if received.is_ok() && !upload.body.is_done() {
                    return Step::Used(input.len());
                }
                match std::mem::take(&mut self.stage) {
                    Stage::Upload(upload) => self.receive_upload(&upload, received, service),
                    _ => Step::NeedMore,
                }
            }
            Stage::Unwanted { left, .. } => {
                let used = input.len().min(*left);
                *left -= used;
                if *left > 0 { Step::Used(used) } else { self.passed_over(used, service) }
            }
            // No input is taken in these stages.
            Stage::Answering(_) | Stage::Sending(_) => Step::NeedMore,
        }
    }

    /// Handles a request whose head is complete.
    fn receive_head(&mut self, input: &[u8], head_len: usize, service: &mut Service<'_>) -> Step {
        let mut slots = HeaderSlots::new();
        let (raw, behind) = input.split_at(head_len);
        let head = match RequestHead::parse(raw, &service.config.head, &mut slots) {
            Ok(head) => head,
            Err(error) => return self.refuse(&Refusal::from(error), service),
        };
        let body_len = usize::try_from(head.content_length().unwrap_or(0)).unwrap_or(usize::MAX);
        let body = behind.get(..body_len).filter(|_| !head.is_chunked());
        let asked = Asked::new(raw, &head, body.unwrap_or(&[]), service.router);
        if let Some(response) = self.before(&asked, service) {
            if body.is_none() {
                return self
                    .pass_over(&asked, service, |http, service| http.answer(&asked, response, service));
            }
            self.answer(&asked, response, service);
            return Step::Used(head_len + body_len);
        }
        if let Some(route) = asked.upgrade() {
            // A handshake with a body is rejected, so its body is not awaited.
            return self.upgrade(route, &asked, service);
        }
        if body_len > service.config.max_body {
            self.ending = true;
            self.answer(&asked, too_large(service.config.max_body), service);
            return Step::NeedMore;
        }
        if body.is_some() {
            self.respond(&asked, service);
            return Step::Used(head_len + body_len);
        }
        if asked.responder().is_none() {
            return self.pass_over(&asked, service, |http, service| http.respond(&asked, service));
        }
        self.expect_body(&head, service);
        self.started = Some(service.now);
        if head.is_chunked() {
            let body = ChunkedBody::new(service.config.max_body);
            self.stage = Stage::Upload(Box::new(Upload { head: raw.to_vec(), body, unwanted: false }));
            return Step::Used(head_len);
        }
        self.stage = Stage::Body { head: head_len, whole: head_len + body_len };
        Step::NeedMore
    }

    /// Handles a request whose head was parsed before, with more of its body.
    fn receive_body(
        &mut self,
        input: &[u8],
        head_len: usize,
        whole: usize,
        service: &mut Service<'_>,
    ) -> Step {
        let Some(request) = input.get(..whole) else { return Step::NeedMore };
        self.stage = Stage::Head;
        let (raw, body) = request.split_at(head_len);
        self.asked_again(raw, body, service, Self::respond);
        Step::Used(whole)
    }

    /// Handles the end of a chunked body, or its error.
    fn receive_upload(
        &mut self,
        upload: &Upload,
        received: Result<usize, ChunkError>,
        service: &mut Service<'_>,
    ) -> Step {
        let refusal = match received {
            Ok(used) if upload.unwanted => return self.passed_over(used, service),
            Ok(used) => {
                self.asked_again(&upload.head, upload.body.bytes(), service, Self::respond);
                return Step::Used(used);
            }
            Err(_) if upload.unwanted => {
                // The start of the next request is unknown.
                self.ending = true;
                self.moved = service.now;
                return Step::NeedMore;
            }
            Err(ChunkError::TooLarge) => too_large(service.config.max_body),
            Err(ChunkError::Malformed) => Response::text("malformed chunk\n").with_status(400),
            Err(ChunkError::TooMuchBeside) => {
                let limit = crate::chunked::PASSED_OVER_MAX;
                Response::text(format!("chunk extensions and trailers exceed {limit} bytes\n"))
                    .with_status(413)
            }
        };
        self.ending = true;
        self.asked_again(&upload.head, &[], service, |http, asked, service| {
            http.answer(asked, refusal, service);
        });
        Step::NeedMore
    }

    /// Answers a request by its head, before its body has arrived. A short body is discarded, so that the connection
    /// stays open. Otherwise the connection closes (RFC 9112 sections 9.3 and 9.6). It closes too if the client sent
    /// `Expect: 100-continue`: without the 100 it may send the body or not (RFC 9110 section 10.1.1).
    fn pass_over(
        &mut self,
        asked: &Asked<'_>,
        service: &mut Service<'_>,
        respond: impl FnOnce(&mut Self, &mut Service<'_>),
    ) -> Step {
        let len = asked.head.content_length().unwrap_or(0);
        self.ending |= len > UNWANTED_BODY_MAX as u64 || expects_leave(asked.head);
        respond(self, service);
        if self.ending {
            return Step::NeedMore;
        }
        self.started = Some(service.now);
        self.stage = if asked.head.is_chunked() {
            let body = ChunkedBody::new(UNWANTED_BODY_MAX);
            Stage::Upload(Box::new(Upload { head: Vec::new(), body, unwanted: true }))
        } else {
            Stage::Unwanted { left: len as usize, whole: len as usize }
        };
        Step::Used(asked.raw.len())
    }

    /// Continues with the next request.
    fn passed_over(&mut self, used: usize, service: &Service<'_>) -> Step {
        self.stage = Stage::Head;
        self.started = None;
        self.moved = service.now;
        Step::Used(used)
    }

    /// Sends 100 (Continue) if the client waits for it (RFC 9110 section 10.1.1).
    fn expect_body(&mut self, head: &RequestHead<'_>, service: &mut Service<'_>) {
        if expects_leave(head) {
            self.moved = service.now;
            let chain = self.outbound.gathering(service.resources);
            chain.write(|out| out.extend_from_slice(b"HTTP/1.1 100 Continue\r\n\r\n"));
        }
    }
}

/// Bodies up to this size are read and discarded to keep the connection: cheaper than a new connection.
const UNWANTED_BODY_MAX: usize = 64 << 10;

/// Returns whether the client waits for 100 (Continue) (RFC 9110 section 10.1.1).
fn expects_leave(head: &RequestHead<'_>) -> bool {
    head.version() != Version::Http10
        && head.header("expect").any(|value| value.eq_ignore_ascii_case(b"100-continue"))
}

fn too_large(max: usize) -> Response {
    Response::text(format!("request body exceeds {max} bytes\n")).with_status(413)
}
