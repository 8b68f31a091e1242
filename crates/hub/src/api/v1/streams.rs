//! Administration of streams and their consumer groups.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use sinews_server::{Answer, Request};
use sinews_stream::{Durability, StartPosition, Stream};

use super::body::{limit_of, read, text_query};
use super::context::{ApiContext, Executed, failure, list_success, success};
use crate::access::auth::{Action, ApiRight, ApiRights, Rights};
use crate::model;
use crate::model::json_list::{JsonList, page_end};
use crate::model::problem::{Problem, code, problem};
use crate::model::schema::{Described, Schema, requests};
use crate::streams::administration::StreamChange;
use crate::streams::errors::STREAMS_DISABLED;
use crate::streams::json::{GROUPS_MAX, OffsetLag, group_lags, info_json};
use crate::streams::listing::STREAMS_MAX;
use crate::streams::request::find_partition;
use crate::streams::service::StreamService;

fn store_of(context: &ApiContext) -> Result<&Arc<StreamService>, Problem> {
    context.store.as_ref().ok_or_else(|| problem(code::NO_STREAM, STREAMS_DISABLED))
}

/// The stream in the path.
fn stream_of(request: &Request<'_>) -> Result<String, Problem> {
    let name =
        request.param("stream").ok_or_else(|| problem(code::TOPIC, "the stream's name is not UTF-8"))?;
    model::check_name(&name).map_err(|text| problem(code::TOPIC, text))?;
    Ok(name.into_owned())
}

/// The consumer group in the path.
fn group_of(request: &Request<'_>) -> Result<String, Problem> {
    let group =
        request.param("group").ok_or_else(|| problem(code::TOPIC, "the group's name is not UTF-8"))?;
    Ok(group.into_owned())
}

/// `GET /streams`.
pub(super) fn list(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let (after, limit) = (text_query(request, "after")?, limit_of(request, STREAMS_MAX)?);
    let store = store_of(context)?;
    let is_listed = |name: &str| rights.covers(ApiRight::Read, name);
    let page = store.list(&Rights::all(), is_listed, after.as_deref(), limit)?;
    Ok(list_success(page.into_json()).into())
}

/// `GET /streams/{stream}`.
pub(super) fn get(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let (store, name) = (store_of(context)?, stream_of(request)?);
    rights.may(ApiRight::Read, &name)?;
    Ok(success(&info_json(store, &store.describe(&name)?)).into())
}

/// A field whose value may be `null`: only a missing field is `None`.
fn nullable<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u64>>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}

requests! {
    struct StreamBody {
        /// Number of partitions; it never decreases
        partitions: Option<u32>,
        /// Bytes of each partition that are retained; `null`: all
        #[serde(default, deserialize_with = "nullable")]
        retain_bytes: Option<Option<u64>>,
        /// Age up to which records are retained; `null`: all
        #[serde(default, deserialize_with = "nullable")]
        retain_seconds: Option<Option<u64>>,
        /// Retain the newest record of each key; for a new stream only
        compact: Option<bool>,
    }

    one_of[offset, to]
    struct OffsetBody {
        /// One partition; without it, all
        partition: Option<u32>,
        /// Offset of the next record that the group gets
        offset: Option<u64>,
        /// `earliest` or `latest`; either offset or to
        to: Option<GroupStart>,
    }
}

/// `PUT /streams/{stream}`: creates or configures a stream; answers when that is on the disk.
pub(super) fn put(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: StreamBody = read(request)?;
    let (store, name) = (Arc::clone(store_of(context)?), stream_of(request)?);
    let change = StreamChange {
        partitions: body.partitions,
        retain_bytes: body.retain_bytes,
        retain_age: body.retain_seconds.map(|age| age.map(Duration::from_secs)),
        compact: body.compact,
    };
    Ok(Answer::blocking(move || match store.configure(&name, &change).and_then(|()| store.describe(&name)) {
        Ok(info) => success(&info_json(&store, &info)),
        Err(problem) => failure(&problem),
    }))
}

/// `DELETE /streams/{stream}`: answers when the stream is deleted.
pub(super) fn delete(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let (store, name) = (store_of(context)?, stream_of(request)?);
    store.check_delete(&name, &Rights::all())?;
    let deletion = store.delete(&name)?;
    Ok(Answer::later(async move {
        match deletion.await {
            Ok(()) => success(&json!({ "stream": name, "deleted": true })),
            Err(problem) => failure(&problem),
        }
    }))
}

