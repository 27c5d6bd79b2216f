#!/usr/bin/env python3
"""Holds the dependency graph to deny.toml, each library to its dependency budget, and each package to its Rust version.

cargo-deny is the reference and runs in the public workflow. This needs nothing but Python and cargo, so that the
same rules hold in a checkout on any machine. Advisories are left to cargo-deny: they need a database.

    .ci/deny.py               checks the workspace
    .ci/deny.py --self-test   shows that every rule can fail
"""

import json
import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Crates a library may bring into a program: `cargo tree -e normal` with default features on this platform, the
# library itself included. Raising a number is a decision to be argued in the commit that does it. Packages that are
# not published need none.
BUDGETS = {
    "ron-core": 45,
    "ron-dht": 70,
    "ron-index": 50,
    "ron-overlay": 70,
    "ron-storage": 50,
    "ron-registry": 70,
}

# Licences that what bench/ is measured against may have beyond those of deny.toml: root certificates that iroh brings,
# and three crates of it for browsers. Both are permissive, and nothing of bench/ is published.
BENCH_LICENCES = ["CDLA-Permissive-2.0", "Unlicense"]

# What this script enforces. Anything else in these sections would be silently ignored, so it is an error.
UNDERSTOOD = {
    "licenses": {"allow", "unused-allowed-license"},
    "bans": {"multiple-versions", "wildcards", "allow-wildcard-paths", "deny"},
    "sources": {"unknown-registry", "unknown-git"},
}


class Malformed(Exception):
    """A licence expression that cannot be read."""


def satisfiable(expression, allowed):
    """Whether the licence expression can be met with the licences in `allowed` alone.

    SPDX: OR, AND, WITH and parentheses, AND binding tighter than OR; and the old form with a slash for OR.
    """
    tokens = re.findall(r"[()/]|[^\s()/]+", expression)
    at = 0

    def peek():
        return tokens[at] if at < len(tokens) else None

    def take():
        nonlocal at
        at += 1
        return tokens[at - 1]

    def either():
        met = both()
        while peek() in ("OR", "/"):
            take()
            met = both() or met
        return met

    def both():
        met = single()
        while peek() == "AND":
            take()
            met = single() and met
        return met

    def single():
        if peek() is None or peek() in ("OR", "AND", "WITH", "/", ")"):
            raise Malformed(f"a licence expected in {expression!r}")
        if peek() == "(":
            take()
            met = either()
            if peek() != ")":
                raise Malformed(f"a parenthesis is open in {expression!r}")
            take()
            return met
        licence = take()
        if peek() == "WITH":
            take()
            if peek() is None or peek() in ("OR", "AND", "WITH", "/", "(", ")"):
                raise Malformed(f"an exception expected in {expression!r}")
            licence = f"{licence} WITH {take()}"
        return licence in allowed

    met = either()
    if peek() is not None:
        raise Malformed(f"{peek()!r} is left over in {expression!r}")
    return met


def check_rules(rules):
    """Whether deny.toml says what this script enforces."""
    for section, understood in UNDERSTOOD.items():
        if section not in rules:
            yield f"deny.toml: section {section} is missing"
            continue
        for key in sorted(rules.get(section, {}).keys() - understood):
            yield f"deny.toml: .ci/deny.py does not understand {section}.{key}"
    for section, key in [("licenses", "allow"), ("bans", "deny")]:
        if not rules.get(section, {}).get(key):
            yield f"deny.toml: {section}.{key} is empty"
    for section, key in [("bans", "wildcards"), ("sources", "unknown-registry"), ("sources", "unknown-git")]:
        if rules.get(section, {}).get(key) != "deny":
            yield f'deny.toml: {section}.{key} must be "deny"'
    for ban in rules.get("bans", {}).get("deny", []):
        whole = isinstance(ban, dict) and set(ban) <= {"crate", "reason"} and re.fullmatch(r"[\w-]+", ban["crate"])
        if not whole:
            yield f"deny.toml: .ci/deny.py only understands bans of whole crates, not {ban}"


