"""File systems that a volume is compared with: btrfs, and a passthrough of libfuse as the floor of
FUSE."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from weald_bench import machine
from weald_bench.rivals.base import Rival, package_version, shell

TOOLS = machine.ROOT / "bench-out" / "tools"
PROGRAM = TOOLS / "passthrough_hp"

#: Fetches the source package of libfuse3 and compiles its example passthrough_hp, which finds
#: inodes by a hash table (passthrough_ll walks a list). Changes: it compiles with the cxxopts of
#: Debian, and it has no write-back cache, which Weald has not either.
BUILD = """
mkdir -p "$1/lists/partial"
cat > "$1/deb-src.sources" <<END
Types: deb-src
URIs: http://deb.debian.org/debian
Suites: $(. /etc/os-release; echo "$VERSION_CODENAME")
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
END
cd "$1"
apt="apt-get -q -o Dir::Etc::SourceList=$1/deb-src.sources -o Dir::Etc::SourceParts=/dev/null
     -o Dir::State::Lists=$1/lists -o APT::Sandbox::User=root"
$apt update
$apt source --download-only fuse3
tar --strip-components=2 --wildcards -xf fuse3_*.orig.tar.?z '*/example/passthrough*'
sed -e 's/conn->want |= FUSE_CAP_WRITEBACK_CACHE;/{}/' \
    -e 's/cxxopts::option_not_exists_exception/std::exception/' -e 's/argc != 3/argc < 3/' \\
    passthrough_hp.cc > changed.cc
g++ -std=c++17 -O2 -DHAVE_UTIMENSAT -DHAVE_POSIX_FALLOCATE -include iostream -o "$2" changed.cc \\
    $(pkg-config fuse3 --cflags --libs) -lpthread
"""


class Btrfs(Rival):
    """btrfs with zstd."""

    name = "btrfs"
    label = "btrfs, zstd"
    tools = ("mkfs.btrfs",)
    kind = "btrfs"
    packs = False

    def version(self) -> str:
        return machine.first_line("mkfs.btrfs", "--version") or "btrfs"


class Passthrough(Rival):
    """passthrough_hp of libfuse over ext4."""

    name = "passthrough"
    label = "libfuse passthrough_hp on ext4"
    tools = ("g++", "pkg-config", "bindfs")
    packs = False

    def problem(self) -> str | None:
        """Builds it at the first call."""
        problem = super().problem()
        if problem or PROGRAM.is_file():
            return problem
        if not Path("/usr/include/cxxopts.hpp").is_file():
            return "missing: run 'bash scripts/setup.sh volume' for what builds passthrough_hp"
        place = TOOLS / "passthrough"
        shutil.rmtree(place, ignore_errors=True)
        ended = subprocess.run(
            shell(BUILD, place, PROGRAM),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(place, ignore_errors=True)
        if ended.returncode == 0:
            return None
        said = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        return f"missing: passthrough_hp of libfuse3 could not be built: {said}"

    def version(self) -> str:
        return f"passthrough_hp of {package_version('libfuse3-dev', 'libfuse3')}, no write-back"
