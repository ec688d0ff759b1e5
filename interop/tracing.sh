#!/usr/bin/env bash
# bpftrace on a running gateway: it attaches to the USDT probes, which raises their semaphores, counts what passes with its
# values, and lets go. Needs root and a kernel with uprobes and BPF. No restart, no control socket: that only looks on.
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
started=()
cleanup() {
    for pid in "${started[@]}"; do kill "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT

fail() {
    echo "FAIL  $1"
    [ -f "$work/trace" ] && cat "$work/trace"
    exit 1
}

[ "$(id -u)" -eq 0 ] || fail "only root may attach tracers"
(cd "$here/.." && cargo build --quiet -p tandem) || exit 1
target=${CARGO_TARGET_DIR:-$here/../target}
# bpftrace ends its paths at a colon and wants them absolute.
tandem=$(realpath "$target/debug/tandem")

# Waits until a command succeeds: until WHAT COMMAND...
until_true() {
    local what=$1
    shift
    for _ in $(seq 300); do
        "$@" && return
        sleep 0.1
    done
    fail "never happened: $what"
}

# Starts a role and leaves its process in $pid and where it listens in $address.
start() {
    "$tandem" "$@" 2>"$work/$1.log" &
    pid=$!
    started+=("$pid")
    until_true "$1 listens" grep -q 'listening on' "$work/$1.log"
    address=$(sed -n 's|.*listening on [a-z0-9.]*://||p' "$work/$1.log" | head -n 1)
}

tracers() {
    "$tandem" probe list origin.head --json --control "$work/control" | grep -q "\"tracers\": $1"
}

fetch() {
    curl -sS -o "$work/page" -x "http://$proxy" "http://$origin/metrics" || fail "no answer through the pair"
}

start gateway --listen h2+tcp://127.0.0.1:0 --open --allow-dest 127.0.0.0/8 --control "$work/control" \
    --metrics 127.0.0.1:0
# Its metrics are the origin.
origin=$(sed -n 's|.*metrics on http://\([^/]*\)/.*|\1|p' "$work/gateway.log")
start client --listen http://127.0.0.1:0 --gateway "h2+tcp://$address"
proxy=$address

fetch
tracers 0 || fail "a tracer before one was attached"
program="usdt:$tandem:tandem:origin_head { @heads = count(); @ns = min(arg0); }
    usdt:$tandem:tandem:queue_core { @parts = count(); @streams[arg1] = count(); }"
bpftrace -e "$program" >"$work/trace" 2>&1 &
tracer=$!
started+=("$tracer")
until_true "bpftrace attaches" tracers 1
for _ in 1 2 3; do fetch; done
kill -INT "$tracer"
wait "$tracer"
grep -q '^@heads: 3$' "$work/trace" || fail "not the three answers that passed"
# No answer comes sooner than after a microsecond.
least=$(sed -n 's/^@ns: //p' "$work/trace")
[ "${least:-0}" -gt 1000 ] || fail "not a time: $least"
grep -q '^@streams\[[0-9]*[13579]\]: ' "$work/trace" || fail "no stream's number"
until_true "bpftrace lets go" tracers 0
fetch
echo "ok    bpftrace: three answers seen, the fastest after $least ns"
