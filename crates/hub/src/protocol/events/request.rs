//! A request for topic messages: its topics, where they start, and the answer's format.

use std::borrow::Cow;
use std::time::Duration;

use sinews_server::{ReplayFrom, Request, TopicName};

use super::cursor::{Cursor, UNKNOWN};
use super::joins::{self, RequestedJoin};
use crate::model;
use crate::model::brief::brief;
use crate::protocol::json::members::PresenceDetail;
use crate::query::LAST_EVENT_ID;

/// A topic or pattern, and where its messages start.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestedTopic {
    pub(super) name: String,
    pub(super) start: Option<ReplayFrom>,
}

/// A client's request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TopicsRequest {
    pub(super) topics: Vec<RequestedTopic>,
    pub(super) format: RequestedFormat,
    /// The topics that the server assigns to the client, too.
    pub(super) assigned: bool,
    /// Each topic's presence, as far as the client requests it.
    pub(super) presence: PresenceDetail,
    /// The topics that the client joins while the response is open.
    pub(super) joins: Vec<RequestedJoin>,
}

/// The answer's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestedFormat {
    Events,
    Lines,
    /// One JSON object with the messages of at most this time.
    Poll(Duration),
}

impl RequestedFormat {
    /// The same with the time of the query parameter `wait`.
    pub(super) fn waiting(self, wait: Option<&str>) -> Result<Self, String> {
        match (self, wait) {
            (Self::Poll(_), Some(wait)) => {
                let seconds = wait.parse().ok().filter(|seconds| *seconds <= WAIT_MAX);
                let seconds = seconds.ok_or_else(|| {
                    format!("query parameter `wait` must be a number of seconds up to {WAIT_MAX}")
                })?;
                Ok(Self::Poll(Duration::from_secs(seconds)))
            }
            (_, Some(_)) => Err(format!("query parameter `wait` is for {JSON} only")),
            (format, None) => Ok(format),
        }
    }
}

/// Topics of one response: each id has the positions of all of them.
pub(super) const TOPICS_MAX: usize = 64;

/// Longest time of a long poll in seconds: below the timeouts of proxies, of which 60 s is the most common.
const WAIT_MAX: u64 = 55;

/// Time of a long poll without `wait`.
const WAIT: Duration = Duration::from_secs(25);

impl TopicsRequest {
    /// Reads a request; `names` are the topics.
    ///
    /// # Errors
    /// The status and the problem.
    pub(super) fn read(request: &Request<'_>, names: Vec<Cow<'_, str>>) -> Result<Self, (u16, String)> {
        if request.head().header("sec-websocket-key").next().is_some() {
            let text = "a WebSocket needs the headers Connection and Upgrade, which a proxy may have removed";
            return Err((400, text.to_owned()));
        }
        let query = |name| request.query_values(name).next();
        let flag = |name| match query(name).as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err((400, format!("query parameter `{name}` must be true or false"))),
        };
        let assigned = flag("assigned")?;
        let presence = match (flag("presence")?, flag("members")?) {
            (_, true) => PresenceDetail::Members,
            (true, false) => PresenceDetail::Changes,
            (false, false) => PresenceDetail::None,
        };
        let joins = joins::read(request).map_err(|problem| (400, problem))?;
        if !(names.is_empty() && (assigned || !joins.is_empty())) {
            check_names(&names, presence).map_err(|problem| (400, problem))?;
        }
        let accept = request.head().header("accept").filter_map(|value| std::str::from_utf8(value).ok());
        let format = negotiate(accept)
            .ok_or_else(|| (406, format!("Accept must permit {EVENTS}, {LINES} or {JSON}")))?;
        let not_polled = [
            ("assigned", assigned),
            ("presence", presence > PresenceDetail::None),
            ("join", !joins.is_empty()),
        ];
        if matches!(format, RequestedFormat::Poll(_))
            && let Some((name, _)) = not_polled.into_iter().find(|(_, is_set)| *is_set)
        {
            return Err((400, format!("query parameter `{name}` is not for long polls")));
        }
        let format = format.waiting(query("wait").as_deref()).map_err(|problem| (400, problem))?;
        let last = query("last").map(|count| {
            let count = count.parse().map(ReplayFrom::Last);
            count.map_err(|_| (400, "query parameter `last` must be a number of messages".to_owned()))
        });
        let last = last.transpose()?;
        let cursor = Resume::read(request, names.len()).map_err(|problem| (400, problem))?;
        let topics = names.into_iter().enumerate().map(|(at, name)| RequestedTopic {
            start: match &cursor {
                Resume::At(cursor) => cursor.start(at),
                Resume::Unknown => Some(UNKNOWN),
                Resume::New => last,
            },
            name: name.into_owned(),
        });
        Ok(Self { topics: topics.collect(), format, assigned, presence, joins })
    }

    /// Whether the answer has one topic, and every message belongs to it.
    pub(super) fn is_single(&self) -> bool {
        !self.assigned
            && self.topics.len() == 1
            && self.topics.iter().all(|topic| TopicName::parse(&*topic.name).is_ok())
    }
}

