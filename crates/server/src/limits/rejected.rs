//! Connection that gets a rejection only.

use sinews_proto::Time;
use sinews_session::{Outbound, Resources};

use super::limit::Limit;
use crate::date::Date;

/// The rejection is sent when the request begins to arrive, since clients discard an answer without a request. Then
/// the sending side is closed, and further input is discarded: a reset would overtake the answer.
#[derive(Debug)]
pub(crate) struct RejectedConn {
    pub(crate) outbound: Outbound,
    limit: Limit,
    answered: bool,
}

impl RejectedConn {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { outbound: Outbound::default(), limit, answered: false }
    }

    /// Answers the first input.
    pub(crate) fn answer(&mut self, resources: &mut Resources, date: &mut Date, now: Time) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        let refusal = self.limit.refusal();
        let dated = refusal.clone().with_header("Date", date.at(now));
        self.outbound
            .pending_chain(resources)
            .write(|out| dated.as_ref().unwrap_or(&refusal).write_response(out));
    }
}
