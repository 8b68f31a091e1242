//! Rules for the server's topics, from a hub's namespaces and other options.

use sinews_server::{HistoryPolicy, SlowConsumer, TopicRule};

use crate::access::namespaces::order::{PatternSet, covers, order, overlap};
use crate::access::namespaces::{Namespace, Namespaces};
use crate::error::HubError;
use crate::model::encoding::{EncodedTopics, Positioning};
use crate::streams::follow;
use crate::streams::options::StreamOptions;
use crate::topics::encodings::Encodings;

/// The namespace parts that a hub's builder needs.
pub(crate) struct HubRules {
    /// The most specific first.
    pub(crate) rules: Vec<TopicRule>,
    /// The topics that have a history.
    pub(crate) histories: PatternSet,
    /// The durable topics.
    pub(crate) durable: PatternSet,
    /// The namespaces, with all histories and durable topics.
    pub(crate) namespaces: Vec<Namespace>,
    /// Topics whose messages have a time, or have none.
    pub(crate) timestamps: PatternSet,
}

impl HubRules {
    /// Merges the namespaces with the histories of the hub's builder and the durable topics of its streams. The chat's
    /// rooms retain `chat_messages` messages unless another option decides it.
    ///
    /// # Errors
    /// The contradiction.
    pub(crate) fn new(
        encodings: &Encodings,
        namespaces: &Namespaces,
        histories: &[(String, usize)],
        chat_messages: usize,
        mut streams: Option<&mut StreamOptions>,
    ) -> Result<Self, HubError> {
        let mut list = namespaces.list().to_vec();
        for (pattern, messages) in histories {
            match list.iter_mut().find(|known| known.pattern == *pattern) {
                // The first one applies, as it always has.
                Some(known) if known.history.is_some() && namespaces.history_of(pattern).is_none() => {}
                Some(known) if known.history.is_some() => {
                    return Err(contradiction(pattern, "its history is set by `history`, too"));
                }
                Some(known) => known.history = Some(*messages),
                None => list.push(Namespace::new(pattern).with_history(*messages)),
            }
        }
        let timestamps = list.iter().filter_map(|it| Some((it.pattern.clone(), it.timestamps?)));
        let timestamps = PatternSet::new(timestamps);
        if let Some(streams) = streams.as_deref_mut() {
            streams.timestamps = timestamps.clone();
        }
        let durable = durable_topics(&mut list, streams)?;
        add_chat(&mut list, chat_messages);
        list.sort_by(|a, b| order(&a.pattern, &b.pattern));
        let retaining = list.iter().filter_map(|namespace| {
            Some((namespace.pattern.clone(), namespace.history? > 0 && !durable.is_on(&namespace.pattern)))
        });
        let histories = PatternSet::new(retaining);
        let mut rules = Vec::new();
        for at in 0..list.len() {
            add_rules(encodings, &list, at, &durable, &mut rules);
        }
        Ok(Self { rules, histories, durable, namespaces: list, timestamps })
    }
}

/// A namespace contradicts another option.
fn contradiction(pattern: &str, why: &str) -> HubError {
    HubError::setting(why).at(format_args!("namespace {pattern:?}"))
}

/// Checks that no durable topic has a compacted stream. Its publications, which have no keys, would be rejected.
///
/// # Errors
/// The patterns that match the same topics, and the option of each.
pub(crate) fn check_compaction(namespaces: &Namespaces, streams: &StreamOptions) -> Result<(), HubError> {
    // A broker compacts no stream.
    if streams.broker.is_some() {
        return Ok(());
    }
    for compacted in &streams.compacted {
        let is_excepted = |durable: &str| {
            let decides = |other: &String| order(other, durable).is_lt() && covers(other, compacted);
            streams.exceptions.iter().any(decides)
        };
        let is_wrong = |durable: &&String| overlap(durable, compacted) && !is_excepted(durable);
        if let Some(durable) = streams.topics.iter().find(is_wrong) {
            let is_namespace = |it: &Namespace| it.pattern == *durable && it.durable == Some(true);
            let option = if namespaces.list().iter().any(is_namespace) {
                "durable namespaces (namespace.*.durable)"
            } else {
                "durable topics (streams.durable_topics)"
            };
            return Err(HubError::setting(format!(
                "{compacted:?} matches topics of {durable:?} of the {option}: a compacted stream rejects their \
                 publications, which have no keys"
            )));
        }
    }
    Ok(())
}

