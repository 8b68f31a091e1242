//! Streams by plain requests: `POST` and `GET /streams/{name}`, its records and offsets, `GET /streams`.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Answer, Request, Response};
use sinews_stream::record::{RecordBuilder, Records, ValueKind};
use sinews_stream::{Durability, Pending, StartPosition, Stream};

use super::record_lines::RecordLines;
use super::v1::body::{limit_of, text_query};
use crate::access::auth::{Action, Rights};
use crate::config::HubConfig;
use crate::http::{error_response, failure, media_type, stream_name_of};
use crate::model::json::{TOO_DEEP, check_depth, encode, exceeds_depth};
use crate::model::problem::{Problem, code, problem};
use crate::streams::errors::{STREAMS_DISABLED, malformed};
use crate::streams::fetch::{FetchedRecords, READ_BYTES, fetch, read_once};
use crate::streams::json::{described, read_text};
use crate::streams::listing::STREAMS_MAX;
use crate::streams::request::{AckLevel, PartitionChoice, choose_partition, find_partition, now};
use crate::streams::service::StreamService;
use crate::streams::store::ReadFailure;
use crate::uncached::UNCACHED;

/// Records in one answer to GET: the default for `max`, and its limit.
const RECORDS: usize = 100;
const RECORDS_MAX: usize = 10_000;

/// Approximate bytes in one answer to GET.
const BYTES_MAX: u64 = 4 << 20;

/// `POST /streams/{name}`: answers when the requested durability is reached.
pub(crate) fn append(
    config: &HubConfig,
    store: Option<&Arc<StreamService>>,
    request: &Request<'_>,
) -> Answer {
    change(config, store, request, try_publish)
}

/// Executes a request that changes a stream.
fn change(
    config: &HubConfig,
    store: Option<&Arc<StreamService>>,
    request: &Request<'_>,
    execute: fn(&HubConfig, &Arc<StreamService>, &Request<'_>, String) -> Result<Answer, Problem>,
) -> Answer {
    // A page from another origin can make a browser send this, too.
    if let Err(rejection) = config.check_origin(request) {
        return failure(403, rejection.text()).into();
    }
    let executed = store.ok_or_else(streams_disabled).and_then(|store| {
        let name = stream_name_of(request)?;
        execute(config, store, request, name)
    });
    executed.unwrap_or_else(|problem| error_response(&problem).into())
}

fn try_publish(
    config: &HubConfig,
    store: &Arc<StreamService>,
    request: &Request<'_>,
    name: String,
) -> Result<Answer, Problem> {
    let durability = match request.query("ack") {
        None | Some("disk") => AckLevel::Disk,
        Some("memory") => AckLevel::Memory,
        Some("broker") => AckLevel::Broker,
        Some(_) => return Err(problem(code::MALFORMED, "ack must be memory, disk or broker")),
    };
    let choice = partition_of(request)?;
    let rights = config.rights(request)?;
    let durability = durability.durability().unwrap_or(Durability::Disk);
    if let Some(opening) = store.opening(&name, Action::Publish, &rights) {
        let (store, records) = (Arc::clone(store), records_of(request, store)?);
        return Ok(Answer::later(async move {
            let sent = match opening.await {
                Ok(()) => store
                    .stream_to_publish(&name, &rights)
                    .and_then(|stream| send(&store, &stream, choice, records)),
                Err(problem) => Err(problem),
            };
            match sent {
                Ok((partition, pending)) => acknowledge(&name, partition, pending, durability).await,
                Err(problem) => error_response(&problem),
            }
        }));
    }
    let stream = store.stream_to_publish(&name, &rights)?;
    let (partition, pending) = send(store, &stream, choice, records_of(request, store)?)?;
    Ok(Answer::later(async move { acknowledge(&name, partition, pending, durability).await }))
}

/// Appends; returns the partition, too.
fn send(
    store: &StreamService,
    stream: &Stream,
    choice: PartitionChoice,
    records: Records,
) -> Result<(u32, Pending), Problem> {
    store.check_keys(stream, &records)?;
    let partition = choose_partition(stream, choice, &records)?;
    Ok((partition, store.append(stream, partition, records)?))
}

async fn acknowledge(name: &str, partition: u32, mut pending: Pending, durability: Durability) -> Response {
    match pending.wait(durability).await {
        Ok(appended) => {
            let body = json!({
                "stream": name, "partition": partition, "offset": appended.first, "count": appended.count,
            });
            Response::json(format!("{body}\n"))
        }
        Err(error) => error_response(&error.into()),
    }
}

/// `DELETE /streams/{name}`: answers when the stream is deleted.
pub(crate) fn delete(
    config: &HubConfig,
    store: Option<&Arc<StreamService>>,
    request: &Request<'_>,
) -> Answer {
    change(config, store, request, try_delete)
}

fn try_delete(
    config: &HubConfig,
    store: &Arc<StreamService>,
    request: &Request<'_>,
    name: String,
) -> Result<Answer, Problem> {
    store.check_delete(&name, &config.rights(request)?)?;
    let deletion = store.delete(&name)?;
    Ok(Answer::later(async move {
        match deletion.await {
            Ok(()) => Response::json(format!("{}\n", json!({ "stream": name, "deleted": true }))),
            Err(problem) => error_response(&problem),
        }
    }))
}

fn partition_of(request: &Request<'_>) -> Result<PartitionChoice, Problem> {
    match request.query("partition").map(str::parse) {
        None => Ok(PartitionChoice::Any),
        Some(Ok(partition)) => Ok(PartitionChoice::Number(partition)),
        Some(Err(_)) => Err(problem(code::MALFORMED, "partition must be a number")),
    }
}

/// Reads the records of a body, by its type.
fn records_of(request: &Request<'_>, store: &StreamService) -> Result<Records, Problem> {
    let kind = media_type(request);
    let body = request.body();
    if kind == "application/x-sinews-records" {
        return Records::check(Bytes::copy_from_slice(body), store.limits()).map_err(malformed);
    }
    let key = request.query("key").unwrap_or_default();
    let key = percent_decoded(key)?;
    let mut builder = RecordBuilder::with_limits(*store.limits());
    let time = now();
    if kind == "application/x-ndjson" || kind == "application/jsonl" {
        for (at, line) in body.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            serde_json::from_slice::<&RawValue>(line)
                .map_err(|error| problem(code::MALFORMED, format!("line {}: {error}", at + 1)))?;
            if exceeds_depth(line) {
                return Err(problem(code::MALFORMED, format!("line {}: {TOO_DEEP}", at + 1)));
            }
            builder.push(time, &key, line, ValueKind::Json).map_err(malformed)?;
        }
        return builder.finish().ok_or_else(|| problem(code::MALFORMED, "all lines are empty"));
    }
    let kind = match std::str::from_utf8(body) {
        Ok(text) if kind == "application/json" => {
            serde_json::from_str::<&RawValue>(text)
                .map_err(|error| problem(code::MALFORMED, format!("the body is not valid JSON: {error}")))?;
            check_depth(text)?;
            ValueKind::Json
        }
        Ok(_) if kind != "application/octet-stream" => ValueKind::Text,
        _ => ValueKind::Bytes,
    };
    builder.push(time, &key, body, kind).map_err(malformed)?;
    builder.finish().ok_or_else(|| problem(code::MALFORMED, "no records"))
}

