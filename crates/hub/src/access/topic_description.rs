//! The options of a topic for the HTTP API, under their names in the configuration.

use std::time::Duration;

use serde_json::{Map, Value, json};
use sinews_server::{TopicName, TopicPattern};

use crate::access::namespaces::{Namespace, NamespaceTable, PublishRate, TopicAccess};
use crate::model::HookKind;

impl TopicAccess {
    const fn name(self) -> &'static str {
        match self {
            Self::Anonymous => "anonymous",
            Self::Authenticated => "authenticated",
            Self::Token => "token",
            Self::Nobody => "nobody",
        }
    }
}

/// The namespaces whose pattern matches a topic.
fn matching<'a>(
    list: impl Iterator<Item = &'a Namespace>,
    topic: &str,
) -> impl Iterator<Item = &'a Namespace> {
    let name = TopicName::parse(topic).ok();
    list.filter(move |namespace| {
        let pattern = TopicPattern::parse(&namespace.pattern);
        name.as_ref().is_some_and(|name| pattern.is_ok_and(|pattern| pattern.matches(name)))
    })
}

fn add(fields: &mut Map<String, Value>, name: &str, value: Option<Value>) {
    if let Some(value) = value
        && !fields.contains_key(name)
    {
        fields.insert(name.to_owned(), value);
    }
}

fn milliseconds(time: Option<Duration>) -> Option<Value> {
    time.map(|time| json!(u64::try_from(time.as_millis()).unwrap_or(u64::MAX)))
}

fn rate(rate: Option<PublishRate>) -> Option<Value> {
    rate.map(|rate| json!(rate.per_second))
}

/// Returns a topic's retention and storage, by namespaces in the order of their patterns.
pub(crate) fn describe_storage(list: &[Namespace], topic: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    for namespace in matching(list.iter(), topic) {
        if namespace.history.is_some() {
            add(&mut fields, "history", namespace.history.map(Value::from));
            add(&mut fields, "history_age", milliseconds(namespace.history_age));
        }
        add(&mut fields, "durable", namespace.durable.map(Value::from));
        add(&mut fields, "durable_keys", namespace.durable_keys.map(Value::from));
    }
    fields
}

/// Returns the rights to a topic, perhaps without namespaces, and its limits.
pub(crate) fn describe_access(table: Option<&NamespaceTable>, topic: &str) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut patterns = Vec::new();
    for namespace in matching(table.iter().flat_map(|table| table.namespaces()), topic) {
        patterns.push(json!(namespace.pattern));
        let access = |access: Option<TopicAccess>| access.map(|access| json!(access.name()));
        let number = |number: Option<usize>| number.map(Value::from);
        for (name, value) in [
            ("publish", access(namespace.publish)),
            ("subscribe", access(namespace.subscribe)),
            ("write_keys", access(namespace.write_keys)),
            ("keyed", namespace.keyed.map(Value::from)),
            ("presence", namespace.presence.map(Value::from)),
            ("key_interval", milliseconds(namespace.key_interval)),
            ("key_ttl", milliseconds(namespace.key_ttl)),
            ("max_keys", number(namespace.max_keys)),
            ("max_message", number(namespace.max_message)),
            ("publishes_per_second", rate(namespace.connection_rate)),
            ("user_publishes_per_second", rate(namespace.user_rate)),
            ("subscribes_per_second", rate(namespace.subscribe_rate)),
            ("calls_per_second", rate(namespace.call_rate)),
        ] {
            add(&mut fields, name, value);
        }
    }
    for name in ["publish", "subscribe", "write_keys"] {
        add(&mut fields, name, Some(json!(TopicAccess::default().name())));
    }
    for name in ["keyed", "presence"] {
        add(&mut fields, name, Some(json!(true)));
    }
    let hooks = [HookKind::Subscribe, HookKind::Publish, HookKind::Rpc]
        .into_iter()
        .filter(|kind| table.is_some_and(|table| table.options_for(topic).hook(*kind).is_some()));
    fields.insert("hooks".to_owned(), hooks.map(|kind| json!(kind.name())).collect());
    fields.insert("namespaces".to_owned(), Value::Array(patterns));
    fields
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::namespaces::Namespaces;
    use crate::outgoing::options::{HookOptions, HookTarget};

    #[test]
    fn most_specific_namespace_that_sets_an_option_is_described() {
        let list = Namespaces::new([
            Namespace::new("chat.>").with_history(100).with_publish(TopicAccess::Nobody).with_max_keys(9),
            Namespace::new("chat.room").with_publish(TopicAccess::Authenticated).with_keyed(false),
            Namespace::new("news").with_publish_hook(HookTarget::Url("http://127.0.0.1:9/".to_owned())),
        ])
        .unwrap();
        let table = NamespaceTable::new(&list, &HookOptions::new());
        let access = |topic| Value::Object(describe_access(table.as_deref(), topic));
        assert_eq!(
            access("chat.room"),
            json!({
                "publish": "authenticated", "subscribe": "token", "write_keys": "token", "keyed": false,
                "presence": true, "max_keys": 9, "hooks": [], "namespaces": ["chat.room", "chat.>"],
            })
        );
        assert_eq!(access("news")["hooks"], json!(["publish"]));
        assert_eq!(access("other")["namespaces"], json!([]));
        assert_eq!(Value::Object(describe_access(None, "a"))["publish"], "token");
        assert_eq!(Value::Object(describe_storage(list.list(), "chat.room")), json!({ "history": 100 }));
    }
}
