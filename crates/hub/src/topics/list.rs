//! The list of topics.

use sinews_server::{Publisher, TopicName, TopicPattern};

use super::{TopicForm, check_subscription};
use crate::problem::{Problem, code, problem};

/// Maximum number of topics that one look at the list reads, so that other work of the thread is not delayed.
const SCAN_MAX: usize = Publisher::TOPICS_MAX;

/// A search of topics by a pattern.
pub(crate) struct TopicScan {
    filter: TopicPattern<'static>,
    /// The beginning of all names that match.
    prefix: String,
    after: Option<String>,
}

impl TopicScan {
    /// Searches the topics that match a name or pattern.
    ///
    /// # Errors
    /// The pattern is invalid.
    pub(crate) fn new(filter: &str) -> Result<Self, Problem> {
        check_subscription(filter).map_err(|text| problem(code::TOPIC, text))?;
        let parsed = TopicPattern::parse(filter.to_owned());
        let parsed = parsed.map_err(|error| problem(code::TOPIC, error.to_string()))?;
        let wildcard = filter.split('.').position(|token| matches!(token, "*" | ">"));
        let prefix = match wildcard {
            None => filter.to_owned(),
            Some(tokens) => filter.split_inclusive('.').take(tokens).collect(),
        };
        Ok(Self { filter: parsed, prefix, after: None })
    }

    /// Starts after a name.
    pub(crate) fn set_after(&mut self, after: Option<String>) {
        self.after = after;
    }

    /// Whether a topic matches.
    pub(crate) fn matches(&self, topic: &str) -> bool {
        TopicName::parse(topic).is_ok_and(|topic| self.filter.matches(&topic))
    }

    /// The next names of both forms with their subscribers, matching or not; advances to the last of them. Empty at
    /// the end.
    pub(crate) fn next(&mut self, publisher: &Publisher) -> Vec<(String, usize)> {
        let listed = [TopicForm::Framed, TopicForm::Plain].map(|form| {
            let after = self.after.as_ref().map(|after| form.topic(after));
            let topics = publisher.topics(&form.topic(&self.prefix), after.as_deref(), SCAN_MAX);
            let is_full = topics.len() == SCAN_MAX;
            let named = topics
                .into_iter()
                .filter_map(|topic| Some((TopicForm::name(&topic.name)?.to_owned(), topic.subscribers)));
            (named.collect::<Vec<_>>(), is_full)
        });
        // Beyond the end of a full page, the other form may have names that are not compared yet.
        let end = listed
            .iter()
            .filter(|(_, is_full)| *is_full)
            .filter_map(|(names, _)| Some(names.last()?.0.clone()));
        let end = end.min();
        let mut names: Vec<(String, usize)> = listed.into_iter().flat_map(|(names, _)| names).collect();
        names.retain(|(name, _)| end.as_ref().is_none_or(|end| name <= end));
        names.sort_unstable();
        let mut merged: Vec<(String, usize)> = Vec::with_capacity(names.len());
        for (name, subscribers) in names {
            match merged.last_mut() {
                Some(last) if last.0 == name => last.1 += subscribers,
                _ => merged.push((name, subscribers)),
            }
        }
        if let Some((last, _)) = merged.last() {
            self.after = Some(last.clone());
        }
        merged
    }
}
