//! Streams by plain requests: `POST` and `GET /streams/{name}`, `GET /streams`.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::{self, Either};
use serde_json::json;
use serde_json::value::RawValue;
use sinews_server::{Answer, Request, Response};
use sinews_stream::record::{Kind, RecordBuilder, Records};
use sinews_stream::{Durability, Pending, Start, Stream};

use super::bridge::Unread;
use super::counted::counted;
use super::json::{listed, malformed, write_record};
use super::{Ack, Store, Which, choose, find_partition};
use crate::auth::{Rights, Want};
use crate::hub::{self, Content};
use crate::live::Policy;
use crate::protocol::{Problem, code, problem};
use crate::routes::{failure, media_type};

/// The error of a server without streams.
pub(super) const OFF: &str =
    "streams are disabled: the server was started without --streams-directory or --store";

/// Records in one answer to GET: the default of `max`, and its limit.
const RECORDS: usize = 100;
const RECORDS_MAX: usize = 10_000;

/// Approximate bytes of one answer to GET.
const BYTES_MAX: usize = 4 << 20;

/// `Retry-After` in seconds, for a full queue or a failed store.
const RETRY_AFTER: &str = "1";

pub(super) fn name_of(request: &Request<'_>) -> Result<String, Problem> {
    let name = request.param("name").ok_or_else(|| problem(code::TOPIC, "the stream's name is not UTF-8"))?;
    hub::check_name(&name).map_err(|text| problem(code::TOPIC, text))?;
    Ok(name.into_owned())
}

/// `POST /streams/{name}`: answers when the requested durability is reached.
pub(crate) fn publish(policy: &Policy, store: Option<&Arc<Store>>, request: &Request<'_>) -> Answer {
    // A page of another origin can make a browser post here, too.
    if let Err(rejection) = policy.check_origin(request) {
        return failure(403, rejection.text()).into();
    }
    try_publish(policy, store, request).unwrap_or_else(|problem| refused(&problem).into())
}

fn try_publish(
    policy: &Policy,
    store: Option<&Arc<Store>>,
    request: &Request<'_>,
) -> Result<Answer, Problem> {
    let store = store.ok_or_else(off)?;
    let name = name_of(request)?;
    let durability = match request.query("ack") {
        None | Some("disk") => Ack::Disk,
        Some("memory") => Ack::Memory,
        Some("broker") => Ack::Broker,
        Some(_) => return Err(problem(code::MALFORMED, "ack must be memory, disk or broker")),
    };
    let which = partition_of(request)?;
    let rights = policy.rights(request)?;
    let durability = durability.durability().unwrap_or(Durability::Disk);
    if let Some(opening) = store.opening(&name, Want::Publish(&name), &rights) {
        let (store, records) = (Arc::clone(store), records_of(request, store)?);
        return Ok(Answer::later(async move {
            let sent = match opening.await {
                Ok(()) => {
                    store.to_publish(&name, &rights).and_then(|stream| send(&store, &stream, which, records))
                }
                Err(problem) => Err(problem),
            };
            match sent {
                Ok(sent) => acknowledge(&name, sent, durability).await,
                Err(problem) => refused(&problem),
            }
        }));
    }
    let stream = store.to_publish(&name, &rights)?;
    let sent = send(store, &stream, which, records_of(request, store)?)?;
    Ok(Answer::later(async move { acknowledge(&name, sent, durability).await }))
}

/// Appends; returns the partition, too.
fn send(store: &Store, stream: &Stream, which: Which, records: Records) -> Result<(u32, Pending), Problem> {
    let partition = choose(stream, which, &records)?;
    Ok((partition, store.append(stream, partition, records)?))
}

async fn acknowledge(
    name: &str,
    (partition, mut pending): (u32, Pending),
    durability: Durability,
) -> Response {
    match pending.wait(durability).await {
        Ok(appended) => {
            let words = json!({
                "stream": name, "partition": partition, "offset": appended.first, "count": appended.count,
            });
            Response::json(format!("{words}\n"))
        }
        Err(error) => refused(&error.into()),
    }
}

