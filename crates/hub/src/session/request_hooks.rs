//! Hooks for plain requests, which the application decides about before their answer.

use std::collections::BTreeMap;
use std::time::Instant;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::future::try_join_all;
use hyper::header::{HeaderName, HeaderValue};
use serde_json::Value;
use serde_json::value::RawValue;
use sinews_server::{KeyWrite, LogLimit, Request, Response};

use crate::access::auth::{Denied, Rights};
use crate::access::namespaces::TopicHook;
use crate::closing::EXPIRED;
use crate::config::{ConfigHandle, RejectedClaims, log_rights};
use crate::hooks::UNANSWERED;
use crate::hooks::calls::{CallData, HookCall};
use crate::hooks::detail::HookDetail;
use crate::hooks::messages::{HookRejection, HookReply};
use crate::http::failure;
use crate::model::problem::{Problem, code, problem};
use crate::model::{HookKind, MessageContent};
use crate::outgoing::options::HookFailure;
use crate::topics::keys::value_len;
use crate::uncached::UNCACHED;

/// Limit for lines about the application's values for keys that are deleted.
static VALUE_LINES: LogLimit = LogLimit::new();

/// The hooks that decide about one plain request.
pub(crate) struct RequestHooks {
    live: ConfigHandle,
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// A plain request that is rejected before its answer.
pub(crate) enum RequestRejection {
    Denied(Denied),
    Problem(Problem),
}

impl From<Denied> for RequestRejection {
    fn from(denied: Denied) -> Self {
        Self::Denied(denied)
    }
}

impl From<Problem> for RequestRejection {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl RequestRejection {
    pub(crate) fn response(&self) -> Response {
        match self {
            Self::Denied(denied) => denied.response(),
            Self::Problem(problem) => {
                let response = failure(problem.code, &problem.text);
                let response = response.with_header("Cache-Control", UNCACHED);
                if problem.code == code::STORE { response.with_header("Retry-After", "1") } else { response }
            }
        }
    }
}

/// The rights that a connect hook has accepted.
pub(crate) struct AcceptedRequest {
    pub(crate) rights: Rights,
    /// The application has granted them.
    pub(crate) is_granted: bool,
    pub(crate) answer: MemberAnswer,
}

/// What the application has answered about the client as a subscriber and member.
#[derive(Debug, Default)]
pub(crate) struct MemberAnswer {
    /// Topics to which the server subscribes the client, if its request accepts them.
    pub(crate) topics: Vec<String>,
    /// The client's info as a member of any topic, and of single ones.
    pub(crate) info: Option<Value>,
    pub(crate) topic_infos: BTreeMap<String, Value>,
}

impl RequestHooks {
    /// Returns a request's hooks; `None` without any.
    pub(crate) fn for_request(live: &ConfigHandle, request: &Request<'_>) -> Option<Self> {
        let headers = live.config().hooks()?.headers_of(request);
        Some(Self { live: live.clone(), headers })
    }

    /// Whether the application decides about each client.
    pub(crate) fn has_connect(&self) -> bool {
        self.live.config().hooks().is_some_and(|hooks| hooks.options().connect.is_some())
    }

    /// Returns the request headers that requests to the application repeat.
    pub(crate) fn into_headers(self) -> Vec<(HeaderName, HeaderValue)> {
        self.headers
    }

