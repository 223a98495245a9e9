# Every target of ax. `make help` lists them. All scripts and tests run on the Node that npm installed here, not on the system's.
SHELL := /bin/bash
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
DESTDIR ?=
FORCE ?=
SIM_SEEDS ?= 20000
FUZZ_RUNS ?= 1000000
GUIDED_RUNS ?= 50000
STORM_MESSAGES ?= 10000
STORM_KILLS ?= 500
TEST_TIMEOUT_MS ?= 600000
# What an installed ax may run on, the first that is new enough. Never what a PATH finds: that may be a folder which an agent fills.
SYSTEM_NODES ?= /usr/local/bin/node /usr/bin/node /opt/homebrew/bin/node

root := $(CURDIR)
NODE := $(root)/node_modules/node/bin/node
STAMP := node_modules/.ax-installed
# The system's node, even when make was started by npm with node_modules/.bin on its PATH.
own_path := $(shell printf %s "$$PATH" | tr : '\n' | grep -v '/node_modules/' | paste -sd: -)
TSC := $(NODE) node_modules/typescript/bin/tsc
OXLINT := $(NODE) node_modules/oxlint/bin/oxlint
OXFMT := $(NODE) node_modules/oxfmt/bin/oxfmt
KNIP := $(NODE) node_modules/knip/bin/knip.js
ESBUILD := node_modules/esbuild/bin/esbuild
NODE_TEST := $(NODE) --test --test-concurrency=2 --test-timeout=$(TEST_TIMEOUT_MS) --test-reporter=./test/reporter.ts
SOURCES := $(shell find protocol daemon cli -name '*.ts' 2>/dev/null)

.PHONY: help install-deps build demo check typecheck lint format-check knip test test-unit test-e2e test-real test-real-all harness-table test-net test-big bench bench-quick bench-profile bench-scale sim storm fuzz format install uninstall clean

help: ## Lists the targets
	@grep -hE '^[a-z0-9-]+:.*## ' Makefile | sed -E 's/^([a-z0-9-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

install-deps: $(STAMP) ## Installs the npm packages, with a Node 24 of their own (only when package-lock.json changed)

$(STAMP): package-lock.json
	@command -v npm >/dev/null || { echo 'npm is needed (any Node from 18 on brings it; on Debian: apt-get install npm).' >&2; exit 1; }
	@echo 'Installing the npm packages ...'
	@PATH='$(own_path)' npm ci --no-progress --loglevel=error --no-audit --no-fund </dev/null
	@$(NODE) --version >/dev/null 2>&1 || PATH='$(own_path)' npm rebuild node --ignore-scripts=false --loglevel=error </dev/null
	@$(NODE) --version >/dev/null || { echo 'The npm package "node" did not install its binary.' >&2; exit 1; }
	@touch $(STAMP)

build: dist/ax.cjs dist/plain.cjs dist/whole.cjs dist/daemon.mjs ## Bundles cli/ into dist/{ax,plain,whole}.cjs, daemon/ into dist/daemon.mjs

CLI_BUNDLE := --bundle --platform=node --target=node22 --format=cjs --log-level=warning --legal-comments=eof

dist/ax.cjs: $(STAMP) $(SOURCES) package.json Makefile
	@$(ESBUILD) cli/start.ts $(CLI_BUNDLE) --outfile=$@

# The commands that run most, and nothing else; the rest is loaded from whole.cjs when it is needed (docs/adr/0010).
dist/plain.cjs: $(STAMP) $(SOURCES) build/plain.ts package.json Makefile
	@set -o pipefail; mkdir -p dist; \
	$(ESBUILD) cli/main.ts $(CLI_BUNDLE) --minify --supported:dynamic-import=false --external:./whole.ts | NODE_OPTIONS= $(NODE) build/plain.ts dist

