//! Channel names, and their topics in the hub.
//!
//! ```text
//!   $pusher.APP.c.CHANNEL   presence of a channel, and its topic if the app has no topics of its own
//!   $pusher.APP.u.HASH      events and presence of a user: the SHA-256 of its id, in Base64
//!   PREFIX.CHANNEL          topic of a channel of an app with topics
//! ```
//!
//! No client using another protocol can name a topic that begins with `$pusher.`.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest;
use sinews_server::Member;

use crate::model::{RESERVED, check_name};

/// Name prefix of presence channels.
pub(crate) const PRESENCE_PREFIX: &str = "presence-";

/// Prefix of a user's event channel.
pub(crate) const USER_CHANNEL: &str = "#server-to-user-";

/// Prefix of app users' names among all users.
pub(crate) const RESERVED_USER: &str = "$pusher:";

/// Access to a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChannelAccess {
    Public,
    Private,
    Presence,
    Encrypted,
}

/// A channel's kind, by the prefix of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChannelKind {
    pub(crate) access: ChannelAccess,
    /// The channel retains its last event.
    pub(crate) is_cache: bool,
}

impl ChannelKind {
    pub(crate) fn from_name(channel: &str) -> Self {
        use ChannelAccess::{Encrypted, Presence, Private, Public};
        // The longest first.
        let prefixes = [
            ("private-encrypted-cache-", Encrypted, true),
            ("private-encrypted-", Encrypted, false),
            ("private-cache-", Private, true),
            ("presence-cache-", Presence, true),
            ("cache-", Public, true),
            ("private-", Private, false),
            (PRESENCE_PREFIX, Presence, false),
        ];
        let found = prefixes.into_iter().find(|(prefix, ..)| channel.starts_with(prefix));
        let (_, access, is_cache) = found.unwrap_or(("", Public, false));
        Self { access, is_cache }
    }

    pub(crate) fn is_presence(self) -> bool {
        self.access == ChannelAccess::Presence
    }
}

/// Checks a channel name.
///
/// # Errors
/// The rule that the name breaks.
pub(crate) fn check_channel(channel: &str, length_max: usize) -> Result<(), String> {
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_-=@,.;".contains(&byte);
    if channel.is_empty() || channel.len() > length_max || !channel.bytes().all(is_valid) {
        return Err(format!(
            "a channel's name has 1 to {length_max} letters, digits and the characters _ - = @ , . ;"
        ));
    }
    Ok(())
}

/// Checks the id of a user that may be a member of channels.
pub(crate) fn is_user_id(id: &str) -> bool {
    !id.is_empty() && id.chars().nth(Member::ID_MAX).is_none() && !id.chars().any(char::is_control)
}

/// The rule of [`is_user_id`].
pub(crate) const USER_RULE: &str = "a user's id has 1 to 128 characters and no control characters";

/// Stands for a dot in a presence's name: a channel's name may begin or end with a dot, and none has this character.
pub(crate) const DOT: char = '%';

/// A channel's presence: its members, or its subscriber count.
pub(crate) fn presence_of(app: &str, channel: &str) -> String {
    [RESERVED, ".", app, ".c.", &dotless(channel)].concat()
}

/// A channel's name, or a part of it, with [`DOT`] in place of dots.
pub(crate) fn dotless(channel: &str) -> Cow<'_, str> {
    if channel.contains('.') { channel.replace('.', "%").into() } else { channel.into() }
}

/// Name prefix of all channels' presence.
pub(crate) fn presence_prefix(app: &str) -> String {
    format!("{RESERVED}.{app}.c.")
}

/// A user's event topic, and the user's presence. Its name has the same length for all ids.
pub(crate) fn topic_of_user(app: &str, user: &str) -> String {
    let hash = digest::digest(&digest::SHA256, user.as_bytes());
    format!("{RESERVED}.{app}.u.{}", URL_SAFE_NO_PAD.encode(hash))
}

/// Where an app's channel topics are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct TopicSpace<'a> {
    /// The app's id.
    pub(crate) app: &'a str,
    /// The prefix of the topics that the app shares with other protocols.
    pub(crate) prefix: Option<&'a str>,
}