/// Where a client was before.
enum Resume {
    New,
    At(Cursor),
    /// The client was connected before, to another server or another version.
    Unknown,
}

impl Resume {
    fn read(request: &Request<'_>, topics: usize) -> Result<Self, String> {
        // A browser repeats the query when it connects again, and adds the header.
        match (last_event_id(request), request.query_values("after").next()) {
            (Some(id), _) => Ok(Self::from_event_id(&id, topics)),
            (None, Some(after)) => Cursor::parse(&after, topics).map(Self::At).ok_or_else(|| {
                format!(
                    "query parameter `after` must have a position such as 8100236-44 for each topic, \
                     separated by commas: {:?}",
                    brief(&after)
                )
            }),
            (None, None) => Ok(Self::New),
        }
    }

    fn from_event_id(id: &[u8], topics: usize) -> Self {
        let cursor = std::str::from_utf8(id).ok().and_then(|id| Cursor::parse(id.trim(), topics));
        cursor.map_or(Self::Unknown, Self::At)
    }
}

/// Returns the last id from a client that connects again: from the header, or from the query parameter if the client
/// cannot send the header.
pub(super) fn last_event_id<'a>(request: &Request<'a>) -> Option<Cow<'a, [u8]>> {
    let header = request.head().header("last-event-id").next().map(Cow::Borrowed);
    header.or_else(|| match request.query_values(LAST_EVENT_ID).next()? {
        Cow::Borrowed(id) => Some(Cow::Borrowed(id.as_bytes())),
        Cow::Owned(id) => Some(Cow::Owned(id.into_bytes())),
    })
}

fn check_names(names: &[Cow<'_, str>], presence: PresenceDetail) -> Result<(), String> {
    if names.is_empty() || names.len() > TOPICS_MAX {
        return Err(format!(
            "query parameter `topic` is required, up to {TOPICS_MAX} times, or `join` or `assigned`"
        ));
    }
    // A pattern has no presence.
    let check = if presence > PresenceDetail::None { model::check_name } else { model::check_subscription };
    for (at, name) in names.iter().enumerate() {
        check(name)?;
        if names[..at].contains(name) {
            return Err(format!("topic {} is named twice", brief(name)));
        }
    }
    Ok(())
}

pub(super) const EVENTS: &str = "text/event-stream";
pub(super) const LINES: &str = "application/x-ndjson";
pub(super) const JSON: &str = "application/json";

/// The formats with their media types, in order of preference.
const FORMATS: [(&[&str], RequestedFormat); 3] = [
    (&[EVENTS], RequestedFormat::Events),
    (&[LINES, "application/jsonl"], RequestedFormat::Lines),
    (&[JSON], RequestedFormat::Poll(WAIT)),
];

/// The same for keys, where a JSON page comes first.
const KEY_FORMATS: [(&[&str], RequestedFormat); 3] = [FORMATS[2], FORMATS[0], FORMATS[1]];

/// Selects the message format.
fn negotiate<'a>(accept: impl Iterator<Item = &'a str>) -> Option<RequestedFormat> {
    negotiate_among(&FORMATS, accept)
}

/// Selects the key format.
pub(super) fn negotiate_keys<'a>(accept: impl Iterator<Item = &'a str>) -> Option<RequestedFormat> {
    negotiate_among(&KEY_FORMATS, accept)
}

/// Selects the format that the client prefers (RFC 9110 section 12.5.1); `None` if it accepts none.
fn negotiate_among<'a>(
    formats: &[(&[&str], RequestedFormat)],
    accept: impl Iterator<Item = &'a str>,
) -> Option<RequestedFormat> {
    let ranges: Vec<MediaRange<'a>> = accept.flat_map(|list| list.split(',')).map(MediaRange::read).collect();
    if ranges.is_empty() {
        return formats.first().map(|(_, format)| *format);
    }
    let quality = |types: &[&str]| {
        let best = types.iter().filter_map(|media| {
            let matching = ranges.iter().filter_map(|range| Some((range.specificity(media)?, range.quality)));
            matching.max_by_key(|(specificity, _)| *specificity)
        });
        // Of equal qualities, a range that names the type counts more than `*/*`.
        best.map(|(specificity, quality)| (quality, specificity)).max()
    };
    let formats = formats.iter().filter_map(|(types, format)| Some((quality(types)?, *format)));
    // Of equals, the first.
    let best = formats.filter(|((quality, _), _)| *quality > 0).rev().max_by_key(|(rank, _)| *rank);
    best.map(|(_, format)| format)
}

