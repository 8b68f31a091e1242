//! Appends: one script for each, which stores the records and announces them.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, Pipeline, RedisError, RedisResult, Value, cmd};
use sinews_stream::record::deduplication_id;

use super::announcement::{self, EntryFields};
use super::{offset, rejection};
use crate::remote::QueuedAppend;

/// Maximum records in an append: Redis serves no other client meanwhile, for about a tenth of a second. Also the number
/// of records in a batch, after which no further append is added.
pub(super) const RECORDS_MAX: u32 = 10_000;
/// Bytes in a batch after which no further append is added.
const BATCH_BYTES: usize = 4 << 20;

/// Time that Redis remembers a record with an idempotency key.
const ONCE_WINDOW: Duration = Duration::from_secs(300);
/// Adds entries to the stream `KEYS[1]`, and announces them; returns the id of the first. With `KEYS[2]`, nothing is added
/// if this key has the id of an entry that was added a short time ago. `ARGV` has the time in milliseconds for which the
/// key is remembered, the approximate maximum of entries or 0, the maximum size of an announcement with records, and for
/// each entry the number of its fields and values, and these.
const APPEND: &str = "local first = KEYS[2] and redis.call('GET', KEYS[2]) \
    if first then return 'repeated ' .. first end \
    local limit = ARGV[2] ~= '0' and {'MAXLEN', '~', ARGV[2], '0-*'} or {'0-*'} \
    local parts, at = {}, 4 \
    while at <= #ARGV do \
    local last = at + ARGV[at] \
    local entry = {unpack(limit)} \
    for i = at + 1, last do entry[#entry + 1] = ARGV[i] end \
    local id = redis.call('XADD', KEYS[1], unpack(entry)) \
    first = first or id \
    for i = at, last do parts[#parts + 1] = #ARGV[i] .. ':' .. ARGV[i] end \
    at = last + 1 \
    end \
    if KEYS[2] then redis.call('SET', KEYS[2], first, 'PX', ARGV[1]) end \
    local message = first .. ';' .. table.concat(parts) \
    redis.call('PUBLISH', KEYS[1], #message <= tonumber(ARGV[3]) and message or '') \
    return first";
/// Error code if Redis does not know a script by its hash.
const UNKNOWN_SCRIPT: &str = "NOSCRIPT";
/// Error codes that concern all appends.
const CODES_OF_ALL: [&str; 12] = [
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOAUTH",
    "NOREPLICAS",
    "NOSCRIPT",
    "OOM",
    "READONLY",
    "UNKILLABLE",
    "WRONGPASS",
];
/// Parts of errors without a code of their own that concern all appends.
const REJECTIONS_OF_ALL: [&str; 4] =
    ["unauthenticated", "max number of clients", "unknown command", "can't run this command"];
/// Start of the answer of [`APPEND`] if the entry exists.
const REPEATED: &str = "repeated ";

/// The script, and its arguments that all appends share.
pub(super) struct AppendScript<'a> {
    prefix: &'a str,
    /// Approximate maximum entries per stream; 0 means no limit.
    maxlen: u64,
    /// The hash by which Redis knows the script.
    hash: Option<String>,
}

impl<'a> AppendScript<'a> {
    pub(super) fn new(prefix: &'a str, maxlen: u64) -> Self {
        Self { prefix, maxlen, hash: None }
    }

    /// Stores the script at Redis. Without the right to do that, each append sends the script.
    pub(super) async fn load(&mut self, connection: &mut MultiplexedConnection) {
        let mut command = cmd("SCRIPT");
        self.hash = command.arg("LOAD").arg(APPEND).query_async(connection).await.ok();
    }

    /// Appends a batch, and returns an answer for each append.
    ///
    /// Redis may have lost the script: then it stores no append, and receives the script again. If another node has
    /// stored the script after some appends in this batch, these fail: retrying them would change the order.
    pub(super) async fn append(
        &self,
        batch: &[QueuedAppend],
        connection: &mut MultiplexedConnection,
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        if let Some(hash) = &self.hash {
            let answers: Vec<RedisResult<Value>> =
                self.pipeline(batch, "EVALSHA", hash).query_async(connection).await?;
            if !answers.iter().all(is_unknown_script) {
                return Ok(answers);
            }
        }
        self.pipeline(batch, "EVAL", APPEND).query_async(connection).await
    }

