"""Checks that files are YAML, templates of Helm without their actions included: deploy.py FILE...

Prints `ok NAME` or `FAIL NAME: why` for each file.
"""

import re
import sys

import yaml


def without_actions(text):
    """The template with actions on lines of their own removed, and a word in the place of others."""
    lines = [line for line in text.splitlines() if not re.fullmatch(r"\s*\{\{.*\}\}\s*", line)]
    return re.sub(r"\{\{.*?\}\}", "action", "\n".join(lines))


failed = False
for path in sys.argv[1:]:
    name = "/".join(path.split("/")[-3:])
    with open(path, encoding="utf-8") as file:
        text = file.read()
    try:
        documents = list(yaml.safe_load_all(without_actions(text) if "/templates/" in path else text))
        if not any(documents):
            raise ValueError("no document")
        print(f"ok {name}")
    except (ValueError, yaml.YAMLError) as error:
        failed = True
        print(f"FAIL {name}: {' '.join(str(error).split())}")
sys.exit(1 if failed else 0)
