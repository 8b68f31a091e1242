//! A connection that gets a refusal and nothing else.

use sinews_proto::Time;
use sinews_session::{Outbound, Resources};

use super::Limit;
use crate::date::Date;

/// It is answered when its request begins to come, since an answer to nothing asked is taken for none; then its side
/// is ended, and what still comes is passed over, or a reset would overtake the answer.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) outbound: Outbound,
    limit: Limit,
    answered: bool,
}

impl Refused {
    pub(crate) fn new(limit: Limit) -> Self {
        Self { outbound: Outbound::default(), limit, answered: false }
    }

    /// Something has come.
    pub(crate) fn answer(&mut self, resources: &mut Resources, date: &mut Date, now: Time) {
        if std::mem::replace(&mut self.answered, true) {
            return;
        }
        let refusal = self.limit.refusal();
        let dated = refusal.clone().with_header("Date", date.at(now));
        self.outbound
            .gathering(resources)
            .write(|out| dated.as_ref().unwrap_or(&refusal).write_response(out));
    }
}