/// One `Accept` range.
struct MediaRange<'a> {
    range: &'a str,
    /// Thousandths.
    quality: u16,
}

impl<'a> MediaRange<'a> {
    /// Parameters other than the quality are ignored: the formats have none.
    fn read(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let range = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| {
            let (name, value) = part.split_once('=')?;
            name.trim().eq_ignore_ascii_case("q").then(|| value.trim().parse::<f32>().unwrap_or(1.0))
        });
        let thousandths = (quality.unwrap_or(1.0).clamp(0.0, 1.0) * 1_000.0).round();
        Self { range, quality: thousandths as u16 }
    }

    /// How exactly the range names a media type; `None` if it does not match.
    fn specificity(&self, media: &str) -> Option<u8> {
        if self.range.eq_ignore_ascii_case(media) {
            return Some(2);
        }
        let (kind, subtype) = self.range.split_once('/')?;
        let is_kind = media.split_once('/').is_some_and(|(known, _)| known.eq_ignore_ascii_case(kind));
        match (kind, subtype) {
            ("*", "*") => Some(0),
            (_, "*") if is_kind => Some(1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_follows_the_preference_of_the_client() {
        const POLL: RequestedFormat = RequestedFormat::Poll(WAIT);
        for (accept, format) in [
            ("text/event-stream", Some(RequestedFormat::Events)),
            ("Text/Event-Stream", Some(RequestedFormat::Events)),
            ("*/*", Some(RequestedFormat::Events)),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Some(RequestedFormat::Events)),
            ("application/x-ndjson", Some(RequestedFormat::Lines)),
            ("application/jsonl", Some(RequestedFormat::Lines)),
            ("application/*", Some(RequestedFormat::Lines)),
            ("application/json", Some(POLL)),
            ("application/json, text/plain, */*", Some(POLL)),
            ("application/json, */*;q=0.1", Some(POLL)),
            ("text/event-stream;q=0.5, application/json;q=0.6", Some(POLL)),
            ("text/event-stream;q=0, */*", Some(RequestedFormat::Lines)),
            ("text/event-stream; q=0", None),
            ("text/html", None),
            ("", None),
        ] {
            assert_eq!(negotiate([accept].into_iter()), format, "{accept:?}");
        }
        assert_eq!(negotiate([].into_iter()), Some(RequestedFormat::Events));
        assert_eq!(negotiate(["text/html", "application/json"].into_iter()), Some(POLL));
    }

    #[test]
    fn keys_are_a_page_unless_a_stream_is_requested() {
        const PAGE: RequestedFormat = RequestedFormat::Poll(WAIT);
        for (accept, format) in [
            ("*/*", Some(PAGE)),
            ("application/json", Some(PAGE)),
            ("text/event-stream", Some(RequestedFormat::Events)),
            ("text/event-stream, */*;q=0.1", Some(RequestedFormat::Events)),
            ("application/x-ndjson", Some(RequestedFormat::Lines)),
            ("text/html", None),
        ] {
            assert_eq!(negotiate_keys([accept].into_iter()), format, "{accept:?}");
        }
        assert_eq!(negotiate_keys([].into_iter()), Some(PAGE));
    }

    #[test]
    fn names_are_checked() {
        let check_with = |names: &[&str], presence| {
            check_names(&names.iter().map(|name| Cow::from(*name)).collect::<Vec<_>>(), presence)
        };
        let check = |names: &[&str]| check_with(names, PresenceDetail::None);
        assert_eq!(check_with(&["a", "b"], PresenceDetail::Changes), Ok(()));
        assert!(check_with(&["a", "b.>"], PresenceDetail::Changes).is_err());
        assert_eq!(check(&["a", "b.>", "c.*.d"]), Ok(()));
        for names in [&[][..], &["a", "a"], &["a.>.b"], &[""], &["a\n"], &["a"; TOPICS_MAX + 1]] {
            assert!(check(names).is_err(), "{names:?}");
        }
    }
}