    /// One script per append, called by its hash or its text.
    fn pipeline(&self, batch: &[QueuedAppend], command: &str, script: &str) -> Pipeline {
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors();
        for append in batch {
            let key = key(self.prefix, &append.stream, append.partition);
            let mut call = cmd(command);
            call.arg(script);
            match append.records.iter().flatten().next().filter(|_| append.is_once) {
                // One record, by its idempotency key.
                Some(record) => {
                    call.arg(2).arg(&key).arg([key.as_bytes(), b":", deduplication_id(record.key)].concat())
                }
                None => call.arg(1).arg(&key),
            };
            call.arg(ONCE_WINDOW.as_millis() as u64).arg(self.maxlen).arg(announcement::SIZE_MAX);
            for record in append.records.iter().flatten() {
                EntryFields::from_record(&record, record.timestamp.to_string().as_bytes()).write(&mut call);
            }
            pipeline.add_command(call);
        }
        pipeline
    }
}

/// Splits appends into batches that Redis answers well within the timeout.
pub(super) fn batches(appends: impl Iterator<Item = QueuedAppend>) -> Vec<Vec<QueuedAppend>> {
    let mut batches: Vec<Vec<QueuedAppend>> = Vec::new();
    let (mut records, mut bytes) = (0, 0);
    for append in appends {
        records += append.records.count();
        bytes += append.records.bytes().len();
        match batches.last_mut() {
            Some(batch) if records <= RECORDS_MAX && bytes <= BATCH_BYTES => batch.push(append),
            _ => {
                (records, bytes) = (append.records.count(), append.records.bytes().len());
                batches.push(vec![append]);
            }
        }
    }
    batches
}

/// Returns the key for a partition's stream.
pub(super) fn key(prefix: &str, stream: &str, partition: u32) -> String {
    format!("{prefix}{stream}:{partition}")
}

fn is_unknown_script(answer: &RedisResult<Value>) -> bool {
    answer.as_ref().is_err_and(|error| error.code() == Some(UNKNOWN_SCRIPT))
}

/// Distributes the answers to a batch's appends.
pub(super) fn answer(batch: Vec<QueuedAppend>, answers: Vec<RedisResult<Value>>) {
    let mut answers = answers.into_iter();
    for append in batch {
        let answer = answers.next().unwrap_or(Ok(Value::Nil));
        let first = answer.and_then(|id| Ok(String::from_redis_value(id)?));
        let repeated = |id: &str| id.strip_prefix(REPEATED).and_then(offset);
        match first.map(|id| (offset(&id), repeated(&id))) {
            Ok((Some(first), _)) => append.acknowledge(first),
            Ok((_, Some(first))) => append.acknowledge_repeated(first),
            Ok(_) => append.fail("Redis answered with an invalid id"),
            Err(error) => {
                let text = format!("the append is not stored: {}", reason(&error));
                if rejects_all(&error) { append.fail(&text) } else { append.reject(&text) }
            }
        }
    }
}

/// Whether the error concerns all appends, and not only this stream.
fn rejects_all(error: &RedisError) -> bool {
    match error.code() {
        Some("NOPERM") => error.detail().is_some_and(|detail| detail.contains("to run the")),
        Some("ERR") => {
            error.detail().is_some_and(|detail| REJECTIONS_OF_ALL.iter().any(|text| detail.contains(text)))
        }
        code => code.is_some_and(|code| CODES_OF_ALL.contains(&code)),
    }
}

/// Redis rejects a long command before the login without reading it.
fn reason(error: &RedisError) -> String {
    if error.to_string().contains("unauthenticated") {
        return "Redis rejects EVALSHA: NOAUTH Authentication required".to_owned();
    }
    rejection(&cmd("EVALSHA"), error)
}
