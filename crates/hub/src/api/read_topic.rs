//! Answers to requests that read a topic's state.

use sinews_server::{Answer, Request, Response};

use crate::access::auth::{Action, Denied, Rights};
use crate::config::ConfigHandle;
use crate::http::error_response;
use crate::model::opening::SharedOpening;
use crate::model::problem::Problem;
use crate::session::request_hooks::{MemberAnswer, RequestHooks, RequestRejection};

/// Reads a topic once the right to subscribe, this check, and the hooks permit it. The hooks get the route.
pub(super) fn read_topic(
    live: &ConfigHandle,
    request: &Request<'_>,
    topic: String,
    route: &'static str,
    check: impl Fn(&Rights, &str) -> Result<(), Problem> + 'static,
    open: impl FnOnce(&str) -> Option<SharedOpening> + 'static,
    read: impl FnOnce(&str) -> Response + 'static,
) -> Result<Answer, Denied> {
    let rights = live.config().rights(request)?;
    let check = move |rights: &Rights, topic: &str| {
        rights.may(Action::Subscribe, topic)?;
        Ok::<_, RequestRejection>(check(rights, topic)?)
    };
    let has_hook = || !matches!(rights.subscribe_hook(&topic), Ok(None));
    let hooks = RequestHooks::for_request(live, request).filter(|hooks| hooks.has_connect() || has_hook());
    let Some(hooks) = hooks else {
        if let Err(rejection) = check(&rights, &topic) {
            return Ok(rejection.response().into());
        }
        return Ok(match open(&topic) {
            None => read(&topic).into(),
            Some(opening) => Answer::later(async move { read_opened(Some(opening), &topic, read).await }),
        });
    };
    Ok(Answer::later(async move {
        let decided = async {
            let rights = hooks.connect(rights, route).await?.rights;
            check(&rights, &topic)?;
            hooks.subscribe(&rights, std::iter::once(&*topic), &mut MemberAnswer::default()).await
        };
        match decided.await {
            Ok(()) => read_opened(open(&topic), &topic, read).await,
            Err(rejection) => rejection.response(),
        }
    }))
}

/// Reads a topic when it is here.
async fn read_opened(
    opening: Option<SharedOpening>,
    topic: &str,
    read: impl FnOnce(&str) -> Response,
) -> Response {
    match opening {
        Some(opening) => match opening.await {
            Ok(()) => read(topic),
            Err(problem) => error_response(&problem),
        },
        None => read(topic),
    }
}
