"""licences.py ROOT names|texts: prints which licences Weald and every library have that the program is linked with, as the
file copyright of a Debian package, or the texts of these licences."""

import json
import pathlib
import subprocess
import sys

NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT", "UNLICENSE")


def linked(metadata):
    """The packages that weald-cli is linked with, by name and version."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    start = next(package["id"] for package in packages.values() if package["name"] == "weald-cli")
    found, waiting = {start}, [start]
    while waiting:
        for dependency in nodes[waiting.pop()]["deps"]:
            kinds = dependency["dep_kinds"]
            if any(kind["kind"] is None for kind in kinds) and dependency["pkg"] not in found:
                found.add(dependency["pkg"])
                waiting.append(dependency["pkg"])
    chosen = [packages[package_id] for package_id in found]
    return sorted(chosen, key=lambda package: (package["name"], package["version"]))


def texts(package):
    """The texts of its licences."""
    directory = pathlib.Path(package["manifest_path"]).parent
    files = [path for path in directory.rglob("*") if path.is_file() and path.name.upper().startswith(NAMES)]
    files = [path for path in files if path.suffix.lower() in ("", ".md", ".txt") or "-" in path.name]
    for path in sorted(files):
        yield path.read_text(encoding="utf-8", errors="replace").strip()


def main():
    root = pathlib.Path(sys.argv[1])
    target = next(
        line.split(": ")[1]
        for line in subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout.splitlines()
        if line.startswith("host: ")
    )
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    packages = linked(json.loads(output))
    if not packages:
        sys.exit("licences.py: no package is linked")
    libraries = [package for package in packages if not package["name"].startswith("weald")]
    for package in libraries:
        if not package["license"] and not package["license_file"]:
            sys.exit(f"licences.py: {package['name']} names no licence")
    if sys.argv[2] == "names":
        print("Copyright: the Weald developers\n")
        print("Weald is licensed under MIT or Apache-2.0, at your option.\n")
        print((root / "LICENSE-MIT").read_text(encoding="utf-8"))
        print("The Apache licence, version 2.0, is /usr/share/common-licenses/Apache-2.0.\n")
        print("The program is linked with these libraries. The texts of their licences, with the")
        print("names of their authors, are in licences.gz beside this file.\n")
        for package in libraries:
            print(f"{package['name']} {package['version']}: {package['license'] or package['license_file']}")
        return
    seen = {}
    for package in libraries:
        for text in texts(package):
            # Texts that differ in white space alone are one.
            _, names = seen.setdefault(" ".join(text.split()), (text, []))
            names.append(f"{package['name']} {package['version']}")
    for text, names in seen.values():
        print("-" * 72 + f"\nOf {', '.join(names)}:\n\n{text}\n")


main()
