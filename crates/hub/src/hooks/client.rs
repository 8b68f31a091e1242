//! The client of hooks: a thread that sends the requests of all workers, with limits.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_channel::oneshot;
use hyper::header::{HeaderName, HeaderValue};
use ring::rand::{SecureRandom, SystemRandom};
use sinews_server::Request;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{sleep, timeout_at};

use super::circuit::{Circuit, CircuitChange};
use super::http::{HookCredentials, HookRequest, HookSendError, HookTransport};
use super::kind::HookKind;
pub(crate) use super::messages::HookReply;
use super::metrics::{HookMetrics, HookResult};
use super::options::{HookOptions, HookUrl, parse_url};

/// Sends the requests to hooks. Dropping it ends its thread after the requests in progress.
pub(crate) struct HookClient {
    options: HookOptions,
    /// By URL: those of the options, and during a reload those of the former options.
    endpoints: Mutex<HashMap<String, Arc<Endpoint>>>,
    metrics: Arc<HookMetrics>,
    pending: Arc<AtomicUsize>,
    jobs: Sender<HookJob>,
}

/// A URL, its connections and its circuit.
struct Endpoint {
    url: String,
    transport: HookTransport,
    circuit: Circuit,
}

/// A request that waits, and the receiver of its answer.
struct HookJob {
    endpoint: Arc<Endpoint>,
    request: HookRequest,
    begin: Instant,
    reply: oneshot::Sender<Result<HookReply, HookFailed>>,
    pending: PendingCount,
}

/// Counts a job until it is dropped.
struct PendingCount(Arc<AtomicUsize>);

