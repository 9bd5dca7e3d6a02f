# make demo       pack eight versions of a package, mount them, compare every byte, show size and cost beside SquashFS
# make check      formats, lints, unit tests and simulations; no root, nothing but the Rust toolchain; minutes
# make test       everything that must hold of a commit; needs root, /dev/fuse and 20 minutes
# make            build the program
# make static     target/static/weald: one file without libraries, tested in an empty root directory; ARGS=same builds it
#                 in another directory and compares; needs root
# make runtime    target/static/weald-runtime: the small program before images that mount themselves, tested in an empty
#                 root directory; needs root
# make deb        target/deb: a Debian package, checked by lintian, installed, mounted by fstab and autofs, removed; needs
#                 root
# make c          target/c: the C library, shared and static, with its header; compiled against and tested (docs/c.md)
# make python     target/python: the Python package as a wheel, installed and tested (docs/python.md); needs the network
# make install    PREFIX=/usr/local: program (stripped), runtime if there is one, mount helper, manual pages, completions
# make bench      figures beside SquashFS, EROFS and DwarFS, and docs/benchmarks.md from them; an hour, needs root
# make bench-store   a part of make bench alone: one store for many versions, beside other stores; 10 minutes
# make bench-views   a part of make bench alone: a container root through FUSE and the kernel, beside composefs; needs root
# make bench-build   size, time and memory of building beside every rival; an hour and more
# make bench-mount   mounts beside SquashFS, EROFS, ext4 and a stub without an image; needs root
# make bench-volume  a volume beside ext4, btrfs and a FUSE passthrough; needs root and an hour
# make bench-replica  a store and its replica beside rsync, restic and btrfs send; needs root and half an hour
# make bench-snapshot  snapshots of a volume beside btrfs; needs root and half an hour
# make bench-scrub     scrub of a store in the page cache, and writes beside it; needs root
# make bench-parity   parity of a file, beside par2
# make bench-tier   a volume on a fast and a slow disk, beside mergerfs with a mover; needs root and half an hour
# make bench-url    an image in a bucket over a slow link, beside a download and rclone; needs root, the network
# make bench-forest  forests of up to 10^7 files: built, searched, mounted; needs root and a quarter of an hour
# make soak-forest   the same up to 10^9 files; needs root and about two hours
#                 Benchmarks need a quiet machine. ARGS='--corpus usr' and the like change what is measured, without
#                 replacing the results in bench/results: 'PYTHONPATH=bench python3 -P -m weald_bench run --help'
# make bench-report  docs/benchmarks.md and its plots, from the results in bench/results
# make lab        the life of a git-annex repository on every file system, with the page in docs/lab; needs root, 15 minutes
# make soak-mount  a hundred images mounted, read and unmounted by one server, MINUTES=60; needs root
# make trees      the same tree back, on large trees of this machine; needs root
# make systemd    the units and the fstab of docs/mounting.md under a systemd of their own; needs root
# make exports    mounts handed on by NFS-Ganesha and Samba, whose packages it installs, services included; needs root
# make test-verity  weald mount --kernel --verity require in a QEMU guest, which has fs-verity; needs root, the network
# make suites   pjdfstest, fsx, git, git-annex, SQLite, PostgreSQL, cargo, rsync and loop devices on a volume; needs
#                 root. The whole tests of special remotes took 25 minutes of it on a loaded machine
# make audit      libraries against known faults, licences and sources; needs the network
# make fuzz       every decoder on hostile bytes, and whole volumes with changed rows (half an hour)
# make soak       hours: random trees for MINUTES=30, stores (10^5 seeds) and volumes (10^6) with faults, changed rows,
#                 500 kills, fsx; PART=trees|stores|replicas|tiers|volumes|rows|crashes|fsx|drill runs one part; needs root
# make setup      install what is missing for these, fuzzing aside

# What 'weald -V' names; nothing outside a clone.
export WEALD_COMMIT ?= $(shell git rev-parse --short=12 HEAD 2>/dev/null)

PREFIX ?= /usr/local
SBINDIR ?= /sbin
# Empty for a program with its symbols.
INSTALL_STRIP ?= -s
DESTDIR ?=
CARGO_TARGET_DIR ?= target
BIN = $(CARGO_TARGET_DIR)/release/weald
# Installed if 'make runtime' has built it.
RUNTIME = $(CARGO_TARGET_DIR)/static/weald-runtime
SHARE = $(DESTDIR)$(PREFIX)/share

