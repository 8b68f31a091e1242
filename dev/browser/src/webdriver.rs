//! The subset of WebDriver (W3C, level 2) that the test needs, over HTTP to chromedriver.

use std::process::{Command, Stdio};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use ureq::Agent;

use crate::host::{Failure, Program, Tools, agent, free_port, is_root, retry, until};

/// The key of an element reference in WebDriver (section 12.1 of the specification).
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// The element that was found has been replaced.
const STALE: &str = "stale element reference";

/// Errors of pages that are about to change.
const TRANSIENT: [&str; 4] =
    [STALE, "no such element", "element click intercepted", "element not interactable"];

/// Milliseconds of a script and of a page's load, on a machine that stalls.
const LIMITS_MS: [u64; 2] = [120_000, 120_000];

/// A running chromedriver.
pub(crate) struct Driver {
    base: String,
    agent: Agent,
    browser: String,
    _program: Program,
}

impl Driver {
    pub(crate) fn start(tools: &Tools) -> Result<Self, Failure> {
        let port = free_port()?;
        let mut command = Command::new(&tools.driver);
        command.arg(format!("--port={port}")).stderr(Stdio::null());
        let driver = Self {
            _program: Program::start(&mut command)?,
            base: format!("http://127.0.0.1:{port}"),
            agent: agent(),
            browser: tools.browser.to_string_lossy().into_owned(),
        };
        until("chromedriver is ready", || {
            Ok(driver.call("GET", "/status", None).is_ok_and(|status| status["ready"] == true))
        })?;
        Ok(driver)
    }

    fn call(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let url = format!("{}{path}", self.base);
        let mut answer = match (method, body) {
            ("GET", _) => self.agent.get(&url).call()?,
            ("DELETE", _) => self.agent.delete(&url).call()?,
            (_, body) => {
                let body = body.map_or_else(|| "{}".to_owned(), Value::to_string);
                self.agent.post(&url).content_type("application/json").send(body)?
            }
        };
        // Pictures of a page are larger than the client's default limit for a body.
        let text = answer.body_mut().with_config().limit(64 << 20).read_to_string()?;
        let mut value: Value = serde_json::from_str(&text)
            .map_err(|error| Failure::new(format!("chromedriver answered no JSON: {error}")))?;
        let value = value["value"].take();
        match value["error"].as_str() {
            Some(error) => {
                let message = value["message"].as_str().unwrap_or_default();
                let first_line = message.lines().next().unwrap_or_default();
                let words = format!("{method} {path}: {error}: {first_line}");
                Err(if TRANSIENT.contains(&error) { Failure::transient(words) } else { Failure::new(words) })
            }
            None => Ok(value),
        }
    }
}

/// One browser with its own profile: it shares no storage and no cookies with another session.
pub(crate) struct Session<'d> {
    driver: &'d Driver,
    id: String,
}

impl<'d> Session<'d> {
    pub(crate) fn start(driver: &'d Driver, width: u32, height: u32) -> Result<Self, Failure> {
        // Shared memory is scarce in containers; a second browser would crash.
        let mut options = vec![
            "--headless=new".to_owned(),
            "--disable-gpu".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--hide-scrollbars".to_owned(),
            "--lang=en-GB".to_owned(),
            format!("--window-size={width},{height}"),
        ];
        if is_root() {
            options.push("--no-sandbox".to_owned());
        }
        let body = json!({"capabilities": {"alwaysMatch": {
            "browserName": "chrome",
            // Checks over TLS have a certificate of their own.
            "acceptInsecureCerts": true,
            "timeouts": {"script": LIMITS_MS[0], "pageLoad": LIMITS_MS[1]},
            "goog:chromeOptions": {"binary": driver.browser, "args": options},
            "goog:loggingPrefs": {"browser": "ALL"},
        }}});
        let session = driver.call("POST", "/session", Some(&body))?;
        let id = session["sessionId"].as_str().ok_or_else(|| Failure::new("chromedriver gave no session"))?;
        Ok(Self { driver, id: id.to_owned() })
    }

    fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.driver.call("POST", &format!("/session/{}/{path}", self.id), Some(body))
    }

    fn read(&self, path: &str) -> Result<Value, Failure> {
        self.driver.call("GET", &format!("/session/{}/{path}", self.id), None)
    }

    pub(crate) fn open(&self, url: &str) -> Result<(), Failure> {
        self.post("url", &json!({ "url": url })).map(drop)
    }

    pub(crate) fn reload(&self) -> Result<(), Failure> {
        self.post("refresh", &json!({})).map(drop)
    }

    /// Opens a tab in front of the present tab, which stays hidden until the returned value is dropped.
    pub(crate) fn cover_with_new_tab(&self) -> Result<Covered<'_, 'd>, Failure> {
        let under = self.read("window")?;
        let tab = self.post("window/new", &json!({"type": "tab"}))?;
        self.post("window", &json!({"handle": tab["handle"]}))?;
        Ok(Covered { session: self, under })
    }

    /// Closes the window like its user; the page can send its goodbye.
    pub(crate) fn close_window(&self) -> Result<(), Failure> {
        self.driver.call("DELETE", &format!("/session/{}/window", self.id), None).map(drop)
    }

    fn element(&self, css: &str) -> Result<String, Failure> {
        let found = self.post("element", &json!({"using": "css selector", "value": css}))?;
        let id = found[ELEMENT].as_str().ok_or_else(|| Failure::new("an element without an id"))?;
        Ok(id.to_owned())
    }

    pub(crate) fn click(&self, css: &str) -> Result<(), Failure> {
        retry(|| self.post(&format!("element/{}/click", self.element(css)?), &json!({}))).map(drop)
    }

    /// Presses the keys of `text` in the element. `\u{E007}` is Enter, `\u{E008}` holds Shift.
    pub(crate) fn press(&self, css: &str, text: &str) -> Result<(), Failure> {
        retry(|| self.post(&format!("element/{}/value", self.element(css)?), &json!({ "text": text })))
            .map(drop)
    }

    /// Returns the visible text.
    pub(crate) fn text(&self, css: &str) -> Result<String, Failure> {
        loop {
            match self.read(&format!("element/{}/text", self.element(css)?)) {
                // The page has replaced the element since it was found.
                Err(failure) if failure.to_string().contains(STALE) => {}
                text => return Ok(text?.as_str().unwrap_or_default().to_owned()),
            }
        }
    }

    /// Returns the name of the element for a screen reader.
    pub(crate) fn accessible_name(&self, css: &str) -> Result<String, Failure> {
        let label = self.read(&format!("element/{}/computedlabel", self.element(css)?))?;
        Ok(label.as_str().unwrap_or_default().to_owned())
    }

    /// Runs the body of a function in the page; `arguments` holds `values`.
    pub(crate) fn script(&self, body: &str, values: &[&str]) -> Result<Value, Failure> {
        self.post("execute/sync", &json!({"script": body, "args": values}))
    }

    /// Returns the entries of the browser's console since the last call, as (source, message).
    pub(crate) fn console_errors(&self) -> Result<Vec<(String, String)>, Failure> {
        let entries = self.post("se/log", &json!({"type": "browser"}))?;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entries = entries.as_array().cloned().unwrap_or_default();
        let errors = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        Ok(errors.map(|entry| (text(&entry["source"]), text(&entry["message"]))).collect())
    }

    /// Sends a command of the Chrome DevTools protocol, for features that WebDriver does not have.
    pub(crate) fn devtools(&self, command: &str, parameters: &Value) -> Result<Value, Failure> {
        self.post("goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    pub(crate) fn screenshot(&self) -> Result<Vec<u8>, Failure> {
        let picture = self.read("screenshot")?;
        let encoded = picture.as_str().unwrap_or_default();
        STANDARD.decode(encoded).map_err(|error| Failure::new(format!("picture: {error}")))
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // Closes this browser; fails only if its last window was closed, which closed it already.
        let _ = self.driver.call("DELETE", &format!("/session/{}", self.id), None);
    }
}

/// A session with its page behind another tab, and so hidden.
pub(crate) struct Covered<'s, 'd> {
    session: &'s Session<'d>,
    under: Value,
}

impl Covered<'_, '_> {
    /// Returns the titles in the tab strip, including the hidden page's, without bringing it to the front.
    pub(crate) fn titles(&self) -> Result<Vec<String>, Failure> {
        let targets = self.session.devtools("Target.getTargets", &json!({}))?;
        let targets = targets["targetInfos"].as_array().cloned().unwrap_or_default();
        Ok(targets.iter().filter_map(|target| target["title"].as_str().map(str::to_owned)).collect())
    }
}

impl Drop for Covered<'_, '_> {
    fn drop(&mut self) {
        // If this fails, the next command to the page fails too and reports it.
        let _ = self.session.close_window();
        let _ = self.session.post("window", &json!({"handle": self.under}));
    }
}