    /// Asks the application whether to accept a request's client at a route, unless there is no such hook.
    pub(crate) async fn connect(
        &self,
        rights: Rights,
        path: &str,
    ) -> Result<AcceptedRequest, RequestRejection> {
        let config = self.live.config();
        let options = config.hooks().map(|hooks| hooks.options());
        let Some((url, failure)) =
            options.and_then(|options| Some((options.connect.clone()?, options.failure)))
        else {
            return Ok(AcceptedRequest { rights, is_granted: false, answer: MemberAnswer::default() });
        };
        let hook = TopicHook { url, failure };
        let reply = self.call(&hook, &rights, HookDetail::Connect { path }).await?;
        let answer = MemberAnswer { topics: reply.topics, info: reply.info, topic_infos: BTreeMap::new() };
        let Some(claims) = reply.claims else {
            return Ok(AcceptedRequest { rights, is_granted: false, answer });
        };
        let address = rights.address().unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED));
        let granted = config.rights_of_claims(claims, address);
        let rights = granted.map_err(|rejected| match rejected {
            RejectedClaims::Expired => Denied::token(EXPIRED.to_owned()).into(),
            RejectedClaims::Revoked(denied) => RequestRejection::from(denied),
            RejectedClaims::Invalid(error) => {
                log_rights("claims of a hook", &error);
                problem(code::STORE, UNANSWERED).into()
            }
        })?;
        Ok(AcceptedRequest { rights, is_granted: true, answer })
    }

    /// Asks the application about subscriptions, as far as it decides about them. Adds its answers to the connect
    /// hook's answer.
    pub(crate) async fn subscribe<'a>(
        &self,
        rights: &Rights,
        topics: impl Iterator<Item = &'a str>,
        answer: &mut MemberAnswer,
    ) -> Result<(), RequestRejection> {
        let ask = |topic: &'a str| {
            let hook = rights.subscribe_hook(topic);
            async move {
                match hook? {
                    Some(hook) => {
                        let reply = self.call(&hook, rights, HookDetail::Subscribe { topic }).await?;
                        Ok::<_, RequestRejection>((topic, reply.topics, reply.info))
                    }
                    None => Ok((topic, Vec::new(), None)),
                }
            }
        };
        for (topic, topics, info) in try_join_all(topics.map(ask).collect::<Vec<_>>()).await? {
            answer.topics.extend(topics);
            answer.topic_infos.extend(info.map(|info| (topic.to_owned(), info)));
        }
        Ok(())
    }

    /// Asks the application about a publication, if it decides about it. Returns the content to publish.
    pub(crate) async fn publish(
        &self,
        rights: &Rights,
        topic: &str,
        content: MessageContent,
        idempotency_key: Option<&str>,
        max_message: usize,
    ) -> Result<MessageContent, RequestRejection> {
        let Some(hook) = rights.topic_hook(HookKind::Publish, topic) else { return Ok(content) };
        let detail = HookDetail::Publish { topic, content: &content, idempotency_key };
        let reply = self.call(&hook, rights, detail).await?;
        Ok(accepted_content(rights, topic, content, max_message, reply)?)
    }

    /// Asks the application about a key write, if it decides about it. Returns the write to execute.
    pub(crate) async fn write_key(
        &self,
        rights: &Rights,
        topic: &str,
        write: KeyWrite,
        max_message: usize,
    ) -> Result<KeyWrite, RequestRejection> {
        let Some(hook) = rights.topic_hook(HookKind::Publish, topic) else { return Ok(write) };
        let reply = self.call(&hook, rights, HookDetail::WriteKey { topic, write: &write }).await?;
        Ok(accepted_write(rights, topic, write, max_message, reply)?)
    }

    /// Passes a client's call to the application. Returns the result.
    pub(crate) async fn rpc(
        &self,
        rights: &Rights,
        call: HookCall<'_>,
        content: Option<&MessageContent>,
    ) -> Result<Option<Box<RawValue>>, RequestRejection> {
        let hook = call.hook(self.live.config().hooks(), rights, None)?;
        // Nothing replaces the result.
        let hook = TopicHook { url: hook.url.clone(), failure: HookFailure::Closed };
        let detail = HookDetail::Rpc { call, data: content.map(CallData::Content) };
        Ok(self.call(&hook, rights, detail).await?.data)
    }

    async fn call(
        &self,
        hook: &TopicHook,
        rights: &Rights,
        detail: HookDetail<'_>,
    ) -> Result<HookReply, RequestRejection> {
        let config = self.live.config();
        // A reload may have removed the hooks.
        let client = config.hooks().ok_or_else(|| problem(code::STORE, UNANSWERED))?;
        let pending = client.call(&hook.url, &detail, "", rights.client(), self.headers.clone());
        match pending.wait().await {
            Ok(HookReply { rejection: Some(rejection), .. }) => {
                Err(problem(status_of(&rejection), rejection.reason).into())
            }
            Ok(reply) => Ok(reply),
            Err(failed) if failed.opens(hook.failure) => Ok(HookReply::default()),
            Err(_) => Err(problem(code::STORE, UNANSWERED).into()),
        }
    }
}

