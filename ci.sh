#!/usr/bin/env bash
# Every check of the repository, runnable by hand.
#
#   ./ci.sh              all steps; each prints one line, a failing one its log as well
#   ./ci.sh NAME...      these steps only: install fmt deny machete lint pure test package microspdy doc fuzz
#                        interop attack demo soak tornet
#
#   CARGO_TARGET_DIR     where it builds (~/.cache/tandem-target)
#   FUZZ_SECONDS         how long each fuzz target runs (10)
#   ATTACK_SECONDS       how long all attacks take together (100)
#
# The network is used by the package managers only: cargo, apt, go, npm.
set -u -o pipefail
cd "$(dirname "$0")" || exit 1

export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$HOME/.cache/tandem-target}
export CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0
logs=$CARGO_TARGET_DIR/ci
mkdir -p "$logs"

# Program and the Debian package that has it.
tools="tor:tor chromium:chromium firefox-esr:firefox-esr curl:curl nghttp:nghttp2-client h2load:nghttp2-client nghttpd:nghttp2-server
    nghttpx:nghttp2-proxy nginx:nginx-light apache2:apache2-bin haproxy:haproxy ip:iproute2 ss:iproute2 iptables:iptables tcpdump:tcpdump
    go:golang-go node:nodejs npm:npm openssl:openssl unshare:util-linux c++:g++ readelf:binutils
    bpftrace:bpftrace redis-server:redis-server faketime:faketime certutil:libnss3-tools python3:python3 pip3:python3-pip"

