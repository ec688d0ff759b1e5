#!/usr/bin/env bash
# Other people's SPDY clients as real processes against a C program on crates/microspdy, over plain TCP and over TLS with
# ALPN. One line for each case; fails if one does.
#
#   foreign client ═══▶ crates/microspdy/tests/c/peer.c
#
#   interop/microspdy.sh [CASE...]
. "$(dirname "$0")/common.sh"

cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=(get post bodies concurrent push cut ping settings priorities many)

need openssl openssl cc gcc
build_foreign spdystream
(cd "$here/.." && cargo build --quiet --locked -p tandem-microspdy) || exit 1
crate=$here/../crates/microspdy
# The loader looks for the soname.
cp "${CARGO_TARGET_DIR:-$here/../target}/debug/libmicrospdy.so" "$work/libmicrospdy.so.0" &&
    cc -std=c99 -Wall -Wextra -pedantic -Werror -I "$crate/include" -o "$work/peer" "$crate/tests/c/peer.c" \
        "$work/libmicrospdy.so.0" "-Wl,-rpath,$work" || exit 1

cert=$work/cert.pem key=$work/key.pem
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=interop \
    -addext subjectAltName=IP:127.0.0.1 -keyout "$key" -out "$cert" 2>"$work/openssl.log" ||
    { cat "$work/openssl.log" >&2 && exit 1; }

# The clients of a version ask a server: ask LABEL VERSION SERVER
ask() {
    local case
    for case in "${cases[@]}"; do
        run "spdy-transport $2 asks $case over $1" "${transport[@]}" client "$2" "$3" "$case"
        [ "$2" = 3 ] || run "spdystream $2 asks $case over $1" "$work/spdystream" client "$3" "$case"
    done
}

start '^port ([0-9]+)$' "$work/peer" raw
ask TCP 3 "127.0.0.1:$address"
start '^port ([0-9]+)$' "$work/peer" raw3.1
ask TCP 3.1 "127.0.0.1:$address"
# Both ends offer both versions, so TLS always chooses SPDY/3.1. The certificate is its own authority.
start '^port ([0-9]+)$' "$work/peer" "$cert" "$key"
export CA=$cert
ask TLS 3.1 "127.0.0.1:$address"
finish
