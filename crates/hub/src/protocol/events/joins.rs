//! The topics that a client joins while its response is open: each `join` in the query, with its `member`.

use sinews_server::Request;

use super::request::TOPICS_MAX;
use crate::model;
use crate::model::brief::{brief, brief_error};
use crate::protocol::json::members::MemberFields;

/// A topic to join.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct RequestedJoin {
    pub(super) topic: String,
    /// `None`: the token's user.
    pub(super) member: Option<MemberFields>,
}

/// Reads a request's joins.
///
/// # Errors
/// The problem.
pub(super) fn read(request: &Request<'_>) -> Result<Vec<RequestedJoin>, String> {
    let topics = request.query_values("join").take(TOPICS_MAX + 1).map(|topic| topic.into_owned());
    let members = request.query_values("member").take(TOPICS_MAX + 1);
    let members = members.map(|member| {
        serde_json::from_str::<MemberFields>(&member)
            .map_err(|error| format!("query parameter `member`: {}", brief_error(&error)))
    });
    pair(topics.collect(), members.collect::<Result<_, _>>()?)
}

/// Assigns the members to the topics.
fn pair(topics: Vec<String>, members: Vec<MemberFields>) -> Result<Vec<RequestedJoin>, String> {
    if topics.len() > TOPICS_MAX {
        return Err(format!("query parameter `join` is permitted up to {TOPICS_MAX} times"));
    }
    if topics.is_empty() && !members.is_empty() {
        return Err("query parameter `member` needs `join`".to_owned());
    }
    if members.len() > 1 && members.len() != topics.len() {
        let (members, topics) = (members.len(), topics.len());
        return Err(format!(
            "query parameter `member` is permitted once, or once for each `join` ({topics}), not {members} times"
        ));
    }
    for (at, topic) in topics.iter().enumerate() {
        model::check_name(topic)?;
        if topics[..at].contains(topic) {
            return Err(format!("topic {} is joined twice", brief(topic)));
        }
    }
    let joins = topics.into_iter().enumerate().map(|(at, topic)| {
        let member = members.get(at).or_else(|| members.first()).cloned();
        RequestedJoin { topic, member }
    });
    Ok(joins.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(texts: &[&str]) -> Vec<String> {
        texts.iter().map(|&text| text.to_owned()).collect()
    }

    fn members(ids: &[&str]) -> Vec<MemberFields> {
        let member = |id: &&str| serde_json::from_str(&format!("{{\"id\":\"{id}\"}}")).unwrap();
        ids.iter().map(member).collect()
    }

    #[test]
    fn one_member_joins_all_topics_or_each_topic_has_its_own() {
        for (ids, expected) in [
            (&[][..], [None, None]),
            (&["anna"], [Some("anna"), Some("anna")]),
            (&["anna", "ben"], [Some("anna"), Some("ben")]),
        ] {
            let joins = pair(names(&["a", "b"]), members(ids)).unwrap();
            let expected = expected.map(|id| id.map(|id| members(&[id])[0].clone()));
            assert_eq!(joins.iter().map(|join| join.member.clone()).collect::<Vec<_>>(), expected);
        }
        for (topics, ids) in [
            (&["a", "b"][..], &["x", "y", "z"][..]),
            (&["a", "b", "c"], &["x", "y"]),
            (&[], &["x"]),
            (&["a", "a"], &[]),
            (&["a.*"], &[]),
        ] {
            assert!(pair(names(topics), members(ids)).is_err(), "{topics:?} {ids:?}");
        }
    }
}