step_install() {
    local tool missing=()
    for tool in $tools; do
        have "${tool%%:*}" || missing+=("${tool##*:}")
    done
    [ -e /usr/include/openssl/ssl.h ] || missing+=(libssl-dev)
    [ -d /usr/lib/postgresql ] || missing+=(postgresql)
    rustup component add rustfmt clippy 2>/dev/null || cargo clippy --version || return 1
    # As udev leaves it (tandem-link works for all users): a machine that began without udev has it closed.
    [ "$(id -u)" -ne 0 ] || [ ! -e /dev/net/tun ] || chmod 666 /dev/net/tun || return 1
    [ ${#missing[@]} -eq 0 ] && return
    [ "$(id -u)" -eq 0 ] || {
        echo "missing, and only root can install them: ${missing[*]}"
        return 1
    }
    # The tests start what they need themselves: packaged services stay down. The step has a shell of its own, whose end
    # removes the file, also by a signal.
    local policy=/usr/sbin/policy-rc.d
    if [ ! -e "$policy" ]; then
        # shellcheck disable=SC2064
        trap "rm -f $policy" EXIT
        printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy" || return 1
    fi
    apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
}

# Some of them live where only root's PATH leads.
have() {
    PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin command -v "$1" >/dev/null
}

# The layout of the sources, and the length of each.
step_fmt() {
    cargo fmt --all --check -- --color never && cargo fmt --manifest-path fuzz/Cargo.toml --check -- --color never &&
        short_files
}

# No source file has more than 600 lines, tests included. The library in vendor/ is that of others.
short_files() {
    local long
    long=$(git ls-files -z '*.rs' ':!vendor' | xargs -0 wc -l | awk '$2 != "total" && $1 > 600 { print $2 " has " $1 " lines, over 600" }')
    [ -z "$long" ] || { echo "$long" && return 1; }
}

# The programs for the steps that run them, and for interop/: with the same members and features, or dependencies would be built
# several times.
build_programs() {
    cargo build --locked --workspace --bins --features tandem-cli/submit
}

# The packages of a release, from the program of the tests instead of an optimised one: their content, installation, upgrade,
# removal and purge.
step_package() {
    local made=$CARGO_TARGET_DIR/package
    cargo_tool deb && cargo_tool sbom || return 1
    build_programs || return 1
    rm -rf "$made"
    install -D -m 755 "$CARGO_TARGET_DIR/debug/tandem" "$made/release/tandem" || return 1
    CARGO_TARGET_DIR=$made PREBUILT=1 packaging/release.sh "$made/dist" && PREBUILT=1 packaging/check.sh "$made/dist"
}

# Licences, banned crates and sources of all dependencies; deny.toml has the rules.
step_deny() {
    local manifest status=0
    cargo_tool deny || return 1
    for manifest in Cargo.toml fuzz/Cargo.toml; do
        # The advisories are not checked: their database is fetched from the network at each run.
        cargo deny --manifest-path "$manifest" --locked --config deny.toml check licenses bans sources || status=1
    done
    return $status
}

# Dependencies that no source file of their crate names, in both workspaces.
step_machete() {
    cargo_tool machete && cargo machete --skip-target-dir .
}

# Installs cargo-NAME if it is missing, built in a temporary directory without optimisation: cargo_tool NAME
cargo_tool() {
    cargo "$1" --version >/dev/null 2>&1 && return
    env -u CARGO_TARGET_DIR cargo install --locked --debug "cargo-$1" && return
    echo "cargo-$1 is missing and could not be installed. Install it by hand: cargo install --locked cargo-$1"
    return 1
}

# Builds the parts of later steps with the processor time that earlier steps leave. Tests wait for much of their time, and the
# builds of a machine without caches take about as long. A build that fails here fails again in its step, which tells why.
prepare() {
    local tool
    for tool in deny machete deb sbom; do
        cargo_tool "$tool"
    done
    fuzz_build
    cargo build --locked --release -p tandem-cli
    cargo build --locked --release -p tandem-cli -p tandem-lab --bins
}

prepare_idle() {
    export -f prepare cargo_tool fuzz_build
    export fuzz_host
    exec chrt --idle 0 bash -c prepare
}

step_lint() {
    cargo clippy --workspace --all-targets --locked -- -D warnings
}

# The pure crates open no socket or file, read no clock, start no thread: neither they nor what they depend on.
step_pure() {
    export -f code
    local crate found status=0
    local impure='tokio|mio|async-.*|smol|socket2|libc|nix|rustix|rustls|getrandom|rand|time|chrono|rayon|crossbeam.*'
    local calls='std::(fs|thread|process|env|os)\b|(Tcp|Unix)(Stream|Listener)|UdpSocket|ToSocketAddrs|tokio|stdin\('
    calls+='|Instant::now|SystemTime|UNIX_EPOCH|unsafe '
    for crate in http cache coding spdy predict replay preload push submit link resume tunnel; do
        found=$(cargo tree --locked -p "tandem-$crate" -e normal --prefix none --format '{p}') || return 1
        allow "$crate" "$found" || status=1
        grep -qxF '#![cfg_attr(not(test), deny(clippy::disallowed_methods))]' "crates/$crate/src/lib.rs" ||
            { echo "crates/$crate/src/lib.rs does not deny clippy::disallowed_methods" && status=1; }
        grep -wE "^($impure)" <<<"$found" | sed "s/^/tandem-$crate depends on /" && status=1
        found=$(find "crates/$crate/src" -name '*.rs' ! -name tests.rs ! -path '*/tests/*' -print0 |
            xargs -0 bash -c 'code "$@"' code | grep -E "$calls") && echo "$found" && status=1
    done
    # These depend on cryptography, which the check of crates does not permit.
    found=$(code crates/dtls/src/{association,cookie,crypto,envelope}.rs crates/{fleet,tokens}/src/*.rs | grep -E "$calls") && echo "$found" && status=1
    return $status
}

# The lines of files without comments and tests. Tests stand last in a file, or in files called tests.rs,
# and may read a clock.
code() {
    awk 'FNR == 1 { tests = 0 } /^#\[cfg\(test\)\]/ { tests = 1 } /^ *\/\// { next }
        !tests { print FILENAME ":" FNR ": " $0 }' "$@"
}

# Of our own crates, a pure one may use only these: spdy, submit, cache, coding and push use http, cache, push and replay use predict, push uses preload.
allow() {
    local others
    others=$(grep -o '^tandem-[a-z]*' <<<"$2" | sort -u | grep -vx "tandem-$1")
    case $1:$others in
    http: | predict: | preload: | link: | resume: | tunnel:tandem-resume | replay:tandem-predict | spdy:tandem-http | coding:tandem-http | submit:tandem-http | "cache:tandem-http"$'\n'tandem-predict | "push:tandem-http"$'\n'"tandem-predict"$'\n'tandem-preload) ;;
    *) echo "tandem-$1 depends on: $others" && return 1 ;;
    esac
}

# The tests of a target named `suite` wait for timers and sockets most of the time, so that more of them run at once than
# there are cores. Other targets measure times, or use all cores.
step_test() {
    if compgen -G 'crates/*/tests/su[!i]*'; then
        echo "the patterns below leave these targets out" && return 1
    fi
    RUST_TEST_THREADS=${RUST_TEST_THREADS:-4} cargo test --workspace --locked --test suite &&
        cargo test --workspace --locked --lib --bins --test '[!s]*' --test 's[!u]*' &&
        cargo test --workspace --locked --doc
}

# The C library as it is released: its size, and TLS through OpenSSL for clients that know only NPN. The latter has a
# directory of its own, since both forms of the library have one name.
step_microspdy() {
    local size
    cargo test --locked -p tandem-microspdy --features openssl-npn --test suite --target-dir "$CARGO_TARGET_DIR/npn" &&
        cargo build --locked -p tandem-microspdy --profile library || return 1
    size=$(stat --format %s "$CARGO_TARGET_DIR/library/libmicrospdy.so") || return 1
    echo "libmicrospdy.so has $size bytes"
    [ "$size" -le 2000000 ]
}

step_doc() {
    RUSTDOCFLAGS='-D warnings' cargo doc --workspace --no-deps --locked
}

# With the coverage that libFuzzer wants, as far as a stable compiler can be asked for it: no nightly, no cargo-fuzz.
fuzz_host=$(rustc -vV | sed -n 's/^host: //p')
fuzz_build() {
    local coverage='-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4'
    coverage+=' -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table'
    coverage+=' -Cllvm-args=-sanitizer-coverage-trace-compares'
    RUSTFLAGS="--cfg fuzzing $coverage -Ccodegen-units=1 -Cdebug-assertions -Coverflow-checks" \
        cargo build --manifest-path fuzz/Cargo.toml --locked --release --bins --target "$fuzz_host" --target-dir "$CARGO_TARGET_DIR/fuzz"
}

step_fuzz() {
    fuzz_build || return 1
    export -f fuzz
    export logs
    # As many at a time as there are processors.
    printf '%s\n' fuzz/fuzz_targets/*.rs | xargs -P "$(nproc)" -I{} bash -c 'fuzz "$@"' fuzz {} "$CARGO_TARGET_DIR/fuzz/$fuzz_host/release"
}

# One target for its time: fuzz FILE DIRECTORY-OF-PROGRAMS
fuzz() {
    local name corpus said status seeds=()
    name=$(basename "$1" .rs)
    corpus=$(mktemp -d)
    [ -d "fuzz/corpus-seeds/$name" ] && seeds=("fuzz/corpus-seeds/$name")
    # What broke it is left beside the log.
    said=$("$2/$name" "$corpus" "${seeds[@]}" -max_total_time="${FUZZ_SECONDS:-10}" -timeout=20 \
        -rss_limit_mb=2048 -max_len=65536 -verbosity=0 -print_final_stats=1 -artifact_prefix="$logs/$name-" 2>&1)
    status=$?
    rm -rf "$corpus"
    printf '== %s: status %s\n%s\n' "$name" "$status" "$said"
    return "$status"
}

# Other people's programs at the other end of our sessions, and one that looks on.
step_interop() {
    each interop/*.sh
}

# Attacks on both proxies, each with bounds on memory, processor time and the service of an honest user.
step_attack() {
    build_programs &&
        "$CARGO_TARGET_DIR/debug/tandem-lab" attack --seconds "${ATTACK_SECONDS:-100}"
}

# Scenes on a private network of the real tor, which need root.
step_tornet() {
    each tests/*.sh crates/*/tests/*.sh
}

each() {
    local script status=0 count=0
    for script in "$@"; do
        [ -x "$script" ] || continue
        count=$((count + 1))
        echo "== $script"
        "$script" || { echo "$script failed" && status=1; }
    done
    [ "$count" -gt 0 ] || { echo "no script to run in: $*" && return 1; }
    return $status
}

# Visitors, kills, reloads and jumps of the clock for a moment; the whole hour is `tandem-lab soak --faketime`.
step_soak() {
    build_programs &&
        "$CARGO_TARGET_DIR/debug/tandem-lab" soak --seconds "${SOAK_SECONDS:-20}" --faketime --output "$logs/soak"
}

# What a newcomer runs first, and the keys that programs read.
step_demo() {
    local json=$logs/demo.json key
    cargo run --locked --release -p tandem-cli -- demo --json >"$json" || return 1
    for key in rows setup time_s bytes_up bytes_down requests ratio_time ratio_bytes; do
        grep -q "\"$key\":" "$json" || { echo "$key is missing in:" && cat "$json" && return 1; }
    done
    cat "$json"
}

passed=0 failed=0
run() {
    local name=$1 log=$logs/$1.log start=$SECONDS status
    # These steps use the results of `prepare`.
    case $name in
    deny | machete | package | fuzz | demo)
        [ -z "$preparing" ] || wait "$preparing"
        # Another process may have this number later.
        preparing=
        ;;
    esac
    # In a shell of its own, so that a step's own settings end with it.
    begin "step_$name" >"$log" 2>&1 </dev/null
    running=$!
    wait "$running"
    status=$?
    running=
    if [ "$status" -eq 0 ]; then
        passed=$((passed + 1))
        printf 'ok    %-8s %4d s\n' "$name" $((SECONDS - start))
    else
        failed=$((failed + 1))
        printf 'FAIL  %-8s %4d s  %s\n' "$name" $((SECONDS - start)) "$log"
        tail -n 200 "$log" | sed 's/^/      | /'
    fi
}

# Runs a command in the background, as the leader of a process group. Outside one, a job of a script ignores SIGINT.
begin() {
    set -m
    "$@" &
    set +m
}

# The process groups under way, or nothing.
running='' preparing=''

# Ends all processes of a group, and the descendants of its leader that have groups of their own, such as those of `timeout`. After
# five seconds, they are killed.
end_group() {
    local leader=$1 pids round
    mapfile -t pids < <(descendants "$leader")
    pids+=("-$leader")
    kill -TERM -- "${pids[@]}" 2>/dev/null
    for ((round = 0; round < 50; round++)); do
        # It is enough for `kill` that one of them exists.
        kill -0 -- "${pids[@]}" 2>/dev/null || return 0
        sleep 0.1
    done
    kill -KILL -- "${pids[@]}" 2>/dev/null
}

# The process ids of the children of a process, and those of their children.
descendants() {
    local child
    for child in $(pgrep -P "$1"); do
        echo "$child"
        descendants "$child"
    done
}

# Ends the step under way and the builds beside it: they would go on after a killed script.
end() {
    local group
    for group in $running $preparing; do
        end_group "$group"
    done
    running='' preparing=''
}

# Ends with a signal, as if the script had not caught it: end_by SIGNAL
end_by() {
    trap '' HUP INT TERM
    end
    trap - EXIT "$1"
    kill -s "$1" $$
}
trap end EXIT
for signal in HUP INT TERM; do
    # shellcheck disable=SC2064
    trap "end_by $signal" "$signal"
done

steps=("$@")
if [ ${#steps[@]} -eq 0 ]; then
    steps=(install fmt pure lint test microspdy doc interop tornet deny machete package fuzz attack demo)
fi
export PATH=$PATH:/usr/sbin:/sbin:/usr/local/go/bin
for step in "${steps[@]}"; do
    declare -F "step_$step" >/dev/null || { echo "no step is called $step" >&2 && exit 2; }
done
for step in "${steps[@]}"; do
    run "$step"
    # All steps run.
    if [ $# -eq 0 ] && [ "$step" = install ]; then
        begin prepare_idle >"$logs/prepare.log" 2>&1 </dev/null
        preparing=$!
    fi
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