impl Namespaces {
    fn history_of(&self, pattern: &str) -> Option<usize> {
        self.list().iter().find(|namespace| namespace.pattern == pattern)?.history
    }
}

/// Adds the streams' durable topics to the list, and the list's to the streams.
fn durable_topics(
    list: &mut Vec<Namespace>,
    streams: Option<&mut StreamOptions>,
) -> Result<PatternSet, HubError> {
    let needs = |field: fn(&Namespace) -> Option<bool>, what: &str| {
        let found = list.iter().find(|namespace| field(namespace) == Some(true));
        found.map_or(Ok(()), |found| {
            Err(contradiction(&found.pattern, &format!("durable {what} need streams")))
        })
    };
    let Some(streams) = streams else {
        needs(|namespace| namespace.durable, "topics")?;
        needs(|namespace| namespace.durable_keys, "keys")?;
        return Ok(PatternSet::default());
    };
    let why = "the topics of streams make it durable";
    merge(list, &mut streams.topics, &mut streams.exceptions, |it| &mut it.durable, why)?;
    let why = "the keyed topics of streams make its keys durable";
    let keyed_exceptions = &mut streams.keyed_exceptions;
    merge(list, &mut streams.durable_keys, keyed_exceptions, |it| &mut it.durable_keys, why)?;
    let switches = list.iter().filter_map(|known| Some((known.pattern.clone(), known.durable?)));
    Ok(PatternSet::new(switches))
}

/// Adds the streams' patterns to the list, and the list's, with the exceptions, to the streams. `why`: the reason why a
/// namespace's switch cannot be off where the streams set it.
fn merge(
    list: &mut Vec<Namespace>,
    patterns: &mut Vec<String>,
    exceptions: &mut Vec<String>,
    field: fn(&mut Namespace) -> &mut Option<bool>,
    why: &str,
) -> Result<(), HubError> {
    for pattern in patterns.iter() {
        let at = list.iter().position(|known| known.pattern == *pattern).unwrap_or_else(|| {
            list.push(Namespace::new(pattern));
            list.len() - 1
        });
        let is_on = field(&mut list[at]);
        if *is_on == Some(false) {
            return Err(contradiction(pattern, why));
        }
        *is_on = Some(true);
    }
    let switches: Vec<(String, bool)> =
        list.iter_mut().filter_map(|known| Some((known.pattern.clone(), (*field(known))?))).collect();
    let of =
        |on: bool| switches.iter().filter(|(_, is)| *is == on).map(|(pattern, _)| pattern.clone()).collect();
    *patterns = of(true);
    *exceptions = of(false);
    Ok(())
}

/// Topics of the chat page's rooms.
const CHAT_ROOMS: &str = "sinews.chat.*";

/// Adds the history of the chat's rooms, unless a history or a durable topic covers the rooms.
fn add_chat(list: &mut Vec<Namespace>, messages: usize) {
    let decides = |known: &Namespace| known.history.is_some() || known.durable == Some(true);
    if messages == 0 || list.iter().any(|known| decides(known) && covers(&known.pattern, CHAT_ROOMS)) {
        return;
    }
    match list.iter_mut().find(|known| known.pattern == CHAT_ROOMS) {
        Some(known) => known.history = Some(messages),
        None => list.push(Namespace::new(CHAT_ROOMS).with_history(messages)),
    }
}

