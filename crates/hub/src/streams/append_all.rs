//! Appends to several streams, of which none takes place if a queue has no space.

use std::future::poll_fn;
use std::task::Poll;

use sinews_stream::record::Records;
use sinews_stream::{AppendError, Pending, Stream};

use super::service::StreamService;

impl StreamService {
    /// Appends records to the first partitions of streams, in order. The queues have space for all of them, or none is appended.
    /// If another append takes the space meanwhile, the next one waits.
    pub(crate) async fn append_all(
        &self,
        appends: &[(&Stream, &Records)],
    ) -> Result<Vec<Pending>, AppendError> {
        if appends.len() > 1 && !self.store.fits(appends) {
            return Err(AppendError::Busy);
        }
        let mut appended = Vec::with_capacity(appends.len());
        for (stream, records) in appends {
            let is_first = appended.is_empty();
            let append = poll_fn(|cx| match self.append(stream, 0, Records::clone(records)) {
                Err(AppendError::Busy) if !is_first && !self.has_capacity(stream, 0, cx.waker()) => {
                    Poll::Pending
                }
                result => Poll::Ready(result),
            });
            appended.push(append.await?);
        }
        Ok(appended)
    }
}
