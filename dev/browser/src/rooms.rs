//! The chat's rooms: their history on a server without options, and their keyboard.

use std::path::Path;

use serde_json::json;

use crate::{
    host::{Failure, Server, Tools, ensure, go_through, until},
    page::{ENTER, Page},
    webdriver::Driver,
};

struct World<'d> {
    server: Server,
    page: Page<'d>,
}

/// The function of a check.
type Check = fn(&mut World<'_>) -> Result<(), Failure>;

const CHECKS: &[(&str, Check)] = &[
    ("a reload shows the messages of a room, without any option of the server", reload_shows_messages),
    ("a room with a dot in its name is the topic of this name, without a history", other_topics_are_rooms),
    ("rooms are entered and left by the keyboard", keyboard_changes_rooms),
    ("the menu of a phone is opened, used and closed by the keyboard", keyboard_uses_menu),
];

/// Runs all checks and returns the numbers of passed and failed checks.
pub(crate) fn run(binary: &Path, tools: &Tools) -> Result<[usize; 2], Failure> {
    let server = Server::start_with(binary, &[])?;
    let driver = Driver::start(tools)?;
    let page = Page::enter(&driver, &server.url("chat"), "Anna")?;
    Ok(go_through(&mut World { server, page }, CHECKS))
}

const TAB: &str = "\u{E004}";
/// Shift and the tabulator; E000 releases Shift.
const BACK: &str = "\u{E008}\u{E004}\u{E000}";
const ESCAPE: &str = "\u{E00C}";

impl World<'_> {
    /// Presses keys at the element with the focus.
    fn keys(&self, keys: &str) -> Result<(), Failure> {
        self.page.session.press(":focus", keys)
    }

    /// Waits until the focus is at an element with this name or id.
    fn until_focused(&self, wanted: &str) -> Result<(), Failure> {
        let script = "const { id, textContent, ariaLabel } = document.activeElement; return id || ariaLabel || textContent";
        let mut found = serde_json::Value::Null;
        let focused = until(&format!("the focus is at {wanted}"), || {
            found = self.page.session.script(script, &[])?;
            Ok(found == wanted)
        });
        focused.map_err(|failure| Failure::new(format!("{failure}; it is at {found}")))
    }

    fn until_title(&self, room: &str) -> Result<(), Failure> {
        self.page
            .until(&format!("the room {room} is shown"), || Ok(self.page.session.text("#title")? == room))
    }
}

fn reload_shows_messages(w: &mut World<'_>) -> Result<(), Failure> {
    w.page.say("This stays")?;
    w.page.until_nothing_pending()?;
    let command = w.page.session.text("#curl")?;
    let url = command.strip_prefix("curl -d 'hello' ").unwrap_or_default();
    w.server.publish(url, "hello")?;
    w.page.until_announced("hello")?;
    w.page.session.reload()?;
    w.page.until_connected()?;
    w.page.until_message("This stays")?;
    w.page.until_announced("hello")?;
    let times = w.page.messages()?.len();
    ensure(times == 1, || format!("{times} messages are shown"))?;
    // The address of the topic is the same room.
    w.page.session.open(&w.server.url("chat#sinews.chat.lobby"))?;
    w.until_title("lobby")
}

fn other_topics_are_rooms(w: &mut World<'_>) -> Result<(), Failure> {
    w.page.join("prices.gold")?;
    w.server.publish(&w.server.url("topics/prices.gold"), "3712")?;
    w.page.until_announced("3712")?;
    w.page.session.reload()?;
    w.page.until("the option is named that retains messages", || {
        Ok(w.page.session.text("#empty-text")?.contains("--history 'prices.gold=100'"))
    })?;
    w.page.session.click("[data-room='prices.gold'] button")?;
    w.until_title("lobby")
}

fn keyboard_changes_rooms(w: &mut World<'_>) -> Result<(), Failure> {
    w.page.session.press("#room-input", &format!("attic{ENTER}"))?;
    w.until_title("attic")?;
    w.until_focused("room-input")?;
    // The order of the document: lobby, Leave lobby, attic, Leave attic, the field.
    w.keys(BACK)?;
    w.until_focused("Leave attic")?;
    for _ in 0..3 {
        w.keys(BACK)?;
    }
    w.until_focused("lobby")?;
    w.keys(ENTER)?;
    w.until_title("lobby")?;
    w.until_focused("lobby")?;
    w.keys(TAB)?;
    w.until_focused("Leave lobby")?;
    w.keys(ENTER)?;
    w.until_title("attic")?;
    w.until_focused("room-input")?;
    let rooms = w.page.count("[data-testid=room]")?;
    ensure(rooms == 1, || format!("{rooms} rooms are left"))?;
    w.keys(&format!("lobby{ENTER}"))?;
    w.until_title("lobby")
}

fn keyboard_uses_menu(w: &mut World<'_>) -> Result<(), Failure> {
    let phone = json!({"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": true});
    w.page.session.devtools("Emulation.setDeviceMetricsOverride", &phone)?;
    let is_open = |wanted: bool| {
        w.page.until(&format!("the menu is open: {wanted}"), || {
            Ok((w.page.count("#menu[aria-expanded=true]")? == 1) == wanted)
        })
    };
    w.page.session.press("#menu", ENTER)?;
    is_open(true)?;
    w.until_focused("attic")?;
    w.keys(ESCAPE)?;
    is_open(false)?;
    w.until_focused("menu")?;
    w.keys(ENTER)?;
    is_open(true)?;
    // The content behind the open menu takes no focus.
    let behind = "return document.querySelector('main').contains(document.activeElement)";
    for _ in 0..7 {
        w.keys(TAB)?;
        let is_behind = w.page.session.script(behind, &[])?;
        ensure(is_behind == false, || "the focus went behind the menu".to_owned())?;
    }
    w.page.session.press("[data-room=attic] a", ENTER)?;
    w.until_title("attic")?;
    is_open(false)?;
    w.until_focused("menu")?;
    w.page.session.devtools("Emulation.clearDeviceMetricsOverride", &json!({})).map(drop)
}