def check_graph(rules, metadata):
    """Everything in the output of `cargo metadata` that the rules forbid."""
    allowed = set(rules["licenses"]["allow"])
    banned = {ban["crate"]: ban.get("reason", "no reason given") for ban in rules["bans"]["deny"]}
    wildcard_paths = rules["bans"].get("allow-wildcard-paths", False)
    members = set(metadata["workspace_members"])

    for package in metadata["packages"]:
        name = f"{package['name']} {package['version']}"

        if package["license"] is None:
            yield f"{name}: says no licence"
        else:
            try:
                if not satisfiable(package["license"], allowed):
                    yield f"{name}: licence {package['license']} is not allowed"
            except Malformed as why:
                yield f"{name}: {why}"

        if package["name"] in banned:
            yield f"{name}: banned: {banned[package['name']]}"

        # The default registry is the only one that dependencies do not name; see below.
        source = package["source"]
        if source is None:
            if package["id"] not in members:
                yield f"{name}: is a path outside the workspace"
        elif not source.startswith("registry+"):
            yield f"{name}: does not come from the default registry but from {source}"

        private = package.get("publish") == []
        for dependency in package["dependencies"]:
            wanted = f"{name}: dependency {dependency['name']}"
            if dependency.get("registry") is not None:
                yield f"{wanted} names another registry"
            by_path = dependency.get("path") is not None
            excused = wildcard_paths and by_path and (private or dependency["kind"] == "dev")
            if dependency["req"] == "*" and not excused:
                yield f"{wanted} takes any version"


def built(metadata, tree):
    """The metadata without packages that no build on any platform contains.

    A lock file and the metadata also list what optional dependencies would bring that are named by weak features
    (`dep?/feature`) and that nobody turns on. `tree` is the output of `cargo tree`, which does not.
    """
    listed = {tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()}
    is_built = lambda package: (package["name"], f"v{package['version']}") in listed
    return {**metadata, "packages": [package for package in metadata["packages"] if is_built(package)]}


def for_bench(rules):
    """The rules with the licences that only bench/ may have."""
    licenses = rules["licenses"]
    return {**rules, "licenses": {**licenses, "allow": [*licenses["allow"], *BENCH_LICENCES]}}


def check_budgets(budgets, sizes):
    """Libraries that bring more than they may, and such without a budget."""
    for library, size in sizes.items():
        if library not in budgets:
            yield f"{library}: has no dependency budget in .ci/deny.py (it brings {size} crates)"
        elif size > budgets[library]:
            yield f"{library}: brings {size} crates, its budget is {budgets[library]}"
    for library in sorted(budgets.keys() - sizes.keys()):
        yield f"{library}: has a dependency budget in .ci/deny.py and is not in the workspace"


def check_rust_versions(metadata):
    """Dependencies that say they need a newer compiler than the package that brings them, with any features, promises."""
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    number = lambda version: tuple(int(part) for part in version.split("-")[0].split("."))[:2]
    for member in metadata["workspace_members"]:
        ours = packages[member]
        name, promised = ours["name"], ours.get("rust_version")
        if promised is None:
            yield f"{name}: says no rust-version"
            continue
        reached, waiting = set(), [member]
        while waiting:
            for dependency in nodes[waiting.pop()]["deps"]:
                is_built = any(kind["kind"] != "dev" for kind in dependency["dep_kinds"])
                if is_built and dependency["pkg"] not in reached:
                    reached.add(dependency["pkg"])
                    waiting.append(dependency["pkg"])
        for package in sorted((packages[one] for one in reached), key=lambda package: package["name"]):
            needed = package.get("rust_version")
            if needed is not None and number(needed) > number(promised):
                yield f"{name}: promises Rust {promised}, and {package['name']} {package['version']} needs {needed}"