/// `POST /topics/{name}` of a durable topic: answers when the stream's durability is reached.
pub(crate) fn publish_to_topic(store: Arc<Store>, topic: String, content: Content, rights: Rights) -> Answer {
    let opening = store.opening(&topic, Want::Publish(&topic), &rights);
    let name = topic.clone();
    let append = move || {
        let (line, records) = store.to_publish_to_topic(&name, &content, &rights)?;
        let pending = store.append(line.stream(), 0, records)?;
        Ok((line.epoch(), pending))
    };
    let appended = match opening {
        None => Either::Left(future::ready(append())),
        Some(opening) => Either::Right(async move { opening.await.and_then(|()| append()) }),
    };
    let acknowledged = async move {
        let (epoch, mut pending) = appended.await?;
        let appended = pending.wait(Durability::Broker).await?;
        Ok(json!({ "topic": topic, "epoch": epoch, "seq": appended.first + 1 }))
    };
    Answer::later(async {
        match acknowledged.await {
            Ok(words) => Response::json(format!("{words}\n")),
            Err(problem) => refused(&problem),
        }
    })
}

/// `DELETE /streams/{name}`: answers when the stream is deleted.
pub(crate) fn delete(policy: &Policy, store: Option<&Arc<Store>>, request: &Request<'_>) -> Answer {
    // A page of another origin can make a browser send this, too.
    if let Err(rejection) = policy.check_origin(request) {
        return failure(403, rejection.text()).into();
    }
    try_delete(policy, store, request).unwrap_or_else(|problem| refused(&problem).into())
}

fn try_delete(policy: &Policy, store: Option<&Arc<Store>>, request: &Request<'_>) -> Result<Answer, Problem> {
    let store = store.ok_or_else(off)?;
    let name = name_of(request)?;
    store.check_delete(&name, &policy.rights(request)?)?;
    let deletion = store.delete(&name)?;
    Ok(Answer::later(async move {
        match deletion.await {
            Ok(()) => Response::json(format!("{}\n", json!({ "stream": name, "deleted": true }))),
            Err(problem) => refused(&problem),
        }
    }))
}

fn partition_of(request: &Request<'_>) -> Result<Which, Problem> {
    match request.query("partition").map(str::parse) {
        None => Ok(Which::Any),
        Some(Ok(partition)) => Ok(Which::This(partition)),
        Some(Err(_)) => Err(problem(code::MALFORMED, "partition must be a number")),
    }
}

/// The records of a body, by its type.
fn records_of(request: &Request<'_>, store: &Store) -> Result<Records, Problem> {
    let kind = media_type(request);
    let body = request.body();
    if kind == "application/x-sinews-records" {
        return Records::check(Bytes::copy_from_slice(body), store.limits()).map_err(malformed);
    }
    let key = request.query("key").unwrap_or_default();
    let key = percent_decoded(key)?;
    let mut builder = RecordBuilder::with_limits(*store.limits());
    let now = super::now();
    if kind == "application/x-ndjson" || kind == "application/jsonl" {
        for (at, line) in body.split(|byte| *byte == b'\n').enumerate() {
            let line = line.trim_ascii();
            if line.is_empty() {
                continue;
            }
            serde_json::from_slice::<&RawValue>(line)
                .map_err(|error| problem(code::MALFORMED, format!("line {}: {error}", at + 1)))?;
            builder.push(now, &key, line, Kind::Json).map_err(malformed)?;
        }
        return builder.finish().ok_or_else(|| problem(code::MALFORMED, "all lines are empty"));
    }
    let kind = match std::str::from_utf8(body) {
        Ok(text) if kind == "application/json" => {
            serde_json::from_str::<&RawValue>(text)
                .map_err(|error| problem(code::MALFORMED, format!("the body is not valid JSON: {error}")))?;
            Kind::Json
        }
        Ok(_) if kind != "application/octet-stream" => Kind::Text,
        _ => Kind::Bytes,
    };
    builder.push(now, &key, body, kind).map_err(malformed)?;
    builder.finish().ok_or_else(|| problem(code::MALFORMED, "no records"))
}

/// Decodes a value of the query.
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

