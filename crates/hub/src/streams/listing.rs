//! The list of streams, in pages.

use std::ops::Bound;

use serde_json::{Value, json};

use super::durable_keys::STREAM_PREFIX;
use super::json::listed;
use super::key_replicas::REPLICAS_NAME;
use super::service::StreamService;
use crate::auth::{Action, Rights};
use crate::problem::Problem;

/// Streams of a page.
pub(crate) const STREAMS_MAX: usize = 1_000;

/// Names that a request examines. A page may have fewer streams, or none, and a next page.
const EXAMINED_MAX: usize = 10_000;

/// Partitions and committed offsets of a page, after which it ends with a stream.
const ENTRIES_MAX: usize = 16_384;

impl StreamService {
    /// A page of the streams that may be read with these rights and that `is_listed`, by name, from the first one behind
    /// `after`, as JSON. `next` is the `after` of the next page, if there may be one. Rights are checked before anything
    /// is read of a stream.
    pub(crate) fn list(
        &self,
        rights: &Rights,
        is_listed: impl Fn(&str) -> bool,
        (after, limit): (Option<&str>, usize),
    ) -> Result<Value, Problem> {
        let streams = self.streams()?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = streams.names(start, EXAMINED_MAX + 1);
        let (mut list, mut entries, mut next) = (Vec::new(), 0, None);
        for (examined, name) in names.iter().enumerate() {
            if examined == EXAMINED_MAX || list.len() == limit || entries >= ENTRIES_MAX {
                next = examined.checked_sub(1).map(|last| &*names[last]);
                break;
            }
            if !is_of_keys(name) && is_readable(rights, name) && is_listed(name)
                // It may have been deleted since.
                && let Some(info) = streams.describe(name)
            {
                entries += info.partitions.len();
                entries += info.groups.iter().map(|group| group.offsets.len()).sum::<usize>();
                list.push(listed(self, &info));
            }
        }
        let mut page = json!({ "streams": list });
        if let Some(next) = next {
            page["next"] = json!(next);
        }
        Ok(page)
    }
}

/// Whether the stream has the durable keys of a topic.
fn is_of_keys(name: &str) -> bool {
    [STREAM_PREFIX, REPLICAS_NAME].iter().any(|prefix| name.starts_with(prefix))
}

fn is_readable(rights: &Rights, name: &str) -> bool {
    rights.may(Action::Subscribe, name).is_ok() && rights.check_without_hooks(Action::Subscribe, name).is_ok()
}

#[cfg(test)]
mod tests {
    use sinews_stream::{StreamConfig, Streams, StreamsConfig};

    use super::*;
    use crate::streams::options::CreationRules;

    #[test]
    fn list_is_paged_by_streams_and_by_offsets() {
        let directory = tempfile::tempdir().unwrap();
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        let rules = CreationRules::default();
        let store = StreamService::new(StreamConfig::default(), Default::default(), 1 << 20, None, rules);
        for name in ["a", "b", "c", "*.keys.d"] {
            streams.create(name, &StreamConfig::default()).unwrap();
        }
        store.install(streams.clone());
        let page = |after: Option<&str>, limit| {
            let page = store.list(&Rights::all(), |name| name != "b", (after, limit)).unwrap();
            let names: Vec<String> = page["streams"]
                .as_array()
                .unwrap()
                .iter()
                .map(|it| it["stream"].as_str().unwrap().into())
                .collect();
            (names.concat(), page["next"].as_str().map(str::to_owned))
        };
        assert_eq!(page(None, 10), ("ac".to_owned(), None));
        assert_eq!(page(None, 1), ("a".to_owned(), Some("a".to_owned())));
        assert_eq!(page(Some("a"), 1), ("c".to_owned(), None));
        assert_eq!(page(Some("c"), 1), (String::new(), None));
        assert_eq!(page(Some("bb"), 1), ("c".to_owned(), None), "after a name that no stream has");

        // A stream with many offsets ends the page.
        let wide = StreamConfig::default().with_partitions(1_024);
        streams.create("a", &wide).unwrap();
        let stream = streams.stream("a").unwrap();
        let commits: Vec<_> = (0..16)
            .flat_map(|group| (0..1_024).map(move |partition| (format!("g{group}"), partition)))
            .map(|(group, partition)| stream.commit(&group, partition, 1).unwrap())
            .collect();
        for mut commit in commits {
            commit.block(sinews_stream::Durability::Disk).unwrap();
        }
        assert_eq!(page(None, 10), ("a".to_owned(), Some("a".to_owned())));
        let described = store.list(&Rights::all(), |_| true, (None, 1)).unwrap();
        let shown = &described["streams"][0];
        assert_eq!((shown["groups"].as_array().unwrap().len(), &shown["more_groups"]), (8, &json!(8)));
        store.close();
    }
}