dist/whole.cjs: $(STAMP) $(SOURCES) package.json Makefile
	@$(ESBUILD) cli/whole.ts $(CLI_BUNDLE) --outfile=$@ \
	  --banner:js='const __moduleUrl = require("node:url").pathToFileURL(__filename).href;' \
	  --define:import.meta.url=__moduleUrl --define:import.meta.dirname=__dirname --define:import.meta.filename=__filename
	@! grep -nE '^ *// node_modules/(@?libp2p|@chainsafe|lmdb|tweetnacl|pino)/|require\("(libp2p|lmdb|tweetnacl|pino)' $@ \
	  || { rm -f $@; echo 'dist/whole.cjs holds a library that the CLI must not load.' >&2; exit 1; }

# Of Noise only what runs: its records are enciphered by daemon/link/records.ts (build/no-wasm.ts).
dist/daemon.mjs: $(STAMP) $(SOURCES) build/one-byte.ts build/no-wasm.ts package.json Makefile
	@set -o pipefail; mkdir -p dist; \
	$(ESBUILD) daemon/main.ts --bundle --platform=node --target=node22 --format=esm --log-level=warning --legal-comments=eof \
	  --external:lmdb --external:fs-native-extensions \
	  --alias:@chainsafe/as-chacha20poly1305=./build/no-wasm.ts --alias:@chainsafe/as-sha256=./build/no-wasm.ts \
	  --banner:js='import { createRequire as __requireOf } from "node:module"; const require = __requireOf(import.meta.url);' \
	  | NODE_OPTIONS= $(NODE) build/one-byte.ts $@
	@! grep -nE 'WebAssembly\.' $@ || { rm -f $@; echo 'dist/daemon.mjs holds WebAssembly, which would cost each daemon memory.' >&2; exit 1; }

demo: install-deps build ## Shows one message on its way between two hosts, for real, in a temporary folder
	@$(NODE) test/demo/demo.ts

check: typecheck lint format-check knip ## Types, lint, format, unused code

typecheck: $(STAMP)
	@$(TSC) -p .

lint: $(STAMP)
	@$(OXLINT) --deny-warnings

format-check: $(STAMP)
	@said=$$($(OXFMT) --check . 2>&1) || { printf '%s\n' "$$said" 'Run: make format' >&2; exit 1; }

knip: $(STAMP)
	@$(KNIP) --no-progress --no-config-hints

test: install-deps build check ## Everything that CI runs: build, checks, all tests; one file: make test-unit FILES=test/x.test.ts
	@$(NODE_TEST) 'test/**/*.test.ts'

FILES ?= 'test/*.test.ts' 'test/{protocol,daemon,cli,contract}/**/*.test.ts'
test-unit: install-deps ## Unit and contract tests only; FILES=... runs these files
	@$(NODE_TEST) $(FILES)

test-e2e: install-deps build ## Tests with real processes only
	@$(NODE_TEST) 'test/e2e/**/*.test.ts'

test-real: install-deps build ## Tests against the genuine Claude Code and Codex (newest pinned versions, installed into a cache on first use)
	@$(NODE_TEST) 'test/real/**/*.test.ts'

test-real-all: install-deps build ## The same, and one older version of each
	@AX_REAL_VERSIONS=all $(NODE_TEST) 'test/real/**/*.test.ts'

test-net: install-deps build ## Several hosts in network namespaces, on a bad network (Linux, root); prints what was seen
	@$(NODE_TEST) 'test/net/**/*.test.ts'
	@$(NODE) test/net/table.ts

test-big: install-deps build ## Starts and commands of a host with MESSAGES=1000000 messages, beside one with 1,000
	@MESSAGES='$(MESSAGES)' $(NODE) test/big/run.ts

bench: install-deps build ## Measures ax beside Redis, Postfix and bare libp2p (installs these with apt-get), writes docs/benchmarks.md; ROWS=... runs some
	@ROWS='$(ROWS)' REPEATS='$(REPEATS)' BACKLOG='$(BACKLOG)' QUICK= $(NODE) test/bench/run.ts

