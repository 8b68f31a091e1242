//! Client calls by plain requests: `POST /rpc/{method}`.

use sinews_server::{Answer, Request, Response};

use super::topics::content_of;
use crate::access::auth::Denied;
use crate::config::ConfigHandle;
use crate::hooks::HookCall;
use crate::hooks::UNANSWERED;
use crate::http::failure;
use crate::model::MessageContent;
use crate::model::problem::{Problem, code, problem};
use crate::session::request_hooks::{RequestHooks, RequestRejection};
use crate::uncached::UNCACHED;

/// `POST /rpc/{method}`: the application answers.
pub(crate) fn call(live: &ConfigHandle, request: &Request<'_>) -> Result<Answer, Denied> {
    let config = live.config();
    // A page from another origin can make a browser post here, too.
    if let Err(rejection) = config.check_origin(request) {
        return Ok(failure(403, rejection.text()).into());
    }
    let rights = config.rights(request)?;
    let (method, topic, content) = match read(request) {
        Ok(call) => call,
        Err(problem) => return Ok(RequestRejection::Problem(problem).response().into()),
    };
    let Some(hooks) = RequestHooks::for_request(live, request) else {
        // Without hooks, the call is rejected.
        let call = HookCall { method: &method, topic: topic.as_deref() };
        let result = call.hook(None, &rights, None);
        let problem = result.err().unwrap_or_else(|| problem(code::STORE, UNANSWERED));
        return Ok(RequestRejection::Problem(problem).response().into());
    };
    Ok(Answer::later(async move {
        let called = async {
            let rights = hooks.connect(rights, "/rpc/{method}").await?.rights;
            let call = HookCall { method: &method, topic: topic.as_deref() };
            hooks.rpc(&rights, call, content.as_ref()).await
        };
        match called.await {
            Ok(data) => {
                let data = data.as_ref().map_or("null", |data| data.get());
                Response::json(format!("{{\"data\":{data}}}\n")).with_header("Cache-Control", UNCACHED)
            }
            Err(rejection) => rejection.response(),
        }
    }))
}

/// The method, the topic, and the data, unless the body is empty.
fn read(request: &Request<'_>) -> Result<(String, Option<String>, Option<MessageContent>), Problem> {
    let malformed = |text| problem(code::MALFORMED, text);
    let method = request.param("method").ok_or_else(|| malformed("the name of the method is not UTF-8"))?;
    let topic = request.query_values("topic").next().map(|topic| topic.into_owned());
    let content = match request.body().is_empty() {
        true => None,
        false => Some(content_of(request).map_err(|(status, text)| problem(status, text))?),
    };
    Ok((method.into_owned(), topic, content))
}
