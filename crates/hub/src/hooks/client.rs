//! The hook client: a background task for each request from the workers, with limits.

use std::collections::HashMap;
use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_channel::oneshot;
use futures_util::future::{Either, select};
use hyper::Method;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::http::request::Builder;
use parking_lot::{Mutex, MutexGuard};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use sinews_server::Request;
use tokio::time::{sleep, timeout_at};
use tokio_rustls::TlsConnector;

use super::circuit::{Circuit, CircuitChange};
use super::detail::HookDetail;
use super::messages;
pub(crate) use super::messages::HookReply;
use super::metrics::{HookMetrics, HookResult};
use super::queues::{HookBacklog, HookQueues, QueuedRequest};
use crate::access::namespaces::ClientIdentity;
use crate::background::Background;
use crate::error::{HubError, HubErrorKind};
use crate::model::HookKind;
use crate::model::problem::{Problem, code};
use crate::outgoing::http::{HttpClient, HttpError, SIGNATURE, signature, tls_connector};
use crate::outgoing::options::{HookFailure, HookOptions, HookUrl, parse_url};

/// Sends the requests to hooks. Requests in progress continue when it is dropped.
pub(crate) struct HookClient {
    options: HookOptions,
    /// By URL: those in the options, and during a reload those in the former options.
    endpoints: Mutex<HashMap<String, Arc<Endpoint>>>,
    /// `None` without an `https` URL.
    tls: Option<TlsConnector>,
    sender: Arc<HookSender>,
    /// The queues limit its tasks.
    background: Background,
}

/// A request with everything that its attempts share.
struct HookRequest {
    kind: HookKind,
    id: String,
    body: Bytes,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// A URL, its connections, its circuit and its queues.
struct Endpoint {
    url: String,
    client: HttpClient,
    circuit: Circuit,
    queues: Arc<HookQueues>,
}

/// A request that waits, and the receiver of its answer.
struct HookJob {
    endpoint: Arc<Endpoint>,
    request: HookRequest,
    begin: Instant,
    reply: oneshot::Sender<Result<HookReply, HookFailed>>,
    slot: QueuedRequest,
}

/// Why there is no valid answer.
enum HookFault {
    /// The application has answered with a status that a client can cause.
    Rejected(String),
    Failed(String),
    /// The time was over, in the queue or later.
    TimedOut,
}

/// The application has not decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HookFailed {
    /// There is no answer, or the answer is about the application: it is overloaded or malfunctions.
    Unanswered,
    /// The application has answered with a status that a client can cause, such as 413. Opening would let each client
    /// choose not to be examined.
    Rejected,
}

impl HookFailed {
    /// Whether a hook with this setting accepts nevertheless.
    pub(crate) fn opens(self, failure: HookFailure) -> bool {
        self == Self::Unanswered && failure == HookFailure::Open
    }
}

impl From<HookFault> for HookFailed {
    fn from(fault: HookFault) -> Self {
        match fault {
            HookFault::Rejected(_) => Self::Rejected,
            HookFault::Failed(_) | HookFault::TimedOut => Self::Unanswered,
        }
    }
}

/// The answer to a request in progress.
pub(crate) struct PendingReply(oneshot::Receiver<Result<HookReply, HookFailed>>);

impl PendingReply {
    /// Returns the answer, or wakes the waker when it arrives.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<HookReply, HookFailed>> {
        let polled = Future::poll(Pin::new(&mut self.0), &mut Context::from_waker(waker));
        // The hub has shut down.
        polled.map(|reply| reply.unwrap_or(Err(HookFailed::Unanswered)))
    }
}

impl PendingReply {
    /// Waits for the answer.
    pub(crate) async fn wait(self) -> Result<HookReply, HookFailed> {
        // The hub has shut down.
        self.0.await.unwrap_or(Err(HookFailed::Unanswered))
    }
}

/// Time between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// State that a client shares with its tasks.
struct HookSender {
    /// Signs the requests.
    key: Option<hmac::Key>,
    metrics: Arc<HookMetrics>,
    timeout: Duration,
    retries: u32,
}

impl fmt::Debug for HookClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HookClient").field("options", &self.options).finish_non_exhaustive()
    }
}

