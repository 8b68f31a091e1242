// The start page: commands have the address of this server, a token if it needs one, and a button to copy them; the book is linked if it is online.
document.getElementById("version").textContent = `Sinews ${VERSION}`;
for (const origin of document.querySelectorAll(".origin")) origin.textContent = location.origin;
if (TOKENS) {
  for (const part of document.querySelectorAll(".token")) part.hidden = false;
  for (const option of document.querySelectorAll(".bearer")) option.textContent = '-H "Authorization: Bearer $TOKEN" ';
}

async function copy(command) {
  try {
    await navigator.clipboard.writeText(command.textContent);
  } catch { // no clipboard on insecure origins (a LAN address): copy by selection
    getSelection().selectAllChildren(command);
    document.execCommand("copy");
  }
}

for (const command of document.querySelectorAll(".command")) {
  const button = Object.assign(document.createElement("button"), { type: "button", className: "plain copy" });
  const say = (word) => {
    button.textContent = word;
    button.setAttribute("aria-label", `${word} ${command.textContent}`);
  };
  say("Copy");
  button.onclick = async () => {
    await copy(command);
    say("Copied");
    setTimeout(() => say("Copy"), 1500);
  };
  command.after(" ", button);
}

for (const entry of document.querySelectorAll("#book li")) {
  const { page } = entry.dataset;
  const title = entry.textContent;
  if (BOOK) entry.replaceChildren(Object.assign(document.createElement("a"), { href: `${BOOK}${page}.html`, textContent: title }));
  else entry.append(": ", Object.assign(document.createElement("code"), { textContent: `docs/book/src/${page}.md` }));
}
document.getElementById("book-where").hidden = Boolean(BOOK);
