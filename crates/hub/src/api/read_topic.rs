//! Answers to requests that read a topic's state.

use sinews_server::{Answer, Request, Response};

use crate::access::auth::{Action, Denied, Rights};
use crate::config::ConfigHandle;
use crate::model::problem::Problem;
use crate::session::request_hooks::{MemberAnswer, RequestHooks, RequestRejection};

/// Reads a topic once the right to subscribe, this check, and the hooks permit it. The hooks get the route.
pub(super) fn read_topic(
    live: &ConfigHandle,
    request: &Request<'_>,
    topic: String,
    route: &'static str,
    check: impl Fn(&Rights, &str) -> Result<(), Problem> + 'static,
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
        let answer = check(&rights, &topic).map(|()| read(&topic));
        return Ok(answer.unwrap_or_else(|rejection| rejection.response()).into());
    };
    Ok(Answer::later(async move {
        let decided = async {
            let rights = hooks.connect(rights, route).await?.rights;
            check(&rights, &topic)?;
            hooks.subscribe(&rights, std::iter::once(&*topic), &mut MemberAnswer::default()).await
        };
        decided.await.map_or_else(|rejection| rejection.response(), |()| read(&topic))
    }))
}
