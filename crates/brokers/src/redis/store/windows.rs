//! First answers, and budgets.

use sinews_store::{FirstValue, OnceRequest, StoreAnswer, TakeRequest};

use super::RedisStore;
use super::decode::{Values, unexpected};
use super::milliseconds;
use super::queue::OperationRequest;
use super::script::ScriptName;

impl RedisStore {
    pub(super) fn store_once(&self, once: OnceRequest) -> StoreAnswer<FirstValue> {
        if let Err(error) = super::check_size(once.value.len()) {
            return StoreAnswer::ready(Err(error));
        }
        let request = OperationRequest::new(ScriptName::Windows, "once", &once.name)
            .key(self.shared.names.key("first", &once.name))
            .text(once.value)
            .number(milliseconds(once.window))
            .writes();
        self.shared.submit(request, |reply| {
            let mut values = Values::new(reply.values);
            match values.number() {
                Some(0) => Ok(FirstValue::First),
                _ => values.bytes().map(|value| FirstValue::Value(value.into())).ok_or_else(unexpected),
            }
        })
    }

    pub(super) fn take_permits(&self, take: &TakeRequest) -> StoreAnswer<u32> {
        let request = OperationRequest::new(ScriptName::Windows, "take", &take.name)
            .key(self.shared.names.key("budget", &take.name))
            .number(take.permits.into())
            .text(take.rate.max(0.0).to_string())
            .number(take.burst.max(1).into());
        self.shared.submit(request, |reply| {
            let mut values = Values::new(reply.values);
            let granted =
                values.number().and_then(|_| values.number()).and_then(|count| u32::try_from(count).ok());
            granted.ok_or_else(unexpected)
        })
    }
}
