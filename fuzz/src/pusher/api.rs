//! A model of the HTTP API: the status of a request, and the events that subscribers receive.

use serde_json::value::RawValue;

use super::model::{Fields, Forwarded, USER_CHANNEL, is_channel, is_socket_id, is_user};

const EVENT_NAME_MAX: usize = 200;
const EVENT_DATA_MAX: usize = 10_240;
const CHANNELS_MAX: usize = 100;
const BATCH_MAX: usize = 10;

/// An event of a request.
struct Event {
    name: String,
    data: String,
    channel: Option<String>,
    channels: Option<Vec<String>>,
    socket_id: Option<String>,
    info: String,
}

/// An accepted event, and the connection that does not receive it.
pub(crate) struct Published {
    pub(crate) event: Forwarded,
    pub(crate) except: Option<String>,
}

fn read(text: &str) -> Option<Event> {
    let fields = Fields::read(text)?;
    let channels = match fields.get("channels")? {
        None | Some("null") => None,
        Some(list) => Some(serde_json::from_str(list).ok()?),
    };
    Some(Event {
        name: fields.text("name")?,
        data: fields.get("data")??.to_owned(),
        channel: fields.optional_text("channel")?,
        channels,
        socket_id: fields.optional_text("socket_id")?,
        info: fields.optional_text("info")?.unwrap_or_default(),
    })
}

fn is_target(channel: &str) -> bool {
    channel.strip_prefix(USER_CHANNEL).map_or_else(|| is_channel(channel), is_user)
}

/// The channels of an event in order, or the status of its rejection.
fn check(event: &Event) -> Result<Vec<String>, u16> {
    let name = &event.name;
    if name.is_empty() || name.len() > EVENT_NAME_MAX || name.starts_with("pusher_internal:") {
        return Err(400);
    }
    if !event.data.starts_with('"') {
        return Err(400);
    }
    let size = serde_json::from_str::<String>(&event.data).map_or(event.data.len() - 2, |data| data.len());
    if size > EVENT_DATA_MAX {
        return Err(413);
    }
    let mut channels = match (&event.channel, &event.channels) {
        (Some(channel), None) => vec![channel.clone()],
        (None, Some(channels)) => channels.clone(),
        _ => return Err(400),
    };
    let is_encrypted = |channel: &String| channel.starts_with("private-encrypted-");
    let infos = || event.info.split(',').map(str::trim).filter(|info| !info.is_empty());
    let is_known =
        |info: &str| info == "user_count" && channels.iter().all(|channel| channel.starts_with("presence-"));
    let is_valid = (1..=CHANNELS_MAX).contains(&channels.len())
        && channels.iter().all(|channel| is_target(channel))
        && (channels.len() == 1 || !channels.iter().any(is_encrypted))
        && event.socket_id.as_deref().is_none_or(is_socket_id)
        && infos().all(is_known);
    channels.sort();
    channels.dedup();
    if is_valid { Ok(channels) } else { Err(400) }
}

fn publish(event: &Event, channels: Vec<String>) -> Vec<Published> {
    let published = channels.into_iter().map(|channel| Published {
        event: Forwarded {
            channel,
            event: event.name.clone(),
            data: Some(event.data.clone()),
            user_id: None,
        },
        except: event.socket_id.clone(),
    });
    published.collect()
}

/// `POST /apps/{id}/events`.
pub(crate) fn events(body: &str) -> Result<Vec<Published>, u16> {
    let event = read(body).ok_or(400_u16)?;
    let channels = check(&event)?;
    Ok(publish(&event, channels))
}

/// `POST /apps/{id}/batch_events`.
pub(crate) fn batch(body: &str) -> Result<Vec<Published>, u16> {
    let events = || {
        let fields = Fields::read(body)?;
        let batch: Vec<&RawValue> = serde_json::from_str(fields.get("batch")??).ok()?;
        batch.into_iter().map(|event| read(event.get())).collect::<Option<Vec<Event>>>()
    };
    let events = events().ok_or(400_u16)?;
    if events.len() > BATCH_MAX || events.iter().any(|event| event.channels.is_some()) {
        return Err(400);
    }
    let channels = events.iter().map(check).collect::<Result<Vec<_>, u16>>()?;
    Ok(events.iter().zip(channels).flat_map(|(event, channels)| publish(event, channels)).collect())
}