/// Decodes a query value.
fn percent_decoded(value: &str) -> Result<Vec<u8>, Problem> {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits =
                    [rest.next(), rest.next()].map(|digit| digit.and_then(|it| char::from(it).to_digit(16)));
                let [Some(high), Some(low)] = digits else {
                    return Err(problem(
                        code::MALFORMED,
                        "key: % must be followed by two hexadecimal digits",
                    ));
                };
                (high * 16 + low) as u8
            }
            other => other,
        });
    }
    Ok(bytes)
}

/// `GET /streams/{name}`: the available records, as JSON lines.
pub(crate) fn read(config: &HubConfig, store: Option<&Arc<StreamService>>, request: &Request<'_>) -> Answer {
    try_read(config, store, request).unwrap_or_else(|problem| error_response(&problem).into())
}

/// `GET /streams/{name}/records`: the records of one read from an offset on, as the op `read`.
pub(crate) fn fetch_records(
    config: &HubConfig,
    store: Option<&Arc<StreamService>>,
    request: &Request<'_>,
) -> Answer {
    let number = |name: &str, default: u64| {
        let value = request.query(name).map_or(Ok(default), str::parse);
        value.map_err(|_| problem(code::MALFORMED, format!("{name} must be a number")))
    };
    let fetched = || {
        let offset = number("offset", 0)?;
        let partition = u32::try_from(number("partition", 0)?);
        let partition = partition.map_err(|_| problem(code::NO_STREAM, "no such partition"))?;
        let bytes = usize::try_from(number("bytes", READ_BYTES as u64)?).unwrap_or(READ_BYTES);
        with_stream(config, store, request, async move |store, stream| {
            let name = stream.name().to_owned();
            let FetchedRecords { from, end, read } = fetch(store, stream, partition, offset, bytes).await?;
            let head = format!("{{\"stream\":{},\"partition\":{partition},\"records\":[", json!(name));
            Ok(read_text(head, from, end, read.as_ref()) + "\n")
        })
    };
    fetched().unwrap_or_else(|problem| error_response(&problem).into())
}