impl HookClient {
    /// Starts a client for these URLs.
    ///
    /// # Errors
    /// The invalid option, or why the task thread cannot be started.
    pub(crate) fn start<'a>(
        options: &HookOptions,
        urls: impl IntoIterator<Item = &'a str>,
        metrics: Arc<HookMetrics>,
        background: &Background,
    ) -> Result<Arc<Self>, HubError> {
        options.check()?;
        let fault = |error| HubError::caused(HubErrorKind::System, error).at("thread of hooks");
        background.start().map_err(fault)?;
        let urls: Vec<&str> = urls.into_iter().collect();
        let parsed = urls.iter().map(|url| parse_url(url)).collect::<Result<Vec<_>, _>>()?;
        let needs_tls = parsed.iter().any(|url| url.is_tls);
        let tls = needs_tls.then(|| tls_connector(options.roots.as_deref())).transpose()?;
        let endpoints = urls
            .iter()
            .zip(parsed)
            .map(|(url, parsed)| ((*url).to_owned(), Endpoint::new(url, parsed, tls.clone(), options)));
        let endpoints = Mutex::new(endpoints.collect());
        let key = options.signing_key.as_deref().map(|key| hmac::Key::new(hmac::HMAC_SHA256, key));
        let (timeout, retries) = (options.timeout, options.retries);
        let sender = Arc::new(HookSender { key, metrics, timeout, retries });
        Ok(Arc::new(Self {
            options: options.clone(),
            endpoints,
            tls,
            sender,
            background: background.clone(),
        }))
    }

    pub(crate) fn options(&self) -> &HookOptions {
        &self.options
    }

    /// Counts a call that is not passed on, if its client exceeds a rate.
    pub(crate) fn note_rejected_call(&self, problem: &Problem) {
        if problem.code == code::TOO_MANY {
            self.sender.metrics.record(HookKind::Rpc, HookResult::RateExceeded, None);
        }
    }

    /// Returns the headers of a client's request that requests to the application repeat.
    pub(crate) fn headers_of(&self, request: &Request<'_>) -> Vec<(HeaderName, HeaderValue)> {
        let headers = self.options.headers.iter().flat_map(|name| {
            let values = request.head().header(name.as_str());
            values.filter_map(|value| Some((name.clone(), HeaderValue::from_bytes(value).ok()?)))
        });
        headers.collect()
    }

    /// Returns the number of URLs whose circuit is open.
    pub(super) fn open_circuits(&self) -> usize {
        self.lock().values().filter(|endpoint| endpoint.circuit.is_open()).count()
    }

    /// The requests that wait or are in progress.
    pub(super) fn pending(&self) -> HookBacklog {
        self.lock().values().fold(HookBacklog::default(), |sum, endpoint| sum + endpoint.queues.pending())
    }

    fn endpoint(&self, url: &str) -> Option<Arc<Endpoint>> {
        let mut endpoints = self.lock();
        if let Some(endpoint) = endpoints.get(url) {
            return Some(Arc::clone(endpoint));
        }
        let endpoint = Endpoint::new(url, parse_url(url).ok()?, self.tls.clone(), &self.options);
        endpoints.insert(url.to_owned(), Arc::clone(&endpoint));
        Some(endpoint)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Endpoint>>> {
        self.endpoints.lock()
    }

    /// Queues a request to a URL: for the client with this connection id, if there is one.
    pub(crate) fn call(
        &self,
        url: &str,
        detail: &HookDetail<'_>,
        connection: &str,
        client: ClientIdentity<'_>,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> PendingReply {
        let kind = detail.kind();
        let (reply, receiver) = oneshot::channel();
        let pending = PendingReply(receiver);
        let Some(endpoint) = self.endpoint(url) else {
            self.sender.metrics.record(kind, HookResult::Failed, None);
            return pending;
        };
        // The content waits twice: with the client's action, and in the body.
        let content = detail.content_len();
        let other = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>();
        let mut slot = match endpoint.queues.admit(kind, other + 2 * content) {
            Ok(slot) => slot,
            Err(full) => {
                self.sender.metrics.record(kind, HookResult::QueueFull, None);
                if endpoint.queues.note_full(kind) {
                    let (hook, url) = (kind.name(), endpoint.shown_url());
                    tracing::warn!(hook, url, "requests to the hook fail: {full}");
                }
                return pending;
            }
        };
        let body = messages::with_fields(&messages::begin(kind, connection, client), &detail.fields());
        slot.set_bytes(other + content + body.len());
        let mut id = [0; 16];
        // Without random numbers, the application sees equal ids.
        let _ = SystemRandom::new().fill(&mut id);
        let id = format!("{:032x}", u128::from_be_bytes(id));
        let request = HookRequest { kind, id, body: Bytes::from(body), headers };
        let job = HookJob { endpoint, request, begin: Instant::now(), reply, slot };
        let sender = Arc::clone(&self.sender);
        // After a shutdown, the receiver sees the end of the reply's sender.
        let _ = self.background.spawn("hooks", async move { sender.execute(job).await });
        pending
    }
}