def cargo(*arguments):
    return subprocess.run(["cargo", *arguments], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def tree_size(library):
    lines = cargo("tree", "--locked", "-e", "normal", "-p", library, "--prefix", "none").splitlines()
    return len({tuple(line.split()[:2]) for line in lines if line.strip()})


def check_workspace():
    rules = tomllib.loads((ROOT / "deny.toml").read_text())
    # The graph is judged by rules that are understood, or not at all.
    if unclear := list(check_rules(rules)):
        sys.exit("\n".join(unclear))
    graph = lambda *of: json.loads(cargo("metadata", "--format-version", "1", "--locked", "--all-features", *of))
    metadata = graph()
    members = set(metadata["workspace_members"])
    # What the libraries are measured against never reaches who uses them, and is held to the same rules but for
    # those licences.
    of_bench = ("--manifest-path", "bench/Cargo.toml")
    tree = cargo("tree", "--locked", "--all-features", "--target", "all", "--prefix", "none", *of_bench)
    bench = built(graph(*of_bench), tree)
    bench["workspace_members"] += members
    published = [p["name"] for p in metadata["packages"] if p["id"] in members and p["publish"] != []]
    sizes = {library: tree_size(library) for library in published}

    problems = [*check_graph(rules, metadata), *check_budgets(BUDGETS, sizes), *check_rust_versions(metadata)]
    problems += [f"bench: {problem}" for problem in check_graph(for_bench(rules), bench)]
    for problem in problems:
        print(f"deny: {problem}", file=sys.stderr)
    versions = Counter(package["name"] for package in metadata["packages"])
    twice = sum(count > 1 for count in versions.values())
    within = ", ".join(f"{library} {size} of {BUDGETS.get(library, 'no budget')}" for library, size in sizes.items())
    print(
        f"deny: {len(metadata['packages'])} packages and {len(bench['packages'])} of bench/, {len(rules['licenses']['allow'])} licences allowed, "
        f"{len(rules['bans']['deny'])} crates banned, {twice} in several versions; crates brought: {within}; "
        f"{len(problems)} problems"
    )
    return 1 if problems else 0


def self_test():
    """Each rule against a graph that breaks it and nothing else. A rule that cannot fail checks nothing."""
    rules = {
        "licenses": {"allow": ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"]},
        "bans": {
            "wildcards": "deny",
            "allow-wildcard-paths": True,
            "deny": [{"crate": "sled", "reason": "for the test"}],
        },
        "sources": {"unknown-registry": "deny", "unknown-git": "deny"},
    }
    registry = "registry+the-default-one"

    def dependency(name, req="^1", kind=None, path=None, registry=None):
        return {"name": name, "req": req, "kind": kind, "path": path, "registry": registry}

    def package(name, license="MIT", source=registry, dependencies=(), publish=None):
        return {
            "name": name,
            "version": "1.0.0",
            "id": f"{name}-id",
            "license": license,
            "source": source,
            "dependencies": list(dependencies),
            "publish": publish,
        }

    def ours(*dependencies, **fields):
        return package("ours", source=None, dependencies=dependencies, **fields)

    def graph(*packages):
        return {"workspace_members": ["ours-id"], "packages": list(packages)}

    failed = []

    def expect(case, problems, *words):
        problems = list(problems)
        right = len(problems) == len(words) and all(w in p for w, p in zip(words, problems))
        if not right:
            failed.append(f"{case}: {problems}, expected {list(words)}")

    clean = graph(
        ours(dependency("good"), dependency("ours", req="*", kind="dev", path="/ours")),
        package("good", license="GPL-3.0-only OR MIT/Apache-2.0"),
        package("both", license="(MIT OR GPL-3.0-only) AND Unicode-3.0"),
        package("with", license="Apache-2.0 WITH LLVM-exception"),
    )
    expect("a clean graph", check_graph(rules, clean))

    one = lambda *packages: check_graph(rules, graph(ours(), *packages))
    expect("copyleft only", one(package("p", license="GPL-3.0-only")), "GPL-3.0-only is not allowed")
    expect("copyleft beside", one(package("p", license="MIT AND GPL-3.0-only")), "is not allowed")
    expect("precedence", one(package("p", license="GPL-3.0-only OR MIT AND GPL-3.0-only")), "is not allowed")
    expect("exception not listed", one(package("p", license="MIT WITH LLVM-exception")), "is not allowed")
    expect("no licence", one(package("p", license=None)), "says no licence")
    for torn in ["MIT OR", "(MIT", "MIT MIT", "MIT WITH", "", "MIT)"]:
        expect(f"unreadable licence {torn!r}", one(package("p", license=torn)), " in ")
    expect("banned", one(package("sled")), "banned: for the test")
    expect("git", one(package("p", source="git+somewhere")), "does not come from the default registry")
    expect("sparse registry", one(package("p", source="sparse+elsewhere")), "does not come from the default registry")
    expect("path outside", one(package("p", source=None)), "outside the workspace")

    of = lambda *dependencies, **fields: check_graph(rules, graph(ours(*dependencies, **fields)))
    expect("named registry", of(dependency("p", registry="elsewhere")), "names another registry")
    expect("wildcard", of(dependency("p", req="*")), "takes any version")
    expect("dev wildcard", of(dependency("p", req="*", kind="dev")), "takes any version")
    expect("public path wildcard", of(dependency("p", req="*", path="/p")), "takes any version")
    expect("private path wildcard", of(dependency("p", req="*", path="/p"), publish=[]))

    weak = graph(ours(), package("used"), package("weak", license="GPL-3.0-only"))
    expect("built and not allowed", check_graph(rules, built(weak, "ours v1.0.0\nweak v1.0.0 (*)")), "GPL-3.0-only")
    expect("never built", check_graph(rules, built(weak, "ours v1.0.0 (/ours)\nused v1.0.0\nweak v2.0.0")))

    data = graph(ours(), package("p", license="CDLA-Permissive-2.0"))
    expect("a licence of bench/ elsewhere", check_graph(rules, data), "CDLA-Permissive-2.0 is not allowed")
    expect("a licence of bench/", check_graph(for_bench(rules), data))
    copyleft = graph(ours(), package("p", license="GPL-3.0-only"))
    expect("copyleft in bench/", check_graph(for_bench(rules), copyleft), "GPL-3.0-only is not allowed")

    expect("within budget", check_budgets({"a": 3}, {"a": 3}))
    expect("over budget", check_budgets({"a": 3}, {"a": 4}), "brings 4 crates, its budget is 3")
    expect("without budget", check_budgets({}, {"a": 4}), "has no dependency budget")
    expect("stale budget", check_budgets({"a": 3}, {}), "is not in the workspace")

    def versions(ours, theirs, kind=None):
        packages = [{"id": one, "name": one, "version": "1.0.0", "rust_version": version}
                    for one, version in [("ours", ours), ("between", None), ("theirs", theirs)]]
        deps = lambda to, kind: [{"pkg": to, "dep_kinds": [{"kind": kind}]}]
        nodes = [{"id": "ours", "deps": deps("between", None)}, {"id": "between", "deps": deps("theirs", kind)},
                 {"id": "theirs", "deps": []}]
        return check_rust_versions({"packages": packages, "workspace_members": ["ours"], "resolve": {"nodes": nodes}})

    expect("as old as promised", versions("1.85", "1.85.1"))
    expect("newer than promised", versions("1.85", "1.86"), "and theirs 1.0.0 needs 1.86")
    expect("newer, for its build script", versions("1.85", "1.90.0", "build"), "needs 1.90.0")
    expect("newer, for its tests", versions("1.85", "1.90.0", "dev"))
    expect("no promise", versions(None, None), "says no rust-version")

    def changed(section, **keys):
        return {**rules, section: {**rules[section], **keys}}

    expect("the rules themselves", check_rules(rules))
    expect("weakened", check_rules(changed("sources", **{"unknown-git": "warn"})), "must be")
    expect("git allowed", check_rules(changed("sources", **{"allow-git": ["x"]})), "does not understand")
    expect("licence exceptions", check_rules(changed("licenses", exceptions=[])), "does not understand")
    expect("ban of a version", check_rules(changed("bans", deny=[{"crate": "a@1"}])), "whole crates")
    expect("ban as text", check_rules(changed("bans", deny=["a"])), "whole crates")

    for failure in failed:
        print(f"deny: self-test: {failure}", file=sys.stderr)
    print(f"deny: self-test {'failed' if failed else 'passed: every rule can fail'}")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        sys.exit(self_test())
    if sys.argv[1:]:
        sys.exit(__doc__)
    sys.exit(check_workspace())