/// `GET /streams/{name}/info`: partition and group offsets, as in the list.
pub(crate) fn info(config: &HubConfig, store: Option<&Arc<StreamService>>, request: &Request<'_>) -> Answer {
    let described = with_stream(config, store, request, async |store, stream| {
        Ok(encode(&described(&store, &stream)) + "\n")
    });
    described.unwrap_or_else(|problem| error_response(&problem).into())
}

/// Answers with the JSON that a function makes of an open stream, which the client may read.
fn with_stream(
    config: &HubConfig,
    store: Option<&Arc<StreamService>>,
    request: &Request<'_>,
    work: impl AsyncFnOnce(Arc<StreamService>, Stream) -> Result<String, Problem> + 'static,
) -> Result<Answer, Problem> {
    let store = Arc::clone(store.ok_or_else(streams_disabled)?);
    let (name, rights) = (stream_name_of(request)?, config.rights(request)?);
    Ok(Answer::later(async move {
        let result = async {
            if let Some(opening) = store.opening(&name, Action::Subscribe, &rights) {
                opening.await?;
            }
            let stream = store.stream_to_read(&name, &rights)?;
            work(store, stream).await
        };
        match result.await {
            Ok(json) => Response::json(json).with_header("Cache-Control", UNCACHED),
            Err(problem) => error_response(&problem),
        }
    }))
}

/// A read's parameters.
struct StreamReadRequest {
    name: String,
    rights: Rights,
    start: StartPosition,
    max: usize,
    choice: PartitionChoice,
}

fn try_read(
    config: &HubConfig,
    store: Option<&Arc<StreamService>>,
    request: &Request<'_>,
) -> Result<Answer, Problem> {
    let store = Arc::clone(store.ok_or_else(streams_disabled)?);
    let (name, rights) = (stream_name_of(request)?, config.rights(request)?);
    let start = match request.query("from") {
        None | Some("earliest") => StartPosition::Earliest,
        Some("latest") => StartPosition::Latest,
        Some(offset) => StartPosition::Offset(
            offset
                .parse()
                .map_err(|_| problem(code::MALFORMED, "from must be earliest, latest or an offset"))?,
        ),
    };
    let max = request.query("max").map_or(Ok(RECORDS), str::parse);
    let max = max.map_err(|_| problem(code::MALFORMED, "max must be a number"))?.min(RECORDS_MAX);
    let read_request = StreamReadRequest { choice: partition_of(request)?, name, rights, start, max };
    Ok(Answer::later(async move {
        match lines(&store, read_request).await {
            Ok(lines) => {
                let response = Response::new(200).with_header("Content-Type", "application/x-ndjson");
                response.with_header("Cache-Control", UNCACHED).with_source(lines)
            }
            Err(problem) => error_response(&problem),
        }
    }))
}

async fn lines(store: &StreamService, read_request: StreamReadRequest) -> Result<RecordLines, Problem> {
    let StreamReadRequest { name, rights, start, max: mut left, choice } = read_request;
    if let Some(opening) = store.opening(&name, Action::Subscribe, &rights) {
        opening.await?;
    }
    let stream = store.stream_to_read(&name, &rights)?;
    let partitions = match choice {
        PartitionChoice::Number(partition) => {
            find_partition(&stream, partition)?;
            partition..partition + 1
        }
        PartitionChoice::Any => 0..stream.partitions(),
    };
    let mut lines = RecordLines::default();
    for number in partitions {
        let mut next = store.seek(&stream, number, start)?;
        let mut source = store.source(&stream, number)?;
        while left > 0 && lines.bytes() < BYTES_MAX {
            match read_once(store, &stream, number, &mut source, next, READ_BYTES).await {
                Ok((Some(read), _)) => {
                    left -= lines.push(number, read.batches, next, left, BYTES_MAX);
                    next = read.next;
                }
                Ok((None, _)) => break,
                Err(ReadFailure::Gap(to) | ReadFailure::Ahead(to)) => next = to,
                Err(ReadFailure::Failed(problem)) => return Err(problem),
            }
        }
    }
    Ok(lines)
}

/// `GET /streams`: a page of the readable streams and their offsets.
pub(crate) fn list(
    config: &HubConfig,
    store: Option<&Arc<StreamService>>,
    request: &Request<'_>,
) -> Response {
    let listed = || {
        let (after, limit) = (text_query(request, "after")?, limit_of(request, STREAMS_MAX)?);
        let store = store.ok_or_else(streams_disabled)?;
        store.list(&config.rights(request)?, |_| true, after.as_deref(), limit)
    };
    match listed() {
        Ok(page) => Response::json("").with_source(page.into_json()).with_header("Cache-Control", UNCACHED),
        Err(problem) => error_response(&problem),
    }
}

fn streams_disabled() -> Problem {
    problem(code::NO_STREAM, STREAMS_DISABLED)
}