impl HookSender {
    async fn execute(&self, job: HookJob) {
        let HookJob { endpoint, request, begin, mut reply, slot } = job;
        let kind = request.kind;
        let deadline = (begin + self.timeout).into();
        let permit = timeout_at(deadline, slot.permit());
        let permit = match select(pin!(permit), reply.cancellation()).await {
            Either::Left((permit, _)) => permit.ok().flatten(),
            // The client has disconnected meanwhile.
            Either::Right(_) => return,
        };
        let is_sent = permit.is_some();
        let answer = if !is_sent {
            Err(HookFault::TimedOut)
        } else if !endpoint.circuit.permits(Instant::now()) {
            self.metrics.record(kind, HookResult::CircuitOpen, None);
            drop((permit, slot));
            let _ = reply.send(Err(HookFailed::Unanswered));
            return;
        } else {
            let attempt = timeout_at(deadline, self.attempt(&endpoint, &request)).await;
            attempt.unwrap_or(Err(HookFault::TimedOut))
        };
        let result = match &answer {
            Ok(HookReply { rejection: None, .. }) => HookResult::Accepted,
            Ok(_) => HookResult::Rejected,
            Err(HookFault::TimedOut) => HookResult::TimedOut,
            Err(_) => HookResult::Failed,
        };
        self.metrics.record(kind, result, Some(begin.elapsed()));
        // The application is not at fault if the time was over in the queue.
        if is_sent {
            endpoint.note(kind, &answer, begin);
        }
        // The metrics are complete when the client gets its answer.
        drop((permit, slot));
        let _ = reply.send(answer.map_err(HookFailed::from));
    }

    async fn attempt(&self, endpoint: &Endpoint, request: &HookRequest) -> Result<HookReply, HookFault> {
        let mut retries = self.retries;
        loop {
            let sent = endpoint
                .client
                .send(Method::POST, request.body.clone(), |builder| self.add_headers(request, builder));
            let error = match sent.await {
                Ok((200..300, body)) => {
                    return HookReply::parse(request.kind, &body).map_err(HookFault::Failed);
                }
                Ok((status, _)) if is_of_the_request(status) => {
                    return Err(HookFault::Rejected(format!("status {status}")));
                }
                Ok((status, _)) => HttpError {
                    text: format!("status {status}"),
                    is_unsent: false,
                    is_temporary: status >= 500 || status == 429,
                },
                Err(error) => error,
            };
            let may_repeat = error.is_temporary && (error.is_unsent || request.kind.is_idempotent());
            if retries == 0 || !may_repeat {
                return Err(HookFault::Failed(error.text));
            }
            retries -= 1;
            self.metrics.retry();
            sleep(RETRY_DELAY).await;
        }
    }

    fn add_headers(&self, request: &HookRequest, builder: Builder) -> Builder {
        let mut builder = builder
            .header(CONTENT_TYPE, "application/json")
            .header("sinews-hook", request.kind.name())
            .header("sinews-request-id", &request.id);
        if let Some(key) = &self.key {
            builder = builder.header(SIGNATURE, signature(key, &request.body));
        }
        request.headers.iter().fold(builder, |builder, (name, value)| builder.header(name, value))
    }
}

/// Whether a client can cause a status by its request, such as 413. The others are about the application: it is slow,
/// or receives too many requests.
fn is_of_the_request(status: u16) -> bool {
    matches!(status, 400..500) && !matches!(status, 408 | 425 | 429)
}

impl Endpoint {
    fn new(url: &str, parsed: HookUrl, tls: Option<TlsConnector>, options: &HookOptions) -> Arc<Self> {
        let circuit = Circuit::new(options.circuit_failures, options.circuit_open_time);
        let (client, queues) = (HttpClient::new(parsed, tls), HookQueues::new(options));
        Arc::new(Self { url: url.to_owned(), client, circuit, queues })
    }

    /// The URL for the log: the query may have a secret.
    fn shown_url(&self) -> &str {
        self.url.split('?').next().unwrap_or_default()
    }

