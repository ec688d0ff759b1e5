#!/usr/bin/env bash
# SPDY with other people's programs as real processes, in both roles: moby/spdystream (Go, SPDY/3.1) and npm's
# spdy-transport (SPDY/3 and SPDY/3.1). One line for each case; fails if one does.
#
#   interop/run.sh [CASE...]        PEER=path uses a peer that is built already
set -u
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
servers=()
cleanup() {
    for pid in "${servers[@]}"; do kill "$pid" 2>/dev/null; done
    rm -rf "$work"
}
trap cleanup EXIT

cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(get post bodies concurrent push reset ping goaway settings priorities many)

if [ -z "${PEER:-}" ]; then
    (cd "$here/.." && cargo build --quiet -p tandem-spdy --example peer) || exit 1
    target=${CARGO_TARGET_DIR:-$here/../target}
    PEER=$target/debug/examples/peer
fi
(cd "$here/spdystream" && go build -o "$work/spdystream" .) || exit 1
[ -d "$here/spdy-transport/node_modules/spdy-transport" ] ||
    (cd "$here/spdy-transport" && npm ci --silent) || exit 1

failed=0
count=0

# Starts a server and leaves its address in $address.
start() {
    local out
    out=$(mktemp -p "$work")
    "$@" >"$out" 2>"$out.err" &
    servers+=($!)
    for _ in $(seq 200); do
        address=$(head -n 1 "$out")
        [ -n "$address" ] && return
        sleep 0.05
    done
    echo "no server: $*" >&2
    exit 1
}

# Runs one case: run LABEL COMMAND...
run() {
    local label=$1 said
    shift
    count=$((count + 1))
    if said=$(timeout 120 "$@" 2>&1); then
        echo "ok    $label"
    else
        echo "FAIL  $label: ${said:-killed after 120 s}"
        failed=$((failed + 1))
    fi
}


for version in 3 3.1; do
    start node "$here/spdy-transport/peer.js" serve "$version"
    for case in "${cases[@]}"; do
        run "spdy-transport $version serves $case" "$PEER" client "$version" "$address" "$case"
    done
    start "$PEER" serve "$version"
    for case in "${cases[@]}"; do
        run "spdy-transport $version asks $case" node "$here/spdy-transport/peer.js" client "$version" "$address" "$case"
    done
done

start "$work/spdystream" serve
whole=$address
start "$work/spdystream" serve-frames
framer=$address
start "$PEER" serve 3.1
for case in "${cases[@]}"; do
    # Its connections ignore SETTINGS and tell no priority: those two cases meet its framer.
    case $case in settings | priorities) there=$framer ;; *) there=$whole ;; esac
    run "spdystream 3.1 serves $case" "$PEER" client 3.1 "$there" "$case"
    run "spdystream 3.1 asks $case" "$work/spdystream" client "$address" "$case"
done

echo "$((count - failed)) of $count cases hold"
[ "$failed" -eq 0 ]
