//! A model of the answers to messages of a client, written from the rules of the protocol. The tests of the hub use it, too.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

/// The members of a JSON object in order, with repeated names.
pub(crate) struct Fields<'a>(Vec<(String, &'a RawValue)>);

impl<'de> Deserialize<'de> for Fields<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;
        impl<'de> Visitor<'de> for Members {
            type Value = Fields<'de>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut all = Vec::new();
                while let Some(member) = map.next_entry()? {
                    all.push(member);
                }
                Ok(Fields(all))
            }
        }
        deserializer.deserialize_map(Members)
    }
}

impl<'a> Fields<'a> {
    /// The members of a text, or `None` if it is no object.
    pub(crate) fn read(text: &'a str) -> Option<Self> {
        serde_json::from_str(text).ok()
    }

    /// A member, or `None` if it is repeated.
    pub(crate) fn get(&self, name: &str) -> Option<Option<&'a str>> {
        let mut found = self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.get());
        let first = found.next();
        found.next().is_none().then_some(first)
    }

    /// A text that may be missing or null.
    pub(crate) fn optional_text(&self, name: &str) -> Option<Option<String>> {
        match self.get(name)? {
            None | Some("null") => Some(None),
            Some(text) => serde_json::from_str(text).ok().map(Some),
        }
    }

    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.optional_text(name)?
    }

    /// A value of a member that may be missing or null.
    fn optional(&self, name: &str) -> Option<Option<&'a str>> {
        Some(self.get(name)?.filter(|value| *value != "null"))
    }
}

/// An answer: its event, its channel, and its code or status.
pub(crate) type Answer = (&'static str, String, u64);

/// An event that other subscribers receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forwarded {
    pub(crate) channel: String,
    pub(crate) event: String,
    /// JSON as sent.
    pub(crate) data: Option<String>,
    /// JSON: a string or a number, as the subscription has it.
    pub(crate) user_id: Option<String>,
}

/// A connection.
pub(crate) struct ClientModel {
    pub(crate) socket_id: String,
    pub(crate) key: &'static str,
    pub(crate) sign: fn(&str) -> String,
    pub(crate) client_events: bool,
    /// Subscriptions, with the JSON of the member's id in presence channels.
    channels: BTreeMap<String, Option<String>>,
    /// The user that has signed in.
    user: Option<User>,
    pub(crate) is_closed: bool,
    pub(crate) forwarded: Vec<Forwarded>,
}

const EVENT_NAME_MAX: usize = 200;
const EVENT_DATA_MAX: usize = 10_240;
const CHANNEL_NAME_MAX: usize = 164;
const USER_ID_MAX: usize = 128;
const USER_INFO_MAX: usize = 1_024;
const WATCHLIST_MAX: usize = 100;

pub(crate) const USER_CHANNEL: &str = "#server-to-user-";

pub(crate) fn is_channel(name: &str) -> bool {
    let is_valid = |char: char| char.is_ascii_alphanumeric() || "_-=@,.;".contains(char);
    (1..=CHANNEL_NAME_MAX).contains(&name.len()) && name.chars().all(is_valid)
}

pub(crate) fn is_user(id: &str) -> bool {
    (1..=USER_ID_MAX).contains(&id.chars().count()) && !id.contains(char::is_control)
}

/// Data of a message: an object, or a text with one.
fn with_data<R>(data: Option<&str>, read: impl FnOnce(&Fields<'_>) -> Option<R>) -> Option<R> {
    let data = data.filter(|data| *data != "null")?;
    match data.starts_with('"') {
        true => read(&Fields::read(&serde_json::from_str::<String>(data).ok()?)?),
        false => read(&Fields::read(data)?),
    }
}

/// What a subscription consists of; the last is whether `recover` is valid.
struct Subscribe {
    channel: String,
    auth: String,
    member: Option<String>,
    may_recover: bool,
}

fn subscribe_of(fields: &Fields<'_>) -> Option<Subscribe> {
    let recover = fields.optional("recover")?;
    let may_recover = match recover {
        // Numbers and nesting have limits.
        Some(value) => is_recover(&serde_json::from_str(&format!("[{value}]")).ok()?),
        None => true,
    };
    Some(Subscribe {
        channel: fields.text("channel")?,
        auth: fields.optional_text("auth")?.unwrap_or_default(),
        member: fields.optional_text("channel_data")?,
        may_recover,
    })
}

fn is_decimal(text: &str, most: u128) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u128>().is_ok_and(|number| number <= most)
}