/// Adds a namespace's rules, one for each encoding of its topics.
fn add_rules(
    encodings: &Encodings,
    list: &[Namespace],
    at: usize,
    durable: &PatternSet,
    rules: &mut Vec<TopicRule>,
) {
    let namespace = &list[at];
    let pattern = &*namespace.pattern;
    let slow_rule = |encoded: EncodedTopics, slow: &Option<SlowConsumer>| {
        let rule = TopicRule::new(encoded.topic(pattern));
        match slow {
            Some(slow) if encoded.is_shared() => rule.with_slow_consumer(slow.clone()),
            _ => rule,
        }
    };
    let encoded = encodings.iter().map(|registered| registered.topics);
    let (positioned, plain): (Vec<_>, Vec<_>) =
        encoded.partition(|encoded| encoded.positioning() != Positioning::None);
    if namespace.slow_consumer.is_some() {
        let plain = plain.into_iter().filter(|encoded| encoded.is_shared());
        rules.extend(plain.map(|encoded| slow_rule(encoded, &namespace.slow_consumer).with_inheritance()));
    }
    if durable.is_on(pattern) {
        // Its own namespace, or a less specific one, makes it durable.
        return rules.extend(positioned.into_iter().map(|encoded| follow::rule(encoded, pattern)));
    }
    let history = |rule: TopicRule, messages: Option<usize>, namespace: &Namespace| match messages {
        None => rule,
        Some(0) => rule.without_history(),
        Some(messages) => {
            let policy = HistoryPolicy::new(messages);
            let policy = match namespace.history_age {
                Some(age) => policy.with_max_age(age),
                None => policy,
            };
            rule.with_history(policy)
        }
    };
    let is_exception = namespace.durable == Some(false);
    if !is_exception {
        for encoded in positioned {
            let has_slow_rule = encoded.is_shared() && namespace.slow_consumer.is_some();
            if has_slow_rule || namespace.history.is_some() {
                let rule = slow_rule(encoded, &namespace.slow_consumer).with_inheritance();
                rules.push(history(rule, namespace.history, namespace));
            }
        }
        return;
    }
    // It inherits nothing from the durable topics around it.
    let around =
        || list[at..].iter().filter(|other| covers(&other.pattern, pattern) && other.durable != Some(true));
    let slow = around().find_map(|other| other.slow_consumer.clone());
    for encoded in positioned {
        let rule = slow_rule(encoded, &slow);
        rules.push(match around().find(|other| other.history.is_some()) {
            Some(other) => history(rule, other.history, other),
            None => rule.without_history(),
        });
    }
}

