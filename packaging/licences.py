#!/usr/bin/env python3
"""Prints the licence texts of the crates that the program links, as their licences require.

    packaging/licences.py [FEATURES]     from the root of the repository
"""

import collections
import json
import pathlib
import re
import subprocess
import sys
import textwrap

# The beginnings of the names of files with licence texts and notices.
NAMES = re.compile(r"(licen[cs]e|copying|notice|unlicense|copyright)", re.IGNORECASE)


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def main():
    features = sys.argv[1] if len(sys.argv) > 1 else ""
    tree = ["cargo", "tree", "-p", "tandem-cli", "--locked", "--features", features]
    linked = run(*tree, "-e", "normal", "--prefix", "none", "--format", "{p}")
    linked = {tuple(line.split()[:2]) for line in linked.splitlines() if line}
    metadata = json.loads(run("cargo", "metadata", "--format-version", "1", "--locked"))
    users = collections.defaultdict(list)
    missing = []
    own = set(metadata["workspace_members"])
    for package in sorted(metadata["packages"], key=lambda it: it["id"]):
        if package["id"] in own or (package["name"], "v" + package["version"]) not in linked:
            continue
        crate = f"{package['name']} {package['version']}"
        directory = pathlib.Path(package["manifest_path"]).parent
        files = [it for it in directory.iterdir() if it.is_file() and NAMES.match(it.name)]
        for file in files:
            users[file.read_text(errors="replace").strip()].append(crate)
        if not files:
            missing.append(f"{crate} ({package['license']})")
    print("The program links these crates under these licences.")
    for text, crates in sorted(users.items(), key=lambda it: it[1]):
        print("\n" + "=" * 78)
        print(textwrap.fill(", ".join(sorted(set(crates))), 78))
        print(f"\n{text}")
    if missing:
        print("\n" + "=" * 78)
        print(f"The packages of these crates have no file with a licence: {', '.join(missing)}")


if __name__ == "__main__":
    main()