impl Drop for PendingCount {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The application has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HookFailed;

/// The answer to a request in progress.
pub(crate) struct PendingReply(oneshot::Receiver<Result<HookReply, HookFailed>>);

impl PendingReply {
    /// Returns the answer, or wakes the waker when it arrives.
    pub(crate) fn poll(&mut self, waker: &Waker) -> Poll<Result<HookReply, HookFailed>> {
        let polled = Future::poll(Pin::new(&mut self.0), &mut Context::from_waker(waker));
        // The thread of the client has ended.
        polled.map(|reply| reply.unwrap_or(Err(HookFailed)))
    }
}

impl PendingReply {
    /// Waits for the answer.
    pub(crate) async fn wait(self) -> Result<HookReply, HookFailed> {
        // The thread of the client has ended.
        self.0.await.unwrap_or(Err(HookFailed))
    }
}

/// Time between two attempts.
const RETRY_DELAY: Duration = Duration::from_millis(50);

/// State that the thread of a client shares with its tasks.
struct HookSender {
    credentials: HookCredentials,
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
    /// Starts the thread, for these URLs.
    ///
    /// # Errors
    /// The invalid option, or why the thread cannot be started.
    pub(crate) fn start<'a>(
        options: &'a HookOptions,
        urls: impl IntoIterator<Item = &'a str>,
        metrics: Arc<HookMetrics>,
    ) -> Result<Arc<Self>, String> {
        options.check()?;
        let (mut endpoints, mut needs_tls) = (HashMap::new(), false);
        for url in urls {
            let parsed = parse_url(url)?;
            needs_tls |= parsed.is_tls;
            endpoints.entry(url.to_owned()).or_insert_with(|| Endpoint::new(url, parsed, options));
        }
        let credentials =
            HookCredentials::new(needs_tls, options.roots.as_deref(), options.signing_key.as_deref())?;
        let (jobs, receiver) = channel(options.queue);
        let sender = Arc::new(HookSender {
            credentials,
            metrics: Arc::clone(&metrics),
            timeout: options.timeout,
            retries: options.retries,
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build();
        let runtime = runtime.map_err(|error| format!("thread of hooks: {error}"))?;
        let concurrency = options.concurrency;
        let thread = std::thread::Builder::new().name("hooks".to_owned());
        let spawned = thread.spawn(move || runtime.block_on(run(receiver, sender, concurrency)));
        spawned.map_err(|error| format!("thread of hooks: {error}"))?;
        let pending = Arc::default();
        let endpoints = Mutex::new(endpoints);
        Ok(Arc::new(Self { options: options.clone(), endpoints, metrics, pending, jobs }))
    }

    pub(crate) fn options(&self) -> &HookOptions {
        &self.options
    }

    /// The headers of a client's request that requests to the application repeat.
    pub(crate) fn headers_of(&self, request: &Request<'_>) -> Vec<(HeaderName, HeaderValue)> {
        let headers = self.options.headers.iter().flat_map(|name| {
            let values = request.head().header(name.as_str());
            values.filter_map(|value| Some((name.clone(), HeaderValue::from_bytes(value).ok()?)))
        });
        headers.collect()
    }

    /// Number of URLs whose circuit is open.
    pub(super) fn open_circuits(&self) -> usize {
        self.lock().values().filter(|endpoint| endpoint.circuit.is_open()).count()
    }

    /// Number of requests that wait or are in progress.
    pub(super) fn pending(&self) -> usize {
        self.pending.load(Ordering::Relaxed)
    }

    fn endpoint(&self, url: &str) -> Option<Arc<Endpoint>> {
        let mut endpoints = self.lock();
        if let Some(endpoint) = endpoints.get(url) {
            return Some(Arc::clone(endpoint));
        }
        let endpoint = Endpoint::new(url, parse_url(url).ok()?, &self.options);
        endpoints.insert(url.to_owned(), Arc::clone(&endpoint));
        Some(endpoint)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Arc<Endpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a request to a URL.
    pub(crate) fn call(
        &self,
        kind: HookKind,
        url: &str,
        body: String,
        headers: Vec<(HeaderName, HeaderValue)>,
    ) -> PendingReply {
        let (reply, receiver) = oneshot::channel();
        let pending = PendingReply(receiver);
        let Some(endpoint) = self.endpoint(url) else {
            self.metrics.record(kind, HookResult::Failed, None);
            return pending;
        };
        let mut id = [0; 16];
        // Without random numbers, the application sees equal ids.
        let _ = SystemRandom::new().fill(&mut id);
        let id = format!("{:032x}", u128::from_be_bytes(id));
        self.pending.fetch_add(1, Ordering::Relaxed);
        let job = HookJob {
            endpoint,
            request: HookRequest { kind, id, body: Bytes::from(body), headers },
            begin: Instant::now(),
            reply,
            pending: PendingCount(Arc::clone(&self.pending)),
        };
        if let Err(error) = self.jobs.try_send(job) {
            self.metrics.record(kind, HookResult::QueueFull, None);
            tracing::debug!(hook = kind.name(), limit = self.options.queue, "the queue of hooks is full");
            drop(error);
        }
        pending
    }
}

/// Sends jobs until the client is dropped.
async fn run(mut jobs: Receiver<HookJob>, sender: Arc<HookSender>, concurrency: usize) {
    let permits = Arc::new(Semaphore::new(concurrency));
    loop {
        // A job stays in the queue until it may be sent, so that the queue has a limit.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let Some(job) = jobs.recv().await else { break };
        let sender = Arc::clone(&sender);
        tokio::spawn(async move {
            sender.execute(job).await;
            drop(permit);
        });
    }
    // Requests in progress are answered.
    let all = u32::try_from(concurrency).unwrap_or(u32::MAX);
    let _ = permits.acquire_many(all).await;
}

impl HookSender {
    async fn execute(&self, job: HookJob) {
        let HookJob { endpoint, request, begin, reply, pending } = job;
        if reply.is_canceled() {
            // The client has disconnected meanwhile.
            return;
        }
        let kind = request.kind;
        if !endpoint.circuit.permits(Instant::now()) {
            self.metrics.record(kind, HookResult::CircuitOpen, None);
            drop(pending);
            let _ = reply.send(Err(HookFailed));
            return;
        }
        let deadline = (begin + self.timeout).into();
        let (result, answer) = match timeout_at(deadline, self.attempt(&endpoint, &request)).await {
            Ok(Ok(answer)) => {
                let result =
                    if answer.rejection.is_some() { HookResult::Rejected } else { HookResult::Accepted };
                (result, Ok(answer))
            }
            Ok(Err(text)) => (HookResult::Failed, Err(text)),
            Err(_) => (HookResult::TimedOut, Err(format!("no answer within {:?}", self.timeout))),
        };
        self.metrics.record(kind, result, Some(begin.elapsed()));
        endpoint.note(kind, &answer);
        // The metrics are complete when the client gets its answer.
        drop(pending);
        let _ = reply.send(answer.map_err(|_| HookFailed));
    }

    async fn attempt(&self, endpoint: &Endpoint, request: &HookRequest) -> Result<HookReply, String> {
        let mut retries = self.retries;
        loop {
            let error = match endpoint.transport.send(request, &self.credentials).await {
                Ok((200..300, body)) => return HookReply::parse(request.kind, &body),
                Ok((status, _)) => HookSendError {
                    text: format!("status {status}"),
                    is_unsent: false,
                    is_temporary: status >= 500 || status == 429,
                },
                Err(error) => error,
            };
            let may_repeat = error.is_temporary && (error.is_unsent || request.kind.is_idempotent());
            if retries == 0 || !may_repeat {
                return Err(error.text);
            }
            retries -= 1;
            self.metrics.retry();
            sleep(RETRY_DELAY).await;
        }
    }
}

impl Endpoint {
    fn new(url: &str, parsed: HookUrl, options: &HookOptions) -> Arc<Self> {
        let circuit = Circuit::new(options.circuit_failures, options.circuit_time);
        Arc::new(Self { url: url.to_owned(), transport: HookTransport::new(parsed), circuit })
    }

    /// Records a result in the circuit, and logs its changes.
    fn note(&self, kind: HookKind, answer: &Result<HookReply, String>) {
        let change = self.circuit.record(answer.is_ok(), Instant::now());
        // The query may have a secret.
        let (hook, url) = (kind.name(), self.url.split('?').next().unwrap_or_default());
        match (change, answer) {
            (CircuitChange::FirstFailure, Err(error)) => {
                tracing::warn!(hook, url, "the hook failed: {error}")
            }
            (CircuitChange::Opened, Err(error)) => {
                tracing::error!(hook, url, "the hook failed repeatedly; requests pause: {error}");
            }
            (CircuitChange::Closed, _) => tracing::info!(hook, url, "the hook answers again"),
            (_, Err(error)) => tracing::debug!(hook, url, "the hook failed: {error}"),
            _ => {}
        }
    }
}