#[cfg(all(test, feature = "pusher"))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::hub::encodings;

    fn rules(
        namespaces: Vec<Namespace>,
        histories: &[(&str, usize)],
        durable: Option<&[&str]>,
    ) -> Result<(HubRules, Option<StreamOptions>), HubError> {
        let histories: Vec<_> =
            histories.iter().map(|(pattern, count)| ((*pattern).to_owned(), *count)).collect();
        let mut streams = durable.map(|patterns| {
            StreamOptions::in_directory("a")
                .with_durable_topics(patterns.iter().map(|&pattern| pattern.to_owned()))
        });
        let (encodings, namespaces) = (encodings(&Arc::default()), Namespaces::new(namespaces).unwrap());
        let rules = HubRules::new(&encodings, &namespaces, &histories, 100, streams.as_mut())?;
        Ok((rules, streams))
    }

    #[test]
    fn histories_come_from_namespaces_and_options() {
        let namespaces = vec![Namespace::new("a.b").with_history(0), Namespace::new("c").with_history(2)];
        let (rules, _) = rules(namespaces, &[("a.>", 5), ("a.>", 6)], None).unwrap();
        for (topic, on) in [("a.x", true), ("a.b", false), ("c", true), ("d", false)] {
            assert_eq!(rules.histories.is_on(topic), on, "{topic}");
        }
        assert_eq!(rules.rules.len(), 8, "two encodings have positions, also of the chat's rooms");
    }

    #[test]
    fn chat_rooms_have_a_history_unless_another_option_decides() {
        let is_on = |namespaces, histories: &[(&str, usize)], durable| {
            let (rules, _) = rules(namespaces, histories, durable).unwrap();
            let list = rules.rules.len();
            (
                rules.histories.is_on("sinews.chat.lobby"),
                rules.histories.is_on("sinews.chat.lobby.typing"),
                list,
            )
        };
        assert_eq!(is_on(vec![], &[], None), (true, false, 2));
        assert_eq!(is_on(vec![Namespace::new(">").with_history(0)], &[], None), (false, false, 2));
        assert_eq!(is_on(vec![], &[("sinews.>", 5)], None), (true, true, 2));
        assert_eq!(is_on(vec![], &[], Some(&[">"])), (false, false, 2), "two encodings have positions");
        // Other namespaces decide other topics, or other options.
        assert_eq!(
            is_on(vec![Namespace::new("sinews.chat.lobby").with_history(0)], &[], None),
            (false, false, 4)
        );
        let slow = Namespace::new("sinews.chat.*").with_slow_consumer(SlowConsumer::Conflate);
        assert!(is_on(vec![slow], &[], None).0);
    }

    #[test]
    fn durable_topics_have_exceptions() {
        let namespaces = vec![
            Namespace::new("a.b.>").with_durable(false).with_history(3),
            Namespace::new("d").with_durable(true),
        ];
        let (rules, streams) = rules(namespaces, &[("a.x", 5)], Some(&["a.>"])).unwrap();
        let durable = streams.unwrap();
        assert_eq!((durable.topics.len(), &*durable.exceptions), (2, &["a.b.>".to_owned()][..]));
        for (topic, on) in [("a.b.c", true), ("a.x", false), ("d", false)] {
            assert_eq!(
                rules.histories.is_on(topic),
                on,
                "{topic}: a durable topic has a stream in place of a history"
            );
        }
    }

    #[test]
    fn durable_keys_have_exceptions() {
        let namespaces = vec![
            Namespace::new("a.b.>").with_durable_keys(false),
            Namespace::new("d").with_durable_keys(true).with_history(3),
        ];
        let mut streams = StreamOptions::in_directory("a").with_durable_keys(["a.>".to_owned()]);
        let namespaces = Namespaces::new(namespaces).unwrap();
        let encodings = encodings(&Arc::default());
        let rules = HubRules::new(&encodings, &namespaces, &[], 0, Some(&mut streams)).unwrap();
        assert!(rules.histories.is_on("d"), "messages are independent of keys");
        let keyed = streams.keyed();
        for (topic, on) in [("a.x", true), ("a.b.c", false), ("d", true), ("e", false)] {
            assert_eq!(keyed.is_on(topic), on, "{topic}");
        }
        let namespaces = Namespaces::new([Namespace::new("a").with_durable_keys(false)]).unwrap();
        let mut streams = StreamOptions::in_directory("a").with_durable_keys(["a".to_owned()]);
        let error =
            HubRules::new(&encodings, &namespaces, &[], 0, Some(&mut streams)).err().unwrap().to_string();
        assert!(error.contains("make its keys durable"), "{error}");
        let namespaces = Namespaces::new([Namespace::new("a").with_durable_keys(true)]).unwrap();
        let error = HubRules::new(&encodings, &namespaces, &[], 0, None).err().unwrap().to_string();
        assert!(error.contains("durable keys need streams"), "{error}");
    }

    #[test]
    fn contradictions_are_reported() {
        let durable = |on| vec![Namespace::new("a").with_durable(on)];
        let kept = vec![Namespace::new("a").with_history(1)];
        for (fault, result) in [
            ("durable topics need streams", rules(durable(true), &[], None)),
            ("make it durable", rules(durable(false), &[], Some(&["a"]))),
            ("set by `history`, too", rules(kept, &[("a", 2)], None)),
        ] {
            let error = result.map(drop).unwrap_err().to_string();
            assert!(error.starts_with("namespace \"a\": ") && error.ends_with(fault), "{error}");
        }
        assert!(rules(durable(false), &[], None).is_ok());
    }
}
