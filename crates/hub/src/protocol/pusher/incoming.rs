//! Client messages.

use std::borrow::Cow;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_json::value::RawValue;

use crate::model::json::{present, read_object};
use crate::model::user_id::UserId;

/// A client's message.
#[derive(Deserialize)]
pub(super) struct PusherMessage<'a> {
    #[serde(borrow)]
    pub(super) event: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) data: Option<&'a RawValue>,
    #[serde(borrow)]
    pub(super) channel: Option<Cow<'a, str>>,
}

/// `data` of `pusher:subscribe` and `pusher:unsubscribe`.
#[derive(Default, Deserialize)]
pub(super) struct SubscribeData {
    pub(super) channel: String,
    pub(super) auth: Option<String>,
    pub(super) channel_data: Option<String>,
    /// Read by [`RecoverRequest::read`](super::recovery::RecoverRequest::read).
    pub(super) recover: Option<Value>,
}

/// `data` of `pusher:signin`.
#[derive(Deserialize)]
pub(super) struct SignInData {
    pub(super) auth: String,
    pub(super) user_data: String,
}

/// `channel_data` of a presence channel.
#[derive(Deserialize)]
struct ChannelData<'a> {
    #[serde(borrow)]
    user_id: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "present")]
    user_info: Option<&'a RawValue>,
}

/// `user_data` of a sign-in.
#[derive(Deserialize)]
struct UserData<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    #[serde(borrow, default, deserialize_with = "present")]
    user_info: Option<&'a RawValue>,
    #[serde(borrow)]
    watchlist: Option<Vec<&'a RawValue>>,
}

/// A member, as its server has signed it.
pub(super) struct SignedMember {
    pub(super) id: String,
    /// [`UserId::info`].
    pub(super) info: String,
}

/// A user, as the app's server has signed it.
pub(super) struct SignedUser {
    pub(super) member: SignedMember,
    pub(super) watchlist: Vec<String>,
}

/// Reads `data`, which may be an object or a JSON string.
pub(super) fn read_data<T: DeserializeOwned>(data: Option<&RawValue>) -> Option<T> {
    let data = data?.get();
    if data.starts_with('"') {
        let text: String = serde_json::from_str(data).ok()?;
        return read_object(text.as_bytes()).ok();
    }
    read_object(data.as_bytes()).ok()
}

/// Reads the member with this id and info.
fn member(id: &RawValue, info: Option<&RawValue>) -> Option<SignedMember> {
    let id = UserId::read(id)?;
    Some(SignedMember { info: id.info(info), id: id.text })
}

/// Reads `channel_data`. A user's id may be a number.
pub(super) fn read_member(channel_data: &str) -> Option<SignedMember> {
    let data: ChannelData<'_> = read_object(channel_data.as_bytes()).ok()?;
    member(data.user_id, data.user_info)
}

/// Reads `user_data`. User ids may be numbers.
pub(super) fn read_user(user_data: &str) -> Option<SignedUser> {
    let data: UserData<'_> = read_object(user_data.as_bytes()).ok()?;
    let watchlist = data.watchlist.into_iter().flatten();
    let watchlist = watchlist.map(|id| UserId::read(id).map(|id| id.text)).collect::<Option<_>>()?;
    Some(SignedUser { member: member(data.id, data.user_info)?, watchlist })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pusher_5_4_ids_of_members_may_be_numbers() {
        let id = |data| read_member(data).map(|member| member.id);
        assert_eq!(id(r#"{"user_id":10,"user_info":{"name":"a"}}"#).as_deref(), Some("10"));
        assert_eq!(id(r#"{"user_id":"\u0061"}"#).as_deref(), Some("a"));
        for bad in ["", "[]", "{}", r#"{"user_id":null}"#, r#"{"user_id":{}}"#, r#"{"user_id":true}"#, "1"] {
            assert_eq!(id(bad), None, "{bad}");
        }
        let info = |data| read_member(data).map(|member| member.info);
        assert_eq!(info(r#"{"user_id":"1","user_info":{ "a":1 }}"#).as_deref(), Some(r#"{ "a":1 }"#));
        assert_eq!(info(r#"{"user_id":1,"user_info":{ "a":1 }}"#).as_deref(), Some(r#" { "a":1 }"#));
        assert_eq!(info(r#"{"user_id":"1"}"#).as_deref(), Some(""));
        assert_eq!(info(r#"{"user_id":"1","user_info":null}"#).as_deref(), Some("null"));
    }

    #[test]
    fn ids_of_users_that_sign_in_may_be_numbers() {
        let user = read_user(r#"{"id":1,"user_info":{},"watchlist":[2,"3"]}"#).unwrap();
        assert_eq!((&*user.member.id, &*user.member.info), ("1", " {}"));
        assert_eq!(user.watchlist, ["2", "3"]);
        assert!(read_user(r#"{"id":"1"}"#).is_some_and(|user| user.watchlist.is_empty()));
        for bad in ["{}", r#"{"id":null}"#, r#"{"id":true}"#, r#"{"id":[1]}"#, r#"{"id":1,"watchlist":[{}]}"#]
        {
            assert!(read_user(bad).is_none(), "{bad}");
        }
    }

    #[test]
    fn data_is_an_object_or_a_string_of_json() {
        let read = |text: &str| {
            let message: PusherMessage<'_> = serde_json::from_str(text).ok()?;
            read_data::<SubscribeData>(message.data).map(|data| data.channel)
        };
        assert_eq!(read(r#"{"event":"e","data":{"channel":"a","more":1}}"#).as_deref(), Some("a"));
        assert_eq!(read(r#"{"event":"e","data":"{\"channel\":\"a\"}"}"#).as_deref(), Some("a"));
        for bad in
            [r#"{"event":"e"}"#, r#"{"event":"e","data":[]}"#, r#"{"event":"e","data":"x"}"#, "{}", "[]"]
        {
            assert_eq!(read(bad), None, "{bad}");
        }
    }
}
