//! The stream list, in pages.

use std::ops::Bound;

use super::durable_keys::STREAM_PREFIX;
use super::json::{ListedStream, listed};
use super::service::StreamService;
use crate::access::auth::{Action, Rights};
use crate::model::json_list::{JsonList, page_end};
use crate::model::problem::Problem;

/// Streams per page.
pub(crate) const STREAMS_MAX: usize = 1_000;

/// Names that a request examines. A page may have fewer streams, or none, and a next page.
const EXAMINED_MAX: usize = 10_000;

/// Partitions and committed offsets in a page, after which it ends with a stream.
const ENTRIES_MAX: usize = 16_384;

impl StreamService {
    /// Returns a page of the streams that may be read with these rights and that `is_listed`, by name, from the first
    /// one behind `after`. Rights are checked before anything is read from a stream.
    pub(crate) fn list(
        &self,
        rights: &Rights,
        is_listed: impl Fn(&str) -> bool,
        after: Option<&str>,
        limit: usize,
    ) -> Result<StreamsPage, Problem> {
        let streams = self.streams()?;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let names = streams.names(start, EXAMINED_MAX + 1);
        let (mut list, mut entries, mut next) = (Vec::new(), 0, None);
        for (examined, name) in names.iter().enumerate() {
            if examined == EXAMINED_MAX || list.len() == limit || entries >= ENTRIES_MAX {
                next = examined.checked_sub(1).map(|last| names[last].to_string());
                break;
            }
            if !name.starts_with(STREAM_PREFIX) && is_readable(rights, name) && is_listed(name)
                // It may have been deleted since.
                && let Some(info) = streams.describe(name)
            {
                entries += info.partitions.len();
                entries += info.groups.iter().map(|group| group.offsets.len()).sum::<usize>();
                list.push(listed(self, &info));
            }
        }
        Ok(StreamsPage { streams: list, next })
    }
}

/// A page of streams.
pub(crate) struct StreamsPage {
    streams: Vec<ListedStream>,
    /// The next page's `after`, if there may be one.
    next: Option<String>,
}

impl StreamsPage {
    /// Returns the page as JSON.
    pub(crate) fn into_json(self) -> JsonList<ListedStream> {
        JsonList::new("{\"streams\":[".to_owned(), self.streams, page_end("]", self.next.as_deref()))
    }
}

fn is_readable(rights: &Rights, name: &str) -> bool {
    rights.may(Action::Subscribe, name).is_ok() && rights.check_without_hooks(Action::Subscribe, name).is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use sinews_stream::{StreamConfig, Streams, StreamsConfig};

    use super::*;
    use crate::streams::json::group_lags;
    use crate::streams::options::CreationRules;

    #[test]
    fn list_is_paged_by_streams_and_by_offsets() {
        let directory = tempfile::tempdir().unwrap();
        let (streams, _) = Streams::open(directory.path(), StreamsConfig::default()).unwrap();
        let rules = CreationRules::default();
        let store = StreamService::new(
            StreamConfig::default(),
            Default::default(),
            1 << 20,
            None,
            rules,
            Default::default(),
        );
        for name in ["a", "b", "c", "*.keys.d"] {
            streams.create(name, &StreamConfig::default()).unwrap();
        }
        store.install(streams.clone());
        let page = |after: Option<&str>, limit| {
            let page = store.list(&Rights::all(), |name| name != "b", after, limit).unwrap();
            let streams = page.streams.iter().map(ListedStream::to_value);
            let names: Vec<String> = streams.map(|it| it["stream"].as_str().unwrap().into()).collect();
            (names.concat(), page.next)
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
        let described = store.list(&Rights::all(), |_| true, None, 1).unwrap();
        let shown = described.streams[0].to_value();
        assert_eq!((shown["groups"].as_array().unwrap().len(), &shown["more_groups"]), (8, &json!(8)));

        // Pages of groups, by number and by offsets.
        let info = store.describe("a").unwrap();
        let groups = |after, limit| {
            let (groups, next) = group_lags(&store, &info, after, limit);
            let text = JsonList::new("[".to_owned(), groups, "]").to_text();
            let groups: Vec<Value> = serde_json::from_str(&text).unwrap();
            let offsets: usize = groups.iter().map(|it| it["partitions"].as_array().unwrap().len()).sum();
            let names: Vec<&str> = groups.iter().map(|it| it["group"].as_str().unwrap()).collect();
            (names.join(" "), offsets, next.map(String::from))
        };
        assert_eq!(groups(None, 2), ("g0 g1".to_owned(), 2_048, Some("g1".to_owned())));
        let page = ("g0 g1 g10 g11 g12 g13 g14 g15".to_owned(), 8_192, Some("g15".to_owned()));
        assert_eq!(groups(None, 1_000), page);
        assert_eq!(groups(Some("g15"), 1_000), ("g2 g3 g4 g5 g6 g7 g8 g9".to_owned(), 8_192, None));
        assert_eq!(groups(Some("g9"), 1_000), (String::new(), 0, None));
        store.close();
    }
}