/// Returns a channel's topic.
pub(crate) fn topic_of(space: TopicSpace<'_>, channel: &str) -> String {
    if let Some(prefix) = space.prefix {
        let topic = format!("{prefix}.{channel}");
        if check_name(&topic).is_ok() {
            return topic;
        }
        // Its dots are not those of a topic's name: it cannot be shared.
    }
    presence_of(space.app, channel)
}

/// The channel of an app's topic in the protocol's name space.
pub(crate) fn channel_of_topic(topic: &str) -> Option<PusherTopic<'_>> {
    let (app, rest) = topic.strip_prefix(RESERVED)?.strip_prefix('.')?.split_once('.')?;
    match rest.split_once('.')? {
        ("c", channel) => {
            let channel =
                if channel.contains(DOT) { channel.replace(DOT, ".").into() } else { channel.into() };
            Some(PusherTopic::Channel { app, channel })
        }
        ("u", _) => Some(PusherTopic::User { app }),
        _ => None,
    }
}

/// A topic of the protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum PusherTopic<'a> {
    Channel {
        app: &'a str,
        channel: Cow<'a, str>,
    },
    /// A user's topic. The user's id is in the events, and is the id of the only member.
    User {
        app: &'a str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NAME_MAX;

    #[test]
    fn pusher_4_3_kinds_of_channels_by_their_prefix() {
        use ChannelAccess::{Encrypted, Presence, Private, Public};
        for (channel, access, is_cache) in [
            ("a", Public, false),
            ("cacheX", Public, false),
            ("cache-a", Public, true),
            ("private-a", Private, false),
            ("privateX", Public, false),
            ("private-cache-a", Private, true),
            ("private-encrypted-a", Encrypted, false),
            ("private-encryptedX", Private, false),
            ("private-encrypted-cache-a", Encrypted, true),
            ("presence-a", Presence, false),
            ("presence-cache-a", Presence, true),
            ("Presence-a", Public, false),
        ] {
            assert_eq!(ChannelKind::from_name(channel), ChannelKind { access, is_cache }, "{channel}");
        }
    }

    #[test]
    fn pusher_4_1_names_of_channels() {
        for good in ["a", "Az09_-=@,.;", "..", &"a".repeat(164)] {
            assert_eq!(check_channel(good, 164), Ok(()), "{good}");
        }
        for bad in ["", "a b", "a/b", "#a", "a*", "ü", "a\n", "a%", &"a".repeat(165)] {
            assert!(check_channel(bad, 164).is_err(), "{bad}");
        }
    }

    #[test]
    fn topics_have_one_channel_and_fit_the_hub() {
        for channel in ["a", "presence-a.b", ".", "..a..", &"a.".repeat(100)] {
            let topic = presence_of("12345678901234567890", channel);
            assert!(sinews_server::Topics::check(&topic).is_ok() && topic.len() <= NAME_MAX, "{topic}");
            assert!(check_name(&topic).is_err(), "other protocols cannot name it");
            let app = "12345678901234567890";
            let expected = PusherTopic::Channel { app, channel: channel.into() };
            assert_eq!(channel_of_topic(&topic), Some(expected));
        }
        let app = "12345678901234567890";
        for user in ["a", "ü.*>", &"😀".repeat(128)] {
            let topic = topic_of_user(app, user);
            assert!(sinews_server::Topics::check(&topic).is_ok() && topic.len() <= NAME_MAX);
            assert!(check_name(&topic).is_err(), "other protocols cannot name it");
            assert_eq!(channel_of_topic(&topic), Some(PusherTopic::User { app }));
            assert!(topic_of_user(app, &format!("{user}b")) != topic && topic_of_user("1", user) != topic);
        }
        assert_eq!(channel_of_topic("$pusher.1.x.a"), None);
        assert_eq!(channel_of_topic("chat.a"), None);
    }

    #[test]
    fn channels_of_an_app_with_topics_are_public_topics() {
        let app = TopicSpace { app: "1", prefix: Some("chat") };
        assert_eq!(topic_of(app, "room.1"), "chat.room.1");
        assert_eq!(topic_of(app, "room..1"), "$pusher.1.c.room%%1");
    }
}
