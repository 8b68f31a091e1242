//! Client calls, which the application answers by the hook `rpc`.

use std::sync::Arc;

use super::client::HookClient;
use crate::access::auth::Rights;
use crate::access::namespaces::{ConnectionRates, TopicHook};
use crate::model::problem::{Problem, code, problem};
use crate::model::{HookKind, MessageContent};

/// Longest method name in bytes.
const METHOD_MAX: usize = 128;

/// A client's call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HookCall<'a> {
    pub(crate) method: &'a str,
    pub(crate) topic: Option<&'a str>,
}

/// The data of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallData<'a> {
    Json(&'a str),
    /// A plain request's body.
    Content(&'a MessageContent),
}

impl CallData<'_> {
    pub(super) fn len(self) -> usize {
        match self {
            Self::Json(json) => json.len(),
            Self::Content(content) => content.len(),
        }
    }

    /// The data as a field, such as `"data":1`.
    pub(super) fn field(self) -> String {
        match self {
            Self::Json(json) => format!("\"data\":{json}"),
            Self::Content(content) => content.field(),
        }
    }
}

impl HookCall<'_> {
    /// Checks a call from a connection, or from a plain request, which has no rates; returns its hook. The client of
    /// all hooks, if there are any, counts a call that exceeds a rate.
    ///
    /// # Errors
    /// The method is invalid, the client exceeds its rate, or no hook is configured.
    pub(crate) fn hook(
        &self,
        client: Option<&Arc<HookClient>>,
        rights: &Rights,
        rates: Option<&mut ConnectionRates>,
    ) -> Result<Arc<TopicHook>, Problem> {
        if self.method.is_empty() || self.method.len() > METHOD_MAX {
            return Err(problem(code::MALFORMED, format!("rpc: a method has 1 to {METHOD_MAX} bytes")));
        }
        rights.check_call_rate(self.topic, rates).inspect_err(|problem| {
            client.inspect(|client| client.note_rejected_call(problem));
        })?;
        let hook = match self.topic {
            Some(topic) => rights.topic_hook(HookKind::Rpc, topic),
            None => client.map(|client| client.options()).and_then(|options| {
                Some(Arc::new(TopicHook { url: options.rpc.clone()?, failure: options.failure }))
            }),
        };
        hook.ok_or_else(|| problem(code::UNKNOWN_OP, "rpc: no hook is configured for this call"))
    }
}
