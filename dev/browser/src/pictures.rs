//! Pictures of a staged conversation, for the README and for whoever works on the looks.

use std::{fs, path::Path};

use serde_json::json;

use crate::{
    host::{Failure, Server, Tools},
    page::Page,
    webdriver::Driver,
};

/// (who speaks, what they say); "" is a terminal.
const TALK: &[(&str, &str)] = &[
    ("Mara", "Morning! Is the tide table for the weekend out already?"),
    ("Jonas", "Since an hour ago: https://example.org/tides/saturday"),
    ("Jonas", "High water is at 7:40, so the boat leaves at seven sharp."),
    ("Mara", "Seven it is. I bring coffee, you bring the chart."),
    ("", "harbour gauge: 3.12 m, rising"),
    ("Jonas", "Did you set that up? A gauge that talks to us is wonderful."),
    ("Mara", "One line of curl in a cron job. It says hello every hour."),
    ("Mara", "Ines is coming too, she only has to find her boots."),
];

/// Writes `chat.png` (the README's, sharp) and the same scene dark, on a phone, and with the phone's menu open.
pub(crate) fn take(binary: &Path, tools: &Tools, directory: &Path) -> Result<(), Failure> {
    fs::create_dir_all(directory)?;
    let server = Server::start(binary)?;
    let driver = Driver::start(tools)?;
    let url = server.url("#harbour");
    let [mara, jonas, ines] = [
        actor(&driver, &url, "Mara", 325)?,
        actor(&driver, &url, "Jonas", 45)?,
        actor(&driver, &url, "Ines", 245)?,
    ];
    mara.join("kitchen")?;
    mara.join("lobby")?;
    mara.go_to("harbour")?;
    mara.until_people(&["Ines", "Jonas", "Mara"])?;
    // The stage is empty when the play begins: the notices of arrival are of no interest.
    mara.session.script("document.querySelector('.log:not([hidden])').replaceChildren()", &[])?;
    for (who, words) in TALK {
        match *who {
            "Mara" => mara.say(words)?,
            "Jonas" => jonas.say(words)?,
            _ => server.publish(&server.url("topics/harbour"), words)?,
        }
        if who.is_empty() {
            mara.until_announced(words)?
        } else {
            mara.until_message(words)?
        }
        jonas.until_nothing_pending()?;
    }
    server.publish(&server.url("topics/kitchen"), "the kettle boils")?;
    mara.until_nothing_pending()?;
    ines.session.press("#message", "Found")?;
    mara.until("Ines types", || Ok(mara.session.text("#typing")?.starts_with("Ines")))?;
    shoot(&mara, directory)
}

fn actor<'d>(driver: &'d Driver, url: &str, name: &'static str, hue: u16) -> Result<Page<'d>, Failure> {
    let page = Page::enter(driver, url, name)?;
    // Colours are drawn at random; the picture shall not change from one time to the next.
    page.session.script("localStorage.setItem('sinews.hue', arguments[0])", &[&hue.to_string()])?;
    page.session.reload()?;
    page.until_connected()?;
    Ok(page)
}

fn shoot(page: &Page<'_>, directory: &Path) -> Result<(), Failure> {
    for (device, width, height, mobile) in [("chat", 1180, 740, false), ("phone", 390, 844, true)] {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 2, "mobile": mobile});
        page.session.devtools("Emulation.setDeviceMetricsOverride", &size)?;
        for (scheme, suffix) in [("dark", "-dark"), ("light", "")] {
            let media = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
            page.session.devtools("Emulation.setEmulatedMedia", &media)?;
            write(page, directory, &format!("{device}{suffix}"))?;
        }
    }
    page.session.click("#menu")?;
    // The drawer slides in; its picture is taken when it has arrived.
    page.until("the drawer is open", || {
        let left = page
            .session
            .script("return document.querySelector('#side').getBoundingClientRect().left", &[])?;
        Ok(left.as_f64() == Some(0.0))
    })?;
    write(page, directory, "phone-menu")
}

fn write(page: &Page<'_>, directory: &Path, name: &str) -> Result<(), Failure> {
    let path = directory.join(format!("{name}.png"));
    fs::write(&path, page.session.screenshot()?)?;
    println!("wrote {}", path.display());
    Ok(())
}
