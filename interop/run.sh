#!/usr/bin/env bash
# SPDY with other people's programs as real processes, in both roles, over plain TCP: moby/spdystream (Go, SPDY/3.1) and
# npm's spdy-transport (SPDY/3 and SPDY/3.1). One line for each case; fails if one does.
#
#   interop/run.sh [CASE...]        PEER=path uses a peer that is built already
. "$(dirname "$0")/common.sh"

cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(get post bodies concurrent push reset ping goaway settings priorities many)

build_foreign spdystream
build PEER examples/peer -p tandem-spdy --example peer

for version in 3 3.1; do
    start "$own_address" "${transport[@]}" serve "$version"
    for case in "${cases[@]}"; do
        run "spdy-transport $version serves $case" "$PEER" client "$version" "$address" "$case"
    done
    start "$own_address" "$PEER" serve "$version"
    for case in "${cases[@]}"; do
        run "spdy-transport $version asks $case" "${transport[@]}" client "$version" "$address" "$case"
    done
done

start "$own_address" "$work/spdystream" serve
whole=$address
start "$own_address" "$work/spdystream" serve-frames
framer=$address
start "$own_address" "$PEER" serve 3.1
for case in "${cases[@]}"; do
    # Its connections ignore SETTINGS and tell no priority: those two cases meet its framer.
    case $case in settings | priorities) there=$framer ;; *) there=$whole ;; esac
    run "spdystream 3.1 serves $case" "$PEER" client 3.1 "$there" "$case"
    run "spdystream 3.1 asks $case" "$work/spdystream" client "$address" "$case"
done
finish
