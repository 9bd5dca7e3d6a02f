#!/bin/bash
# build-dwarfs.sh [DIR]: builds DwarFS's own programs (mkdwarfs, dwarfs, dwarfsextract) from source, as
# a rival for the benchmarks, into DIR (bench-out/dwarfs). It takes half an hour on two processors,
# once for each version. Sources come from GitHub, or from the clones dwarfs, fmt and
# parallel-hashmap in the directory DWARFS_SOURCES. The kind of build is cmake's Release, DwarFS's
# default.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

version=0.15.3
cmake_version=3.31.6
dir=$(realpath --canonicalize-missing -- "${1:-$root/bench-out/dwarfs}")
if [ -x "$dir/mkdwarfs" ] && [ "$(cat "$dir/version" 2>/dev/null)" = "$version" ]; then
    exit 0
fi
need git g++ ninja pkg-config python3
build=$dir/build
mkdir -p "$dir"
rm -rf "$build"
if [ -n "${DWARFS_SOURCES:-}" ]; then
    DWARFS_LOCAL_REPO_PATH=$(realpath -- "$DWARFS_SOURCES")
    export DWARFS_LOCAL_REPO_PATH
    from=$DWARFS_LOCAL_REPO_PATH/dwarfs
else
    from=https://github.com/mhx/dwarfs.git
fi
step "git clone $from"
git -c advice.detachedHead=false clone --quiet --branch "v$version" "$from" "$build/source"
# Debian 12's own cmake is older than DwarFS asks for.
step "pip install cmake==$cmake_version"
python3 -I -m venv "$build/venv"
"$build/venv/bin/pip" install --quiet "cmake==$cmake_version"
step "cmake and ninja, DwarFS $version"
"$build/venv/bin/cmake" -S "$build/source" -B "$build/out" -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DWITH_MAN_OPTION=OFF -DWITH_MAN_PAGES=OFF -DWITH_TESTS=OFF -DWITH_DESKTOP_INTEGRATION=OFF \
    >"$build/log" 2>&1 || { tail -n 5 "$build/log" >&2; die "DwarFS cannot be set up, see $build/log"; }
"$build/venv/bin/cmake" --build "$build/out" --target mkdwarfs dwarfs-bin dwarfsextract \
    >>"$build/log" 2>&1 || { tail -n 5 "$build/log" >&2; die "DwarFS does not build, see $build/log"; }
for program in mkdwarfs dwarfs dwarfsextract; do
    install -s -m 755 "$build/out/$program" "$dir/$program"
done
printf '%s\n' "$version" >"$dir/version"
rm -rf "$build"
say "dwarfs: $version is in $dir"