/// `GET /streams/{name}`: the available records, as lines of JSON.
pub(crate) fn read(policy: &Policy, store: Option<&Arc<Store>>, request: &Request<'_>) -> Answer {
    try_read(policy, store, request).unwrap_or_else(|problem| refused(&problem).into())
}

/// The parameters of a read.
struct Wanted {
    name: String,
    rights: Rights,
    start: Start,
    max: usize,
    which: Which,
}

fn try_read(policy: &Policy, store: Option<&Arc<Store>>, request: &Request<'_>) -> Result<Answer, Problem> {
    let store = Arc::clone(store.ok_or_else(off)?);
    let (name, rights) = (name_of(request)?, policy.rights(request)?);
    let start = match request.query("from") {
        None | Some("earliest") => Start::Earliest,
        Some("latest") => Start::Latest,
        Some(offset) => Start::Offset(
            offset
                .parse()
                .map_err(|_| problem(code::MALFORMED, "from must be earliest, latest or an offset"))?,
        ),
    };
    let max = request.query("max").map_or(Ok(RECORDS), str::parse);
    let max = max.map_err(|_| problem(code::MALFORMED, "max must be a number"))?.min(RECORDS_MAX);
    let wanted = Wanted { which: partition_of(request)?, name, rights, start, max };
    Ok(Answer::later(async move {
        match lines(&store, wanted).await {
            Ok(lines) => {
                let response = Response::new(200).with_header("Content-Type", "application/x-ndjson");
                response.with_header("Cache-Control", "no-store").with_body(lines)
            }
            Err(problem) => refused(&problem),
        }
    }))
}

async fn lines(store: &Store, wanted: Wanted) -> Result<String, Problem> {
    let Wanted { name, rights, start, max: mut left, which } = wanted;
    if let Some(opening) = store.opening(&name, Want::Subscribe(&name), &rights) {
        opening.await?;
    }
    let stream = store.to_read(&name, &rights)?;
    let partitions = match which {
        Which::This(partition) => {
            find_partition(&stream, partition)?;
            partition..partition + 1
        }
        Which::Any => 0..stream.partitions(),
    };
    let mut lines = String::new();
    for number in partitions {
        let mut next = store.seek(&stream, number, start)?;
        let mut source = store.source(&stream, number)?;
        let prefix = format!("\"partition\":{number},");
        while left > 0 && lines.len() < BYTES_MAX {
            match super::read_once(store, &stream, number, &mut source, (next, super::READ_BYTES)).await {
                Ok((Some(read), _)) => {
                    for record in counted(&read.batches, next).take(left) {
                        write_record(&record, &prefix, &mut lines);
                        lines.push('\n');
                        left -= 1;
                    }
                    next = read.next;
                }
                Ok((None, _)) => break,
                Err(Unread::Gap(to) | Unread::Ahead(to)) => next = to,
                Err(Unread::Failed(problem)) => return Err(problem),
            }
        }
    }
    Ok(lines)
}

/// `GET /streams`: the readable streams and their offsets.
pub(crate) fn list(policy: &Policy, store: Option<&Arc<Store>>, request: &Request<'_>) -> Response {
    let listed = || {
        let store = store.ok_or_else(off)?;
        let streams = store.list(&policy.rights(request)?)?;
        Ok(streams.iter().map(|info| listed(store, info)).collect::<Vec<_>>())
    };
    match listed() {
        Ok(streams) => {
            let response = Response::json(format!("{}\n", json!({ "streams": streams })));
            response.with_header("Cache-Control", "no-store")
        }
        Err(problem) => refused(&problem),
    }
}

fn off() -> Problem {
    problem(code::NO_STREAM, OFF)
}

/// The answer to a failed request.
pub(crate) fn refused(problem: &Problem) -> Response {
    let mut words = json!({ "error": problem.text });
    if let Some(needs) = &problem.needs {
        words["needs"] = needs.clone();
    }
    let response = Response::json(format!("{words}\n")).with_status(problem.code);
    let response = response.with_header("Cache-Control", "no-store");
    match problem.code {
        code::TOO_MANY | code::STORE => response.with_header("Retry-After", RETRY_AFTER),
        401 => response.with_header("WWW-Authenticate", "Bearer realm=\"sinews\""),
        _ => response,
    }
}