    /// Records the answer to a request in the circuit, and logs changes and faults.
    fn note(&self, kind: HookKind, answer: &Result<HookReply, HookFault>, begin: Instant) {
        let now = Instant::now();
        let (hook, url) = (kind.name(), self.shown_url());
        let (change, fault) = match answer {
            Ok(_) => (self.circuit.record_answer(now), None),
            Err(HookFault::Rejected(fault)) => {
                if self.circuit.logs_error(now) {
                    tracing::warn!(hook, url, "the hook failed: {fault}");
                }
                (self.circuit.record_answer(now), None)
            }
            Err(HookFault::Failed(fault)) => (self.circuit.record_failure(now), Some(&**fault)),
            Err(HookFault::TimedOut) => (self.circuit.record_timeout(begin, now), Some("no answer in time")),
        };
        match (change, fault) {
            (CircuitChange::FirstFailure, Some(fault)) => {
                tracing::warn!(hook, url, "the hook failed: {fault}");
            }
            (CircuitChange::Opened, Some(fault)) => {
                tracing::error!(hook, url, "the hook failed repeatedly; requests pause: {fault}");
            }
            (CircuitChange::Closed, _) => tracing::info!(hook, url, "the hook answers again"),
            (_, Some(fault)) => tracing::debug!(hook, url, "the hook failed: {fault}"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::model::MessageContent;
    use crate::outgoing::dial::answer_behind_silent_address;

    #[test]
    fn status_that_a_client_causes_is_an_answer_of_the_application() {
        let url = "http://app/";
        let endpoint = Endpoint::new(url, parse_url(url).unwrap(), None, &HookOptions::new());
        let note = |fault: fn(String) -> HookFault| {
            endpoint.note(HookKind::Publish, &Err(fault("status".to_owned())), Instant::now());
        };
        (0..100).for_each(|_| note(HookFault::Rejected));
        assert!(!endpoint.circuit.is_open());
        (0..100).for_each(|_| note(HookFault::Failed));
        assert!(endpoint.circuit.is_open());
        note(HookFault::Rejected);
        assert!(!endpoint.circuit.is_open());
        for status in 200..600 {
            let is_of_the_application = [408, 425, 429].contains(&status) || !(400..500).contains(&status);
            assert_eq!(is_of_the_request(status), !is_of_the_application, "{status}");
        }
        // Such a status opens no hook.
        for (failed, opens) in [(HookFailed::Rejected, false), (HookFailed::Unanswered, true)] {
            assert_eq!(failed.opens(HookFailure::Open), opens);
            assert!(!failed.opens(HookFailure::Closed));
        }
        assert_eq!(HookFailed::from(HookFault::Rejected(String::new())), HookFailed::Rejected);
        assert_eq!(HookFailed::from(HookFault::TimedOut), HookFailed::Unanswered);
    }

    /// A name with several addresses; the first never answers.
    #[test]
    fn silent_address_of_the_name_does_not_delay_a_hook_to_its_timeout() {
        let (_silent, answering) = answer_behind_silent_address("hook.invalid:80", "{}");
        let (url, background) = ("http://hook.invalid/", Background::default());
        let client = HookClient::start(&HookOptions::new(), [url], Arc::default(), &background).unwrap();
        let detail = HookDetail::Subscribe { topic: "a" };
        let reply = client.call(url, &detail, "", ClientIdentity::default(), Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(reply.wait()).is_ok());
        background.shut_down();
        answering.join().unwrap();
        let reply = client.call(url, &detail, "", ClientIdentity::default(), Vec::new());
        assert_eq!(runtime.block_on(reply.wait()).err(), Some(HookFailed::Unanswered), "after the shutdown");
    }

    #[test]
    fn memory_of_a_request_is_that_of_its_headers_its_message_and_its_body() {
        // It accepts no connection, so that the request is in progress.
        let application = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/", application.local_addr().unwrap());
        let background = Background::default();
        let client = HookClient::start(&HookOptions::new(), [&*url], Arc::default(), &background).unwrap();
        let content = MessageContent::Text("x".repeat(1000).into());
        let detail = HookDetail::Publish { topic: "a", content: &content, idempotency_key: None };
        let headers = vec![(HeaderName::from_static("cookie"), HeaderValue::from_static("a=b"))];
        let _reply = client.call(&url, &detail, "", ClientIdentity::default(), headers);
        let HookBacklog { requests, bytes } = client.pending();
        let body = bytes - "cookiea=b".len() - 1000;
        // The message, and its description.
        assert!(requests == 1 && (1020..1400).contains(&body), "{requests} {body}");
    }
}
