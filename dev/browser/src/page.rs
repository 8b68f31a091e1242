//! The chat page in its user's terms: names instead of selectors.

use serde_json::Value;

use crate::{
    host::{Failure, until},
    webdriver::{Driver, Session},
};

pub(crate) const ENTER: &str = "\u{E007}";
/// Control pressed, A, all keys released.
const SELECT_ALL: &str = "\u{E009}a\u{E000}";

/// The visible part of the current room's log: the text of every entry with the given test id.
const ENTRIES: &str = "
    const log = document.querySelector('[data-testid=log]:not([hidden])');
    const kind = `[data-testid=${arguments[0]}]`;
    return [...log.querySelectorAll(kind)].map((entry) => entry.querySelector('.text')?.textContent ?? entry.textContent);";

const PEOPLE: &str = "
    return [...document.querySelectorAll('[data-testid=person] .name')].map((name) => name.textContent);";

/// One window with the chat page, and its user.
pub(crate) struct Page<'d> {
    pub(crate) name: &'static str,
    pub(crate) session: Session<'d>,
}

impl<'d> Page<'d> {
    /// Opens the page in a new window, waits for the connection and enters the person's name.
    pub(crate) fn enter(driver: &'d Driver, url: &str, name: &'static str) -> Result<Self, Failure> {
        let page = Self { name, session: Session::start(driver, 1180, 760)? };
        page.session.open(url)?;
        page.until_connected()?;
        page.rename(name)?;
        Ok(page)
    }

    pub(crate) fn rename(&self, name: &str) -> Result<(), Failure> {
        self.session.press("#name-input", &format!("{SELECT_ALL}{name}{ENTER}"))
    }

    pub(crate) fn until_connected(&self) -> Result<(), Failure> {
        self.until("the page is connected", || Ok(self.session.text("#state")? == "connected"))
    }

    /// Calls `until`, with the owner of the window in the error.
    pub(crate) fn until(
        &self,
        what: &str,
        holds: impl FnMut() -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        until(&format!("{what} (in {}'s window)", self.name), holds)
    }

    /// Types a message and clicks the button.
    pub(crate) fn say(&self, text: &str) -> Result<(), Failure> {
        self.session.press("#message", text)?;
        self.session.click("#send")
    }

    pub(crate) fn messages(&self) -> Result<Vec<String>, Failure> {
        self.session.script(ENTRIES, &["msg"]).map(strings)
    }

    pub(crate) fn announcements(&self) -> Result<Vec<String>, Failure> {
        self.session.script(ENTRIES, &["announcement"]).map(strings)
    }

    pub(crate) fn notices(&self) -> Result<Vec<String>, Failure> {
        self.session.script(ENTRIES, &["notice"]).map(strings)
    }

    pub(crate) fn people(&self) -> Result<Vec<String>, Failure> {
        self.session.script(PEOPLE, &[]).map(strings)
    }

    /// Returns the number of matching elements, in the visible room or around it.
    pub(crate) fn count(&self, css: &str) -> Result<u64, Failure> {
        let count = self.session.script("return document.querySelectorAll(arguments[0]).length", &[css])?;
        Ok(count.as_u64().unwrap_or_default())
    }

    pub(crate) fn until_message(&self, text: &str) -> Result<(), Failure> {
        self.until(&format!("the message {text:?} is shown"), || {
            Ok(self.messages()?.iter().any(|message| message == text))
        })
    }

    pub(crate) fn until_announced(&self, text: &str) -> Result<(), Failure> {
        self.until(&format!("the announcement {text:?} is shown"), || {
            Ok(self.announcements()?.iter().any(|announcement| announcement == text))
        })
    }

    pub(crate) fn until_notice(&self, text: &str) -> Result<(), Failure> {
        self.until(&format!("the notice {text:?} is shown"), || {
            Ok(self.notices()?.iter().any(|notice| notice == text))
        })
    }

    /// Waits until all own messages are echoed.
    pub(crate) fn until_nothing_pending(&self) -> Result<(), Failure> {
        self.until("every message is delivered", || Ok(self.count(".pending")? == 0))
    }

    pub(crate) fn until_people(&self, wanted: &[&str]) -> Result<(), Failure> {
        let mut people = Vec::new();
        let shown = self.until(&format!("exactly {wanted:?} are shown as here"), || {
            people = self.people()?;
            people.sort();
            Ok(people == wanted)
        });
        shown.map_err(|failure| Failure::new(format!("{failure}; shown are {people:?}")))
    }

    pub(crate) fn join(&self, room: &str) -> Result<(), Failure> {
        self.session.press("#room-input", &format!("{room}{ENTER}"))?;
        self.until(&format!("the room {room} is shown"), || Ok(self.session.text("#title")? == room))?;
        self.until_connected()
    }

    pub(crate) fn go_to(&self, room: &str) -> Result<(), Failure> {
        self.session.click(&format!("[data-room='{room}'] a"))?;
        self.until(&format!("the room {room} is shown"), || Ok(self.session.text("#title")? == room))
    }
}

fn strings(value: Value) -> Vec<String> {
    let Value::Array(items) = value else { return Vec::new() };
    items.into_iter().filter_map(|item| item.as_str().map(str::to_owned)).collect()
}
