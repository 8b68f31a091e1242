//! A webhook's deliveries: one request at a time, in event order.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::Method;
use hyper::header::CONTENT_TYPE;
use hyper::http::request::Builder;
use ring::rand::{SecureRandom as _, SystemRandom};
use tokio::time::timeout_at;

use super::encoder::EventBatch;
use super::options::WebhookTarget;
use super::queue::{NextBatch, TakenEvents, WebhookQueue, backoff};

/// Delivers a webhook's events until it is closed.
pub(super) async fn run(receiver: Arc<WebhookQueue>) {
    // Failed attempts since the last success, also of former batches: an unreachable application gets few requests.
    let mut failures = 0;
    loop {
        let target = receiver.target();
        match receiver.next(&target, Instant::now()) {
            NextBatch::Send(taken) => send(&receiver, taken, &mut failures).await,
            // A timeout is no failure.
            NextBatch::Wait(Some(due)) => drop(timeout_at(due.into(), receiver.changed.notified()).await),
            NextBatch::Wait(None) => receiver.changed.notified().await,
            NextBatch::End => break,
        }
        if receiver.closed().is_some_and(|end| Instant::now() >= end) {
            break;
        }
    }
    let count = receiver.drop_all();
    if count > 0 {
        tracing::warn!(webhook = receiver.name(), count, "events were not delivered before the end");
    }
    receiver.end();
}

/// Sends events until the application has accepted or rejected them, or they are too old. It sends rejected events
/// again in halves: one client event, such as a message that the application finds too large, takes no others with it.
async fn send(receiver: &WebhookQueue, taken: TakenEvents, failures: &mut u32) {
    // The next batch is the last one.
    let mut batches = vec![taken];
    while let Some(mut batch) = batches.pop() {
        batch.lost += receiver.take_lost();
        match send_batch(receiver, &batch, failures).await {
            BatchResult::Accepted => {}
            BatchResult::Rejected if batch.events.len() > 1 => {
                let rest = batch.events.split_off(batch.events.len().div_ceil(2));
                batches.push(TakenEvents { events: rest, since: batch.since, lost: 0 });
                batches.push(batch);
            }
            BatchResult::Rejected => receiver.give_up(&batch, None),
            BatchResult::Old(target, delay) => {
                // The rest is as old.
                batch.events.extend(batches.drain(..).rev().flat_map(|rest| rest.events));
                let now = Instant::now();
                receiver.give_up(&batch, Some((&target, now)));
                wait(receiver, now + delay).await;
            }
        }
    }
}

/// The result of the attempts to send a batch.
enum BatchResult {
    Accepted,
    /// The application has rejected the events; to send them again would not help.
    Rejected,
    /// The application has not accepted them in time; the delay before the next request.
    Old(Arc<WebhookTarget>, Duration),
}

async fn send_batch(receiver: &WebhookQueue, taken: &TakenEvents, failures: &mut u32) -> BatchResult {
    let mut id = [0; 16];
    // Without random numbers, the event ids still distinguish the requests.
    let _ = SystemRandom::new().fill(&mut id);
    let id = format!("{:032x}", u128::from_be_bytes(id));
    let batch = EventBatch { id: &id, events: &taken.events, lost: taken.lost };
    let body = receiver.target().encoder.body(&batch);
    loop {
        // A reload may have changed it.
        let target = receiver.target();
        let begin = Instant::now();
        let result = attempt(&target, &id, &body, limit(receiver, &target)).await;
        receiver.metrics.request(begin.elapsed(), result.is_ok());
        let failure = match result {
            Ok(()) => {
                if std::mem::take(failures) > 0 {
                    tracing::info!(webhook = receiver.name(), "the webhook is delivered again");
                }
                receiver.metrics.delivered(taken.events.len() as u64);
                return BatchResult::Accepted;
            }
            Err(failure) => failure,
        };
        if failure.is_final && taken.events.len() > 1 {
            tracing::debug!(webhook = receiver.name(), "the events are sent in halves: {}", failure.text);
            return BatchResult::Rejected;
        }
        *failures += 1;
        if *failures == 1 {
            let url = &*target.shown_url;
            tracing::warn!(webhook = receiver.name(), url, "the webhook failed: {}", failure.text);
        }
        if failure.is_final {
            // The application answers: the next request needs no delay. Only the first rejection is logged.
            *failures = 1;
            return BatchResult::Rejected;
        }
        let delay = backoff(*failures, random());
        let now = Instant::now();
        let is_old = now >= taken.since + target.limits.retry_time;
        if is_old {
            let count = taken.events.len();
            tracing::error!(
                webhook = receiver.name(),
                count,
                "events were not delivered within {:?} and are dropped: {}",
                target.limits.retry_time,
                failure.text
            );
        }
        if is_old || receiver.closed().is_some_and(|end| now + delay >= end) {
            return BatchResult::Old(target, delay);
        }
        receiver.metrics.retry();
        wait(receiver, now + delay).await;
    }
}

/// Waits for the next attempt, or until the webhook is closed.
async fn wait(receiver: &WebhookQueue, until: Instant) {
    while receiver.closed().is_none() {
        // Further events end the wait as well: it goes on.
        if timeout_at(until.into(), receiver.changed.notified()).await.is_err() {
            return;
        }
    }
}

/// Time for an answer: less when the webhook is closed.
fn limit(receiver: &WebhookQueue, target: &WebhookTarget) -> Duration {
    let rest = receiver.closed().map(|end| end.saturating_duration_since(Instant::now()));
    rest.map_or(target.limits.timeout, |rest| rest.min(target.limits.timeout))
}

struct FailedAttempt {
    text: String,
    /// The application has rejected the events.
    is_final: bool,
}

async fn attempt(
    target: &WebhookTarget,
    id: &str,
    body: &Bytes,
    limit: Duration,
) -> Result<(), FailedAttempt> {
    let temporary = |text| FailedAttempt { text, is_final: false };
    let headers = |builder: Builder| {
        let builder = builder.header(CONTENT_TYPE, "application/json");
        let headers = target.encoder.headers(id, body).into_iter();
        headers.fold(builder, |builder, (name, value)| builder.header(name, value))
    };
    match target.client.send_within(limit, Method::POST, body.clone(), headers).await {
        Ok((200..300, _)) => Ok(()),
        Ok((status @ 300..400, _)) => Err(temporary(format!("status {status}: redirects are not followed"))),
        Ok((status @ (400 | 413 | 422), _)) => {
            Err(FailedAttempt { text: format!("status {status}: the events are rejected"), is_final: true })
        }
        Ok((status, _)) => Err(temporary(format!("status {status}"))),
        Err(error) => Err(temporary(error.text)),
    }
}

fn random() -> u8 {
    let mut byte = [0];
    // Without random numbers, all nodes wait equally long.
    let _ = SystemRandom::new().fill(&mut byte);
    byte[0]
}

#[cfg(test)]
mod tests {
    use super::super::options::WebhookOptions;
    use super::*;
    use crate::outgoing::dial::answer_behind_silent_address;

    /// A name with several addresses; the first never answers.
    #[test]
    fn silent_address_of_the_name_does_not_delay_a_webhook_to_its_timeout() {
        let (_silent, answering) = answer_behind_silent_address("webhook.invalid:80", "{}");
        let target = WebhookOptions::new("app", "http://webhook.invalid/", [7; 32]).target().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let body = Bytes::from_static(b"{}");
        let sent = runtime.block_on(attempt(&target, "1", &body, target.limits.timeout));
        assert_eq!(sent.map_err(|failure| failure.text), Ok(()));
        drop((runtime, target));
        answering.join().unwrap();
    }
}