.PHONY: all static runtime deb c python demo check test suites test-verity bench bench-store bench-views bench-build bench-forest soak-forest bench-mount bench-volume bench-replica bench-snapshot bench-scrub bench-parity bench-tier bench-url bench-report lab soak-mount trees exports systemd audit fuzz soak setup install uninstall clean

all:
	bash scripts/setup.sh build
	cargo build --release --locked --workspace --bins

static:
	bash scripts/setup.sh build static
	bash scripts/static.sh $(ARGS)

runtime:
	bash scripts/setup.sh build runtime
	bash scripts/runtime.sh

deb:
	bash scripts/setup.sh build deb
	bash scripts/deb.sh

c:
	bash scripts/setup.sh build
	bash scripts/c-test.sh

python:
	bash scripts/setup.sh build python
	bash scripts/python-test.sh $(ARGS)

demo:
	bash scripts/setup.sh build demo servers
	bash scripts/demo.sh

check:
	bash scripts/setup.sh build
	bash scripts/check.sh

test:
	bash scripts/setup.sh build test lab servers
	bash scripts/test.sh

suites:
	bash scripts/setup.sh build test
	cargo build --release --locked -p weald-cli --bins
	bash scripts/volume-suites.sh
	WEALD_PROFILE=release bash scripts/annex-test.sh remote ciphers import jobs whole interrupted volume requests image metadata suite

# $(call measure,SUITE): without ARGS the result and the document are replaced.
define measure
	PYTHONPATH=bench python3 -P -m weald_bench run --suite $(1) $(or $(ARGS),--result bench/results/$(1).json)
	$(if $(ARGS),,PYTHONPATH=bench python3 -P -m weald_bench report bench/results --output docs/benchmarks.md)
endef

# The programs of DwarFS, from source where that can be fetched; else benchmarks take the Rust crates.
define dwarfs
	bash scripts/setup.sh build dwarfs && bash scripts/build-dwarfs.sh || echo "DwarFS's own programs are missing: the crates take their place" >&2
endef

bench:
	bash scripts/setup.sh build bench store views
	$(dwarfs)
	cargo build --release --locked -p weald-cli --bins
	$(call measure,main)
	$(if $(ARGS),,$(call measure,store))
	$(if $(ARGS),,$(call measure,views))

bench-store:
	bash scripts/setup.sh build bench store
	cargo build --release --locked -p weald-cli --bins
	$(call measure,store)

bench-views:
	bash scripts/setup.sh build bench views
	cargo build --release --locked -p weald-cli --bins
	$(call measure,views)

bench-build:
	bash scripts/setup.sh build bench rivals
	$(dwarfs)
	cargo build --release --locked -p weald-cli --bins
	$(call measure,build)

bench-forest:
	bash scripts/setup.sh build bench forest
	cargo build --release --locked -p weald-cli --bins
	cargo build --release --locked -p weald-fuse --example stub
	$(call measure,forest)

soak-forest:
	bash scripts/setup.sh build bench forest
	cargo build --release --locked -p weald-cli --bins
	cargo build --release --locked -p weald-fuse --example stub
	$(call measure,forest-soak)

bench-mount:
	bash scripts/setup.sh build bench mount
	$(dwarfs)
	cargo build --release --locked -p weald-cli --bins
	cargo build --release --locked -p weald-fuse --example stub
	$(call measure,mount)

bench-volume:
	bash scripts/setup.sh build bench volume
	cargo build --release --locked -p weald-cli --bins
	$(call measure,volume)

bench-replica:
	bash scripts/setup.sh build bench store volume
	cargo build --release --locked -p weald-cli --bins
	$(call measure,replica)

bench-snapshot:
	bash scripts/setup.sh build bench store volume
	bash scripts/bench-snapshot.sh $(ARGS)

bench-scrub:
	bash scripts/setup.sh build bench store volume
	bash scripts/bench-scrub.sh $(ARGS)

bench-parity:
	bash scripts/setup.sh build bench parity
	bash scripts/bench-parity.sh $(ARGS)

bench-tier:
	bash scripts/setup.sh build bench store volume tier
	bash scripts/bench-tier.sh $(ARGS)