/// Whether a text is an id of a connection, as this server writes them.
pub(crate) fn is_socket_id(text: &str) -> bool {
    let most = u128::from(u64::MAX);
    text.split_once('.').is_some_and(|(first, second)| is_decimal(first, most) && is_decimal(second, most))
}

fn is_recover(value: &Value) -> bool {
    match &value[0] {
        Value::Bool(_) => true,
        Value::Object(fields) => {
            let most = u128::from(u64::MAX);
            let is_position = |text: &str| {
                text.split_once('-').is_some_and(|(a, b)| is_decimal(a, most) && is_decimal(b, most))
            };
            let socket_id = match fields.get("socket_id") {
                None | Some(Value::Null) => true,
                id => id.and_then(Value::as_str).is_some_and(is_socket_id),
            };
            socket_id && fields.get("position").and_then(Value::as_str).is_some_and(is_position)
        }
        _ => false,
    }
}

/// A user that has signed in, or the member of a presence channel.
#[derive(Clone)]
struct User {
    id: String,
    /// The id as a string or a number of JSON.
    id_json: String,
    /// JSON.
    info: String,
}

impl User {
    fn read(fields: &Fields<'_>, id_name: &str) -> Option<Self> {
        let json = fields.get(id_name)??;
        let (id, id_json) = match json.as_bytes().first()? {
            b'"' => {
                let id: String = serde_json::from_str(json).ok()?;
                let json = serde_json::to_string(&id).ok()?;
                (id, json)
            }
            b'0'..=b'9' | b'-' => (json.to_owned(), json.to_owned()),
            _ => return None,
        };
        Some(Self { id, id_json, info: fields.optional("user_info")?.unwrap_or_default().to_owned() })
    }
}

impl ClientModel {
    pub(crate) fn new(socket_id: &str, key: &'static str, sign: fn(&str) -> String) -> Self {
        Self {
            socket_id: socket_id.to_owned(),
            key,
            sign,
            client_events: false,
            channels: BTreeMap::new(),
            user: None,
            is_closed: false,
            forwarded: Vec::new(),
        }
    }

    /// The signature of a text of this connection.
    pub(crate) fn auth(&self, text: &str) -> String {
        format!("{}:{}", self.key, (self.sign)(&format!("{}:{text}", self.socket_id)))
    }

    /// Replaces the text `$auth` by the valid signature of the message.
    pub(crate) fn with_auth(&self, text: &str) -> String {
        let signed = || {
            let message = Fields::read(text)?;
            with_data(message.get("data")?, |data| {
                if let Some(user_data) = data.text("user_data") {
                    return Some(format!(":user::{user_data}"));
                }
                let channel = data.text("channel")?;
                Some(match data.text("channel_data").filter(|_| channel.starts_with("presence-")) {
                    Some(member) => format!("{channel}:{member}"),
                    None => channel,
                })
            })
        };
        match signed() {
            Some(signed) => text.replace("$auth", &self.auth(&signed)),
            None => text.to_owned(),
        }
    }

    /// The answers to a message.
    pub(crate) fn answers(&mut self, text: &str) -> Vec<Answer> {
        let not_understood = || vec![("pusher:error", String::new(), 0)];
        let read = || {
            let message = Fields::read(text)?;
            Some((message.text("event")?, message.optional_text("channel")?, message.optional("data")?))
        };
        let Some((event, channel, data)) = read() else { return not_understood() };
        match &*event {
            "pusher:ping" => vec![("pusher:pong", String::new(), 0)],
            "pusher:pong" => Vec::new(),
            "pusher:subscribe" => match with_data(data, subscribe_of) {
                Some(subscribe) => self.subscribe(&subscribe),
                None => not_understood(),
            },
            "pusher:unsubscribe" => match with_data(data, subscribe_of) {
                Some(Subscribe { channel, .. }) => {
                    self.channels.remove(&channel);
                    Vec::new()
                }
                None => not_understood(),
            },
            "pusher:signin" => self.sign_in(data).unwrap_or_else(|| {
                self.is_closed = true;
                vec![("pusher:error", String::new(), 4009)]
            }),
            name if name.starts_with("client-") => match self.client_event(name, channel.as_deref(), data) {
                Some(forwarded) => {
                    self.forwarded.push(forwarded);
                    Vec::new()
                }
                None => vec![("pusher:error", channel.unwrap_or_default(), 4301)],
            },
            _ => not_understood(),
        }
    }