/// Returns a rejection's status. A close code from 4400 to 4499 is 4000 and the status.
fn status_of(rejection: &HookRejection) -> u16 {
    match rejection.code {
        Some(status @ 400..=499) => status,
        Some(close_code @ 4_400..=4_499) => close_code - 4_000,
        _ => code::NOT_SUBJECT,
    }
}

/// Returns the content by which the application replaces the client's content, if it does.
///
/// # Errors
/// The content is invalid, or too large.
fn replaced(reply: HookReply, max_message: usize) -> Result<Option<MessageContent>, Problem> {
    let content = match (reply.data, reply.b64) {
        (Some(data), _) => MessageContent::json(&data).map_err(|_| problem(code::STORE, UNANSWERED))?,
        (None, Some(b64)) => {
            let bytes = STANDARD.decode(b64).map_err(|_| problem(code::STORE, UNANSWERED))?;
            MessageContent::Binary(Bytes::from(bytes))
        }
        (None, None) => return Ok(None),
    };
    if content.len() > max_message {
        let bytes = content.len();
        let text = format!("the hook's message of {bytes} bytes exceeds max_message ({max_message})");
        return Err(problem(code::TOO_LARGE, text));
    }
    Ok(Some(content))
}

/// Returns the content that the application has accepted, perhaps another one than the client's.
///
/// # Errors
/// The application's content is invalid, or too large.
pub(crate) fn accepted_content(
    rights: &Rights,
    topic: &str,
    content: MessageContent,
    max_message: usize,
    reply: HookReply,
) -> Result<MessageContent, Problem> {
    let Some(content) = replaced(reply, max_message)? else { return Ok(content) };
    rights.check_size(topic, content.len())?;
    Ok(content)
}

/// Returns the key write that the application has accepted, perhaps with another value.
///
/// # Errors
/// The value is invalid or too large, or the key is deleted and has none.
pub(crate) fn accepted_write(
    rights: &Rights,
    topic: &str,
    write: KeyWrite,
    max_message: usize,
    reply: HookReply,
) -> Result<KeyWrite, Problem> {
    // Namespaces may have changed while the hook decided.
    let write = rights.limit_key(topic, write);
    let Some(content) = replaced(reply, max_message)? else { return Ok(write) };
    if write.value().is_none() {
        if let Some(omitted) = VALUE_LINES.permit(Instant::now()) {
            tracing::warn!(topic, omitted, "a hook's answer has a value for a key that is deleted");
        }
        return Err(problem(code::STORE, UNANSWERED));
    }
    let write = write.with_value(content.into_key_value());
    rights.check_size(topic, value_len(&write))?;
    Ok(write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_of_the_application_is_at_most_max_message() {
        let client = || MessageContent::Binary(Bytes::from_static(b"client"));
        let accept = |data: Option<&str>, b64: Option<&str>| {
            let mut reply = HookReply::default();
            reply.data = data.map(|data| RawValue::from_string(data.to_owned()).unwrap());
            reply.b64 = b64.map(str::to_owned);
            accepted_content(&Rights::all(), "a", client(), 3, reply).map_err(|problem| problem.code)
        };
        let len = |data, b64| accept(data, b64).map(|content| content.len());
        assert_eq!(len(None, None), Ok(6), "the client's own was checked before");
        assert_eq!((len(Some("123"), None), len(Some("1234"), None)), (Ok(3), Err(code::TOO_LARGE)));
        assert_eq!((len(None, Some("AAAA")), len(None, Some("AAAAAA=="))), (Ok(3), Err(code::TOO_LARGE)));
        assert_eq!(len(None, Some("?")), Err(code::STORE));
    }
}