bench-quick: install-deps build ## The same with one short repeat, a line per row, in less than a minute; installs and writes nothing
	@ROWS='$(ROWS)' REPEATS='$(REPEATS)' BACKLOG='$(BACKLOG)' QUICK=1 $(NODE) test/bench/run.ts

bench-scale: install-deps build ## What a host with 100 peers and a million messages a day needs, measured and simulated: the figures of docs/scale.md; STORED=20000 messages before
	@STORED='$(STORED)' $(NODE) test/bench/scale.ts

profiles := node_modules/.cache/ax-profiles
bench-profile: install-deps build ## Draws flame graphs of both daemons at 64 messages in flight into docs/, and says where the time goes
	@rm -rf $(profiles)
	@$(NODE) test/bench/ax-load.ts --in-flight 64 --seconds 10 --profile $(profiles)
	@echo 'sender:'; $(NODE) test/bench/flame.ts $(profiles)/hosta dist/daemon.mjs docs/flame-sender.svg
	@echo 'receiver:'; $(NODE) test/bench/flame.ts $(profiles)/hostb dist/daemon.mjs docs/flame-receiver.svg

harness-table: $(STAMP) ## Writes what these tests saw last into docs/harnesses.md
	@$(NODE) test/real/table.ts

sim: install-deps ## Simulates SIM_SEEDS=20000 worlds; SEED=77 replays one
	@SIM_SEEDS='$(SIM_SEEDS)' SEED='$(SEED)' $(NODE) test/sim/run.ts

storm: install-deps build ## Sends STORM_MESSAGES=10000 messages under STORM_KILLS=500 kills of daemons and commands, then compares the books
	@STORM_MESSAGES='$(STORM_MESSAGES)' STORM_KILLS='$(STORM_KILLS)' SEED='$(or $(SEED),1)' \
	  $(NODE) --test --test-timeout=7200000 --test-reporter=./test/reporter.ts test/e2e/survive.test.ts

fuzz: install-deps ## Feeds FUZZ_RUNS=1000000 broken inputs to every parser of foreign bytes, then GUIDED_RUNS=50000 that are led by coverage
	@FUZZ_RUNS='$(FUZZ_RUNS)' $(NODE_TEST) 'test/fuzz/**/*.test.ts'
	@GUIDED_RUNS='$(GUIDED_RUNS)' $(NODE) test/fuzz/guided.ts

format: install-deps ## Formats the sources
	@$(OXFMT) .
	@$(OXLINT) --fix >/dev/null || true

lib := $(DESTDIR)$(PREFIX)/lib/ax
launcher := $(DESTDIR)$(PREFIX)/bin/ax
is_ours = { [ ! -e '$(lib)' ] || grep -qs '"name": "ax-agent-exchange"' '$(lib)/package.json'; } && { [ ! -e '$(launcher)' ] || grep -qs ax-agent-exchange '$(launcher)'; } \
  || { echo 'Not touched: $(lib) or $(launcher) is not an installation of ax.' >&2; exit 1; }