    fn subscribe(&mut self, subscribe: &Subscribe) -> Vec<Answer> {
        let Subscribe { channel, auth, member, may_recover } = subscribe;
        let rejected = |status| vec![("pusher:subscription_error", channel.clone(), status)];
        let succeeded = ("pusher_internal:subscription_succeeded", channel.clone(), 0);
        if let Some(user) = channel.strip_prefix(USER_CHANNEL) {
            let is_own = self.user.as_ref().is_some_and(|known| known.id == user);
            return if is_own { vec![succeeded] } else { rejected(401) };
        }
        if !is_channel(channel) {
            return rejected(4009);
        }
        if !may_recover {
            return rejected(400);
        }
        let is_presence = channel.starts_with("presence-");
        let member = member.as_ref();
        let is_signed = |text: &str| *auth == self.auth(text);
        let with_member = member.is_some_and(|member| is_signed(&format!("{channel}:{member}")));
        // A presence channel with a member is not signed without it.
        let without_member = is_signed(channel) && (!is_presence || member.is_none());
        if (is_presence || channel.starts_with("private-")) && !with_member && !without_member {
            return rejected(401);
        }
        let mut joined = None;
        if is_presence {
            let member_of = |member: &String| User::read(&Fields::read(member)?, "user_id");
            let found = member.map_or_else(|| self.user.clone(), member_of);
            let Some(user) = found.filter(|user| is_user(&user.id)) else { return rejected(401) };
            if !self.channels.contains_key(channel) && user.info.len() > USER_INFO_MAX {
                return rejected(4301);
            }
            joined = Some(user.id_json);
        }
        let mut answers = vec![succeeded];
        if self.channels.contains_key(channel) {
            return answers;
        }
        self.channels.insert(channel.clone(), joined);
        let caches = ["cache-", "private-cache-", "presence-cache-", "private-encrypted-cache-"];
        if caches.iter().any(|prefix| channel.starts_with(prefix)) {
            answers.push(("pusher:cache_miss", channel.clone(), 0));
        }
        answers
    }

    /// `None` if the sign-in fails.
    fn sign_in(&mut self, data: Option<&str>) -> Option<Vec<Answer>> {
        let (auth, user_data) =
            with_data(data, |fields| Some((fields.text("auth")?, fields.text("user_data")?)))?;
        if auth != self.auth(&format!(":user::{user_data}")) {
            return None;
        }
        let fields = Fields::read(&user_data)?;
        let user = User::read(&fields, "id")?;
        let watchlist: Vec<String> = match fields.optional("watchlist")? {
            Some(list) => serde_json::from_str(list).ok()?,
            None => Vec::new(),
        };
        let mut answers = vec![("pusher:signin_success", String::new(), 0)];
        match &self.user {
            Some(known) => return (known.id == user.id && is_user(&user.id)).then_some(answers),
            None if !is_user(&user.id) => return None,
            None => {}
        }
        if watchlist.len() > WATCHLIST_MAX {
            answers.push(("pusher:error", String::new(), 4302));
        }
        self.user = Some(user);
        Some(answers)
    }

    /// `None` if the event is rejected.
    fn client_event(&self, name: &str, channel: Option<&str>, data: Option<&str>) -> Option<Forwarded> {
        let user_id = self.channels.get(channel?)?.clone();
        let channel = channel?.to_owned();
        let is_signed = channel.starts_with("private-") || channel.starts_with("presence-");
        let fits = name.len() <= EVENT_NAME_MAX && data.is_none_or(|data| data.len() <= EVENT_DATA_MAX);
        (self.client_events && is_signed && fits).then(|| Forwarded {
            channel,
            event: name.to_owned(),
            data: data.map(str::to_owned),
            user_id,
        })
    }
}