bench-url:
	bash scripts/setup.sh build bench servers
	bash scripts/bench-url.sh $(ARGS)

bench-report:
	PYTHONPATH=bench python3 -P -m weald_bench report bench/results --output docs/benchmarks.md

lab:
	bash scripts/setup.sh build lab
	cargo build --release --locked -p weald-cli --bins
	bash scripts/lab.sh

soak-mount:
	bash scripts/setup.sh build mount
	bash scripts/soak-mount.sh $(or $(MINUTES),60)

trees:
	bash scripts/setup.sh build test
	bash scripts/trees.sh full

exports:
	bash scripts/setup.sh build test exports
	cargo test --locked -p weald-cli --features exports --test mounts exports::

systemd:
	bash scripts/setup.sh build test systemd
	bash scripts/systemd.sh

test-verity:
	bash scripts/setup.sh build verity
	bash scripts/test-verity.sh

audit:
	bash scripts/setup.sh build
	bash scripts/audit.sh

fuzz:
	bash scripts/setup.sh build fuzz
	bash fuzz/run.sh
	bash scripts/soak.sh rows

soak:
	bash scripts/setup.sh build test
	bash scripts/soak.sh $(PART)

setup:
	bash scripts/setup.sh build demo test bench servers

# Builds nothing, so that root needs no Rust: run make first.
install:
	@test -x "$(BIN)" || { echo "make install: $(BIN) is missing: run 'make' first" >&2; exit 2; }
	install -D $(INSTALL_STRIP) -m 755 "$(BIN)" "$(DESTDIR)$(PREFIX)/bin/weald"
	if [ -e "$(RUNTIME)" ]; then \
		install -D -m 755 "$(RUNTIME)" "$(DESTDIR)$(PREFIX)/libexec/weald/weald-runtime"; fi
	install -d "$(DESTDIR)$(SBINDIR)" "$(SHARE)/man/man1" "$(SHARE)/man/man8" "$(SHARE)/bash-completion/completions" \
		"$(SHARE)/zsh/site-functions" "$(SHARE)/fish/vendor_completions.d"
	ln -sfn "$(PREFIX)/bin/weald" "$(DESTDIR)$(SBINDIR)/mount.weald"
	for type in fuse fuseblk; do for call in mount umount; do \
		ln -sfn "$(PREFIX)/bin/weald" "$(DESTDIR)$(SBINDIR)/$$call.$$type.weald" || exit; done; done
	ln -sfn weald "$(DESTDIR)$(PREFIX)/bin/git-annex-remote-weald"
	"$(BIN)" man "$(SHARE)/man/man1"
	mv "$(SHARE)/man/man1/mount.weald.8" "$(SHARE)/man/man8/mount.weald.8"
	"$(BIN)" completions bash > "$(SHARE)/bash-completion/completions/weald"
	"$(BIN)" completions zsh > "$(SHARE)/zsh/site-functions/_weald"
	"$(BIN)" completions fish > "$(SHARE)/fish/vendor_completions.d/weald.fish"

uninstall:
	rm -f "$(DESTDIR)$(PREFIX)/libexec/weald/weald-runtime"
	rmdir "$(DESTDIR)$(PREFIX)/libexec/weald" 2>/dev/null || true
	rm -f "$(DESTDIR)$(PREFIX)/bin/weald" "$(DESTDIR)$(PREFIX)/bin/git-annex-remote-weald" "$(DESTDIR)$(SBINDIR)/mount.weald" \
		"$(DESTDIR)$(SBINDIR)/mount.fuse.weald" "$(DESTDIR)$(SBINDIR)/umount.fuse.weald" \
		"$(DESTDIR)$(SBINDIR)/mount.fuseblk.weald" "$(DESTDIR)$(SBINDIR)/umount.fuseblk.weald"
	rm -f "$(SHARE)/man/man1/weald.1" "$(SHARE)/man/man1"/weald-*.1 \
		"$(SHARE)/man/man8/mount.weald.8"
	rm -f "$(SHARE)/bash-completion/completions/weald" "$(SHARE)/zsh/site-functions/_weald" \
		"$(SHARE)/fish/vendor_completions.d/weald.fish"

clean:
	cargo clean
	rm -rf bench-out