install: install-deps build ## Installs ax under PREFIX=/usr/local (DESTDIR honoured), with a Node of its own where the system's is too old
	@case '$(PREFIX)' in /*) ;; *) echo 'PREFIX must be an absolute path.' >&2; exit 1;; esac
	@$(is_ours)
	@(umask 022; mkdir -p '$(DESTDIR)$(PREFIX)/lib' '$(DESTDIR)$(PREFIX)/bin') 2>/dev/null && [ -w '$(DESTDIR)$(PREFIX)/lib' ] && [ -w '$(DESTDIR)$(PREFIX)/bin' ] \
	  || { echo 'Cannot install: $(DESTDIR)$(PREFIX)/lib and $(DESTDIR)$(PREFIX)/bin must be folders that this user can write to.' >&2; exit 1; }
	@set -eu; umask 022; export PATH='$(own_path)'; \
	stage=$$(mktemp -d '$(lib).new.XXXXXX'); trap 'rm -rf "$$stage"' EXIT; chmod 755 "$$stage"; \
	cp package.json package-lock.json .npmrc "$$stage"; cp -R bin dist "$$stage"; \
	if [ -d skills ]; then cp -R skills "$$stage"; fi; \
	(cd "$$stage" && npm ci --omit=dev --ignore-scripts --no-progress --loglevel=error --no-audit --no-fund </dev/null >/dev/null); \
	rm -f "$$stage/package-lock.json" "$$stage/.npmrc"; \
	system=''; \
	for node in $(SYSTEM_NODES); do \
	  if [ -x "$$node" ] && "$$node" -e 'const [a, b] = process.versions.node.split(".").map(Number); process.exit(a > 22 || (a === 22 && b >= 12) ? 0 : 1)'; then system=$$node; break; fi; \
	done; \
	if [ -z "$$system" ]; then mkdir -p "$$stage/node/bin"; cp '$(NODE)' "$$stage/node/bin/node"; fi; \
	{ echo '#!/bin/sh'; \
	  echo '# Starts ax-agent-exchange with the Node it was installed for.'; \
	  echo "lib='$(PREFIX)/lib/ax'"; \
	  echo '[ -x "$$lib/node/bin/node" ] && exec "$$lib/node/bin/node" "$$lib/dist/ax.cjs" "$$@"'; \
	  if [ -n "$$system" ]; then echo "[ -x '$$system' ] && exec '$$system' \"\$$lib/bin/ax\" \"\$$@\""; fi; \
	  echo 'echo "ax: the Node it was installed for is gone; run make install again." >&2'; \
	  echo 'exit 1'; } >"$$stage/launcher"; \
	chmod 755 "$$stage/launcher"; mv "$$stage/launcher" '$(launcher).new'; \
	rm -rf '$(lib).old'; if [ -e '$(lib)' ]; then mv '$(lib)' '$(lib).old'; fi; \
	mv "$$stage" '$(lib)'; mv '$(launcher).new' '$(launcher)'; rm -rf '$(lib).old'; \
	if [ -n "$$system" ]; then echo "Installed $(launcher), on $$system."; else echo 'Installed $(launcher), with its own Node 24.'; fi

# Processes that run this installation's daemon, one line each: the command that stops it. A daemon is started by its real path (Linux only).
running = daemon=$$(readlink -f '$(lib)/dist/daemon.mjs' 2>/dev/null) || daemon=''; \
  for process in $${daemon:+/proc/[0-9]*}; do \
    tr '\0' '\n' 2>/dev/null <"$$process/cmdline" | grep -qxF -e "$$daemon" 2>/dev/null || continue; \
    state=$$(tr '\0' '\n' 2>/dev/null <"$$process/cmdline" | sed -n '/^--state-dir$$/{n;p;q}'); \
    printf '  %s%s daemon stop   (process %s)\n' '$(launcher)' "$${state:+ --state-dir $$(printf %q "$$state")}" "$${process\#/proc/}"; \
  done 2>/dev/null

uninstall: ## Removes what `make install` put there, and nothing else; FORCE=1 also while its daemon runs
	@$(is_ours)
	@[ -e '$(lib)' ] || [ -e '$(launcher)' ] || { echo 'Nothing to remove: there is no $(lib) and no $(launcher).'; exit 0; }; \
	found=$$($(running)); \
	if [ -n "$$found" ] && [ '$(FORCE)' != 1 ]; then \
	  printf '%s\n' 'Not removed: a daemon of this installation still runs. Stop it first, or add FORCE=1:' "$$found" >&2; exit 1; \
	fi; \
	rm -rf '$(lib)'; rm -f '$(launcher)'; echo 'Removed $(lib) and $(launcher).'

clean: ## Removes what was built and installed here
	@rm -rf dist coverage node_modules
