//! Members: the topics in which a connection is present under an id.

use std::sync::Arc;

use serde::Deserialize;
use serde_json::{Value, json};
use sinews_server::{Context, InvalidTopic, Member, PresenceError, Topics};

use crate::access::auth::{Action, Rights};
use crate::model;
use crate::model::brief::brief;
use crate::model::problem::{Problem, code, problem};
use crate::topics;

/// A topic's presence, as far as its subscription requests it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::protocol) enum PresenceDetail {
    #[default]
    None,
    /// The subscriber count, and changes.
    Changes,
    /// The same, and a member list.
    Members,
}

/// A member as a client names it. Other fields are ignored.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(in crate::protocol) struct MemberFields {
    id: String,
    info: Option<Value>,
}

impl MemberFields {
    /// The token's user.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn for_user(rights: &Rights) -> Result<Self, Problem> {
        match rights.subject() {
            Some(subject) => Ok(Self { id: subject.to_owned(), info: None }),
            None => Err(problem(
                code::MALFORMED,
                "join: a member is required, since there is no token with a sub",
            )),
        }
    }

    fn into_member(self) -> Member {
        // In the form in which clients receive it, without spare capacity: it stays as long as the member.
        let info = self.info.map_or_else(Box::default, |info| info.to_string().into_boxed_str());
        Member::new(self.id).with_info(info.into_boxed_bytes())
    }

    /// Replaces the client's info by the application's, if there is one: by that of a hook, or else by the token's claim.
    pub(super) fn with_info_of_application(self, hook: Option<&Value>, claim: Option<&str>) -> Self {
        let claimed = || claim.and_then(|claim| serde_json::from_str(claim).ok());
        Self { info: hook.cloned().or_else(claimed).or(self.info), ..self }
    }
}

/// The topics that a connection has joined; boxed, since most connections have none.
#[derive(Default)]
pub(super) struct JoinedTopics(Option<Box<JoinedList>>);

#[derive(Default)]
struct JoinedList {
    /// At most as many as a connection may have subscriptions; most connections have one.
    topics: Vec<JoinedTopic>,
    /// Number of topics without a subscription.
    unsubscribed: usize,
}

struct JoinedTopic {
    name: Box<str>,
    /// The member's id, which the topic's members share.
    id: Arc<str>,
    /// The connection has a subscription to the topic by its name, too.
    is_subscribed: bool,
}

impl JoinedList {
    fn find_mut(&mut self, topic: &str) -> Option<&mut JoinedTopic> {
        self.topics.iter_mut().find(|known| *known.name == *topic)
    }
}

impl JoinedTopics {
    /// Joins a topic, or replaces the member of this connection there.
    pub(super) fn join(
        &mut self,
        topic: &str,
        member: MemberFields,
        is_subscribed: bool,
        subscriptions: usize,
        rights: &Rights,
        cx: &mut Context<'_>,
    ) -> Result<(), Problem> {
        let member = checked(topic, member, rights)?;
        let is_new = !self.contains(topic);
        if is_new && !is_subscribed {
            self.check_room(subscriptions)?;
        }
        let id = member.shared_id();
        cx.join(topic, member).map_err(presence_problem)?;
        let list = self.0.get_or_insert_default();
        list.unsubscribed += usize::from(is_new && !is_subscribed);
        match list.find_mut(topic) {
            Some(known) => (known.id, known.is_subscribed) = (id, is_subscribed),
            None => {
                if list.topics.is_empty() {
                    list.topics.reserve_exact(1);
                }
                list.topics.push(JoinedTopic { name: topic.into(), id, is_subscribed });
            }
        }
        Ok(())
    }

    /// Leaves a topic: a subscriber is still counted. Returns whether the connection had joined it.
    pub(super) fn leave(&mut self, topic: &str, cx: &mut Context<'_>) -> bool {
        let Some(list) = &mut self.0 else { return false };
        let Some(at) = list.topics.iter().position(|known| *known.name == *topic) else { return false };
        let left = list.topics.swap_remove(at);
        if left.is_subscribed {
            // The name was checked, and the connection has an entry for the topic.
            let _ = cx.join_anonymous(topic);
        } else {
            list.unsubscribed -= 1;
            cx.leave(topic);
        }
        true
    }