/// `GET /streams/{stream}/groups`.
pub(super) fn groups(context: &Arc<ApiContext>, rights: &ApiRights, request: &mut Request<'_>) -> Executed {
    let (name, after, limit) =
        (stream_of(request)?, text_query(request, "after")?, limit_of(request, GROUPS_MAX)?);
    let store = store_of(context)?;
    rights.may(ApiRight::Read, &name)?;
    let (groups, next) = group_lags(store, &store.describe(&name)?, after.as_deref(), limit);
    let head = format!("{{\"stream\":{},\"groups\":[", json!(name));
    Ok(list_success(JsonList::new(head, groups, page_end("]", next.as_deref()))).into())
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum GroupStart {
    Earliest,
    Latest,
}

impl Described for GroupStart {
    const SCHEMA: Schema = Schema::Text;
}

/// Where a group continues.
#[derive(Clone, Copy)]
enum NewOffset {
    At(u64),
    Start(GroupStart),
}

/// `PUT /streams/{stream}/groups/{group}`: sets the committed offset; answers when it is stored.
pub(super) fn set_offset(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let body: OffsetBody = read(request)?;
    let offset = match (body.offset, body.to) {
        (Some(offset), None) => NewOffset::At(offset),
        (None, Some(start)) => NewOffset::Start(start),
        _ => return Err(problem(code::MALFORMED, "either offset or to is required")),
    };
    let store = Arc::clone(store_of(context)?);
    let (name, group) = (stream_of(request)?, group_of(request)?);
    store.check_group(&name, &group)?;
    Ok(with_stream(store, name, async move |store, stream| {
        let partitions = commit(&store, &stream, &group, body.partition, offset).await?;
        Ok(json!({ "stream": stream.name(), "group": group, "partitions": partitions }))
    }))
}

/// Answers with the result of work on an existing stream, which is opened first.
fn with_stream(
    store: Arc<StreamService>,
    name: String,
    work: impl AsyncFnOnce(Arc<StreamService>, Stream) -> Result<Value, Problem> + 'static,
) -> Answer {
    let opening = store.opening(&name, Action::Subscribe, &Rights::all());
    Answer::later(async move {
        let result = async {
            if let Some(opening) = opening {
                opening.await?;
            }
            let stream = store.stream_to_read(&name, &Rights::all())?;
            work(store, stream).await
        };
        result.await.map_or_else(|problem| failure(&problem), |fields| success(&fields))
    })
}

/// Commits a group's offset in one partition or in all; returns the offsets.
async fn commit(
    store: &StreamService,
    stream: &Stream,
    group: &str,
    partition: Option<u32>,
    offset: NewOffset,
) -> Result<Vec<OffsetLag>, Problem> {
    let partitions = match partition {
        Some(partition) => {
            find_partition(stream, partition)?;
            partition..partition + 1
        }
        None => 0..stream.partitions(),
    };
    let mut committed = Vec::new();
    for number in partitions {
        let end = store.last_end(stream, number).await?;
        let offset = match offset {
            NewOffset::At(offset) if offset > end => {
                let text = format!("offset {offset} is beyond the end of partition {number} ({end})");
                return Err(problem(code::TOPIC, text));
            }
            NewOffset::At(offset) => offset,
            NewOffset::Start(GroupStart::Latest) => end,
            NewOffset::Start(GroupStart::Earliest) => store.seek(stream, number, StartPosition::Earliest)?,
        };
        let mut pending = store.commit(stream, number, group, offset)?;
        poll_fn(|cx| pending.poll(Durability::Disk, cx)).await?;
        committed.push(OffsetLag { partition: number, offset, lag: end.saturating_sub(offset) });
    }
    Ok(committed)
}

/// `DELETE /streams/{stream}/groups/{group}`: removes the committed offsets; answers when that is stored.
pub(super) fn delete_group(context: &Arc<ApiContext>, _: &ApiRights, request: &mut Request<'_>) -> Executed {
    let store = Arc::clone(store_of(context)?);
    let (name, group) = (stream_of(request)?, group_of(request)?);
    store.check_delete(&name, &Rights::all())?;
    store.check_group(&name, &group)?;
    Ok(with_stream(store, name, async move |_, stream| {
        let unknown = || problem(code::NO_STREAM, format!("stream {} has no group {group}", stream.name()));
        let mut pending = stream.remove_group(&group)?.ok_or_else(unknown)?;
        pending.wait(Durability::Disk).await?;
        Ok(json!({ "stream": stream.name(), "group": group, "deleted": true }))
    }))
}
