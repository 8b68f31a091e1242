//! HTTP requests that wait for the interpreter's answer.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::connections::head_lines;
use super::{ServerEvent, SharedState, lock};
use sinews_server::{Answer, Request, Response};

/// The requests, by id. Ids are not given again: a late answer never reaches another request.
#[derive(Debug, Default)]
pub(super) struct PendingRequests {
    waiting: HashMap<u32, Pending>,
    last: u32,
}

#[derive(Debug, Default)]
struct Pending {
    response: Option<Response>,
    waker: Option<Waker>,
}

impl PendingRequests {
    /// Sets a request's response. Returns the waker of its task, if the request still waits.
    pub(super) fn respond(
        &mut self,
        id: u32,
        status: u16,
        headers: &[(String, String)],
        body: &[u8],
    ) -> Result<Option<Waker>, String> {
        if !(200..=599).contains(&status) {
            return Err(format!("status: {status} is not between 200 and 599"));
        }
        let mut response = Response::new(status).with_body(body.to_vec());
        for (name, value) in headers {
            let is_name = !name.is_empty()
                && name
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte));
            if !is_name || value.bytes().any(|byte| byte < b' ' && byte != b'\t' || byte == 0x7f) {
                return Err(format!("headers: {name:?} has an invalid name or value"));
            }
            response.add_header(name.clone(), value.clone());
        }
        let Some(pending) = self.waiting.get_mut(&id).filter(|pending| pending.response.is_none()) else {
            return Ok(None);
        };
        pending.response = Some(response);
        Ok(pending.waker.take())
    }
}

/// Reports a request, and waits for its response.
pub(super) fn answer(shared: &SharedState, route: u32, request: &Request<'_>) -> Answer {
    let head = head_lines(request, true);
    let id = {
        let shared = &mut *lock(shared);
        // Bounded by the connections: each has one request that waits.
        shared.requests.last = shared.requests.last.wrapping_add(1);
        let id = shared.requests.last;
        shared.requests.waiting.insert(id, Pending::default());
        let kind = ServerEvent::Request as u32 | route << 8;
        if !shared.events.push_numbered(kind, id, &[&head, b"\n", request.body()]) {
            shared.requests.waiting.remove(&id);
            return Response::new(503).into();
        }
        id
    };
    Answer::later(ResponseFuture { shared: SharedState::clone(shared), id })
}

/// Ready once the interpreter has answered. Dropped with the connection or at the timeout.
struct ResponseFuture {
    shared: SharedState,
    id: u32,
}

impl Future for ResponseFuture {
    type Output = Response;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Response> {
        let shared = &mut *lock(&self.shared);
        let Some(pending) = shared.requests.waiting.get_mut(&self.id) else { return Poll::Pending };
        match pending.response.take() {
            Some(response) => Poll::Ready(response),
            None => {
                pending.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for ResponseFuture {
    fn drop(&mut self) {
        lock(&self.shared).requests.waiting.remove(&self.id);
    }
}