    /// Checks that a connection with this number of subscriptions may have one more. A joined topic needs no more room.
    pub(super) fn check_room_to_subscribe(&self, topic: &str, subscriptions: usize) -> Result<(), Problem> {
        if self.contains(topic) { Ok(()) } else { self.check_room(subscriptions) }
    }

    /// The joined topics, with the member's id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().flat_map(|list| &list.topics).map(|known| (&*known.name, &*known.id))
    }

    /// The id of the member in a topic.
    pub(super) fn member(&self, topic: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == topic).map(|(_, id)| id)
    }

    /// Whether the connection has joined a topic.
    pub(super) fn contains(&self, topic: &str) -> bool {
        self.0.as_ref().is_some_and(|list| list.topics.iter().any(|known| *known.name == *topic))
    }

    /// The number of joined topics.
    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |list| list.topics.len())
    }

    fn check_room(&self, subscriptions: usize) -> Result<(), Problem> {
        let unsubscribed = self.0.as_ref().map_or(0, |list| list.unsubscribed);
        if subscriptions + unsubscribed < Topics::SUBSCRIPTIONS_MAX {
            return Ok(());
        }
        let most = Topics::SUBSCRIPTIONS_MAX;
        Err(problem(
            code::TOO_MANY,
            format!("a connection has at most {most} subscriptions and joined topics"),
        ))
    }

    /// Notes a subscription's start or end. Returns whether the topic is joined: then the connection is present anyway.
    pub(super) fn set_subscribed(&mut self, topic: &str, is_subscribed: bool) -> bool {
        let Some(list) = &mut self.0 else { return false };
        let Some(known) = list.find_mut(topic) else { return false };
        if std::mem::replace(&mut known.is_subscribed, is_subscribed) != is_subscribed {
            match is_subscribed {
                true => list.unsubscribed -= 1,
                false => list.unsubscribed += 1,
            }
        }
        true
    }

    /// Leaves the topics that the rights do not cover; returns an error for each.
    pub(super) fn end_denied(&mut self, rights: &Rights, cx: &mut Context<'_>) -> Vec<Value> {
        let check = |topic: &str, id: &str| -> Result<(), Problem> {
            rights.may(Action::Subscribe, topic)?;
            check_subject(id, rights)
        };
        let joined = self.0.iter().flat_map(|list| &list.topics);
        let denied = joined.filter_map(|known| {
            let problem = check(&known.name, &known.id).err()?;
            Some((String::from(&*known.name), problem))
        });
        let denied: Vec<(String, Problem)> = denied.collect();
        let ended = denied.into_iter().map(|(topic, problem)| {
            self.leave(&topic, cx);
            let mut error = problem.into_json();
            error["topic"] = json!(topic);
            error
        });
        ended.collect()
    }
}

/// The member of a permitted join.
///
/// # Errors
/// The rights do not cover it, the topic's namespace has no presence, or the member is invalid.
pub(super) fn checked(topic: &str, member: MemberFields, rights: &Rights) -> Result<Member, Problem> {
    model::check_name(topic).map_err(|text| problem(code::TOPIC, text))?;
    rights.may(Action::Subscribe, topic)?;
    rights.check_presence(topic)?;
    check_subject(&member.id, rights)?;
    let member = member.into_member();
    member.check().map_err(presence_problem)?;
    Ok(member)
}

/// A token with a `sub` names its client, which must not take another name.
fn check_subject(id: &str, rights: &Rights) -> Result<(), Problem> {
    match rights.subject() {
        Some(subject) if subject != id => {
            let message = format!("the member's id must be the sub of the token: {}", brief(subject));
            Err(problem(code::NOT_SUBJECT, message))
        }
        _ => Ok(()),
    }
}

pub(super) fn subscription_problem(error: InvalidTopic) -> Problem {
    let code = match error {
        InvalidTopic::TooManySubscriptions | InvalidTopic::TooAmbiguous => code::TOO_MANY,
        _ => code::TOPIC,
    };
    problem(code, topics::subscription_fault(error))
}

pub(super) fn presence_problem(error: PresenceError) -> Problem {
    let code = match error {
        PresenceError::Topic(error) => return subscription_problem(error),
        PresenceError::MemberId => code::TOPIC,
        PresenceError::MemberInfo(_) => code::TOO_LARGE,
        PresenceError::Full => return problem(code::TOO_MANY, "the server has no memory for more members"),
        _ => code::TOO_MANY,
    };
    problem(code, error.to_string())
}
